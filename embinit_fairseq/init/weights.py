"""Combine old rows, and bound the effect of new rows on a model's predictions.

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np

if TYPE_CHECKING:
    import torch

#: (N, D), or (N,) for a bias: a NumPy array or a torch tensor on the CPU
Table = Union[np.ndarray, "torch.Tensor"]

#: (old rows, their weights); None: the mean of the rows, in which repeated rows count repeatedly
Combination = tuple[np.ndarray, Optional[np.ndarray]]

#: origins of rows
COPIED, COMPOSED, AVERAGED, DRAWN = KINDS = ("copied", "composed", "averaged", "drawn")
#: elements of a matrix at a time, in `blocks`
_BLOCK_ELEMENTS = 4_000_000
#: largest difference of the sum of a row's weights from 1: errors of rounding
_ROUNDING = 1e-9
#: the iteration ends if the limit is this much larger than the attained value, or after so many steps, or elements of W
#: in all steps together (seconds); limit and attained value are right after every step
_GAP, _STEPS, _ELEMENTS = 1e-3, 200, 100_000_000
#: a p_j that tends to 0 stays positive
_SMALLEST = 1e-200


@dataclass(frozen=True)
class Weights:
    """Hold the sparse matrix W (new N, old N): the new matrix is W times the old one, except for rows that are drawn.

    Args:
        old_size: number of old rows.
        kind: (new N,) index into KINDS.
        old_row: (new N,) the old row that is copied, else -1.
        averaged: the row of W of all rows that are averaged.
        composed: new row -> its row of W.
    """

    old_size: int
    kind: np.ndarray
    old_row: np.ndarray
    averaged: Combination
    composed: Mapping[int, Combination]

    @property
    def rows(self) -> np.ndarray:
        """Return the new rows that are not copied, ascending."""
        return np.flatnonzero(self.kind != KINDS.index(COPIED))

    def rows_of(self, kind: str) -> np.ndarray:
        """Return the new rows of one of KINDS, ascending."""
        return np.flatnonzero(self.kind == KINDS.index(kind))

    def row(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (different old rows, weights) of a new row; both empty if it is drawn."""
        kind = KINDS[self.kind[row]]
        if kind == DRAWN:
            return np.empty(0, dtype=np.int64), np.empty(0)
        copied = self.old_row[row : row + 1], None
        rows, weights = {COPIED: copied, AVERAGED: self.averaged}.get(kind) or self.composed[row]
        columns, numerators, denominator = _terms(rows, weights)
        return columns, numerators / denominator

    def times(self, table: Table, rows: np.ndarray) -> np.ndarray:
        """Return these rows of W times the matrix, (len(rows), D) float64; rows that are drawn are 0."""
        products = np.zeros((len(rows), columns_of(table)))
        kinds = {kind: np.flatnonzero(self.kind[rows] == KINDS.index(kind)) for kind in KINDS}
        if len(kinds[COPIED]):
            products[kinds[COPIED]] = take_rows(table, self.old_row[rows[kinds[COPIED]]])
        if len(kinds[AVERAGED]):
            products[kinds[AVERAGED]] = _combined(table, *self.averaged)
        for number in kinds[COMPOSED]:
            products[number] = _combined(table, *self.composed[rows[number]])
        return products

    def bound(self) -> Bound | None:
        """Return the limits of KL(old given the old rows that are copied || new); None if there is none.

        A second copy of an old row counts as a new word. All output matrices and biases must be made by this W.
        """
        if (self.kind == KINDS.index(DRAWN)).any():
            return None
        copied, stays = self.rows_of(COPIED), np.zeros(self.old_size, dtype=bool)
        old_rows, firsts = np.unique(self.old_row[copied], return_index=True)
        stays[old_rows] = True
        again = self.old_row[np.delete(copied, firsts)]
        rows = [*((np.array([row]), None) for row in again), *(self.composed[row] for row in self.rows_of(COMPOSED))]
        averaged = len(self.rows_of(AVERAGED))
        counts = [1] * len(rows)
        return bound_of(rows + [self.averaged] * (averaged > 0), counts + [averaged] * (averaged > 0), stays)


def _combined(table: Table, rows: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    if weights is None:
        return mean_row(table, rows)
    product: np.ndarray = weights @ take_rows(table, rows).astype(np.float64)
    return product


# ---- The bound ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bound:
    """Hold limits of KL(old || new) in nats, for any distribution of the old words.

    Args:
        limit: the bound; no distribution has more.
        attained: a value that some distribution of free logits has.
        uniform: the simpler limit log(1 + max_j sum_i W_ij).
        separate: the limit of each word alone, added up: log(1 + sum_i max_j W_ij).
    """

    limit: float
    attained: float
    uniform: float
    separate: float


def bound_entries(limits: Bound | None) -> dict[str, Any]:
    """Return the entries of a record, with None if there is no bound."""
    return {"bound": limits.limit if limits else None, "bounds": asdict(limits) if limits else None}


def bound_of(rows: Sequence[Combination], counts: Sequence[int], stays: np.ndarray) -> Bound | None:
    """Return the limits for new words; None if the theorem above does not hold for their W.

    Args:
        rows: the different rows of W.
        counts: number of new words per row.
        stays: (n,) bool, the old rows that the new model has, too.
    """
    if not rows:
        return Bound(0.0, 0.0, 0.0, 0.0)
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
        count: number of new words per row.
        limit: the limit at the uniform p, where F is the number of new words over the number of columns.
    """
    size = int(column.max()) + 1
    p, attained = np.full(size, 1.0 / size), float(count.sum() / size)
    for _ in range(min(_STEPS, 1 + _ELEMENTS // len(row))):
        if limit <= attained * (1 + _GAP):
            break
        g = count * np.exp(np.bincount(row, weights * np.log(p)[column], len(count)))
        flow = np.bincount(column, weights * g[row], size)
        attained = max(attained, float(g.sum() / p.sum()))
        limit = min(limit, float((flow / p).max()))
        p = np.maximum(flow / g.sum(), _SMALLEST)
    return min(attained, limit), limit


# ---- Rows of matrices in any precision ----------------------------------------------------------------------------


def mean_row(table: Table, rows: np.ndarray) -> np.ndarray:
    """Return the mean of the rows, (D,), accumulated in float64."""
    total = np.zeros(columns_of(table))
    for part in blocks(len(rows), len(total)):
        total += take_rows(table, rows[part]).sum(axis=0, dtype=np.float64)
    return total / len(rows)


def columns_of(table: Table) -> int:
    """Return D; 1 for a bias."""
    return 1 if table.ndim == 1 else int(table.shape[1])


def blocks(length: int, columns: int = 1, elements: int | None = None) -> Iterator[slice]:
    """Yield slices of rows with at most so many elements (None: 4 million), or of one row."""
    step = max(1, (_BLOCK_ELEMENTS if elements is None else elements) // columns)
    for start in range(0, length, step):
        yield slice(start, min(start + step, length))


def take_rows(table: Table, rows: np.ndarray) -> np.ndarray:
    """Return (len(rows), D) in the matrix' precision, at least float32; a view if the rows are consecutive."""
    are_consecutive = bool((np.diff(rows) == 1).all())
    chosen: Any = table[int(rows[0]) : int(rows[-1]) + 1] if are_consecutive else table[rows]
    if not isinstance(chosen, np.ndarray):
        chosen = chosen.detach()
        chosen = (chosen if chosen.element_size() >= 4 else chosen.float()).numpy()  # NumPy has no bfloat16
    return chosen.reshape(len(rows), -1)
