"""One step of masked-language-model training, or feature extraction: ours against fairseq and Hugging Face. JSON.

    python benchmarks/mlm_step.py --size base --length 512 --batch 4                    # a CPU
    python benchmarks/mlm_step.py --size base --length 512 --batch 64 --dtype bfloat16   # a GPU, if there is one
    python benchmarks/mlm_step.py --mode features
    python benchmarks/mlm_step.py --models tupe_r:bfloat16 tupe_r bmm_tupe_r            # what half precision brings

A step is forward, loss, backward, clipping of the gradient's norm and Adam. All contestants take the same
batches (15 % masked; --padding of the batch's columns are padding in the shorter half of the sentences) and run in
turns, repetition by repetition, in processes of their own. FLOPs are counted by formula, alike for all; the peak they
are compared with is that of a large matrix product of the same type, measured in the same run.
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
from mlm_models import BUILDERS, SIZES, VOCABULARY, Size
from peers import machine, peak_mb
from train_step import allocated_mb, attention_operations, clock, matrix_peak, synchronise

PAD, BOS = 1, 0
DTYPES = ("float32", "bfloat16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models", nargs="+", type=contestant, default=list(BUILDERS), help="NAME, or NAME:DTYPE if not --dtype's"
    )
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
        print(json.dumps(measure_peak(dtype, args.threads) if name == "peak" else measure(name, dtype, args)))
        return
    args.models = [name if ":" in name else f"{name}:{args.dtype}" for name in args.models]
    dtypes = sorted({name.split(":")[1] for name in args.models})
    peaks = {dtype: in_its_own_process(f"peak:{dtype}")["flops"] for dtype in dtypes}
    turns = [{name: in_its_own_process(name) for name in args.models} for _ in range(args.turns)]
    print(json.dumps(report(args, turns, peaks), indent=2))


def contestant(text: str) -> str:
    """NAME or NAME:DTYPE."""
    name, _, dtype = text.partition(":")
    if name not in BUILDERS or (":" in text and dtype not in DTYPES):
        raise argparse.ArgumentTypeError(f"{text}: NAME or NAME:DTYPE of {', '.join(BUILDERS)} and {', '.join(DTYPES)}")
    return text


def in_its_own_process(job: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, *sys.argv, "--job", job], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(name: str, dtype: str, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds a step, memory and kernels of one contestant."""
    device = torch.device(device_type())
    torch.manual_seed(1)
    try:
        model = BUILDERS[name](SIZES[args.size], args).to(device)
    except ImportError as error:
        return {"missing": str(error)}
    training = args.mode == "train"
    model.train(training)
    adam = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    batches = [example(args, seed, device) for seed in range(args.warmup + args.steps)]

    def step(tokens, masked, targets):
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
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
    synchronise(device.type)
    begin = clock(device.type, args.threads)
    for batch in batches[args.warmup :]:
        step(*batch)
    synchronise(device.type)
    seconds = (clock(device.type, args.threads) - begin) / args.steps
    memory = peak_mb() if device.type == "cpu" else allocated_mb(device.type)
    kernels = attention_operations(lambda: step(*batches[0]))
    tokens = sum(int(batch[0].ne(PAD).sum()) for batch in batches[args.warmup :]) / args.steps
    return {"seconds": seconds, "tokens": tokens, "peak_mb": memory, "kernels": kernels}


def example(args: argparse.Namespace, seed: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """tokens (batch, length), masked (batch, length), targets (N,)."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(4, VOCABULARY, (args.batch, args.length), generator=generator)
    tokens[:, 0] = BOS
    if args.padding:
        tokens[1::2, args.length - int(args.padding * args.length) :] = PAD
    masked = (torch.rand(tokens.shape, generator=generator) < 0.15) & tokens.ne(PAD)
    masked[:, 0], masked[:, 1] = False, True
    return tokens.to(device), masked.to(device), tokens[masked].to(device)


def flops(size: Size, args: argparse.Namespace) -> float:
    """Of one step without padding: 2 per multiplication and addition; backward twice forward."""
    tokens = args.batch * args.length
    forward = size.layers * tokens * (24 * size.width**2 + 4 * args.length * size.width)
    if args.mode == "features":
        return forward
    return 3 * (forward + 0.15 * tokens * 2 * (size.width**2 + size.width * VOCABULARY))


def measure_peak(dtype: str, threads: int) -> dict[str, Any]:
    """FLOP/s of a product of two large matrices."""
    return {"flops": matrix_peak(device_type(), getattr(torch, dtype), threads)}


def device_type() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def report(args: argparse.Namespace, turns: list[dict[str, Any]], peaks: dict[str, float]) -> dict[str, Any]:
    """Medians over the turns; `seconds_relative_to`: of all over those of the first."""
    work = flops(SIZES[args.size], args)
    results: dict[str, Any] = {}
    for name in args.models:
        runs = [turn[name] for turn in turns]
        if "missing" in runs[0]:
            results[name] = runs[0]
            continue
        seconds = statistics.median(run["seconds"] for run in runs)
        results[name] = {
            "seconds": [round(run["seconds"], 4) for run in runs],
            "tokens_per_second": round(runs[0]["tokens"] / seconds),
            "tflops_per_second": round(work / seconds / 1e12, 3),
            "share_of_peak": round(work / seconds / peaks[name.split(":")[1]], 3),
            "peak_mb": round(max(run["peak_mb"] for run in runs)),
            "attention": runs[0]["kernels"],
        }
    medians = {name: statistics.median(result["seconds"]) for name, result in results.items() if "seconds" in result}
    first = next(iter(medians), None)
    relative = {name: round(value / medians[first], 2) for name, value in medians.items()}
    settings = {key: value for key, value in vars(args).items() if key != "job"}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {
        "device": device,
        "machine": machine(["torch", "fairseq", "transformers"]),
        "settings": settings,
        "measured_peak_tflops": {dtype: round(peak / 1e12, 3) for dtype, peak in peaks.items()},
        "results": results,
        "seconds_relative_to": {first: relative},
    }


if __name__ == "__main__":
    main()
