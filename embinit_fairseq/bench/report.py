"""The record of `embinit bench` for people."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from embinit_fairseq.errors import counted

# ---- How fast a training is, and how long it will take: pure functions of measured numbers --------------------------
# FLOPs are additions and multiplications of matrix products, forward and backward. Shares are of a *peak*, FLOP/s of a
# large matrix product: measured, or printed by the vendor.

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


# ----------------------------------------------------------------------------------------------------------------------

_COUNTED_AS = {
    "train": {
        "masked_lm": "all tokens read, not only those predicted",
        "translation": "of the target; the source has as many",
        "language_modeling": "all tokens read",
        "sentence_prediction": "all tokens read",
    },
    "decode": {"translation": "of the output; the beam does not count"},
}
_WIDTH = 16


def render(record: dict[str, Any]) -> str:
    """A block for each architecture; ratios and estimates below."""
    blocks = [_machine(record), *(_block(name, result, record) for name, result in record["results"].items())]
    if len(record["results"]) > 1:
        blocks.append(_ratios(record))
    if "estimate" in record:
        blocks.append(_estimates(record["estimate"]))
    return "\n\n".join(blocks)


def _line(name: str, text: str) -> str:
    return f"{name:<{_WIDTH}}{text}"


def _machine(record: dict[str, Any]) -> str:
    machine, first = record["machine"], next(iter(record["results"].values()))
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    device = first["device_name"] or f"{machine['cpu']}, {counted(first['threads'], 'thread')}"
    lines = [_line("device", f"{first['device']}: {device}"), _line("versions", versions)]
    if first["device"] == "cpu" and machine["load"][0] > machine["cpus"] + 0.5:
        load = f"load {machine['load'][0]} on {counted(machine['cpus'], 'processor')}"
        lines.append(_line("note", f"{load}: other programs slow this down; compare in seconds of the processor"))
    return "\n".join(lines)


def _block(name: str, result: dict[str, Any], record: dict[str, Any]) -> str:
    batch, seconds, decode = result["batch"], result["seconds"], record["mode"] == "decode"
    what = f"task {result['task']}" + ("" if decode else f", criterion {result['criterion']}")
    padded = f", {batch['padding']:.0%} of every second one padding" if batch["padding"] else ""
    doing = "beam search" if decode else "forward, loss, backward, clipping, Adam"
    steps = counted(len(result["all_seconds"]), "step")
    steps += f" in {record['turns']} turns" if record["turns"] > 1 else f" after {record['warmup']}"
    lines = [
        _line("architecture", f"{name}: {counted(result['parameters'], 'parameter')}; {what}"),
        _line(
            "batch",
            f"{counted(batch['sentences'], 'sentence')} of {batch['length']:,} tokens{padded}: "
            f"{result['tokens']:,} tokens; vocabulary {batch['vocabulary']:,}; {result['precision']}",
        ),
        _line(
            "step", f"{seconds['median']:.4g} s (quartiles {seconds['q1']:.4g}, {seconds['q3']:.4g}; {steps}): {doing}"
        ),
        _line(
            "tokens/s",
            f"{result['tokens_per_second']:,.0f} ({_COUNTED_AS[record['mode']][result['task']]}; no padding)",
        ),
    ]
    if decode:
        lines.append(_line("sentences/s", f"{result['sentences_per_second']:.3g}"))
    lines += _flops(result, decode)
    lines.append(_line("attention", _attention(result["attention"])))
    lines.append(_line("memory", _memory(result["memory"])))
    return "\n".join(lines)


def _flops(result: dict[str, Any], decode: bool) -> list[str]:
    if result["flops"] is None:
        why = "not counted for beam search" if decode else "PyTorch 2.3 counts them, this one or this kernel does not"
        return [_line("FLOPs", why)]
    repeated = ", what --checkpoint-activations repeats included" if result["flops_repeated"] else ""
    per_token = f"{_amount(result['flops_per_token'])} a token"
    share = f"{result['share_of_peak']:.1%} of the {_amount(result['matrix_peak'])} of a large matrix product, measured"
    share += " here" if result["device"] == "cuda" else " here; the share is by the seconds of the processor"
    if result["vendor_peak"] is not None:
        share += f"; {result['share_of_vendor_peak']:.1%} of the {_amount(result['vendor_peak'])} in the data sheet"
    return [
        _line("FLOPs", f"{_amount(result['flops'])} a step, {per_token}: forward and backward{repeated}"),
        _line("FLOP/s", f"{_amount(result['flops_per_second'])}: {share}"),
    ]


def _amount(flops: float) -> str:
    return f"{flops / 1e12:,.4g} T" if flops >= 1e11 else f"{flops / 1e9:,.4g} G"


def _attention(attention: dict[str, Any]) -> str:
    kernels = ", ".join(attention["kernels"]) or "no kernel of attention was seen"
    # as our models log it: attention in training on cpu: eager (why)
    why = attention["choice"][-1].partition(" (")[2].rstrip(")") if attention["choice"] else ""
    return f"{kernels}: {why}" if why else kernels


def _memory(memory: dict[str, float | None]) -> str:
    host = f"{memory['peak_mb']:,.0f} MiB of the process at its peak, {memory['libraries_mb']:,.0f} of them libraries"
    if memory["gpu_allocated_mb"] is None:
        return host
    return f"{memory['gpu_allocated_mb']:,.0f} MiB of the GPU at its peak; {host}"


def _ratios(record: dict[str, Any]) -> str:
    names = list(record["results"])
    lines = [f"time a token against {names[0]}, by the clock (by the seconds of the processor)"]
    for name in names[1:]:
        wall, cpu = (record["relative"][clock][name] for clock in ("seconds", "cpu_seconds"))
        lines.append(f"  {name}: {wall:.3f} ({cpu:.3f})")
    return "\n".join(lines)


def _estimates(estimates: dict[str, dict[str, Any]]) -> str:
    first = next(iter(estimates.values()))
    lines = [
        f"estimate, not a measurement: {first['updates']:,} updates x {first['tokens_per_update']:,} tokens on "
        f"{counted(first['devices'], 'device')}, each at {first['scaling']:.0%} of its speed alone; "
        "without validation, saving, loading of data"
    ]
    for name, estimate in estimates.items():
        basis = "assumed" if estimate["assumed"] else "measured"
        rate = f"{estimate['tokens_per_second']:,.0f} tokens/s a device, {basis}"
        lines.append(f"  {name}: {estimate['hours']:,.4g} hours, {estimate['device_hours']:,.4g} device hours ({rate})")
    return "\n".join(lines)
