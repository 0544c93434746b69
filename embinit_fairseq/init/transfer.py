"""Make the rows of a model's matrices for another dictionary, as W times the old rows: METHODS. NumPy only.

W is one sparse matrix (new N, old N) for all matrices of a model, input embeddings, output layer and output bias, so
that a word has the same meaning in all of them. Letters: V the old rows of words, mu and s the mean and the standard
deviation (1/n) of each of their columns.

    copy      a word of both dictionaries keeps its row, 1; others are drawn from N(mu, s)
    avg       ... others are mu
    subword   ... others are the mean of their old subwords, 1/m each; words that cannot be segmented are mu
    focus     ... others are sparsemax(cos(a, A)) V' with a the auxiliary vector of the word, A of the words V' of
              both dictionaries (Dobler and de Melo 2023); words without such a vector are drawn from N(mu, s)
    omp       ... others are c V', where c has at most K numbers that are not 0 and c A is near a: orthogonal matching
              pursuit (Goddard and Fernandes Neto 2025, arXiv 2506.06607); words without a vector as for focus
    random    a control: every word is drawn from N(mu, s)

Special symbols, `<mask>` and symbols that a task appends keep their rows with every method; fillers do not count for mu
and s.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from embinit_fairseq.errors import DataError, counted
from embinit_fairseq.init.new_rows import Table, columns_of, mean_row, take_rows
from embinit_fairseq.init.strategies import Draws
from embinit_fairseq.vocab.dictionary import is_filler
from embinit_fairseq.vocab.matching import Matcher
from embinit_fairseq.vocab.tokens import Token, as_text, detect_style, parse, spell

#: origins of rows
COPIED, COMPOSED, AVERAGED, DRAWN = KINDS = ("copied", "composed", "averaged", "drawn")
#: similarities or coefficients at a time
_BLOCK_ELEMENTS = 4_000_000
#: length of a vector that was not trained, compared with the median
_UNTRAINED = 1e-3
#: shared words of a new word with --method omp: as in mergekit-tokensurgeon for 512 dimensions and more; of fewer, an
#: eighth: as many words as dimensions fit any vector, noise included
SPARSITY, _DIMENSIONS_PER_WORD = 64, 8
#: new row -> (old rows, their weights)
Combinations = dict[int, tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Symbols:
    """The symbols of a matrix' rows. word: (N,) bool, neither special nor filler nor appended by a task."""

    names: Sequence[str]
    word: np.ndarray

    @cached_property
    def style(self) -> str:
        """Return the subword style of the segmenter (`vocab.tokens`)."""
        return detect_style(self.names[row] for row in self.words)

    @cached_property
    def texts(self) -> Sequence[str]:
        """Return the names, as text if they are spelled in bytes (`vocab.tokens`)."""
        return as_text(self.names, self.style)

    @cached_property
    def words(self) -> list[int]:
        """Return the rows of words, ascending."""
        return np.flatnonzero(self.word).tolist()

    @cached_property
    def row_of_word(self) -> dict[str, int]:
        """Return text -> row. If a symbol is repeated, the last row counts, as in fairseq."""
        return {self.texts[row]: row for row in self.words}

    def token(self, row: int) -> Token:
        """Return the token of a row's symbol."""
        return parse(self.texts[row], self.style)


@dataclass(frozen=True)
class Given:
    """The input of a transfer.

    Args:
        old, new: the symbols of the two dictionaries.
        shared: (new N,) the old row of each symbol of both dictionaries, else -1.
        segment: a word's token -> old subwords; None: the longest subwords of the old dictionary.
        vector_rows, vectors: (K,) and (K, d), new rows with an auxiliary vector.
        sparsity: shared words of a new word with `omp`; None: d / 8, at most SPARSITY, or fewer if fewer are shared.
    """

    old: Symbols
    new: Symbols
    shared: np.ndarray
    segment: Callable[[Token], list[str]] | None = None
    vector_rows: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    vectors: np.ndarray | None = None
    sparsity: int | None = None

    @property
    def wanted(self) -> list[int]:
        """Return the new rows of words that the old dictionary lacks."""
        return [row for row in self.new.words if self.shared[row] < 0]


@dataclass(frozen=True)
class Weights:
    """The sparse matrix W; equal rows are stored once.

    kind: (new N,) index into KINDS. place: (new N,) index of the stored row, -1 for rows that are drawn. start
    (M + 1,), columns, values: stored row m has `values[start[m] : start[m + 1]]` at these columns. averaged: (n,) old
    rows of mu.
    """

    old_size: int
    kind: np.ndarray
    place: np.ndarray
    start: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    averaged: np.ndarray

    @property
    def new_size(self) -> int:
        """Return N of the new matrix."""
        return len(self.kind)

    @property
    def source(self) -> np.ndarray:
        """Return (new N,) the old row of every row that is copied, -1 for the others."""
        source = np.full(self.new_size, -1)
        copied = self.rows_of(COPIED)
        source[copied] = self.columns[self.start[self.place[copied]]]
        return source

    @property
    def rows(self) -> np.ndarray:
        """Return the new rows that are not copied, ascending."""
        return np.flatnonzero(self.kind != KINDS.index(COPIED))

    def rows_of(self, kind: str) -> np.ndarray:
        """Return the new rows of one of KINDS, ascending."""
        return np.flatnonzero(self.kind == KINDS.index(kind))

    def row(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (old rows, weights) of a new row; both empty if it is drawn."""
        stored = slice(0, 0) if self.place[row] < 0 else self._stored(self.place[row])
        return self.columns[stored], self.values[stored]

    def dense(self) -> np.ndarray:
        """Return W as an array (new N, old N); for small dictionaries."""
        matrix = np.zeros((self.new_size, self.old_size))
        for row in range(self.new_size):
            columns, values = self.row(row)
            matrix[row, columns] = values
        return matrix

    def times(self, table: Table, rows: np.ndarray) -> np.ndarray:
        """Return these rows of W times the matrix, (len(rows), D) float64; rows that are drawn are 0."""
        places, which = np.unique(self.place[rows], return_inverse=True)
        products = np.zeros((len(places), columns_of(table)))
        for number, place in enumerate(places):
            if place >= 0:
                stored = self._stored(place)
                products[number] = self.values[stored] @ take_rows(table, self.columns[stored]).astype(np.float64)
        return products[which]

    def _stored(self, place: int) -> slice:
        return slice(self.start[place], self.start[place + 1])


def shared_rows(old: Symbols, new: Symbols) -> np.ndarray:
    """Return (new N,) the old row of each symbol that both dictionaries have, else -1.

    A word is shared if it is the same text at the same place of a word, however the two segmenters spell it: `ing` is
    a word for GloVe, a part of one for sentencepiece.
    """
    others = {name: row for row, name in enumerate(old.names) if not old.word[row]}
    shared = np.array([others.get(name, -1) for name in new.names])
    rows = [*old.row_of_word.values(), -1]
    matcher = Matcher(list(old.row_of_word), old.style, ("exact", "marker"))
    for row in new.words:
        shared[row] = rows[matcher.match(new.token(row))[0]]
    return shared


# ---- Words that the old dictionary lacks; words that are not composed are drawn or mu (`Method.rest`) ---------------


def _nothing(inputs: Given) -> Combinations:
    return {}


def _mean_of_subwords(inputs: Given) -> Combinations:
    """Average the old subwords of each word; raise DataError if `inputs.segment` segments no word."""
    combinations: Combinations = {}
    segmented = 0
    for row in inputs.wanted:
        token = inputs.new.token(row)
        subwords = inputs.segment(token) if inputs.segment is not None and token.surface else []
        rows = [inputs.old.row_of_word.get(subword, -1) for subword in subwords]
        segmented += bool(rows) and min(rows) >= 0
        if not rows or min(rows) < 0:
            rows = longest_subwords(token, inputs.old)
        if rows:
            columns, counts = np.unique(rows, return_counts=True)
            combinations[row] = columns, counts / counts.sum()
    if inputs.segment is not None and inputs.wanted and not segmented:
        raise DataError(
            "it segments no new word into subwords of the old dictionary; give the segmentation of the old text"
        )
    return combinations


def longest_subwords(token: Token, old: Symbols) -> list[int]:
    """Segment a text into the longest old subwords, from the left: return their rows, empty if a part has none."""
    rows: list[int] = []
    start, length = 0, len(token.surface)
    while start < length:
        for end in range(length, start, -1):
            initial, final = (False if start else token.initial), (False if end < length else token.final)
            spellings = spell(Token(token.surface[start:end], initial, final), old.style)
            row = next((old.row_of_word[spelling] for spelling in spellings if spelling in old.row_of_word), None)
            if row is not None:
                rows.append(row)
                start = end
                break
        else:
            return []
    return rows


def _similar_words(inputs: Given) -> Combinations:
    """Weigh shared words by sparsemax of their cosines; raise DataError as `_auxiliary` does."""
    if not inputs.wanted:
        return {}
    columns, shared, rows, wanted = _auxiliary(inputs)
    shared, wanted = shared / _lengths(shared)[:, None], wanted / _lengths(wanted)[:, None]
    combinations: Combinations = {}
    for block in _blocks(len(rows), len(columns)):
        for row, cosines in zip(rows[block].tolist(), wanted[block] @ shared.T):
            shares = sparsemax(cosines)
            chosen = np.flatnonzero(shares)
            combinations[row] = columns[chosen], shares[chosen]
    return combinations


def _sparse_combinations(inputs: Given) -> Combinations:
    """Combine shared words by orthogonal matching pursuit; raise DataError if there are fewer than --sparsity.

    Step by step, the shared word with the largest |cosine| with the remainder joins, and all coefficients are fitted
    again by least squares. Vectors have length 1 meanwhile, which scikit-learn expects (mergekit takes the largest
    product with the vectors as they are). d words, the dimension of the vectors, leave no remainder.
    """
    if not inputs.wanted:
        return {}
    from sklearn.linear_model import orthogonal_mp

    columns, shared, rows, wanted = _auxiliary(inputs)
    if inputs.sparsity is not None and inputs.sparsity > len(columns):
        raise DataError(
            f"it has {counted(len(columns), 'word')} that both dictionaries have, fewer than --sparsity "
            f"{inputs.sparsity}; give a smaller --sparsity, or vectors of more words"
        )
    default = min(SPARSITY, max(1, shared.shape[1] // _DIMENSIONS_PER_WORD))
    sparsity = min(inputs.sparsity or default, *shared.shape)
    lengths, scales = _lengths(shared), _lengths(wanted)
    shared, wanted = shared / lengths[:, None], wanted / scales[:, None]
    combinations: Combinations = {}
    for block in _blocks(len(rows), len(columns)):
        with warnings.catch_warnings():  # it ends early if fewer words leave no remainder
            warnings.simplefilter("ignore", RuntimeWarning)
            coefficients = orthogonal_mp(shared.T, wanted[block].T, n_nonzero_coefs=sparsity)
        coefficients = coefficients.reshape(len(columns), -1).T * scales[block, None] / lengths
        for row, numbers in zip(rows[block].tolist(), coefficients):
            chosen = np.flatnonzero(numbers)
            combinations[row] = columns[chosen], numbers[chosen]
    return combinations


def _auxiliary(inputs: Given) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return (columns, shared, rows, wanted): shared words' old rows and vectors, new words' rows and vectors; float64.

    Words that the vectors were not trained on count as words without a vector: theirs is zero, or so short that its
    direction is noise and a combination with it is huge.

    Raises:
        DataError: no shared word or no new word has a vector.
    """
    assert inputs.vectors is not None  # Method.needs_vectors
    vectors = inputs.vectors.astype(np.float64)
    lengths = _lengths(vectors)
    shortest = _UNTRAINED * np.nanmedian(lengths) if len(lengths) else 0.0
    usable = np.isfinite(lengths) & (lengths > shortest) & inputs.new.word[inputs.vector_rows]
    rows, vectors = inputs.vector_rows[usable], vectors[usable]
    shared = inputs.shared[rows] >= 0
    if not shared.any() or shared.all():
        which = "words that both dictionaries have" if not shared.any() else "new words"
        raise DataError(
            f"it has none of the {which}, by whose similarity new rows are composed; give vectors of the words or "
            "subwords of --new-dict (embinit stats shows their coverage), or choose another --method"
        )
    return inputs.shared[rows[shared]], vectors[shared], rows[~shared], vectors[~shared]


def _lengths(vectors: np.ndarray) -> np.ndarray:
    return np.linalg.norm(vectors, axis=1)


def _blocks(count: int, columns: int) -> Iterator[slice]:
    step = max(1, _BLOCK_ELEMENTS // columns)
    for first in range(0, count, step):
        yield slice(first, first + step)


def sparsemax(scores: np.ndarray) -> np.ndarray:
    """Return the point of the simplex nearest to the scores, (n,) (Martins and Astudillo 2016).

    It is max(scores - tau, 0) with tau such that the sum is 1. Scores that cannot be in the sum are left out until none
    is (Michelot 1986).
    """
    support = scores[scores > scores.max() - 1]
    while True:
        tau = (support.sum() - 1) / len(support)
        smaller = support[support > tau]
        if len(smaller) == len(support):
            return np.maximum(scores - tau, 0.0)
        support = smaller


@dataclass(frozen=True)
class Method:
    """One `--method NAME`.

    Args:
        help: one line.
        compose: makes the rows of words that the old dictionary lacks.
        rest: origin of the words that `compose` leaves out, DRAWN or AVERAGED.
        keeps_shared: shared words keep their rows.
        needs_shared: there must be a shared word.
        needs_vectors: auxiliary vectors are needed.
        is_sparse: --sparsity is an option, and scikit-learn is needed.
        segments: words are segmented.
    """

    help: str
    compose: Callable[[Given], Combinations]
    rest: str
    keeps_shared: bool = True
    needs_shared: bool = False
    needs_vectors: bool = False
    is_sparse: bool = False
    segments: bool = False


#: name -> method; to add one: a function and a line here
METHODS = {
    "copy": Method("new words are drawn, N(mean, std) of the old ones", _nothing, DRAWN, needs_shared=True),
    "subword": Method(
        "new words are the mean of their old subwords, else of all", _mean_of_subwords, AVERAGED, segments=True
    ),
    "avg": Method("new words are the mean of the old ones", _nothing, AVERAGED),
    "focus": Method(
        "new words are the mean of similar shared ones", _similar_words, DRAWN, needs_shared=True, needs_vectors=True
    ),
    "omp": Method(
        "new words are sparse combinations of shared ones",
        _sparse_combinations,
        DRAWN,
        needs_shared=True,
        needs_vectors=True,
        is_sparse=True,
    ),
    "random": Method("a control: all words are drawn", _nothing, DRAWN, keeps_shared=False),
}


def transfer_weights(method: str, inputs: Given) -> Weights:
    """Return W; raise DataError if the method has nothing to start from."""
    chosen = METHODS[method]
    shared = inputs.shared if chosen.keeps_shared else np.where(inputs.new.word, -1, inputs.shared)
    mean = np.asarray(inputs.old.words)
    kind = np.full(len(shared), KINDS.index(chosen.rest))
    place = np.full(len(shared), -1)
    stored: list[tuple[np.ndarray, np.ndarray]] = [(mean, np.full(len(mean), 1 / len(mean)))]
    for row, parts in chosen.compose(inputs).items():
        kind[row], place[row] = KINDS.index(COMPOSED), len(stored)
        stored.append(parts)
    # a new filler is neither a word nor an old row; nobody reads it
    kind[~inputs.new.word] = KINDS.index(AVERAGED)
    for row in np.flatnonzero(shared >= 0).tolist():
        kind[row], place[row] = KINDS.index(COPIED), len(stored)
        stored.append((shared[row : row + 1], np.ones(1)))
    place[kind == KINDS.index(AVERAGED)] = 0
    start = np.cumsum([0, *(len(columns) for columns, _ in stored)])
    columns, values = (np.concatenate(parts) for parts in zip(*stored))
    return Weights(len(inputs.old.names), kind, place, start, columns, values, mean)


def transferred_rows(weights: Weights, tables: Mapping[str, Sequence[Table]], seed: int) -> dict[str, list[np.ndarray]]:
    """Return name of a matrix -> its rows `weights.rows`, float64 (k, D) or (k,), for each of its copies.

    Copies of a matrix, such as an average over updates, get the same random numbers.
    """
    return {name: [_rows_of(weights, name, copy, seed) for copy in copies] for name, copies in tables.items()}


def _rows_of(weights: Weights, name: str, table: Table, seed: int) -> np.ndarray:
    rows = weights.times(table, weights.rows)
    drawn = np.flatnonzero(weights.place[weights.rows] < 0)
    if len(drawn):
        mean = mean_row(table, weights.averaged)
        std = take_rows(table, weights.averaged).std(axis=0, dtype=np.float64)
        normal = Draws(len(drawn), len(mean), seed, name).generator("transfer").standard_normal((len(drawn), len(mean)))
        rows[drawn] = mean + std * normal
    return rows.reshape(-1) if table.ndim == 1 else rows


def symbols_of(names: Sequence[str], special: np.ndarray, described: int) -> Symbols:
    """Return a matrix' symbols. special: (described,) bool, of the rows of `dict.txt`; a task appends the others."""
    word = np.array([not is_filler(name) and name != "<mask>" for name in names], dtype=bool)
    word[:described] &= ~special
    word[described:] = False
    return Symbols(names, word)
