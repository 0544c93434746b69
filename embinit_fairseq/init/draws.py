"""Random numbers of the initialisation: from named streams of their own, never from a global random state.

Every stream depends on (seed, slot, purpose) only, so that strategies with one seed share their Xavier draw
(paired comparisons) and one slot's numbers do not depend on another slot's.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from embinit_fairseq.errors import OptionError
from embinit_fairseq.init.report import describe, xavier_bound


def check_seed(seed: int, flag: str) -> None:
    """OptionError for what is no seed; flag: the option."""
    if not 0 <= seed < 2**64:
        raise OptionError(f"{flag} {seed}: a seed is a number from 0 to 2^64 - 1")


@dataclass(frozen=True)
class TargetStd:
    """The sigma to aim at: `number`, or where that is None `times` the sigma of the Xavier matrix drawn."""

    number: float | None = None
    times: float = 1.0

    @property
    def label(self) -> float | str | None:
        """For records: the number, or `0.25x`; None for Xavier's own."""
        return self.number if self.number is not None or self.times == 1 else f"{self.times!r}x".replace(".0x", "x")


_SMALLEST, _LARGEST = 1e-20, 1e20  # of a sigma: far beyond use, far inside float32


def parse_std(given: float | str | None) -> TargetStd:
    """A value of `--embed-init-std`: `xavier` or nothing, `0.25x` (times Xavier's sigma), or a number.

    Options inside older checkpoints are floats. Raises OptionError for anything else.
    """
    if given is None or given == "xavier":
        return TargetStd()
    multiple = str(given).endswith("x")
    try:
        value = float(str(given).removesuffix("x"))
    except ValueError:
        value = math.nan
    if not _SMALLEST < value < _LARGEST:
        raise OptionError(
            f"--embed-init-std {given}: expected a standard deviation, which is a positive number between "
            f"{_SMALLEST:g} and {_LARGEST:g} (0.02), such a number times Xavier's (0.25x), or the word xavier"
        )
    return TargetStd(times=value) if multiple else TargetStd(value)


class Draws:
    """The random matrices of one slot. rows, dim: the N x D of the slot's matrix. std: the sigma to aim at."""

    def __init__(self, rows: int, dim: int, seed: int, slot: str, std: TargetStd | float | None = None) -> None:
        self.rows, self.dim, self.seed, self.slot = rows, dim, seed, slot
        self._std = std if isinstance(std, TargetStd) else TargetStd(std)

    def generator(self, purpose: str) -> np.random.Generator:
        """A fresh generator (PCG64) of the stream with that name."""
        words = [self.seed & 0xFFFFFFFFFFFFFFFF, zlib.crc32(self.slot.encode()), zlib.crc32(purpose.encode())]
        return np.random.default_rng(np.random.SeedSequence(words))

    @cached_property
    def xavier(self) -> np.ndarray:
        """(N, D) float32 from U(-a, a), a = sqrt(6 / (N + D)), moved to the sigma that was chosen."""
        if self._std.number is not None:
            return self._drawn * np.float32(self._std.number / describe(self._drawn)["std"])
        return self._drawn if self._std.times == 1 else self._drawn * np.float32(self._std.times)

    @cached_property
    def _drawn(self) -> np.ndarray:
        values = self.generator("xavier").random((self.rows, self.dim), dtype=np.float32)
        bound = np.float32(xavier_bound(self.rows, self.dim))
        values *= 2 * bound
        values -= bound
        return values

    @cached_property
    def target_std(self) -> float:
        """sigma_x: of the Xavier matrix actually drawn, a multiple of it, or the chosen number."""
        number = self._std.number
        return self._std.times * describe(self._drawn)["std"] if number is None else number

    @cached_property
    def normal(self) -> np.ndarray:
        """(N, D) float32 from N(0, 1/D), fairseq's own distribution for token embeddings."""
        values = self.generator("normal").standard_normal((self.rows, self.dim), dtype=np.float32)
        values *= np.float32(1.0 / math.sqrt(self.dim))
        return values

    def derangement(self, count: int) -> np.ndarray:
        """A uniformly drawn permutation of `count` things that leaves none in its place (count >= 2)."""
        generator = self.generator("shuffle_rows")
        places = np.arange(count)
        while True:  # about e = 2.7 tries, whatever the count
            order = generator.permutation(count)
            if not (order == places).any():
                return order


# ---- Rows that the source does not have: `--embed-init-oov` ---------------------------------------------------------
# Every fill takes (rows to fill (M,), draws, the found rows as they are in the final matrix (K, d), the d columns to
# fill) and returns (M, d) float32. The columns are all D, or those of one of several sources side by side (`concat:`).

ALL = slice(None)
_BLOCK_ELEMENTS = 16_000_000  # of the (rows x K) matrix of normal numbers: 64 MB at a time


def fill_xavier(rows: np.ndarray, draws: Draws, matched: np.ndarray, columns: slice = ALL) -> np.ndarray:
    """The rows of the Xavier draw."""
    return draws.xavier[rows, columns]


def fill_zeros(rows: np.ndarray, draws: Draws, matched: np.ndarray, columns: slice = ALL) -> np.ndarray:
    """Zeros."""
    return np.zeros((len(rows), matched.shape[1]), dtype=np.float32)


def fill_mean(rows: np.ndarray, draws: Draws, matched: np.ndarray, columns: slice = ALL) -> np.ndarray:
    """The mean of the found rows, for each column."""
    mean = matched.mean(axis=0, dtype=np.float64).astype(np.float32)
    return np.broadcast_to(mean, (len(rows), len(mean)))


def fill_gaussian(rows: np.ndarray, draws: Draws, matched: np.ndarray, columns: slice = ALL) -> np.ndarray:
    """N(mu, Sigma) with the found rows' mean and (1/K) covariance, without forming Sigma.

    mu + (E - mu)^T z / sqrt(K), z ~ N(0, I_K), has exactly that distribution (Hewitt 2021).
    """
    mean = matched.mean(axis=0, dtype=np.float64)
    centred = ((matched - mean) / math.sqrt(len(matched))).astype(np.float32)
    # each source of several has a stream of its own
    generator = draws.generator("oov_gaussian" if columns == ALL else f"oov_gaussian {columns.start}")
    block = max(1, _BLOCK_ELEMENTS // len(matched))
    result = np.empty((len(rows), matched.shape[1]), dtype=np.float32)
    for start in range(0, len(rows), block):
        z = generator.standard_normal((min(block, len(rows) - start), len(matched)), dtype=np.float32)
        result[start : start + block] = z @ centred + mean
    return result


#: `subword` is not here: its rows come from the source, and what the source cannot compose falls back to `xavier`.
FILLS = {"xavier": fill_xavier, "mean": fill_mean, "gaussian": fill_gaussian, "zeros": fill_zeros}
OOV_CHOICES = (*FILLS, "subword")
