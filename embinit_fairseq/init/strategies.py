"""Compute the initialisations of Kim et al. 2024: pure functions, (vectors, draws) -> matrix, and a table, STRATEGIES.

X (N, D) is the slot's matrix, X_p the matched rows of the vectors, X_x the Xavier matrix drawn for N x D; mean and
sigma are over all elements, sigma with the sample's n - 1. `<pad>` is set to zero by `build`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from embinit_fairseq.errors import CoverageError, OptionError
from embinit_fairseq.init.draws import Draws
from embinit_fairseq.init.init_report import BLOCK_ROWS, describe
from embinit_fairseq.init.weights import blocks

# ---- The vectors that a strategy starts from ------------------------------------------------------------------------


@dataclass(frozen=True)
class Gap:
    """Hold the elements that one of several files side by side lacks.

    columns: the file's columns. rows: (G,) int64 into `Source.placed`, the rows that it does not have. composed: (G,)
    bool, rows that were composed from the file's subwords; the others are to be filled.
    """

    columns: slice
    rows: np.ndarray
    composed: np.ndarray


@dataclass
class Source:
    """Hold the vectors for one embedding matrix.

    rows: (K,) int64 matched rows of the matrix; vectors: (K, D) float32, X_p. composed_rows, composed: (J,) and (J, D),
    rows composed from subwords (oov `subword`), which take part in a transformation but not in mean and sigma. oov: how
    the remaining rows are filled. gaps: the columns of these K + J rows without a vector, of files side by side.
    """

    rows: np.ndarray
    vectors: np.ndarray
    oov: str = "xavier"
    composed_rows: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    composed: np.ndarray | None = None
    gaps: Sequence[Gap] = ()

    @property
    def fill(self) -> Callable[..., np.ndarray]:
        """Return the fill of the remaining rows; rows that subwords cannot compose take the Xavier draw."""
        return FILLS.get(self.oov, fill_xavier)

    @property
    def placed_rows(self) -> np.ndarray:
        """Return (K + J,) matched rows, then composed rows."""
        return np.concatenate([self.rows, self.composed_rows])

    @property
    def placed(self) -> np.ndarray:
        """Return (K + J, D) their vectors."""
        return np.concatenate([self.vectors, self.composed]) if len(self.composed_rows) else self.vectors

    @property
    def matched_values(self) -> np.ndarray:
        """Return the elements of X_p that come from files: (K, D), or a flat array if there are gaps."""
        if not self.gaps:
            return self.vectors
        is_matched = np.ones(self.vectors.shape, dtype=bool)
        for gap in self.gaps:
            is_matched[gap.rows[gap.rows < len(self.rows)], gap.columns] = False
        return self.vectors[is_matched]

    @property
    def complete(self) -> np.ndarray:
        """Return (K,) bool: matched rows without a gap."""
        complete = np.ones(len(self.rows), dtype=bool)
        for gap in self.gaps:
            complete[gap.rows[gap.rows < len(self.rows)]] = False
        return complete


# ---- Rows without a vector: `--embed-init-oov` ----------------------------------------------------------------------
# Every fill takes (rows to fill (M,), draws, the matched rows as they are in the final matrix (K, d), the d columns to
# fill) and returns (M, d) float32. The columns are all D, or the columns of one of several files (`concat:`).

ALL = slice(None)
#: elements of the (rows x K) matrix of normal numbers at a time: 64 MB
_BLOCK_ELEMENTS = 16_000_000


def fill_xavier(rows: np.ndarray, draws: Draws, matched: np.ndarray, columns: slice = ALL) -> np.ndarray:
    """Return the rows of the Xavier draw."""
    return draws.xavier[rows, columns]


def fill_zeros(rows: np.ndarray, draws: Draws, matched: np.ndarray, columns: slice = ALL) -> np.ndarray:
    """Return zeros."""
    return np.zeros((len(rows), matched.shape[1]), dtype=np.float32)


def fill_mean(rows: np.ndarray, draws: Draws, matched: np.ndarray, columns: slice = ALL) -> np.ndarray:
    """Return the mean of the matched rows, for each column."""
    mean = matched.mean(axis=0, dtype=np.float64).astype(np.float32)
    return np.broadcast_to(mean, (len(rows), len(mean)))


def fill_gaussian(rows: np.ndarray, draws: Draws, matched: np.ndarray, columns: slice = ALL) -> np.ndarray:
    """Draw from N(mu, Sigma) with the matched rows' mean and (1/K) covariance, without forming Sigma.

    mu + (E - mu)^T z / sqrt(K), z ~ N(0, I_K), has exactly that distribution (Hewitt 2021). `draws.gaussian_rows` draws
    its numbers in another order.
    """
    mean = matched.mean(axis=0, dtype=np.float64)
    centred = ((matched - mean) / math.sqrt(len(matched))).astype(np.float32)
    # each of several files has a stream of its own
    generator = draws.generator("oov_gaussian" if columns == ALL else f"oov_gaussian {columns.start}")
    result = np.empty((len(rows), matched.shape[1]), dtype=np.float32)
    for block in blocks(len(rows), len(matched), _BLOCK_ELEMENTS):
        z = generator.standard_normal((block.stop - block.start, len(matched)), dtype=np.float32)
        result[block] = z @ centred + mean
    return result


#: `subword` is not here: its rows come from the vectors, and rows that cannot be composed are filled by `xavier`.
FILLS = {"xavier": fill_xavier, "mean": fill_mean, "gaussian": fill_gaussian, "zeros": fill_zeros}
OOV_CHOICES = (*FILLS, "subword")


# ---- The strategies -------------------------------------------------------------------------------------------------


def xavier(source: Source | None, draws: Draws) -> np.ndarray:
    """Draw from U(-a, a), a = sqrt(6 / (N + D)) (Kim 3.1)."""
    return draws.xavier.copy()


def normal(source: Source | None, draws: Draws) -> np.ndarray:
    """Draw from N(0, 1/D), fairseq's own distribution under a name of its own."""
    return draws.normal.copy()


def pretrained(source: Source, draws: Draws) -> np.ndarray:
    """Take the vectors as they are (Kim 3.2, 3.3)."""
    return _place(source, _values(source, draws), draws)


def pretrained_xavier(source: Source, draws: Draws) -> np.ndarray:
    """Compute (x - mean(X_p)) * sigma_x / sigma_p (Kim eq. 1)."""
    return _place(source, _values(source, draws, rescaled=True), draws)


def shuffled(source: Source, draws: Draws, rescaled: bool = False) -> np.ndarray:
    """Permute rows and columns of X_p at random; no word keeps its vector (Kim 3.4). rescaled: the rows of eq. 1."""
    placed = _values(source, draws, rescaled)
    columns = draws.generator("shuffle_columns").permutation(draws.dim)
    rows = draws.derangement(len(placed)) if len(placed) > 1 else np.arange(len(placed))
    return _place(source, placed[rows][:, columns], draws)


def shuffled_elements(source: Source, draws: Draws, rescaled: bool = False) -> np.ndarray:
    """Permute all elements of X_p at random (`--embed-init-shuffle elements`). rescaled: the elements of eq. 1."""
    placed = _values(source, draws, rescaled).reshape(-1).copy()
    draws.generator("shuffle_elements").shuffle(placed)
    return _place(source, placed.reshape(-1, draws.dim), draws)


def xavier_pretrained(source: Source, draws: Draws) -> np.ndarray:
    """Compute (x - mean(X_x)) * sigma_p / sigma_x + mean(X_p) for every row (Kim eq. 4)."""
    mean, std = _moments(source)
    drawn = describe(draws.xavier)
    return _affine(draws.xavier, drawn["mean"], std / drawn["std"], mean)


def _moments(source: Source) -> tuple[float, float]:
    moments = describe(source.matched_values)
    if not moments["std"] > 0:
        raise CoverageError(
            "the matched vectors are all the same number, so they have no sigma and cannot be standardised: is this "
            "the right file of vectors?"
        )
    return moments["mean"], moments["std"]


def _affine(values: np.ndarray, shift: float, scale: float, offset: float) -> np.ndarray:
    """Compute (values - shift) * scale + offset in float64, a block of rows at a time, rounded once to float32."""
    result = np.empty_like(values)
    for block in blocks(len(values), elements=BLOCK_ROWS):
        result[block] = (values[block].astype(np.float64) - shift) * scale + offset
    return result


def _values(source: Source, draws: Draws, rescaled: bool = False) -> np.ndarray:
    """Return (K + J, D) the vectors as they are, or of eq. 1; gaps are filled as `source.oov` says."""
    values = source.placed
    if rescaled:
        mean, std = _moments(source)
        values = _affine(values, mean, draws.target_std / std, 0.0)
    elif source.gaps:
        values = values.copy()
    for gap in source.gaps:
        empty = gap.rows[~gap.composed]
        if len(empty):
            complete = np.setdiff1d(np.arange(len(source.rows)), gap.rows)
            matched = values[complete, gap.columns]
            values[empty, gap.columns] = source.fill(source.placed_rows[empty], draws, matched, gap.columns)
    return values


def _place(source: Source, placed: np.ndarray, draws: Draws) -> np.ndarray:
    """Put the (transformed) vectors into the embedding matrix and fill the other rows."""
    table = np.empty((draws.rows, draws.dim), dtype=np.float32)
    table[source.placed_rows] = placed
    missing = np.ones(draws.rows, dtype=bool)
    missing[source.placed_rows] = False
    rows = np.flatnonzero(missing)
    if len(rows):
        table[rows] = source.fill(rows, draws, table[source.rows])
    return table


#: (`Source`, None for a strategy that draws everything; draws) -> (N, D) float32
Rule = Callable[[Any, Draws], np.ndarray]


@dataclass(frozen=True)
class Strategy:
    """One `--embed-init NAME`: its rule, its needs, and the options that apply.

    Args:
        rule: fills the matrix.
        needs_source: the rule needs vectors.
        fills: rows without a vector are filled (`--embed-init-oov`).
        scaled: `--embed-init-std` applies.
        always_scaled: without that option, too, the values are scaled to a sigma. If False, the rule takes the keyword
            `rescaled`.
        of_elements: the rule for `--embed-init-shuffle elements`.
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
        """Return the rule for these options."""
        rule = self.of_elements if self.of_elements is not None and shuffle == "elements" else self.rule
        return rule if self.always_scaled else partial(rule, rescaled=std_given)


#: name -> strategy, in the order of tables. To add one: a function and a line here.
STRATEGIES = {
    "normal": Strategy(normal),
    "xavier": Strategy(xavier, scaled=True),
    "pretrained": Strategy(pretrained, needs_source=True, fills=True),
    "pretrained_xavier": Strategy(pretrained_xavier, needs_source=True, fills=True, scaled=True),
    "shuffled": Strategy(shuffled, True, fills=True, scaled=True, always_scaled=False, of_elements=shuffled_elements),
    "xavier_pretrained": Strategy(xavier_pretrained, needs_source=True),
}
#: names of the strategies to which `--embed-init-std` applies
SCALED = tuple(name for name, strategy in STRATEGIES.items() if strategy.scaled)


def build(rule: Rule, source: Source | None, draws: Draws, pad_row: int | None) -> np.ndarray:
    """Return the (N, D) float32 embedding matrix of a slot, with zeros for `<pad>`.

    Raises:
        OptionError: the matrix has numbers beyond float32.
    """
    matrix = rule(source, draws)
    if pad_row is not None:
        matrix[pad_row] = 0.0
    if not np.isfinite(matrix).all():
        raise OptionError(
            f"the embedding matrix of {draws.slot!r} has numbers beyond float32; the vectors are too large for this "
            "strategy: take another, or divide them"
        )
    return matrix
