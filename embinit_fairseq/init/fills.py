"""Rows that the source does not have: `--embed-init-oov`.

Every fill takes (rows to fill (M,), draws, the found rows as they stand in the final table (K, D)) and returns
(M, D) float32.
"""

from __future__ import annotations

import math

import numpy as np

from embinit_fairseq.init.draws import Draws

_BLOCK_ELEMENTS = 16_000_000  # of the (rows x K) matrix of normal numbers: 64 MB at a time


def fill_xavier(rows: np.ndarray, draws: Draws, found: np.ndarray) -> np.ndarray:
    """The rows of the Xavier draw."""
    return draws.xavier[rows]


def fill_zeros(rows: np.ndarray, draws: Draws, found: np.ndarray) -> np.ndarray:
    """Zeros."""
    return np.zeros((len(rows), draws.dim), dtype=np.float32)


def fill_mean(rows: np.ndarray, draws: Draws, found: np.ndarray) -> np.ndarray:
    """The mean of the found rows, for each column."""
    mean = found.mean(axis=0, dtype=np.float64).astype(np.float32)
    return np.broadcast_to(mean, (len(rows), draws.dim))


def fill_gaussian(rows: np.ndarray, draws: Draws, found: np.ndarray) -> np.ndarray:
    """N(mu, Sigma) with the found rows' mean and (1/K) covariance, without forming Sigma.

    mu + (E - mu)^T z / sqrt(K), z ~ N(0, I_K), has exactly that law (Hewitt 2021; SPEC section D).
    """
    mean = found.mean(axis=0, dtype=np.float64)
    centred = ((found - mean) / math.sqrt(len(found))).astype(np.float32)
    generator = draws.generator("oov_gaussian")
    block = max(1, _BLOCK_ELEMENTS // len(found))
    result = np.empty((len(rows), draws.dim), dtype=np.float32)
    for start in range(0, len(rows), block):
        z = generator.standard_normal((min(block, len(rows) - start), len(found)), dtype=np.float32)
        result[start : start + block] = z @ centred + mean
    return result


#: `subword` is not here: its rows come from the source, and what the source cannot compose falls back to `xavier`.
FILLS = {"xavier": fill_xavier, "mean": fill_mean, "gaussian": fill_gaussian, "zeros": fill_zeros}
OOV_CHOICES = (*FILLS, "subword")
