"""Histograms of the values of embedding tables (Kim et al. 2024, Tables 2 and 6 as a picture).

Letters: N rows and D columns of a table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from embinit_fairseq.analysis.transforms import xavier_std
from embinit_fairseq.errors import CheckpointError, OptionError
from embinit_fairseq.init.report import describe
from embinit_fairseq.vectors.torch_file import matrices

_TABLE = re.compile(r"(?:^|\.)embed_tokens(_\w+)?\.weight$")
_TAIL = 0.0005  # of the values lies outside of the picture, on either side
_UNLIKE = 4  # so many times wider than another, a table would leave it a few bins of a linear axis


@dataclass(frozen=True)
class ValueHistogram:
    """density: of each bin; the values outside of all bins count, too. moments: min, max, mean, std of all values.
    reach: the largest absolute value but for those of the tails."""

    name: str
    rows: int
    dim: int
    moments: dict[str, float]
    density: np.ndarray
    outside: float
    reach: float

    @property
    def xavier_std(self) -> float:
        """sigma of Xavier's distribution for a table of this size."""
        return xavier_std(self.rows, self.dim)


def embedding_tables(state: Mapping[str, Any], path: str, slots: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Slot -> (N, D) float32, of a checkpoint's state dict; all of its token embeddings, or these slots.

    Slots with one matrix (--share-all-embeddings) are one entry: `encoder = decoder`. Raises CheckpointError if there
    is none, OptionError for a slot that is not there.
    """
    tables: dict[str, np.ndarray] = {}
    for name, matrix in matrices(dict(state)).items():
        match = _TABLE.search(name)
        if match:
            slot = (name.split(".")[0] if "." in name[: match.start() + 1] else "encoder") + (match.group(1) or "")
            tables[slot] = matrix.take(np.arange(matrix.shape[0]))
    if not tables:
        raise CheckpointError(f"{path}: no token embeddings (embed_tokens) in it; name a checkpoint of fairseq-train")
    for slot in slots:
        if slot not in tables:
            raise OptionError(f"--slot {slot}: {path} has no such table; there are: {', '.join(tables)}")
    names: list[list[str]] = []
    for slot in (slot for slot in tables if not slots or slot in slots):
        tied = next((group for group in names if np.array_equal(tables[group[0]], tables[slot])), None)
        if tied is None:
            names.append([slot])
        else:
            tied.append(slot)
    return {" = ".join(group): tables[group[0]] for group in names}


def value_histograms(
    tables: Mapping[str, np.ndarray], bins: int, scaled: bool = False
) -> tuple[np.ndarray, list[ValueHistogram]]:
    """(edges, histograms) of tables by name, over one axis. scaled: times sqrt(D), as a transformer takes them.

    The axis is symmetric around 0 and holds all but a thousandth of the values of each table. Where one reaches much
    further than another, bins grow with the distance from 0 (`linear_width`). Raises OptionError for a table without
    values or with values that are not finite.
    """
    factors = {name: math.sqrt(table.shape[1]) if scaled else 1.0 for name, table in tables.items()}
    reaches: dict[str, float] = {}
    for name, table in tables.items():
        if not table.size or not np.isfinite(table).all():
            raise OptionError(f"{name}: {'NaN or infinity in it' if table.size else 'no values'}; take another table")
        tails = np.quantile(table, [_TAIL, 1 - _TAIL])
        reaches[name] = factors[name] * float(np.abs(tails).max())
    reach, width = max(reaches.values()) or 1.0, linear_width(list(reaches.values()))
    edges = np.linspace(-1, 1, bins + 1)
    edges = reach * edges if width is None else width * np.sinh(edges * np.arcsinh(reach / width))
    return edges, [_histogram(name, table, factors[name], reaches[name], edges) for name, table in tables.items()]


def linear_width(reaches: Sequence[float]) -> float | None:
    """Where an axis arcsinh(x / width) stops to be nearly linear, so that tables of any scale have their bins.

    None: the tables are so alike that x itself shows all.
    """
    some = [reach for reach in reaches if reach > 0]
    return min(some) / 2 if some and max(some) > _UNLIKE * min(some) else None


def _histogram(name: str, table: np.ndarray, factor: float, reach: float, edges: np.ndarray) -> ValueHistogram:
    counts = np.histogram(table.ravel(), bins=edges / factor)[0]
    moments = {key: value * factor for key, value in describe(table).items()}
    density = counts / (table.size * np.diff(edges))
    rows, dim = table.shape
    return ValueHistogram(name, rows, dim, moments, density, 1 - float(counts.sum()) / table.size, reach)
