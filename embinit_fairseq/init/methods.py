"""Give a row to each new word of a dictionary: METHODS, for expand-vocab, transfer-vocab and Python. NumPy only.

A method composes W, one sparse matrix (new N, old N) for all matrices of a model, so that a word has the same meaning
in input embeddings, output layer and output bias; rows that it does not compose are the mean of old rows, or drawn.
Letters: mu, s and Sigma the mean, standard deviation and covariance (1/n) of the n old rows that are averaged; c the
scale of the noise.

    avg        mu
    gaussian   N(mu, c Sigma), by one of two algorithms, whichever takes less time (`draws.gaussian_rows`)
    zeros      0
    normal     N(0, c / D), fairseq's distribution for a new embedding matrix; biases are 0
    subword    the mean of the rows of the word's subwords; mu for words without
    distill    `subword` plus a trained shift in matrices that are read (`resize.distill`); mu in output matrices
    copy       N(mu, s) for each column
    focus      sparsemax(cos(a, A)) V' with a the auxiliary vector of the word, A of the words V' of both dictionaries
               (Dobler and de Melo 2023); words without such a vector are drawn from N(mu, s)
    omp        c V', where c has at most K numbers that are not 0 and c A is near a: orthogonal matching pursuit
               (Goddard and Fernandes Neto 2025, arXiv 2506.06607); words without a vector as for focus
    random     a control: N(mu, s), also for words of both dictionaries, which keep their rows with every other method

Special symbols, `<mask>` and symbols that a task appends keep their rows with every method. With plain arrays, two new
words for n old ones:

    old_row = np.array([*range(n), -1, -1])
    recipe = recipe_of("avg", MethodInputs(n, old_row, old_row < 0, averaged=(np.arange(n), None)))
    rows = new_rows(recipe, {"matrix": [matrix], "bias": [bias]})
    recipe.bound({"matrix", "bias"})
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from embinit_fairseq.errors import DataError, counted
from embinit_fairseq.init.draws import gaussian_rows, stream
from embinit_fairseq.init.weights import (
    AVERAGED,
    COMPOSED,
    COPIED,
    DRAWN,
    KINDS,
    Bound,
    Combination,
    Table,
    Weights,
    blocks,
    columns_of,
    mean_row,
    take_rows,
)

#: --distill-<name> -> default. Sentences per word as in the method's package. The rate was tried on one small tied
#: model (D 128): 0.001 is slower, 0.01 ends 4 % lower but doubles KL
DISTILL: dict[str, float] = {"sentences": 100, "epochs": 3, "lr": 3e-3, "tokens": 1024}
#: length of a vector that was not trained, compared with the median
_UNTRAINED = 1e-3
#: shared words of a new word with --method omp: as in mergekit-tokensurgeon for 512 dimensions and more; of fewer, an
#: eighth: as many words as dimensions fit any vector, noise included
SPARSITY, _DIMENSIONS_PER_WORD = 64, 8


@dataclass(frozen=True)
class MethodInputs:
    """Hold the rows, words and vectors that a method may start from.

    Args:
        old_size: number of old rows.
        old_row: (new N,) the old row of each symbol of both dictionaries, else -1.
        word: (new N,) bool, the new symbols that are words. Others without an old row (fillers) are a mean of old rows.
        averaged: the mean of old rows, mu.
        subwords: new row -> the mean of its old subwords.
        vector_rows: (K,) new rows with an auxiliary vector.
        vectors: (K, d) these vectors.
        sparsity: shared words of a new word with `omp`; None: d / 8, at most SPARSITY, or fewer if fewer are shared.
    """

    old_size: int
    old_row: np.ndarray
    word: np.ndarray
    averaged: Combination
    subwords: Mapping[int, Combination] = field(default_factory=dict)
    vector_rows: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    vectors: np.ndarray | None = None
    sparsity: int | None = None

    @property
    def wanted(self) -> np.ndarray:
        """Return the new rows of words that the old dictionary lacks."""
        return np.flatnonzero(self.word & (self.old_row < 0))


@dataclass(frozen=True)
class Recipe:
    """Hold how the new rows are made.

    Args:
        method: a name in METHODS.
        weights: W; of a trained method, W of the matrices that are not read.
        start: W of the matrices that are read, before a training; without a training W.
        c: scale of the noise; 0 without noise.
        seed: seed of the draws.
        shifts: matrix that is read -> (k, D), numbers that the training adds.
    """

    method: str
    weights: Weights
    start: Weights
    c: float = 0.0
    seed: int = 1
    shifts: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Return k, the number of rows that are made."""
        return len(self.weights.rows)

    def bound(self, outputs: Collection[str]) -> Bound | None:
        """Return the limits of KL(old || new) if W makes all rows of these matrices, which the logits depend on."""
        return None if set(outputs) & set(self.shifts) else self.weights.bound()


def recipe_of(method: str, inputs: MethodInputs, scale: float | None = None, seed: int = 1) -> Recipe:
    """Return how a method makes the new rows.

    Args:
        method: a name in METHODS.
        inputs: rows, words and vectors to start from, as `Method.needs_...` says.
        scale: c; None: the method's own.
        seed: seed of the draws.

    Raises:
        DataError: the vectors do not suffice.
    """
    chosen = METHODS[method]
    weights = _weights(chosen, inputs, chosen.compose(inputs))
    start = _weights(chosen, inputs, dict(inputs.subwords)) if chosen.needs_text else weights
    c = (chosen.scale or 0.0) if scale is None else scale
    return Recipe(method, weights, start, c, seed)


def _weights(method: Method, inputs: MethodInputs, composed: dict[int, Combination]) -> Weights:
    old_row = inputs.old_row if method.keeps_shared else np.where(inputs.word, -1, inputs.old_row)
    kind = np.full(len(old_row), KINDS.index(AVERAGED if method.draw is None else DRAWN))
    kind[list(composed)] = KINDS.index(COMPOSED)
    kind[~inputs.word] = KINDS.index(AVERAGED)
    # a new filler is never read, but it is an output: a mean of rows that stay does not change the bound
    staying_rows = np.intersect1d(inputs.averaged[0], old_row)
    if 0 < len(staying_rows) < len(inputs.averaged[0]):
        fillers = np.flatnonzero(~inputs.word & (old_row < 0))
        kind[fillers] = KINDS.index(COMPOSED)
        composed = composed | {int(row): (staying_rows, None) for row in fillers}
    kind[old_row >= 0] = KINDS.index(COPIED)
    return Weights(inputs.old_size, kind, old_row, inputs.averaged, composed)


def new_rows(recipe: Recipe, tables: Mapping[str, Sequence[Table]]) -> dict[str, list[np.ndarray]]:
    """Return name of a matrix -> its rows `recipe.weights.rows`, float64 (k, D) or (k,), for each of its copies.

    All matrices have the same rows (symbols). Copies of a matrix, such as an average over updates, get the same draw,
    and the same shift of a training.
    """
    names = [name for name, copies in tables.items() for _ in copies]
    flat = [table for copies in tables.values() for table in copies]
    made = [_composed(recipe, name, table) for name, table in zip(names, flat)]
    kinds, draw = recipe.weights.kind[recipe.weights.rows], METHODS[recipe.method].draw
    drawn = np.flatnonzero(kinds == KINDS.index(DRAWN))
    if len(drawn) and draw is not None:
        for result, values in zip(made, draw(recipe, names, flat, len(drawn))):
            result[drawn] = values
    shaped = iter(new.reshape(-1) if table.ndim == 1 else new for new, table in zip(made, flat))
    return {name: [next(shaped) for _ in copies] for name, copies in tables.items()}


def _composed(recipe: Recipe, name: str, table: Table) -> np.ndarray:
    """Return the new rows of a matrix, (k, D); rows that are drawn are 0."""
    if name in recipe.shifts:
        return recipe.start.times(table, recipe.start.rows) + recipe.shifts[name]
    return recipe.weights.times(table, recipe.weights.rows)


# ---- Rows that are drawn: (recipe, names of the matrices, matrices, count) -> (count, D) for each matrix ------------
# `gaussian` draws a word's rows in all matrices, and its bias, as one row of the matrices side by side, so that their
# joint distribution is right. The others have a stream for each matrix.


def _gaussian(recipe: Recipe, names: Sequence[str], tables: Sequence[Table], count: int) -> list[np.ndarray]:
    return gaussian_rows(tables, recipe.weights.averaged[0], count, recipe.c, stream(recipe.seed, "gaussian"))


def _zeros(recipe: Recipe, names: Sequence[str], tables: Sequence[Table], count: int) -> list[np.ndarray]:
    return [np.zeros((count, columns_of(table))) for table in tables]


def _normal(recipe: Recipe, names: Sequence[str], tables: Sequence[Table], count: int) -> list[np.ndarray]:
    shapes = [(count, columns_of(table)) for table in tables]
    return [
        np.zeros(shape)
        if table.ndim == 1
        else stream(recipe.seed, f"normal {name}").normal(0.0, math.sqrt(recipe.c / shape[1]), shape)
        for name, table, shape in zip(names, tables, shapes)
    ]


def _columns(recipe: Recipe, names: Sequence[str], tables: Sequence[Table], count: int) -> list[np.ndarray]:
    """Draw each column with its own mean and standard deviation."""
    drawn, rows = [], recipe.weights.averaged[0]
    for name, table in zip(names, tables):
        mean, std = mean_row(table, rows), take_rows(table, rows).std(axis=0, dtype=np.float64)
        normal = stream(recipe.seed, name, "transfer").standard_normal((count, len(mean)))
        drawn.append(mean + std * normal)
    return drawn


# ---- Rows that are composed: inputs -> new row -> combination of old rows -------------------------------------------


def _nothing(inputs: MethodInputs) -> dict[int, Combination]:
    return {}


def _subwords(inputs: MethodInputs) -> dict[int, Combination]:
    return dict(inputs.subwords)


def _similar_words(inputs: MethodInputs) -> dict[int, Combination]:
    """Weigh shared words by sparsemax of their cosines; raise DataError as `_with_vectors` does."""
    if not len(inputs.wanted):
        return {}
    columns, shared, rows, wanted = _with_vectors(inputs)
    shared, wanted = shared / _lengths(shared)[:, None], wanted / _lengths(wanted)[:, None]
    combinations: dict[int, Combination] = {}
    for block in blocks(len(rows), len(columns)):
        for row, cosines in zip(rows[block].tolist(), wanted[block] @ shared.T):
            shares = sparsemax(cosines)
            chosen = np.flatnonzero(shares)
            combinations[row] = columns[chosen], shares[chosen]
    return combinations


def _sparse_combinations(inputs: MethodInputs) -> dict[int, Combination]:
    """Combine shared words by orthogonal matching pursuit; raise DataError if there are fewer than --sparsity.

    Step by step, the shared word with the largest |cosine| with the remainder joins, and all coefficients are fitted
    again by least squares. Vectors have length 1 meanwhile, which scikit-learn expects (mergekit takes the largest
    product with the vectors as they are). d words, the dimension of the vectors, leave no remainder.
    """
    if not len(inputs.wanted):
        return {}
    from sklearn.linear_model import orthogonal_mp

    columns, shared, rows, wanted = _with_vectors(inputs)
    if inputs.sparsity is not None and inputs.sparsity > len(columns):
        raise DataError(
            f"it has {counted(len(columns), 'word')} that both dictionaries have, fewer than --sparsity "
            f"{inputs.sparsity}; give a smaller --sparsity, or vectors of more words"
        )
    default = min(SPARSITY, max(1, shared.shape[1] // _DIMENSIONS_PER_WORD))
    sparsity = min(inputs.sparsity or default, *shared.shape)
    lengths, scales = _lengths(shared), _lengths(wanted)
    shared, wanted = shared / lengths[:, None], wanted / scales[:, None]
    combinations: dict[int, Combination] = {}
    for block in blocks(len(rows), len(columns)):
        with warnings.catch_warnings():  # it ends early if fewer words leave no remainder
            warnings.simplefilter("ignore", RuntimeWarning)
            coefficients = orthogonal_mp(shared.T, wanted[block].T, n_nonzero_coefs=sparsity)
        coefficients = coefficients.reshape(len(columns), -1).T * scales[block, None] / lengths
        for row, numbers in zip(rows[block].tolist(), coefficients):
            chosen = np.flatnonzero(numbers)
            combinations[row] = columns[chosen], numbers[chosen]
    return combinations


def _with_vectors(inputs: MethodInputs) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
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
    usable = np.isfinite(lengths) & (lengths > shortest) & inputs.word[inputs.vector_rows]
    rows, vectors = inputs.vector_rows[usable], vectors[usable]
    shared = inputs.old_row[rows] >= 0
    if not shared.any() or shared.all():
        which = "words that both dictionaries have" if not shared.any() else "new words"
        raise DataError(
            f"it has none of the {which}, by whose similarity new rows are composed; give vectors of the words or "
            "subwords of the new dictionary (embinit stats shows their coverage), or choose another --method"
        )
    return inputs.old_row[rows[shared]], vectors[shared], rows[~shared], vectors[~shared]


def _lengths(vectors: np.ndarray) -> np.ndarray:
    return np.linalg.norm(vectors, axis=1)


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


# ---- The table ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Method:
    """One `--method NAME`.

    Args:
        help: says how the row of a new word is made.
        compose: makes rows of W of new words.
        draw: draws the rows that are not composed; None: they are the mean of old rows.
        scale: c by default; None if there is no scale.
        keeps_shared: words of both dictionaries keep their rows.
        needs_shared: there must be a word of both dictionaries.
        needs_subwords: `MethodInputs` must have subwords.
        needs_vectors: `MethodInputs` must have vectors.
        needs_text: rows of matrices that are read are trained on a text.
        is_sparse: --sparsity is an option, and scikit-learn is needed.
    """

    help: str
    compose: Callable[[MethodInputs], dict[int, Combination]] = _nothing
    draw: Callable[[Recipe, Sequence[str], Sequence[Table], int], list[np.ndarray]] | None = None
    scale: float | None = None
    keeps_shared: bool = True
    needs_shared: bool = False
    needs_subwords: bool = False
    needs_vectors: bool = False
    needs_text: bool = False
    is_sparse: bool = False


#: Name -> method, in the order of tables. To add one: a function and a line here, its name in EXPANSION or TRANSFER.
#: Scales: of the gaussian that of Hewitt's code, of `normal` that of fairseq.
METHODS = {
    "avg": Method("the mean of the old rows"),
    "gaussian": Method("drawn with mean and covariance of the old rows", draw=_gaussian, scale=1e-5),
    "zeros": Method("0", draw=_zeros),
    "normal": Method("drawn as fairseq's new embeddings, N(0, 1/D)", draw=_normal, scale=1.0),
    "subword": Method("the mean of the rows of the word's subwords", _subwords, needs_subwords=True),
    "distill": Method(
        "trained on --distill-text until the model reads the word as its subwords", needs_subwords=True, needs_text=True
    ),
    "copy": Method("drawn, N(mean, std) of the old rows", draw=_columns, needs_shared=True),
    "focus": Method("the mean of similar old words", _similar_words, _columns, needs_shared=True, needs_vectors=True),
    "omp": Method(
        "a sparse combination of old words",
        _sparse_combinations,
        _columns,
        needs_shared=True,
        needs_vectors=True,
        is_sparse=True,
    ),
    "random": Method("a control: every word is drawn", draw=_columns, keeps_shared=False),
}
#: the methods of each command
EXPANSION = ("avg", "gaussian", "zeros", "normal", "subword", "distill", "focus", "omp")
TRANSFER = ("copy", "subword", "avg", "focus", "omp", "gaussian", "random")
