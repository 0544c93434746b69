"""Time a step of masked-language-model training, or feature extraction: this plugin, fairseq, Hugging Face. JSON.

    python benchmarks/mlm_step.py --size base --length 512 --batch 4                    # a CPU
    python benchmarks/mlm_step.py --size base --length 512 --batch 64 --dtype bfloat16   # a GPU, if there is one
    python benchmarks/mlm_step.py --mode features
    python benchmarks/mlm_step.py --models tupe_r:bfloat16 tupe_r bmm_tupe_r            # what half precision brings

A step is forward, loss, backward, clipping of the gradient's norm and Adam. All contestants take the same
batches (15 % masked; --padding of the batch's columns are padding in the shorter half of the sentences) and run in
turns, repetition by repetition, in processes of their own. FLOPs are counted by formula, alike for all; the peak they
are compared with is that of a large matrix product of the same type, measured in the same run.

`bmm_tupe_r` restates, plainly, how the code of the TUPE paper computes its attention (time-first layout, one bmm per
product, the bias copied for every sentence): a peer for the same model. It is written for this benchmark.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from typing import Any

import torch
import torch.nn.functional as F
from peers import machine, resident_mb
from torch import Tensor, nn
from train_step import allocated_mb, attention_operations, clock, matrix_peak, synchronise

from embinit_fairseq.arguments import ArgumentParser

#: size -> layers, width, heads; the feed-forward width is four times the model's
SIZES = {"tiny": (4, 256, 4), "base": (12, 768, 12), "large": (24, 1024, 16)}
VOCABULARY, PAD, BOS = 32768, 1, 0
DTYPES = ("float32", "bfloat16")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Contestant(nn.Module):
    """Wrap a model of fairseq: `features(tokens)` (batch, length, C), `forward(tokens, masked)` logits (N, V)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def features(self, tokens: Tensor) -> Tensor:
        return self.model(tokens, features_only=True)[0]

    def forward(self, tokens: Tensor, masked: Tensor) -> Tensor:
        return self.model(tokens, masked_tokens=masked)[0]


class HuggingFaceBert(Contestant):
    """Project the masked positions only, as the other models; the stock head projects every position."""

    def features(self, tokens: Tensor) -> Tensor:
        return self.model.bert(tokens, attention_mask=tokens.ne(PAD)).last_hidden_state

    def forward(self, tokens: Tensor, masked: Tensor) -> Tensor:
        return self.model.cls(self.features(tokens)[masked])


def fairseq_options(args: argparse.Namespace) -> tuple[dict[str, Any], argparse.Namespace]:
    """Return the options of a model of fairseq's kind, and a task with its dictionary."""
    from fairseq.data import Dictionary

    dictionary = Dictionary()
    for number in range(VOCABULARY - len(dictionary)):
        dictionary.add_symbol(f"w{number}")
    layers, width, heads = SIZES[args.size]
    options = {
        "encoder_layers": layers,
        "encoder_embed_dim": width,
        "encoder_ffn_embed_dim": 4 * width,
        "encoder_attention_heads": heads,
        "dropout": args.dropout,
        "attention_dropout": args.attention_dropout,
        "max_positions": max(512, args.length),
    }
    return options, argparse.Namespace(source_dictionary=dictionary, mask_idx=4)  # with masks: a language-model head


def ours(args: argparse.Namespace, **more: Any) -> Contestant:
    import fairseq  # noqa: F401

    from embinit_fairseq.models.tupe import TupeConfig, TupeModel

    options, task = fairseq_options(args)
    cfg = TupeConfig(**options, embedding_normalize=True, attention_kernel=args.kernel, **more)
    return Contestant(TupeModel.build_model(cfg, task))


def fairseq_roberta(args: argparse.Namespace) -> Contestant:
    from fairseq.models import ARCH_CONFIG_REGISTRY
    from fairseq.models.roberta import RobertaModel

    options, task = fairseq_options(args)
    options = argparse.Namespace(**options)
    ARCH_CONFIG_REGISTRY["roberta_base"](options)
    return Contestant(RobertaModel.build_model(options, task))


def huggingface_bert(args: argparse.Namespace) -> Contestant:
    from transformers import BertConfig, BertForMaskedLM

    layers, width, heads = SIZES[args.size]
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        max_position_embeddings=max(512, args.length),
        hidden_dropout_prob=args.dropout,
        attention_probs_dropout_prob=args.attention_dropout,
        attn_implementation="sdpa",
    )
    return HuggingFaceBert(BertForMaskedLM(config))


def bmm_tupe_r(args: argparse.Namespace) -> Contestant:
    from embinit_fairseq.modules import encoder_layer

    contestant = ours(args, rel_pos=True)
    encoder_layer.WORTHWHILE = 2.0  # no packing, as in TUPE's code (this process runs no other contestant)
    for layer in contestant.model.encoder.sentence_encoder.layers:
        layer.self_attn.forward = BmmAttention(layer.self_attn)
    return contestant


class BmmAttention:
    """Compute attention as `bmm`s over batch x heads on (length, batch, C), with this plugin's parameters."""

    def __init__(self, attention: nn.Module) -> None:
        self.attention = attention

    def __call__(self, x: Tensor, attn_bias: Any, projections: Any = None, packing: None = None) -> Tensor:
        ours = self.attention
        x = x.transpose(0, 1)
        length, batch, width = x.shape
        heads = ours.num_heads
        q, k, v = ours.qkv_proj(x).chunk(3, dim=-1)
        q, k, v = ((t.contiguous().view(length, batch * heads, -1).transpose(0, 1)) for t in (q * ours.scale, k, v))
        weights = torch.bmm(q, k.transpose(1, 2))
        weights = weights + attn_bias.bias.repeat(batch, 1, 1)
        if attn_bias.padding_mask is not None:
            weights = weights.view(batch, heads, length, length)
            weights = weights.masked_fill(attn_bias.padding_mask[:, None, None], float("-inf"))
            weights = weights.view(batch * heads, length, length)
        weights = F.softmax(weights.float(), dim=-1).type_as(weights)
        weights = F.dropout(weights, p=ours.dropout, training=ours.training)
        y = torch.bmm(weights, v).transpose(0, 1).contiguous().view(length, batch, width)
        return ours.out_proj(y).transpose(0, 1)


#: name -> function that builds the contestant
BUILDERS = {
    "tupe_r": lambda args: ours(args, rel_pos=True),
    "tupe_a": ours,
    "bert_a": lambda args: ours(args, position_encoding="added"),
    "bmm_tupe_r": bmm_tupe_r,
    "fairseq_roberta": fairseq_roberta,
    "huggingface_bert": huggingface_bert,
}


def measure(name: str, dtype: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return seconds per step, memory and kernels of one contestant."""
    torch.manual_seed(1)
    try:
        model = BUILDERS[name](args).to(DEVICE)
    except ImportError as error:
        return {"missing": str(error)}
    training = args.mode == "train"
    model.train(training)
    adam = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    batches = [example(args, seed) for seed in range(args.warmup + args.steps)]

    def step(tokens, masked, targets):
        with torch.autocast(DEVICE, torch.bfloat16, enabled=dtype == "bfloat16"):
            if not training:
                with torch.no_grad():
                    return model.features(tokens)
            logits = model(tokens, masked)
        F.cross_entropy(logits.float(), targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        adam.zero_grad(set_to_none=True)

    for batch in batches[: args.warmup]:
        step(*batch)
    synchronise(DEVICE)
    begin = clock(DEVICE, args.threads)
    for batch in batches[args.warmup :]:
        step(*batch)
    synchronise(DEVICE)
    seconds = (clock(DEVICE, args.threads) - begin) / args.steps
    memory = resident_mb() if DEVICE == "cpu" else allocated_mb(DEVICE)
    kernels = attention_operations(lambda: step(*batches[0]))
    tokens = sum(int(batch[0].ne(PAD).sum()) for batch in batches[args.warmup :]) / args.steps
    return {"seconds": seconds, "tokens": tokens, "peak_mb": memory, "kernels": kernels}


def example(args: argparse.Namespace, seed: int) -> tuple[Tensor, ...]:
    """Return tokens (batch, length), masked (batch, length), targets (N,)."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(4, VOCABULARY, (args.batch, args.length), generator=generator)
    tokens[:, 0] = BOS
    if args.padding:
        tokens[1::2, args.length - int(args.padding * args.length) :] = PAD
    masked = (torch.rand(tokens.shape, generator=generator) < 0.15) & tokens.ne(PAD)
    masked[:, 0], masked[:, 1] = False, True
    return tokens.to(DEVICE), masked.to(DEVICE), tokens[masked].to(DEVICE)


def flops(args: argparse.Namespace) -> float:
    """Return the FLOPs of one step without padding: 2 per multiplication and addition; backward twice forward."""
    (layers, width, _), tokens = SIZES[args.size], args.batch * args.length
    forward = layers * tokens * (24 * width**2 + 4 * args.length * width)
    if args.mode == "features":
        return forward
    return 3 * (forward + 0.15 * tokens * 2 * (width**2 + width * VOCABULARY))


def report(args: argparse.Namespace, turns: list[dict[str, Any]], peaks: dict[str, float]) -> dict[str, Any]:
    """Return medians over the turns; `seconds_relative_to`: ratios to the first one."""
    results, medians, work = {}, {}, flops(args)
    for name in args.models:
        runs = [turn[name] for turn in turns]
        results[name] = runs[0]
        if "missing" in runs[0]:
            continue
        medians[name] = seconds = statistics.median(run["seconds"] for run in runs)
        results[name] = {
            "seconds": [round(run["seconds"], 4) for run in runs],
            "tokens_per_second": round(runs[0]["tokens"] / seconds),
            "tflops_per_second": round(work / seconds / 1e12, 3),
            "share_of_peak": round(work / seconds / peaks[name.split(":")[1]], 3),
            "peak_mb": round(max(run["peak_mb"] for run in runs)),
            "attention": runs[0]["kernels"],
        }
    first = next(iter(medians), None)
    return {
        "device": torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu",
        "machine": machine(["torch", "fairseq", "transformers"]),
        "settings": {key: value for key, value in vars(args).items() if key != "job"},
        "measured_peak_tflops": {dtype: round(peak / 1e12, 3) for dtype, peak in peaks.items()},
        "results": results,
        "seconds_relative_to": {first: {name: round(value / medians[first], 2) for name, value in medians.items()}},
    }


def in_its_own_process(job: str) -> Any:
    """Return the numbers of this program with further argument `--job`."""
    done = subprocess.run([sys.executable, *sys.argv, "--job", job], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    choices = [*BUILDERS, *(f"{name}:{dtype}" for name in BUILDERS for dtype in DTYPES)]
    named = {"choices": choices, "metavar": "NAME[:DTYPE]", "help": f"of {', '.join(BUILDERS)}"}
    parser.add_argument("--models", nargs="+", default=list(BUILDERS), **named)
    parser.add_argument("--mode", choices=("train", "features"), default="train")
    parser.add_argument("--size", choices=list(SIZES), default="base")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch", type=int, default=4, help="sentences")
    parser.add_argument("--padding", type=float, default=0.0, help="share of padding in every second sentence")
    parser.add_argument("--steps", type=int, default=3, help="timed steps of a turn")
    parser.add_argument("--warmup", type=int, default=1, help="steps before the timed ones")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="bfloat16: autocast")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--attention-dropout", type=float, default=0.1)
    parser.add_argument("--kernel", default="auto", help="--attention-kernel of ours")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--job", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        torch.set_num_threads(args.threads)
        name, dtype = args.job.split(":")
        peak = name == "peak"
        print(
            json.dumps(matrix_peak(DEVICE, getattr(torch, dtype), args.threads) if peak else measure(name, dtype, args))
        )
        return
    args.models = [name if ":" in name else f"{name}:{args.dtype}" for name in args.models]
    peaks = {dtype: in_its_own_process(f"peak:{dtype}") for dtype in sorted({n.split(":")[1] for n in args.models})}
    turns = [{name: in_its_own_process(name) for name in args.models} for _ in range(args.turns)]
    print(json.dumps(report(args, turns, peaks), indent=2))


if __name__ == "__main__":
    main()
