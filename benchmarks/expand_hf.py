"""Add words to a model of Hugging Face: `ei.expand_hf` and transformers' `resize_token_embeddings(mean_resizing=True)`.

    python benchmarks/expand_hf.py                                          # 50,257 x 768 and 32,000 x 2048; 100 words
    python benchmarks/expand_hf.py --sizes 2000x64 --words 10 --repeat 1

The model is a GPT-2 with one layer and random numbers. It is not tied, so that it does not repeat its input; its logits
have a standard deviation of 3, so that predictions are not flat. Every job runs in a process of its own with one
thread, adds the words to tokenizer and model, and measures KL(old || new) on the same 4 x 64 random tokens. Seconds are
CPU seconds; memory is the peak less the process's memory before, the longer matrices included.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from typing import Any

import torch
from peers import child_main, machine, measured, resident_mb, run_job
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

import embinit_fairseq as ei
from embinit_fairseq.arguments import ArgumentParser

METHODS = ("avg", "gaussian", "subword")
#: standard deviation of the logits
SPREAD = 3.0


def make(rows: int, columns: int) -> tuple[GPT2LMHeadModel, PreTrainedTokenizerFast]:
    """Return a model with random numbers, and a tokenizer with half of its tokens at the beginning of words."""
    torch.manual_seed(0)
    sizes = {"vocab_size": rows, "n_embd": columns, "n_layer": 1, "n_head": 4, "n_positions": 64}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, tie_word_embeddings=False)).eval()
    with torch.no_grad():
        model.lm_head.weight.normal_(std=SPREAD / columns**0.5)  # the last layer norm gives states of length sqrt(D)
    tokens = ["[UNK]", *(f"{'##' * (number % 2)}w{number}." for number in range(1, rows))]
    model_of_words = WordPiece({token: row for row, token in enumerate(tokens)}, unk_token="[UNK]")
    return model, PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model_of_words), unk_token="[UNK]")


def log_probabilities(model: GPT2LMHeadModel, rows: int) -> torch.Tensor:
    """Return (4 * 64, symbols), float64."""
    ids = torch.randint(rows, (4, 64), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        return model(ids).logits.double().log_softmax(-1).flatten(0, 1)


def job(args: argparse.Namespace) -> dict[str, Any]:
    """Time one way, and measure KL(old || new)."""
    rows, columns = map(int, args.size.split("x"))
    model, tokenizer = make(rows, columns)
    words = [f"w{number}.w{number + 1}." for number in range(2, 2 + 2 * args.k, 2)]
    ei.expand_hf(*copy.deepcopy(make(10, 8)), ["a"])  # imports are not timed
    before = resident_mb(peak=False)

    def work() -> dict[str, Any]:
        if args.job != "hugging_face":
            return ei.expand_hf(model, tokenizer, words, args.job)
        tokenizer.add_tokens(words)
        model.resize_token_embeddings(len(tokenizer), mean_resizing=True)
        return {}

    report, numbers = measured(work)
    new = log_probabilities(model, rows)
    old = log_probabilities(make(rows, columns)[0], rows)  # afterwards: its memory does not belong to the job
    assert new.shape[1] == rows + args.k
    divergence = (old.exp() * (old - new[:, :rows])).sum(-1)
    result = {"cpu_seconds": numbers["cpu_seconds"], "added_mb": numbers["peak_mb"] - before}
    result |= {"kl_mean": divergence.mean().item(), "kl_max": divergence.max().item()}
    bound = report.get("bound")
    return {name: float(f"{value:.4g}") for name, value in result.items()} | {"bound": bound}


def main() -> None:
    """Print one JSON object with the quickest run of each job."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["50257x768", "32000x2048"], metavar="ROWSxCOLUMNS")
    parser.add_argument("--words", type=int, default=100, metavar="K")
    parser.add_argument("--repeat", type=int, default=2, help="runs of every job; the quickest counts")
    for name, kind in (("--job", str), ("--size", str), ("--k", int)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    args = parser.parse_args()
    names = (*METHODS, "hugging_face")
    if args.job:
        child_main(dict.fromkeys(names, job), args)
        return
    report: dict[str, Any] = {"machine": machine(("torch", "numpy", "transformers")), "words": args.words}
    for size in args.sizes:
        report[size] = {}
        for name in names:
            print(f"{size}: {name} ...", file=sys.stderr)
            runs = [run_job(__file__, name, ["--size", size, "--k", str(args.words)]) for _ in range(args.repeat)]
            report[size][name] = min(runs, key=lambda run: run["cpu_seconds"])
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
