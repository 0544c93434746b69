"""Record an initialisation: the vectors in each embedding matrix, their origin, and the numbers about the result.

The same JSON object goes to the log (as a table), to `embed_init.json` and into the checkpoint.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from embinit_fairseq.errors import counted
from embinit_fairseq.init.weights import blocks
from embinit_fairseq.vocab.dictionary import Vocabulary, symbols_digest

# ---- Numbers about a matrix: moments, coverage, absorption (Kim et al. 2024, Tables 2 and 6) ------------------------

#: rows that are copied to float64 at a time
BLOCK_ROWS = 8192


def describe(matrix: np.ndarray) -> dict[str, float]:
    """Return min, max, mean and sample standard deviation (std) over all elements, accumulated in float64.

    std is nan for fewer than two elements, as numpy's with ddof=1.
    """
    count = matrix.size
    if count == 0:
        return dict.fromkeys(("min", "max", "mean", "std"), math.nan)
    parts = [matrix[block] for block in blocks(len(matrix), elements=BLOCK_ROWS)]
    mean = math.fsum(float(part.sum(dtype=np.float64)) for part in parts) / count
    squares = math.fsum(float(((part.astype(np.float64) - mean) ** 2).sum()) for part in parts)
    return {
        "min": float(matrix.min()),
        "max": float(matrix.max()),
        "mean": mean,
        "std": math.sqrt(squares / (count - 1)) if count > 1 else math.nan,
    }


def coverage(vocabulary: Vocabulary, matched: np.ndarray) -> dict[str, Any]:
    """Return how many rows of text are `matched` (N,) bool, and their share of all types and running tokens.

    The share of tokens is None if the dictionary has no counts.
    """
    matched_regular = matched & vocabulary.regular
    types, counts = int(vocabulary.regular.sum()), vocabulary.counts.astype(np.float64)
    share = counts[matched_regular].sum() / counts[vocabulary.regular].sum() if vocabulary.has_counts else None
    return {
        "found": int(matched_regular.sum()),
        "coverage_types": float(matched_regular.sum() / types) if types else 0.0,
        "coverage_tokens": share if share is None else float(share),
    }


def shares(source: Mapping[str, Any]) -> str:
    """Return the coverage of a record as text."""
    tokens = source["coverage_tokens"]
    share = "share of tokens not known, the dictionary has no counts" if tokens is None else f"{tokens:.1%} of tokens"
    return f"{source['coverage_types']:.1%} of types, {share}"


def xavier_bound(rows: int, dim: int) -> float:
    """Return a of U(-a, a), a = sqrt(6 / (N + D)) (Glorot and Bengio 2010; Kim 3.1)."""
    return math.sqrt(6.0 / (rows + dim))


def absorption_ratio(std: float, scale: float, position_std: float | None) -> float | None:
    """Divide the standard deviation of the scaled embeddings by that of the position encoding they are added to.

    Returns None without positions. Kim section 6: GloVe at D = 300 has 6.39 / 0.67 = 9.5, Xavier 0.27 / 0.67 = 0.4.
    """
    return std * scale / position_std if position_std else None


# ---- The record -----------------------------------------------------------------------------------------------------

VERSION = 1
_COLUMNS = ("min", "max", "mean", "sigma", "x scale", "absorption")
#: title, key of its moments, key of its absorption ratio; rows with a vector come before the matrix as a whole
_LINES = (
    ("model's own", "before", None),
    ("source rows", "source_moments", None),
    ("rows with a vector", "matched", "matched_absorption_ratio"),
    ("all rows", "after", "absorption_ratio"),
)


def pack_rows(mask: np.ndarray) -> str:
    """Return a (N,) bool mask as text: one bit per row, base64."""
    return base64.b64encode(np.packbits(mask).tobytes()).decode("ascii")


def unpack_rows(packed: str, rows: int) -> np.ndarray:
    """Return the (N,) bool mask that `pack_rows` packed."""
    bits = np.unpackbits(np.frombuffer(base64.b64decode(packed), dtype=np.uint8))
    return bits[:rows].astype(bool)


def other_dictionaries(record: dict[str, Any], symbols: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the slots with another dictionary of the same size, whose words would get other words' rows.

    symbols: by slot, in the order of rows. Slots that either side does not have are left out.
    """
    slots = record.get("slots", {})
    wrong = []
    for name, current in symbols.items():
        slot = slots.get(name, {})
        if slot.get("rows") == len(current) and slot.get("dictionary") not in (None, symbols_digest(current)):
            wrong.append(name)
    return wrong


def signature(slot: dict[str, Any], version: str) -> str:
    """Return one line that names an initialisation, for logs and result tables.

    `init:pretrained_xavier|src:glove.6B.300d.txt|dim:300|cov:0.931|oov:xavier|std:xavier|seed:1|v:0.1.0`

    `cov` is the coverage of running tokens, `cov_types` the coverage of types if the dictionary has no counts.
    """
    name = slot["strategy"] + ("_elements" if slot.get("shuffle") == "elements" else "")
    parts = [f"init:{name}"]
    if slot.get("source"):
        file = slot["source"]["name"].replace("|", "_")  # "|" separates the parts
        parts += [f"src:{file}", f"dim:{slot['dim']}"]
        tokens = slot["coverage_tokens"]
        parts.append(f"cov_types:{slot['coverage_types']:.3f}" if tokens is None else f"cov:{tokens:.3f}")
    if slot.get("oov"):
        parts.append(f"oov:{slot['oov']}")
    if slot.get("target_std") is not None:
        parts.append(f"std:{'xavier' if slot['std'] is None else slot['std']}")
    if slot.get("freeze"):
        parts.append(f"freeze:{slot['freeze']}")
    return "|".join([*parts, f"seed:{slot['seed']}", f"v:{version}"])


def render(record: dict[str, Any]) -> str:
    """Return the table for the log: one block per slot."""
    lines = [f"embedding initialisation: {record['strategy']}"]
    for name, slot in record["slots"].items():
        tied = f" (tied with {', '.join(slot['tied'])})" if slot["tied"] else ""
        lines.append(f"  {name}{tied}: {slot['rows']:,} x {slot['dim']}  {slot['signature']}")
        if slot["source"]:
            lines.append(f"    found {_found({**slot['source'], **slot})}")
            if "sources" in slot["source"]:
                lines.append(f"      in all sources: {counted(slot['source']['found_in_all'], 'word')}")
            for file in slot["source"].get("sources", ()):
                sigma = f"; sigma {file['moments']['std']:.4g}" if "moments" in file else ""  # older reports
                lines.append(f"      {file['name']}: {_found(file)}{sigma}")
        lines.append(f"    {'':<22}" + "".join(f" {title:>10}" for title in _COLUMNS))
        for title, key, ratio in _LINES:
            if slot.get(key):  # reports of older versions have no matched rows
                lines.append(f"    {title:<22}{_numbers(slot[key], slot['embed_scale'], slot.get(ratio))}")
        if slot["position_std"] is not None:
            lines.append(f"    {'position encoding':<22}{'':>33} {slot['position_std']:>10.4g}")
    return "\n".join(lines)


def _found(source: dict[str, Any]) -> str:
    """Return the number of words with a vector, by rule, the coverage, and the number of composed rows, as text."""
    rules = ", ".join(f"{rule} {count:,}" for rule, count in source["rows_by_rule"].items())
    language = f" of {source['language']}" if source.get("language") else ""
    rows = source.get("composed", 0)  # of --embed-init-oov subword; older reports do not have it
    composed = f"; {counted(rows, 'row')} of other words composed" if rows else ""
    return f"{counted(source['found'], 'word')}{language} ({rules}); coverage {shares(source)}{composed}"


def _numbers(moments: dict[str, float], scale: float, ratio: float | None) -> str:
    values = [moments["min"], moments["max"], moments["mean"], moments["std"], moments["std"] * scale]
    cells = [f"{value:>10.4g}" if math.isfinite(value) else f"{'-':>10}" for value in values]
    return " " + " ".join(cells + ([] if ratio is None else [f"{ratio:>10.3g}"]))
