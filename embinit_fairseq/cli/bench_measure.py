"""What can be measured of a step with torch alone: seconds, FLOPs, the operations that compute attention, the peak of
the hardware. The benchmarks of this repository measure with these, too."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import torch

Step = Callable[[], Any]
#: what a profiler calls a kernel of attention -> what people call it; the first that is found in a name counts
_KERNELS = {
    "flex": "flex",
    "flash": "sdpa (flash)",
    "efficient": "sdpa (memory-efficient)",
    "cudnn": "sdpa (cuDNN)",
    "overrideable": "sdpa (of this device)",
    "attention_math": "sdpa (matrix products and softmax)",
    "aten::_softmax": "eager (matrix products and softmax)",
}
PEAK_SIZE = {"cuda": 8192, "cpu": 2048}
_MEGA = 2**20


def synchronise(device: str) -> None:
    """Wait for what was begun; on a CPU nothing is left."""
    if device == "cuda":
        torch.cuda.synchronize()


def clock(device: str, threads: int = 1) -> float:
    """Seconds, to compare programs by: on a CPU those of the processor, shared among the threads, so that other
    programs distort them less."""
    return time.perf_counter() if device == "cuda" else time.process_time() / threads


def timed(step: Step, device: str) -> tuple[float, float]:
    """(seconds, seconds of the processor in all threads) of one call."""
    synchronise(device)
    wall, cpu = time.perf_counter(), time.process_time()
    step()
    synchronise(device)
    return time.perf_counter() - wall, time.process_time() - cpu


def matrix_peak(device: str, dtype: torch.dtype, threads: int = 1) -> float:
    """FLOP/s of a product of two large square matrices by `clock`, the best of six; the size is in PEAK_SIZE."""
    n = PEAK_SIZE[device]
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    best = float("inf")
    for _ in range(6):
        synchronise(device)
        begin = clock(device, threads)
        a @ b
        synchronise(device)
        best = min(best, clock(device, threads) - begin)
    return 2 * n**3 / best


def counted_flops(step: Step) -> int | None:
    """FLOPs of one call, counted by PyTorch: matrix products and attention, forward and backward; None where it cannot.

    Fused attention on a CPU is not counted by PyTorch, so it is not fused there meanwhile.
    """
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.utils.flop_counter import FlopCounterMode
    except ImportError:  # before PyTorch 2.3
        return None
    plain = contextlib.nullcontext() if torch.cuda.is_available() else sdpa_kernel(SDPBackend.MATH)
    with plain, FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def attention_operations(step: Step) -> list[str]:
    """Names of the operations in which attention was computed, as the profiler sees them; empty: none was seen."""
    with torch.autograd.profiler.profile(use_kineto=False) as profile:
        step()
    names = {event.key for event in profile.key_averages()}
    found = sorted(name for name in names if "attention" in name and name.startswith(("aten::_", "flex")))
    if not any("math" in name for name in found):  # which has a softmax inside
        found += [name for name in ("aten::_softmax",) if name in names]
    return found


def kernel_names(operations: list[str]) -> list[str]:
    """attention_operations in words: eager, sdpa (flash), ..."""
    found = (next((name for part, name in _KERNELS.items() if part in operation), None) for operation in operations)
    return sorted({name for name in found if name is not None})


def allocated_mb(device: str) -> float | None:
    """The most memory of the GPU that tensors took so far, in MiB; None on a CPU."""
    return torch.cuda.max_memory_allocated() / _MEGA if device == "cuda" else None
