"""Transform word vectors as a transformer does before its first layer, one named step at a time (Kim et al. 2024, 6).

X (N, D): vectors; P (L, D): position encodings, row i for position i; sigma_x: Xavier's standard deviation for (N, D);
sigma_p: standard deviation of X.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from embinit_fairseq.errors import OptionError
from embinit_fairseq.init.init_report import describe, xavier_bound

# ---- Sinusoidal position encodings ----------------------------------------------------------------------------------
# Three formulas are in use. In all of them column j of position i is a sine or cosine of i * w(j), where w falls
# geometrically from 1 to about 1/10000; they differ in these frequencies and in the order of the columns.


def kim(length: int, dim: int) -> np.ndarray:
    """Return (L, D) by Kim et al. 2024, equation (2), as printed: sine, or for odd j cosine, of i / 10000^(j/D)."""
    column = np.arange(dim)
    angle = np.arange(length)[:, None] / 10000 ** (column / dim)
    return np.where(column % 2 == 0, np.sin(angle), np.cos(angle))


def vaswani(length: int, dim: int) -> np.ndarray:
    """Return (L, D) by Vaswani et al. 2017: as `kim`, but columns 2k and 2k + 1 share the frequency 10000^(-2k/D)."""
    column = np.arange(dim)
    angle = np.arange(length)[:, None] / 10000 ** ((column - column % 2) / dim)
    return np.where(column % 2 == 0, np.sin(angle), np.cos(angle))


def fairseq(length: int, dim: int) -> np.ndarray:
    """Return (L, D) as fairseq and tensor2tensor: D/2 sines, then D/2 cosines; the last frequency is exactly 1/10000.

    An odd D ends in a column of zeros. fairseq's row of zeros for padding is not included.
    """
    half = dim // 2
    frequency = np.exp(np.arange(half) * -(np.log(10000) / max(half - 1, 1)))
    angle = np.arange(length)[:, None] * frequency
    return np.hstack([np.sin(angle), np.cos(angle), np.zeros((length, dim % 2))])


#: name -> formula(length, dim) -> (L, D) float64
FORMULAS: dict[str, Callable[[int, int], np.ndarray]] = {"kim": kim, "vaswani": vaswani, "fairseq": fairseq}


def position_table(formula: str, length: int, dim: int) -> np.ndarray:
    """Return (L, D) float64 position encodings; formula: a key of FORMULAS. OptionError for a length below 1."""
    if length < 1:
        raise OptionError(f"--position-rows {length}: give 1 or more")
    return FORMULAS[formula](length, dim)


# ---- Steps ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Surroundings:
    """Hold the settings of the steps.

    Args:
        xavier_rows: the N of sigma_x; None: the number of vectors.
        positions: a key of FORMULAS.
        position_rows: L.
        seed: seed of the draw that chooses a position for each vector.
    """

    xavier_rows: int | None = None
    positions: str = "kim"
    position_rows: int = 5000
    seed: int = 1


def xavier_std(rows: int, dim: int) -> float:
    """Return the standard deviation of U(-a, a), a = sqrt(6 / (N + D)): a / sqrt(3)."""
    return xavier_bound(rows, dim) / math.sqrt(3.0)


def random_positions(rows: int, dim: int, around: Surroundings) -> np.ndarray:
    """Return (N, D) float32: a row of P for each vector, drawn uniformly (Kim A.2, footnote 6)."""
    table = position_table(around.positions, around.position_rows, dim).astype(np.float32)
    return table[np.random.default_rng(around.seed).integers(0, around.position_rows, size=rows)]


def scaled(matrix: np.ndarray, around: Surroundings) -> np.ndarray:
    """Return X * sqrt(D), as a transformer scales its embeddings."""
    return matrix * np.float32(math.sqrt(matrix.shape[1]))


def positions(matrix: np.ndarray, around: Surroundings) -> np.ndarray:
    """Return X plus a random row of P for each vector."""
    rows, dim = matrix.shape
    return matrix + random_positions(rows, dim, around)


def xavier(matrix: np.ndarray, around: Surroundings) -> np.ndarray:
    """Return (X - mean(X)) * sigma_x / sigma_p (Kim, equation (1))."""
    moments = describe(matrix)
    target = xavier_std(around.xavier_rows or matrix.shape[0], matrix.shape[1])
    return (matrix - np.float32(moments["mean"])) * np.float32(target / _spread(moments))


def scaled_positions(matrix: np.ndarray, around: Surroundings) -> np.ndarray:
    """Return X + P * sigma_p / sigma_x: the ratio of P to X is the ratio of P to vectors drawn by Xavier."""
    rows, dim = matrix.shape
    target = xavier_std(around.xavier_rows or rows, dim)
    return matrix + random_positions(rows, dim, around) * np.float32(_spread(describe(matrix)) / target)


#: name -> step(X, surroundings) -> (N, D) float32, a new array
TRANSFORMS: dict[str, Callable[[np.ndarray, Surroundings], np.ndarray]] = {
    "scaled": scaled,
    "positions": positions,
    "xavier": xavier,
    "scaled_positions": scaled_positions,
}
#: steps whose result depends on the seed
RANDOM = frozenset({"positions", "scaled_positions"})


def transform(matrix: np.ndarray, names: Sequence[str], around: Surroundings) -> np.ndarray:
    """Apply the steps, keys of TRANSFORMS, from left to right."""
    for name in names:
        matrix = TRANSFORMS[name](matrix, around)
    return matrix


def _spread(moments: dict[str, float]) -> float:
    if not moments["std"] > 0:
        raise OptionError("all values of the vectors are equal, so they cannot be standardised; check the vector file")
    return moments["std"]
