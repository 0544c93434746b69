"""How fast a training is, and how long it will take: pure functions of measured numbers.

FLOPs are additions and multiplications of matrix products, forward and backward. Shares are of a *peak*, FLOP/s of a
large matrix product: measured, or printed by the vendor.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

PRECISIONS = ("fp32", "bf16", "fp16", "amp")
#: name of a GPU -> TFLOP/s of dense matrix products as printed in NVIDIA's data sheets: (fp32 without TF32, 16 bit).
#: None: not in hardware. The first pattern that is found in the name counts.
VENDOR_TFLOPS = {
    r"H200 NVL|H100 NVL": (60.0, 835.0),
    r"H100 PCIe": (51.0, 756.0),
    r"H[12]00\b": (67.0, 989.0),
    r"A100\b": (19.5, 312.0),
    r"A40\b": (37.4, 149.7),
    r"A10\b": (31.2, 125.0),
    r"L40S": (91.6, 362.0),
    r"L4\b": (30.3, 121.0),
    r"V100-SXM2": (15.7, 125.0),
    r"V100-PCIE": (14.0, 112.0),
    r"T4\b": (8.1, 65.0),
}
_WITHOUT_BF16 = r"V100|T4\b"


def quartiles(values: Sequence[float]) -> dict[str, float]:
    """{q1, median, q3} of one or more numbers."""
    q1, median, q3 = np.quantile(np.asarray(values, dtype=float), (0.25, 0.5, 0.75))
    return {"q1": float(q1), "median": float(median), "q3": float(q3)}


def throughput(
    seconds: Sequence[float],
    tokens: float,
    flops: float | None,
    peak: float | None,
    busy: Sequence[float] | None = None,
) -> dict[str, Any]:
    """Steps that took `seconds` each -> rates at the median step.

    tokens, flops: of one step; flops None if they could not be counted. peak: FLOP/s of the hardware, or None. busy:
    seconds to compare with the peak by, where others than `seconds` are fairer (those of the processor).
    """
    median = quartiles(seconds)["median"]
    compared = median if busy is None else quartiles(busy)["median"]
    return {
        "tokens_per_second": tokens / median,
        "flops_per_token": None if flops is None else flops / tokens,
        "flops_per_second": None if flops is None else flops / median,
        "share_of_peak": None if flops is None or peak is None else flops / compared / peak,
    }


def vendor_peak(device: str, precision: str) -> float | None:
    """FLOP/s that the vendor prints for a GPU of this name, or None. amp is half precision there."""
    found = next((peaks for pattern, peaks in VENDOR_TFLOPS.items() if re.search(pattern, device)), None)
    if found is None or (precision == "bf16" and re.search(_WITHOUT_BF16, device)):
        return None
    return 1e12 * found[precision != "fp32"]


def estimate(
    updates: int, tokens_per_update: float, tokens_per_second: float, devices: int = 1, scaling: float = 1.0
) -> dict[str, Any]:
    """Hours of a training: updates x tokens_per_update / (tokens_per_second x devices x scaling) / 3600.

    tokens_per_second: of one device. scaling: what a device keeps of its speed beside the others (communication).
    Validation, saving and loading of data are not in it.
    """
    tokens = updates * tokens_per_update
    hours = tokens / (tokens_per_second * devices * scaling) / 3600
    return {
        "updates": updates,
        "tokens_per_update": tokens_per_update,
        "tokens": tokens,
        "tokens_per_second": tokens_per_second,
        "devices": devices,
        "scaling": scaling,
        "hours": hours,
        "device_hours": hours * devices,
    }


def relative(seconds_per_token: dict[str, float]) -> dict[str, float]:
    """Time of each against the first: 2 is half as fast."""
    first = next(iter(seconds_per_token.values()))
    return {name: value / first for name, value in seconds_per_token.items()}
