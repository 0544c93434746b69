"""The record of an initialisation: what was put into each table, from where, and what it looks like.

The same JSON object goes to the log (as a table), to `embed_init.json` and into the checkpoint.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from embinit_fairseq.errors import counted

VERSION = 1


def pack_rows(mask: np.ndarray) -> str:
    """A (N,) bool mask as text: one bit a row, base64."""
    return base64.b64encode(np.packbits(mask).tobytes()).decode("ascii")


def unpack_rows(packed: str, rows: int) -> np.ndarray:
    """Inverse of pack_rows."""
    bits = np.unpackbits(np.frombuffer(base64.b64decode(packed), dtype=np.uint8))
    return bits[:rows].astype(bool)


def symbols_digest(symbols: Sequence[str]) -> str:
    """A short hash of a dictionary's symbols in their order."""
    return hashlib.sha256("\n".join(symbols).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def signature(slot: dict[str, Any], version: str) -> str:
    """One line that names an initialisation, for logs and result tables.

    `init:pretrained_xavier|src:glove.6B.300d.txt|dim:300|cov:0.931|oov:xavier|std:xavier|seed:1|v:0.1.0`
    """
    name = slot["strategy"] + ("_elements" if slot.get("shuffle") == "elements" else "")
    parts = [f"init:{name}"]
    if slot.get("source"):
        file = slot["source"]["name"].replace("|", "_")  # "|" separates the parts
        parts += [f"src:{file}", f"dim:{slot['dim']}"]
        parts.append(f"cov:{slot['coverage_tokens']:.3f}")
    if slot.get("oov"):
        parts.append(f"oov:{slot['oov']}")
    if slot.get("target_std") is not None:
        parts.append(f"std:{'xavier' if slot['std'] is None else slot['std']}")
    if slot.get("freeze"):
        parts.append(f"freeze:{slot['freeze']}")
    return "|".join([*parts, f"seed:{slot['seed']}", f"v:{version}"])


def render(record: dict[str, Any]) -> str:
    """The table for the log: one block a slot."""
    lines = [f"embedding initialisation: {record['strategy']}"]
    for name, slot in record["slots"].items():
        tied = f" (tied with {', '.join(slot['tied'])})" if slot["tied"] else ""
        lines.append(f"  {name}{tied}: {slot['rows']:,} x {slot['dim']}  {slot['signature']}")
        if slot["source"]:
            rules = ", ".join(f"{rule} {count:,}" for rule, count in slot["rows_by_rule"].items())
            lines.append(
                f"    found {counted(slot['found'], 'word')} ({rules}); "
                f"coverage {slot['coverage_types']:.1%} of types, {slot['coverage_tokens']:.1%} of tokens"
            )
        lines.append(f"    {'':<22} {'min':>10} {'max':>10} {'mean':>10} {'sigma':>10} {'x scale':>10}")
        for title, key in (("model's own", "before"), ("source rows", "source_moments"), ("after", "after")):
            if slot[key]:
                lines.append(f"    {title:<22}{_numbers(slot[key], slot['embed_scale'])}")
        if slot["position_std"] is not None:
            ratio = slot["absorption_ratio"]
            lines.append(
                f"    {'position encoding':<22}{'':>33} {slot['position_std']:>10.4g}   absorption ratio {ratio:.3g}"
            )
    return "\n".join(lines)


def _numbers(moments: dict[str, float], scale: float) -> str:
    values = [moments["min"], moments["max"], moments["mean"], moments["std"], moments["std"] * scale]
    return "".join(f" {value:>10.4g}" if math.isfinite(value) else f" {'-':>10}" for value in values)
