"""Draw random numbers: named streams, the matrices that a strategy of Kim et al. shares, rows around the mean.

Numbers come from named streams, never from a global random state. A stream depends on the seed and its names only: so
strategies with one seed share their Xavier draw (paired comparisons), and matrices are independent of one another.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from embinit_fairseq.errors import OptionError
from embinit_fairseq.init.init_report import describe, xavier_bound
from embinit_fairseq.init.weights import Table, blocks, mean_row, take_rows

#: limits of a sigma, far beyond use and far inside float32
_SMALLEST, _LARGEST = 1e-20, 1e20


@dataclass(frozen=True)
class TargetStd:
    """Hold the sigma of the result: `number`, or if that is None, `times` the sigma of the Xavier draw."""

    number: float | None = None
    times: float = 1.0

    @property
    def label(self) -> float | str | None:
        """Return the value for records: the number, or `0.25x`; None for Xavier's own."""
        return self.number if self.number is not None or self.times == 1 else f"{self.times!r}x".replace(".0x", "x")


def parse_std(text: float | str | None, flag: str) -> TargetStd:
    """Parse a sigma: `xavier` or None, `0.25x` (times Xavier's sigma), or a number (a float in older checkpoints).

    Raises:
        OptionError: for any other value; `flag` names the option.
    """
    if text is None or text == "xavier":
        return TargetStd()
    is_multiple = str(text).endswith("x")
    try:
        value = float(str(text).removesuffix("x"))
    except ValueError:
        value = math.nan
    if not _SMALLEST < value < _LARGEST:
        raise OptionError(
            f"{flag} {text}: expected a standard deviation, which is a positive number between {_SMALLEST:g} and "
            f"{_LARGEST:g} (0.02), such a number times Xavier's (0.25x), or the word xavier"
        )
    return TargetStd(times=value) if is_multiple else TargetStd(value)


def check_seed(seed: int, flag: str) -> None:
    """Raise OptionError unless `seed` can be a seed. flag: option that has it."""
    if not 0 <= seed < 2**64:
        raise OptionError(f"{flag} {seed}: a seed is a number from 0 to 2^64 - 1")


def stream(seed: int, *names: str) -> np.random.Generator:
    """Return a new generator (PCG64) of the stream with these names."""
    words = [seed & 0xFFFFFFFFFFFFFFFF, *(zlib.crc32(name.encode()) for name in names)]
    return np.random.default_rng(np.random.SeedSequence(words))


# ---- Matrices of a slot (--embed-init) ------------------------------------------------------------------------------


class Draws:
    """Draw the random matrices of one slot. rows, dim: N and D of its matrix. std: the sigma of the result."""

    def __init__(self, rows: int, dim: int, seed: int, slot: str, std: TargetStd | float | None = None) -> None:
        self.rows, self.dim, self.seed, self.slot = rows, dim, seed, slot
        self._std = std if isinstance(std, TargetStd) else TargetStd(std)

    def generator(self, purpose: str) -> np.random.Generator:
        """Return a new generator of the slot's stream with this name."""
        return stream(self.seed, self.slot, purpose)

    @cached_property
    def xavier(self) -> np.ndarray:
        """Return (N, D) float32 from U(-a, a), a = sqrt(6 / (N + D)), scaled to the chosen sigma."""
        number = self._std.number
        factor = self._std.times if number is None else number / describe(self._drawn)["std"]
        return self._drawn if factor == 1 else self._drawn * np.float32(factor)

    @cached_property
    def _drawn(self) -> np.ndarray:
        values = self.generator("xavier").random((self.rows, self.dim), dtype=np.float32)
        bound = np.float32(xavier_bound(self.rows, self.dim))
        values *= 2 * bound
        values -= bound
        return values

    @cached_property
    def target_std(self) -> float:
        """Return sigma_x: that of the Xavier draw, a multiple of it, or the chosen number."""
        number = self._std.number
        return self._std.times * describe(self._drawn)["std"] if number is None else number

    @cached_property
    def normal(self) -> np.ndarray:
        """Return (N, D) float32 from N(0, 1/D), fairseq's own distribution for token embeddings."""
        values = self.generator("normal").standard_normal((self.rows, self.dim), dtype=np.float32)
        values *= np.float32(1.0 / math.sqrt(self.dim))
        return values

    def derangement(self, count: int) -> np.ndarray:
        """Return a uniformly drawn permutation of `count` >= 2 items that leaves none in its place."""
        generator = self.generator("shuffle_rows")
        places = np.arange(count)
        while True:  # about e = 2.7 tries, whatever the count
            order = generator.permutation(count)
            if not (order == places).any():
                return order


# ---- Rows around the mean of old rows (expand-vocab, transfer-vocab) ------------------------------------------------

#: a normal number takes as long as this many products inside a matrix product
_NORMAL = 500
#: the eigenvectors of a (D, D) matrix take as long as D^3 times this many products
_EIGH = 40


def gaussian_rows(
    tables: Sequence[Table], rows: np.ndarray, count: int, scale: float, generator: np.random.Generator
) -> list[np.ndarray]:
    """Draw `count` rows from N(mu, c Sigma) of the matrices side by side: one (count, D) array per matrix.

    Two algorithms have exactly this distribution, also if Sigma is singular (fewer rows than columns). Their numbers
    differ, so the shapes decide which numbers a seed gives:

        without Sigma   (E - mu)^T z / sqrt(n) with z ~ N(0, I_n): less work for few new words
        with Sigma      Sigma's eigenvectors times D normal numbers per word: less work for many (`sigma_pays`)

    `strategies.fill_gaussian` has the same distribution, but draws z as (new, old): joining the two would change
    the numbers of every seed.
    """
    means = [mean_row(table, rows) for table in tables]
    with_sigma = sigma_pays(len(rows), sum(map(len, means)), count)
    drawn = (_noise_with_sigma if with_sigma else _noise_without_sigma)(tables, means, rows, count, generator)
    return [mean + math.sqrt(scale) * part for mean, part in zip(means, drawn)]


def sigma_pays(rows: int, columns: int, count: int) -> bool:
    """Return True if the algorithm with Sigma takes less time, as for small D and many words.

    With: n D^2 / 2, and D^3 times a constant. Without: n k (D + a constant).
    """
    return columns**2 * (rows // 2 + _EIGH * columns + count) < rows * count * (columns + _NORMAL)


def _noise_without_sigma(
    tables: Sequence[Table], means: list[np.ndarray], rows: np.ndarray, count: int, generator: np.random.Generator
) -> list[np.ndarray]:
    """Return z^T (E - mu) / sqrt(n) per matrix. z is drawn row by row, so that the size of a block does not matter."""
    noise = [np.zeros((count, len(mean))) for mean in means]
    widest = max(count, *map(len, means))
    for part in blocks(len(rows), widest):
        z = generator.standard_normal((part.stop - part.start, count), dtype=np.float32)
        for table, mean, total in zip(tables, means, noise):
            total += z.T @ _centred(take_rows(table, rows[part]), mean)
    return [total / math.sqrt(len(rows)) for total in noise]


def _noise_with_sigma(
    tables: Sequence[Table], means: list[np.ndarray], rows: np.ndarray, count: int, generator: np.random.Generator
) -> list[np.ndarray]:
    """Return g diag(sqrt(w)) V^T with Sigma = V diag(w) V^T and g ~ N(0, I)."""
    edges = np.cumsum([len(mean) for mean in means])
    sigma = np.zeros((edges[-1], edges[-1]))
    for part in blocks(len(rows), edges[-1]):
        block = np.hstack([_centred(take_rows(table, rows[part]), mean) for table, mean in zip(tables, means)])
        sigma += block.T @ block
    values, vectors = np.linalg.eigh(sigma / len(rows))
    g = generator.standard_normal((count, edges[-1])) * np.sqrt(values.clip(min=0.0))
    return np.split(g @ vectors.T, edges[:-1], axis=1)


def _centred(block: np.ndarray, mean: np.ndarray) -> np.ndarray:
    return block - mean.astype(block.dtype)
