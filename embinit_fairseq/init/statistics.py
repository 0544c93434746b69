"""Numbers about a table: moments, coverage, position encodings, absorption (Kim et al. 2024, Tables 2 and 6)."""

from __future__ import annotations

import math

import numpy as np

from embinit_fairseq.vocab.align import Alignment
from embinit_fairseq.vocab.dictionary import Vocabulary

_BLOCK_ROWS = 8192  # float64 copies of a block only, whatever the table's size


def describe(matrix: np.ndarray) -> dict[str, float]:
    """min, max, mean and sample standard deviation over all elements, accumulated in float64.

    Empty or single-element tables have std nan, as numpy's ddof=1.
    """
    count = matrix.size
    if count == 0:
        return dict.fromkeys(("min", "max", "mean", "std"), math.nan)
    blocks = [matrix[start : start + _BLOCK_ROWS] for start in range(0, len(matrix), _BLOCK_ROWS)]
    mean = math.fsum(float(block.sum(dtype=np.float64)) for block in blocks) / count
    squares = math.fsum(float(((block.astype(np.float64) - mean) ** 2).sum()) for block in blocks)
    return {
        "min": float(matrix.min()),
        "max": float(matrix.max()),
        "mean": mean,
        "std": math.sqrt(squares / (count - 1)) if count > 1 else math.nan,
    }


def coverage(vocabulary: Vocabulary, alignment: Alignment) -> dict[str, float | int]:
    """found rows; their share of the types and of the running tokens (dictionary counts) that stand for text."""
    found = alignment.found & vocabulary.regular
    types, mass = int(vocabulary.regular.sum()), int(vocabulary.counts[vocabulary.regular].sum())
    return {
        "found": int(found.sum()),
        "coverage_types": float(found.sum() / types) if types else 0.0,
        "coverage_tokens": float(vocabulary.counts[found].sum() / mass) if mass else 0.0,
    }


def xavier_bound(rows: int, dim: int) -> float:
    """a of U(-a, a), a = sqrt(6 / (N + D)) (Glorot and Bengio 2010; Kim 3.1)."""
    return math.sqrt(6.0 / (rows + dim))


def absorption_ratio(std: float, scale: float, position_std: float | None) -> float | None:
    """Standard deviation of the scaled embeddings over that of the position encoding they are added to.

    None without positions. Kim section 6: GloVe at D = 300 has 6.39 / 0.67 = 9.5, Xavier 0.27 / 0.67 = 0.4.
    """
    return std * scale / position_std if position_std else None
