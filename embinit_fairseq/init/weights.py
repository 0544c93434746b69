"""Combinations of old rows, and the bound on what new rows can do to a model's predictions.

Letters: z the logits of n old words, p their distribution; W (k, n), whose row i makes new word i: w_i = sum_j W_ij w_j
in the output matrix, and in its bias, so that its logit is sum_j W_ij z_j whatever the model reads. If W >= 0 and each
row sums to 1, then exactly

    KL(old || new) = log(1 + F(p)),  F(p) = sum_i g_i(p),  g_i(p) = prod_j p_j^W_ij

since the new words add sum_i exp(sum_j W_ij z_j) = Z F(p) to the normaliser Z. F is a sum of weighted geometric means:
concave, and F(t p) = t F(p), so that F(q) = sum_j q_j dF/dp_j(q) and, for every p that sums to 1 and every positive q,

    F(p) <= F(q) + sum_j (p_j - q_j) dF/dp_j(q) = sum_j p_j dF/dp_j(q) <= max_j dF/dp_j(q)

The uniform q gives max_j sum_i W_ij: for `avg` k / n (Hewitt 2021). p_j <- sum_i W_ij g_i(p) / F(p) does not decrease F
(Jensen), and where it ends all dF/dp_j with p_j > 0 equal F: the limit is reached.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Optional

import numpy as np

#: (old rows, their weights); None: the mean of the rows, in which repeated rows count repeatedly
Combination = tuple[np.ndarray, Optional[np.ndarray]]

#: by how much the weights of a row may miss 1: errors of rounding
_ROUNDING = 1e-9
#: the iteration ends if the limit is this much larger than the attained value, or after so many steps
_GAP, _STEPS = 1e-3, 200
#: a p_j that tends to 0 stays positive
_SMALLEST = 1e-200


@dataclass(frozen=True)
class Bound:
    """Limits of KL(old || new) in nats, for any distribution of the old words.

    Args:
        limit: no distribution has more. This is the bound.
        attained: some distribution has as much; free logits can have it.
        uniform: the simpler limit log(1 + max_j sum_i W_ij).
        separate: the limit of each word alone, added up: log(1 + sum_i max_j W_ij).
    """

    limit: float
    attained: float
    uniform: float
    separate: float

    def record(self) -> dict[str, float]:
        """Return the four numbers by name."""
        return asdict(self)


def bound_of(rows: Sequence[Combination], counts: Sequence[int], stays: np.ndarray) -> Bound | None:
    """Return the limits for new words; None if the theorem above does not hold for their W.

    Args:
        rows: the different rows of W.
        counts: how many new words have each.
        stays: (n,) bool, the old rows that the new model has, too.
    """
    terms = [_terms(*row) for row in rows]
    for columns, numerators, denominator in terms:
        is_mean = (numerators >= 0).all() and abs(numerators.sum() / denominator - 1) <= _ROUNDING
        if not is_mean or not stays[columns].all():
            return None
    lengths = [len(columns) for columns, *_ in terms]
    row = np.repeat(np.arange(len(terms)), lengths)
    columns, numerators = (np.concatenate(parts) for parts in zip(*(term[:2] for term in terms)))
    denominators = np.array([denominator for *_, denominator in terms])[row]
    count = np.asarray(counts, dtype=np.float64)
    # multiplied before divided: `avg` has k / n, not k times a rounded 1 / n
    totals = count[row] * numerators / denominators
    separate = float(np.maximum.reduceat(totals, np.cumsum([0, *lengths[:-1]])).sum())
    _, column = np.unique(columns, return_inverse=True)
    uniform = float(np.bincount(column, totals).max())
    attained, limit = _largest(row, column, numerators / denominators, count, uniform)
    return Bound(*map(math.log1p, (limit, attained, uniform, separate)))


def _terms(rows: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, float]:
    """Return (different old rows, numerators, denominator) of the weights of a combination."""
    if weights is None:
        columns, repeats = np.unique(rows, return_counts=True)
        return columns, repeats.astype(np.float64), float(len(rows))
    columns, places = np.unique(rows, return_inverse=True)
    return columns, np.bincount(places, weights, len(columns)), 1.0


def _largest(
    row: np.ndarray, column: np.ndarray, weights: np.ndarray, count: np.ndarray, limit: float
) -> tuple[float, float]:
    """Return an attained value of F and a limit of F, at most `limit`.

    Args:
        row, column, weights: the elements of W that are not 0, rows ascending.
        count: how many new words have each row.
        limit: the limit at the uniform p, where F is the number of new words over the number of columns.
    """
    size = int(column.max()) + 1
    p, attained = np.full(size, 1.0 / size), float(count.sum() / size)
    for _ in range(_STEPS):
        if limit <= attained * (1 + _GAP):
            break
        g = count * np.exp(np.bincount(row, weights * np.log(p)[column], len(count)))
        flow = np.bincount(column, weights * g[row], size)
        attained = max(attained, float(g.sum() / p.sum()))
        limit = min(limit, float((flow / p).max()))
        p = np.maximum(flow / g.sum(), _SMALLEST)
    return min(attained, limit), limit
