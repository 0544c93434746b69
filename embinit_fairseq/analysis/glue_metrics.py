"""The metrics of GLUE over a whole validation set; numpy only.

Letters: K classes; C the (K, K) counts, C[i, j] examples of class i that were taken for class j. Correlations are
between two vectors (N,). All results are fractions: 1.0 is perfect.
"""

from __future__ import annotations

import math

import numpy as np


def accuracy(counts: np.ndarray) -> float:
    """Share of the diagonal of C; nan for no examples."""
    total = float(np.sum(counts))
    return float(np.trace(counts)) / total if total else math.nan


def matthews(counts: np.ndarray) -> float:
    """Matthews' correlation of C, for K > 2 the R_K statistic (Gorodkin 2004, eq. 8); 0 if one side is constant."""
    counts = np.asarray(counts, dtype=np.float64)
    total, right = counts.sum(), np.trace(counts)
    true, predicted = counts.sum(axis=1), counts.sum(axis=0)
    spread = math.sqrt(total**2 - true @ true) * math.sqrt(total**2 - predicted @ predicted)
    return float((right * total - true @ predicted) / spread) if spread else 0.0


def f1(counts: np.ndarray) -> float:
    """F1 of class 1 of a (2, 2) C; 0 if that class neither occurs nor is predicted."""
    hits, errors = float(counts[1][1]), float(counts[0][1] + counts[1][0])
    return 2 * hits / (2 * hits + errors) if hits or errors else 0.0


def accuracy_and_f1(counts: np.ndarray) -> float:
    """The mean of the two, by which GLUE ranks MRPC and QQP."""
    return (accuracy(counts) + f1(counts)) / 2


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Correlation of two vectors (N,); nan if one of them is constant or not finite."""
    x, y = (np.asarray(values, dtype=np.float64) for values in (x, y))
    # asked of the values themselves: the deviations of a constant from its rounded mean need not be 0
    if len(x) < 2 or not all(np.isfinite(values).all() and np.ptp(values) > 0 for values in (x, y)):
        return math.nan
    x, y = (values - values.mean() for values in (x, y))
    x, y = (values / np.abs(values).max() for values in (x, y))  # squares must neither overflow nor vanish
    return float(np.clip(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)), -1.0, 1.0))


def average_ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1 of a vector (N,); equal values share the mean of their ranks."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(sizes) - (sizes - 1) / 2)[group]


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Pearson's correlation of the ranks, with ties; nan if one vector is constant or holds a nan."""
    if np.isnan(x).any() or np.isnan(y).any():
        return math.nan
    return pearson(average_ranks(x), average_ranks(y))


def pearson_and_spearman(x: np.ndarray, y: np.ndarray) -> float:
    """The mean of the two, by which GLUE ranks STS-B."""
    return (pearson(x, y) + spearman(x, y)) / 2
