"""Sinusoidal position tables: three formulas in use that differ in their frequencies and in their columns' order.

Letters: L positions, D columns, i position, j column. All agree that column values are sines and cosines of i * w(j)
with w falling geometrically from 1 to about 1/10000.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from embinit_fairseq.errors import OptionError


def kim(length: int, dim: int) -> np.ndarray:
    """Kim et al. 2024, eq. 2, as printed: sin(i / 10000^(j/D)) for even j, cos(i / 10000^(j/D)) for odd j."""
    column = np.arange(dim)
    angle = np.arange(length)[:, None] / 10000 ** (column / dim)
    return np.where(column % 2 == 0, np.sin(angle), np.cos(angle))


def vaswani(length: int, dim: int) -> np.ndarray:
    """Vaswani et al. 2017: as `kim`, but a sine and the cosine beside it share one frequency, 10000^(-(j - j%2)/D)."""
    column = np.arange(dim)
    angle = np.arange(length)[:, None] / 10000 ** ((column - column % 2) / dim)
    return np.where(column % 2 == 0, np.sin(angle), np.cos(angle))


def fairseq(length: int, dim: int) -> np.ndarray:
    """fairseq's table (from tensor2tensor): D/2 sines, then D/2 cosines; the last frequency is exactly 1/10000.

    An odd D ends in a column of zeros. The padding row, which fairseq sets to zero, is not part of it.
    """
    half = dim // 2
    frequency = np.exp(np.arange(half) * -(np.log(10000) / max(half - 1, 1)))
    angle = np.arange(length)[:, None] * frequency
    return np.hstack([np.sin(angle), np.cos(angle), np.zeros((length, dim % 2))])


#: name -> formula(length, dim) -> (L, D) float64
FORMULAS: dict[str, Callable[[int, int], np.ndarray]] = {"kim": kim, "vaswani": vaswani, "fairseq": fairseq}


def position_table(formula: str, length: int, dim: int) -> np.ndarray:
    """(L, D) float64 table of one of FORMULAS. Raises OptionError for an unknown name or a size below 1."""
    if formula not in FORMULAS:
        raise OptionError(f"unknown position formula {formula!r}; choose one of: {', '.join(FORMULAS)}")
    if length < 1 or dim < 1:
        raise OptionError(f"a position table needs at least one row and one column, not {length} x {dim}")
    return FORMULAS[formula](length, dim)
