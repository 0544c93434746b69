"""Time training steps of architectures on random sentences: tokens/s, FLOP/s, share of the peak, memory.

    python benchmarks/train_step.py tupe_base roberta_base --length 512 --batch 8
    python benchmarks/train_step.py "tupe_tiny --rel-pos" roberta --json result.json
    python benchmarks/train_step.py tupe_base --updates 1000000 --tokens-per-update 131072 --gpus 8

Steps are by fairseq's Trainer (forward, loss, backward, clipping, Adam), without loading of data. Architectures
are measured in turns, each time in a process of its own. An architecture has its own options in quotes; what this
script does not know goes to fairseq for all of them. FLOPs are additions and multiplications of matrix products,
forward and backward, as PyTorch counts them; the peak is that of a large matrix product in the same process. On a CPU
shares and ratios are by the seconds of the processor, which other programs distort less.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from embinit_fairseq.arguments import ArgumentParser

Step = Callable[[], Any]
#: part of the name of an operation of attention -> its common name; the first entry that matches counts
KERNELS = {
    "flash": "sdpa (flash)",
    "efficient": "sdpa (memory-efficient)",
    "cudnn": "sdpa (cuDNN)",
    "overrideable": "sdpa (of this device)",
    "attention_math": "sdpa (matrix products and softmax)",
    "aten::_softmax": "eager (matrix products and softmax)",
}
#: rows of the square matrices whose product is the peak
PEAK_SIZE = {"cuda": 8192, "cpu": 2048}
LENGTHS = {"translation": 32, "sentence_prediction": 128}
BATCHES = 4


def synchronise(device: str) -> None:
    """Wait for queued GPU work."""
    if device == "cuda":
        torch.cuda.synchronize()


def clock(device: str, threads: int = 1) -> float:
    """Return seconds: of the clock on a GPU, of the processor per thread on a CPU."""
    return time.perf_counter() if device == "cuda" else time.process_time() / threads


def matrix_peak(device: str, dtype: torch.dtype, threads: int = 1) -> float:
    """Return the FLOP/s of a product of two large square matrices, the best of six."""
    n = PEAK_SIZE[device]
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    best = math.inf
    for _ in range(6):
        synchronise(device)
        begin = clock(device, threads)
        a @ b
        synchronise(device)
        best = min(best, clock(device, threads) - begin)
    return 2 * n**3 / best


def counted_flops(step: Step) -> int | None:
    """Return the FLOPs of one call as PyTorch counts them; None before PyTorch 2.3.

    PyTorch does not count fused attention on a CPU, so it is not fused there meanwhile.
    """
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.utils.flop_counter import FlopCounterMode
    except ImportError:
        return None
    plain = contextlib.nullcontext() if torch.cuda.is_available() else sdpa_kernel(SDPBackend.MATH)
    with plain, FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def attention_operations(step: Step) -> list[str]:
    """Return the names of the operations that compute attention, as the profiler sees them."""
    with torch.autograd.profiler.profile(use_kineto=False) as profile:
        step()
    names = {event.key for event in profile.key_averages()}
    kernels = sorted(name for name in names if "attention" in name and name.startswith("aten::_"))
    if not any("math" in name for name in kernels):  # the math kernel has a softmax inside
        kernels += [name for name in ("aten::_softmax",) if name in names]
    return kernels


def kernel_names(operations: list[str]) -> list[str]:
    """Return the common names of operations of attention: eager, sdpa (flash), ..."""
    kernels = (next((name for part, name in KERNELS.items() if part in operation), None) for operation in operations)
    return sorted({name for name in kernels if name is not None})


def allocated_mb(device: str) -> float | None:
    """Return the peak of GPU memory in MiB; None on a CPU."""
    return torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else None


def measure(arch: str, options: list[str], args: argparse.Namespace) -> dict[str, Any]:
    """Build an architecture and time its steps."""
    from fairseq import tasks
    from fairseq.trainer import Trainer

    from embinit_fairseq.io import temporary_folder
    from embinit_fairseq.models._random_step import Sizes, configuration, random_batch, task_of

    device = "cuda" if torch.cuda.is_available() else "cpu"
    precision = args.precision or ("fp16" if device == "cuda" else "fp32")
    task_name = task_of(arch)
    length = args.length or LENGTHS.get(task_name, 512)
    sizes = Sizes(args.batch or max(1, 4096 // length), length, args.vocabulary, args.padding)
    flags = ["--optimizer=adam", "--lr=1e-4", "--clip-norm=1.0", "--distributed-world-size=1", "--no-save"]
    flags += ["--cpu"] if device == "cpu" else []
    if precision != "fp32":  # on a CPU bf16 is PyTorch's autocast
        flags += ["--amp" if precision == "bf16" and device == "cpu" else f"--{precision}"]
    if task_name == "translation":
        flags += ["--criterion=label_smoothed_cross_entropy", "--label-smoothing=0.1"]
    with temporary_folder() as folder:
        cfg = configuration(str(folder), arch, task_name, sizes, [*flags, f"--save-dir={folder}", *options])
        task = tasks.setup_task(cfg.task)
        model = task.build_model(cfg.model)
        trainer = Trainer(cfg, task, model, task.build_criterion(cfg.criterion))
        trainer.cuda_env = None  # else the trainer resets the peak of memory after each step
        batches = [random_batch(task_name, task, sizes, seed) for seed in range(1, BATCHES + 1)]
        steps = [lambda batch=batch: trainer.train_step([batch], raise_oom=True) for batch in batches]
        done = 0
        # until the scale of a half-precision loss has settled, steps end before the update
        while done < args.warmup or (trainer.get_num_updates() == 0 and done < args.warmup + 20):
            steps[done % BATCHES]()
            done += 1
        wall, cpu = step_seconds([steps[(done + number) % BATCHES] for number in range(args.steps)], device)
        flops, operations = counted_flops(steps[0]), attention_operations(steps[0])
    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    return {
        "arch": arch,
        "options": options,
        "task": task_name,
        "device": torch.cuda.get_device_name(0) if device == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "precision": precision,
        "sentences": sizes.sentences,
        "length": length,
        "tokens": int(batches[0]["ntokens"]),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "seconds": wall,
        "cpu_seconds": cpu,
        "flops": flops,
        "matrix_peak": matrix_peak(device, dtype, torch.get_num_threads()),
        "attention": kernel_names(operations),
        "gpu_mb": allocated_mb(device),
    }


def step_seconds(steps: Iterable[Callable[[], Any]], device: str) -> tuple[list[float], list[float]]:
    """Run the steps; return the seconds and the CPU seconds of each."""
    wall, cpu = [], []
    for step in steps:
        synchronise(device)
        begin = time.perf_counter(), time.process_time()
        step()
        synchronise(device)
        wall.append(time.perf_counter() - begin[0])
        cpu.append(time.process_time() - begin[1])
    return wall, cpu


def merged(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Join the turns of one architecture and derive its rates."""
    result = {**runs[0], "matrix_peak": max(run["matrix_peak"] for run in runs)}
    for key in ("seconds", "cpu_seconds"):
        result[key] = [value for run in runs for value in run[key]]
    median = statistics.median(result["seconds"])
    compared = statistics.median(result["cpu_seconds"]) / result["threads"] if result["device"] == "cpu" else median
    result |= {"seconds_median": median, "seconds_compared": compared, "tokens_per_second": result["tokens"] / median}
    result["flops_per_second"] = result["flops"] and result["flops"] / compared
    result["share_of_peak"] = result["flops"] and result["flops"] / compared / result["matrix_peak"]
    return result


def render(results: list[dict[str, Any]], args: argparse.Namespace) -> str:
    """Return a table with a row per architecture."""
    rows = [
        f"{'':<34}{'parameters':>13}{'s/step':>9}{'tokens/s':>11}{'GFLOP/s':>10}{'of peak':>9}{'ratio':>7}  attention"
    ]
    first = results[0]["seconds_compared"] / results[0]["tokens"]
    for result in results:
        flops = result["flops"]
        rows.append(
            f"{' '.join([result['arch'], *result['options']])[:33]:<34}{result['parameters']:>13,}"
            f"{result['seconds_median']:>9.3f}{result['tokens_per_second']:>11,.0f}"
            + (f"{result['flops_per_second'] / 1e9:>10,.0f}{result['share_of_peak']:>9.1%}" if flops else f"{'-':>19}")
            + f"{result['seconds_compared'] / result['tokens'] / first:>7.2f}  {', '.join(result['attention'])}"
        )
        if args.updates:
            tokens = args.updates * args.tokens_per_update
            hours = tokens / (result["tokens_per_second"] * args.gpus) / 3600
            rows.append(f"  {args.updates:,} updates of {args.tokens_per_update:,} tokens: {hours:,.4g} hours")
    return "\n".join(rows)


def main() -> None:
    """Measure the architectures in turns and print the table."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arch", nargs="+", help="architecture, with its own options in quotes")
    parser.add_argument("--batch", type=int, help="sentences (default: 4,096 tokens)")
    parser.add_argument("--length", type=int, help="tokens of a sentence (default: 512; translation 32, classes 128)")
    parser.add_argument("--padding", type=float, default=0.0, help="share of padding in every second sentence")
    parser.add_argument("--vocabulary", type=int, default=32768)
    parser.add_argument("--precision", choices=("fp32", "fp16", "bf16"), help="default: fp16 on a GPU, fp32 on a CPU")
    parser.add_argument("--steps", type=int, default=5, help="timed steps of a turn")
    parser.add_argument("--warmup", type=int, default=2, help="steps before them")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--updates", type=int, help="estimate the hours of a training of so many updates")
    parser.add_argument("--tokens-per-update", type=int, default=32768)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    parser.add_argument("--job", action="store_true", help=argparse.SUPPRESS)
    args, further = parser.parse_known_args()
    if args.job:
        arch, *options = shlex.split(args.arch[0])
        print(json.dumps(measure(arch, [*further, *options], args)))
        return
    settings = sys.argv[1:]
    own = [word for word in settings if word not in args.arch]
    runs: dict[str, list[dict[str, Any]]] = {arch: [] for arch in args.arch}
    for arch in args.arch * args.turns:
        done = subprocess.run([sys.executable, __file__, "--job", arch, *own], stdout=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(done.returncode)
        runs[arch].append(json.loads(done.stdout.splitlines()[-1]))
    results = [merged(turns) for turns in runs.values()]
    print(render(results, args))
    if args.json:
        args.json.write_text(json.dumps({"command": settings, "results": results}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
