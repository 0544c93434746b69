"""Compute the metrics of GLUE (Wang et al. 2019) over a whole validation set, in NumPy.

    mcc          Matthews' correlation; for K > 2 the R_K statistic (Gorodkin 2004, equation 8)
    f1           2 C_kk / (sum_i C_ik + sum_j C_kj), of class k; macro_f1 is the mean of all classes
    acc_and_f1   the mean of both, by which GLUE ranks MRPC and QQP
    pearson_and_spearman   likewise for STS-B

K classes; C (K, K): C[i, j] examples of class i that were taken for class j; N examples. Results are fractions: 1.0 is
perfect.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np


def accuracy(counts: np.ndarray) -> float:
    """Return the share of the diagonal of C; nan for no examples."""
    total = float(np.sum(counts))
    return float(np.trace(counts)) / total if total else math.nan


def matthews(counts: np.ndarray) -> float:
    """Return Matthews' correlation of C; 0 if one side is constant."""
    total, right = counts.sum(), np.trace(counts)
    true, predicted = counts.sum(axis=1), counts.sum(axis=0)
    spread = math.sqrt(total**2 - true @ true) * math.sqrt(total**2 - predicted @ predicted)
    return float((right * total - true @ predicted) / spread) if spread else 0.0


def class_f1(counts: np.ndarray) -> np.ndarray:
    """Return F1 of each class, (K,); 0 for a class that neither occurs nor is predicted."""
    occurrences = counts.sum(axis=0) + counts.sum(axis=1)
    return 2 * np.diag(counts) / np.where(occurrences > 0, occurrences, 1)


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Return the correlation of two vectors (N,); nan if one of them is constant or not finite."""
    # not by the deviations: a constant may differ from its rounded mean
    if len(x) < 2 or not all(np.isfinite(values).all() and np.ptp(values) > 0 for values in (x, y)):
        return math.nan
    return float(np.corrcoef(x, y)[0, 1])


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Return Pearson's correlation of the ranks, with ties; nan if one vector is constant or holds a nan."""
    if np.isnan(x).any() or np.isnan(y).any():
        return math.nan
    return pearson(average_ranks(x), average_ranks(y))


def average_ranks(values: np.ndarray) -> np.ndarray:
    """Return the 1-based ranks of a vector (N,); equal values share the mean of their ranks."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(sizes) - (sizes - 1) / 2)[group]


#: name -> function of C (2, 2) in double precision, of class 1, which --positive-label names
BINARY: dict[str, Callable[[np.ndarray], float]] = {
    "f1": lambda counts: float(class_f1(counts)[1]),
    "acc_and_f1": lambda counts: (accuracy(counts) + float(class_f1(counts)[1])) / 2,
}
#: name -> function of C (K, K) in double precision
CLASSIFICATION: dict[str, Callable[[np.ndarray], float]] = {
    "accuracy": accuracy,
    "mcc": matthews,
    **BINARY,
    "macro_f1": lambda counts: float(class_f1(counts).mean()),
}
#: name -> function of predictions and targets (N,) in double precision
REGRESSION: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "pearson": pearson,
    "spearman": spearman,
    "pearson_and_spearman": lambda x, y: (pearson(x, y) + spearman(x, y)) / 2,
}
