"""What happens to a table of embeddings on its way into a transformer, one named step at a time (Kim et al. 2024, 6).

Letters: X (N, D) the table, P (L, D) the position table, sigma_x Xavier's standard deviation, sigma_p that of X.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from embinit_fairseq.analysis.positions import position_table
from embinit_fairseq.errors import OptionError
from embinit_fairseq.init.statistics import describe, xavier_bound


@dataclass(frozen=True)
class Surroundings:
    """What the steps need to know beside the table.

    xavier_rows: the N of Xavier's range; None takes the table's own. positions: formula (see `positions.FORMULAS`).
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
    return matrix + random_positions(*matrix.shape, around)


def xavier(matrix: np.ndarray, around: Surroundings) -> np.ndarray:
    """(X - mean(X)) * sigma_x / sigma_p (Kim eq. 1), sigma_x that of Xavier's distribution."""
    moments = describe(matrix)
    target = xavier_std(around.xavier_rows or matrix.shape[0], matrix.shape[1])
    return (matrix - np.float32(moments["mean"])) * np.float32(target / _spread(moments))


def scaled_positions(matrix: np.ndarray, around: Surroundings) -> np.ndarray:
    """X + P * sigma_p / sigma_x: the table keeps its values, the positions are as large as beside a Xavier table."""
    target = xavier_std(around.xavier_rows or matrix.shape[0], matrix.shape[1])
    return matrix + random_positions(*matrix.shape, around) * np.float32(_spread(describe(matrix)) / target)


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
