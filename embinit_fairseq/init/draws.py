"""Random numbers of the initialisation: from named streams of their own, never from a global random state.

Every stream depends on (seed, slot, purpose) only, so that strategies with one seed share their Xavier draw
(paired comparisons) and one slot's numbers do not depend on another slot's.
"""

from __future__ import annotations

import math
import zlib
from functools import cached_property

import numpy as np

from embinit_fairseq.init.statistics import describe, xavier_bound


class Draws:
    """The random matrices of one slot. rows, dim: the N x D of the slot's table."""

    def __init__(self, rows: int, dim: int, seed: int, slot: str, std: float | None = None) -> None:
        self.rows, self.dim, self.seed, self.slot = rows, dim, seed, slot
        self._std = std

    def generator(self, purpose: str) -> np.random.Generator:
        """A fresh generator (PCG64) of the stream with that name."""
        words = [self.seed & 0xFFFFFFFFFFFFFFFF, zlib.crc32(self.slot.encode()), zlib.crc32(purpose.encode())]
        return np.random.default_rng(np.random.SeedSequence(words))

    @cached_property
    def xavier(self) -> np.ndarray:
        """(N, D) float32 from U(-a, a), a = sqrt(6 / (N + D)); with a chosen `std`, scaled to have exactly that."""
        values = self.generator("xavier").random((self.rows, self.dim), dtype=np.float32)
        bound = np.float32(xavier_bound(self.rows, self.dim))
        values *= 2 * bound
        values -= bound
        if self._std is not None:
            values *= np.float32(self._std / describe(values)["std"])
        return values

    @cached_property
    def target_std(self) -> float:
        """sigma_x: of the Xavier matrix actually drawn, or the chosen number."""
        return self._std if self._std is not None else describe(self.xavier)["std"]

    @cached_property
    def normal(self) -> np.ndarray:
        """(N, D) float32 from N(0, 1/D), fairseq's own law for token embeddings."""
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
