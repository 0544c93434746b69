"""The initialisations of Kim et al. 2024 as pure functions, (source rows, draws) -> matrix, and their table STRATEGIES.

X (N, D) is the slot's matrix, X_p the rows of the source that were found, X_x the Xavier matrix drawn for N x D;
mean and sigma are over all elements, sigma with the sample's n - 1. `<pad>` is zeroed by the caller of `build`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from embinit_fairseq.errors import CoverageError
from embinit_fairseq.init.draws import FILLS, Draws, fill_xavier
from embinit_fairseq.init.report import describe


@dataclass(frozen=True)
class Gap:
    """What one of several sources side by side lacks.

    columns: those of that source. rows: (G,) int64 into `Source.placed`, the rows that it does not have. composed:
    (G,) bool, which of them were put together from that source's sub-words; the others are to be filled.
    """

    columns: slice
    rows: np.ndarray
    composed: np.ndarray


@dataclass
class Source:
    """What the source offers for one embedding matrix.

    rows: (K,) int64 rows of the matrix that were found; vectors: (K, D) float32, X_p. composed_rows, composed: (J,)
    and (J, D): rows put together from sub-words (`--embed-init-oov subword`), which take part in a transformation but
    not in mean and sigma. oov: how the remaining rows are filled. gaps: the columns of these K + J rows that have no
    vector, where sources stand side by side.
    """

    rows: np.ndarray
    vectors: np.ndarray
    oov: str = "xavier"
    composed_rows: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    composed: np.ndarray | None = None
    gaps: Sequence[Gap] = ()

    @property
    def placed_rows(self) -> np.ndarray:
        """(K + J,) found rows, then composed rows."""
        return np.concatenate([self.rows, self.composed_rows])

    @property
    def placed(self) -> np.ndarray:
        """(K + J, D) their vectors."""
        return np.concatenate([self.vectors, self.composed]) if len(self.composed_rows) else self.vectors

    @property
    def given(self) -> np.ndarray:
        """The elements of X_p that are of vectors: (K, D), or where there are gaps a flat array."""
        if not self.gaps:
            return self.vectors
        given = np.ones(self.vectors.shape, dtype=bool)
        for gap in self.gaps:
            given[gap.rows[gap.rows < len(self.rows)], gap.columns] = False
        return self.vectors[given]

    @property
    def complete(self) -> np.ndarray:
        """(K,) bool: matched rows without a gap."""
        complete = np.ones(len(self.rows), dtype=bool)
        for gap in self.gaps:
            complete[gap.rows[gap.rows < len(self.rows)]] = False
        return complete


#: (`Source`, None for one that draws everything; draws) -> (N, D) float32
Rule = Callable[[Any, Draws], np.ndarray]


@dataclass(frozen=True)
class Strategy:
    """One `--embed-init NAME`. rule: what fills the matrix.

    needs_source: does it want vectors? fills: are there rows without a vector to fill (`--embed-init-oov`)?
    scaled: does `--embed-init-std` apply? always_scaled: without it, too, the values are moved to a sigma; the others
    are told by the keyword `rescaled`. of_elements: in place of `rule` with `--embed-init-shuffle elements`.
    """

    rule: Callable[..., np.ndarray]
    needs_source: bool = False
    fills: bool = False
    scaled: bool = False
    always_scaled: bool = True
    of_elements: Callable[..., np.ndarray] | None = None

    @property
    def shuffles(self) -> bool:
        """Return True if `--embed-init-shuffle` applies."""
        return self.of_elements is not None

    def rule_for(self, std_given: bool, shuffle: str = "rows") -> Rule:
        """What fills the matrix with these options."""
        rule = self.of_elements if self.of_elements is not None and shuffle == "elements" else self.rule
        return rule if self.always_scaled else partial(rule, rescaled=std_given)


def build(strategy: Rule, source: Source | None, draws: Draws, pad_row: int | None) -> np.ndarray:
    """The (N, D) float32 embedding matrix of a slot, `<pad>` zero."""
    table = strategy(source, draws)
    if pad_row is not None:
        table[pad_row] = 0.0
    return table


def xavier(source: Source | None, draws: Draws) -> np.ndarray:
    """U(-a, a), a = sqrt(6 / (N + D)) (Kim 3.1)."""
    return draws.xavier.copy()


def normal(source: Source | None, draws: Draws) -> np.ndarray:
    """N(0, 1/D), fairseq's own distribution under a name of its own."""
    return draws.normal.copy()


def pretrained(source: Source, draws: Draws) -> np.ndarray:
    """The rows of the source as they are (Kim 3.2, 3.3)."""
    return _place(source, _values(source, draws), draws)


def pretrained_xavier(source: Source, draws: Draws) -> np.ndarray:
    """(x - mean(X_p)) * sigma_x / sigma_p (Kim eq. 1)."""
    return _place(source, _values(source, draws, rescaled=True), draws)


def shuffled(source: Source, draws: Draws, rescaled: bool = False) -> np.ndarray:
    """Rows and columns of X_p permuted at random; no word keeps its vector (Kim 3.4). rescaled: those of eq. 1."""
    placed = _values(source, draws, rescaled)
    columns = draws.generator("shuffle_columns").permutation(draws.dim)
    rows = draws.derangement(len(placed)) if len(placed) > 1 else np.arange(len(placed))
    return _place(source, placed[rows][:, columns], draws)


def shuffled_elements(source: Source, draws: Draws, rescaled: bool = False) -> np.ndarray:
    """All elements of X_p permuted at random (`--embed-init-shuffle elements`). rescaled: those of eq. 1."""
    placed = _values(source, draws, rescaled).reshape(-1).copy()
    draws.generator("shuffle_elements").shuffle(placed)
    return _place(source, placed.reshape(-1, draws.dim), draws)


def xavier_pretrained(source: Source, draws: Draws) -> np.ndarray:
    """(x - mean(X_x)) * sigma_p / sigma_x + mean(X_p) for every row (Kim eq. 4)."""
    mean, std = _moments(source)
    drawn = describe(draws.xavier)
    return _affine(draws.xavier, drawn["mean"], std / drawn["std"], mean)


def _moments(source: Source) -> tuple[float, float]:
    moments = describe(source.given)
    if not moments["std"] > 0:
        raise CoverageError(
            "the vectors that were found are all the same number, so that they have no sigma to standardise: "
            "is this file the right one (--embed-init-path)?"
        )
    return moments["mean"], moments["std"]


def _affine(values: np.ndarray, shift: float, scale: float, offset: float) -> np.ndarray:
    """(values - shift) * scale + offset, in float64 a block of rows at a time, rounded once to float32."""
    result = np.empty_like(values)
    for start in range(0, len(values), 8192):
        block = values[start : start + 8192].astype(np.float64)
        result[start : start + 8192] = (block - shift) * scale + offset
    return result


def _values(source: Source, draws: Draws, rescaled: bool = False) -> np.ndarray:
    """(K + J, D) what the placed rows get: the vectors as they are, or of eq. 1; gaps filled as `source.oov` says."""
    values = source.placed
    if rescaled:
        mean, std = _moments(source)
        values = _affine(values, mean, draws.target_std / std, 0.0)
    elif source.gaps:
        values = values.copy()
    for gap in source.gaps:
        empty = gap.rows[~gap.composed]
        if len(empty):
            known = np.setdiff1d(np.arange(len(source.rows)), gap.rows)
            fill = FILLS.get(source.oov, fill_xavier)
            rows = source.placed_rows[empty]
            values[empty, gap.columns] = fill(rows, draws, values[known, gap.columns], gap.columns)
    return values


def _place(source: Source, placed: np.ndarray, draws: Draws) -> np.ndarray:
    """Put the source's (transformed) rows into the embedding matrix and fill the others."""
    table = np.empty((draws.rows, draws.dim), dtype=np.float32)
    table[source.placed_rows] = placed
    missing = np.ones(draws.rows, dtype=bool)
    missing[source.placed_rows] = False
    rows = np.flatnonzero(missing)
    if len(rows):
        # what the source's sub-words cannot compose starts like the rows nobody knows anything about
        fill = FILLS.get(source.oov, fill_xavier)
        table[rows] = fill(rows, draws, table[source.rows])
    return table


#: name -> strategy, in the order of tables. To add one is to add a function and a line here.
STRATEGIES = {
    "normal": Strategy(normal),
    "xavier": Strategy(xavier, scaled=True),
    "pretrained": Strategy(pretrained, needs_source=True, fills=True),
    "pretrained_xavier": Strategy(pretrained_xavier, needs_source=True, fills=True, scaled=True),
    "shuffled": Strategy(shuffled, True, fills=True, scaled=True, always_scaled=False, of_elements=shuffled_elements),
    "xavier_pretrained": Strategy(xavier_pretrained, needs_source=True),
}
#: names of those that `--embed-init-std` applies to
SCALED = tuple(name for name, strategy in STRATEGIES.items() if strategy.scaled)
