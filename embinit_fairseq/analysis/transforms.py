"""What happens to a table of embeddings on its way into a transformer, one named step at a time (Kim et al. 2024, 6).

Letters: X (N, D) the table, P (L, D) the position table, sigma_x Xavier's standard deviation, sigma_p that of X.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from embinit_fairseq.errors import OptionError
from embinit_fairseq.init.report import describe, xavier_bound

# ----------------------------------------------------------------------------------------------------------------------
# Sinusoidal position tables: three formulas in use that differ in their frequencies and in their columns' order.
#
# Letters: L positions, D columns, i position, j column. All agree that column values are sines and cosines of i * w(j)
# with w falling geometrically from 1 to about 1/10000.


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


# ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Surroundings:
    """What the steps need to know beside the table.

    xavier_rows: the N of Xavier's range; None takes the table's own. positions: formula (see `FORMULAS`).
    position_rows: L. seed: decides which position each row gets.
    """

    xavier_rows: int | None = None
    positions: str = "kim"
    position_rows: int = 5000
    seed: int = 1


def xavier_std(rows: int, dim: int) -> float:
    """Standard deviation of U(-a, a), a = sqrt(6 / (N + D)): a / sqrt(3)."""
    return xavier_bound(rows, dim) / math.sqrt(3.0)


def random_positions(rows: int, dim: int, around: Surroundings) -> np.ndarray:
    """(N, D) float32: for every row one row of the position table, drawn uniformly (Kim A.2, footnote 6)."""
    table = position_table(around.positions, around.position_rows, dim).astype(np.float32)
    return table[np.random.default_rng(around.seed).integers(0, around.position_rows, size=rows)]


def scaled(matrix: np.ndarray, around: Surroundings) -> np.ndarray:
    """X * sqrt(D), what a transformer does to its embeddings."""
    return matrix * np.float32(math.sqrt(matrix.shape[1]))


def positions(matrix: np.ndarray, around: Surroundings) -> np.ndarray:
    """X + P, a randomly chosen position for every row."""
    rows, dim = matrix.shape
    return matrix + random_positions(rows, dim, around)


def xavier(matrix: np.ndarray, around: Surroundings) -> np.ndarray:
    """(X - mean(X)) * sigma_x / sigma_p (Kim eq. 1), sigma_x that of Xavier's distribution."""
    moments = describe(matrix)
    target = xavier_std(around.xavier_rows or matrix.shape[0], matrix.shape[1])
    return (matrix - np.float32(moments["mean"])) * np.float32(target / _spread(moments))


def scaled_positions(matrix: np.ndarray, around: Surroundings) -> np.ndarray:
    """X + P * sigma_p / sigma_x: the table keeps its values, the positions are as large as beside a Xavier table."""
    rows, dim = matrix.shape
    target = xavier_std(around.xavier_rows or rows, dim)
    return matrix + random_positions(rows, dim, around) * np.float32(_spread(describe(matrix)) / target)


#: name -> step(X, surroundings) -> (N, D) float32; steps never change their argument
TRANSFORMS: dict[str, Callable[[np.ndarray, Surroundings], np.ndarray]] = {
    "scaled": scaled,
    "positions": positions,
    "xavier": xavier,
    "scaled_positions": scaled_positions,
}
#: Steps whose result depends on the seed.
RANDOM = frozenset({"positions", "scaled_positions"})


def transform(matrix: np.ndarray, names: Sequence[str], around: Surroundings) -> np.ndarray:
    """Apply the named steps from left to right. Raises OptionError for an unknown name."""
    for name in names:
        if name not in TRANSFORMS:
            raise OptionError(f"unknown transformation {name!r}; choose from: {', '.join(TRANSFORMS)}")
        matrix = TRANSFORMS[name](matrix, around)
    return matrix


def _spread(moments: dict[str, float]) -> float:
    if not moments["std"] > 0:
        raise OptionError("all values of the table are equal: it cannot be standardised; check the vector file")
    return moments["std"]
