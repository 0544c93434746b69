"""`tupe_transformer` against fairseq's `transformer` of the same size: training step and beam search. Prints JSON.

    python benchmarks/tupe_transformer.py [--layers 6 --dim 512 --ffn 2048 --heads 8] [--sentences 32] [--repeats 5]

Both models are in one process and take turns, so that a busy machine troubles both alike; figures are medians of CPU
seconds (of wall seconds on a GPU), and the ratio is that of the medians, ours to stock. The sentences are random words,
--length and fewer, down to its half. Beam search is fairseq's, and every output is made as long as --length: both
models do the same number of steps.

    training_step     forward, cross-entropy, backward, Adam; dropout 0.1
    decode_batch      all sentences in one batch
    decode_single     one sentence alone: latency
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerModel, base_architecture
from fairseq.sequence_generator import SequenceGenerator
from peers import machine

from embinit_fairseq.models.tupe_transformer import TupeTransformerConfig, TupeTransformerModel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=6, help="of encoder and of decoder (default: %(default)s)")
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--ffn", type=int, default=2048)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=10_000)
    parser.add_argument("--sentences", type=int, default=32, help="in a batch (default: %(default)s)")
    parser.add_argument("--length", type=int, default=25, help="longest sentence in tokens (default: %(default)s)")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--rel-pos", action="store_true", help="relative positions, too")
    parser.add_argument("--half", action="store_true", help="bfloat16: autocast in training, the model in decoding")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    torch.manual_seed(1)
    models = {"stock": stock(args), "ours": ours(args)}
    record = {
        "machine": machine(("torch", "fairseq")),
        "threads": torch.get_num_threads(),
        "options": vars(args),
        "parameters": {name: sum(p.numel() for p in model.parameters()) for name, model in models.items()},
    }
    for job, prepare in (("training_step", train), ("decode_batch", decode), ("decode_single", decode_one)):
        record[job] = compare({name: prepare(model, args) for name, model in models.items()}, args)
    print(json.dumps(record, indent=2))


def task_of(args: argparse.Namespace) -> SimpleNamespace:
    dictionary = Dictionary()
    for word in range(args.vocabulary - len(dictionary)):
        dictionary.add_symbol(f"w{word}")
    return SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)


def sizes(args: argparse.Namespace) -> dict[str, int]:
    names = {"layers": args.layers, "embed_dim": args.dim, "ffn_embed_dim": args.ffn, "attention_heads": args.heads}
    return {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in names.items()}


def stock(args: argparse.Namespace) -> torch.nn.Module:
    options = argparse.Namespace(**sizes(args), max_source_positions=1024, max_target_positions=1024)
    base_architecture(options)
    return TransformerModel.build_model(options, task_of(args)).to(args.device)


def ours(args: argparse.Namespace) -> torch.nn.Module:
    cfg = TupeTransformerConfig(
        **sizes(args), rel_pos=args.rel_pos, max_source_positions=1024, max_target_positions=1024
    )
    return TupeTransformerModel.build_model(cfg, task_of(args)).to(args.device)


def sentences(args: argparse.Namespace, number: int) -> torch.Tensor:
    """(number, length) random words, right-padded."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(4, args.vocabulary, (number, args.length), generator=generator)
    lengths = torch.linspace(args.length, args.length // 2, number).long()
    for row, length in enumerate(lengths.tolist()):
        tokens[row, length - 1] = 2
        tokens[row, length:] = 1
    return tokens.to(args.device)


def train(model: torch.nn.Module, args: argparse.Namespace) -> Callable[[], Any]:
    source = sentences(args, args.sentences)
    target = source.flip(0)
    previous = torch.cat([target.new_full((len(target), 1), 2), target[:, :-1]], dim=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step() -> None:
        model.train()
        with torch.autocast(args.device, torch.bfloat16, enabled=args.half):
            logits = model(source, None, previous)[0]
        loss = torch.nn.functional.cross_entropy(logits.float().transpose(1, 2), target, ignore_index=1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def decode(model: torch.nn.Module, args: argparse.Namespace, number: int | None = None) -> Callable[[], Any]:
    source = sentences(args, number or args.sentences)
    lengths = source.ne(1).sum(1)
    length = {"max_len_a": 0, "max_len_b": args.length, "min_len": args.length}

    def search() -> None:
        model.to(torch.bfloat16 if args.half else torch.float32)
        generator = SequenceGenerator([model], model.decoder.dictionary, beam_size=args.beam, **length)
        generator.generate([model], {"net_input": {"src_tokens": source, "src_lengths": lengths}})

    return search


def decode_one(model: torch.nn.Module, args: argparse.Namespace) -> Callable[[], Any]:
    return decode(model, args, number=1)


def compare(jobs: dict[str, Callable[[], Any]], args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of each job, one warm-up not counted, the jobs in turns."""
    clock = time.process_time if args.device == "cpu" else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for repeat in range(args.repeats + 1):
        for name, job in jobs.items():
            start = clock()
            job()
            if args.device != "cpu":
                torch.cuda.synchronize()
            if repeat:
                seconds[name].append(clock() - start)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "seconds": {name: [round(value, 4) for value in values] for name, values in seconds.items()},
        "median": {name: round(value, 4) for name, value in medians.items()},
        "ratio": round(medians["ours"] / medians["stock"], 3),
    }


if __name__ == "__main__":
    main()
