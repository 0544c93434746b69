"""Make rows of new words for the embedding matrices of a trained model (Hewitt 2021): METHODS. NumPy only.

Letters: E (n, D) the rows that are averaged; mu their mean; Sigma = (E - mu)^T (E - mu) / n; k new words; c the scale
of the noise.

    avg        mu
    gaussian   N(mu, c Sigma), by one of two algorithms, whichever takes less time (`gaussian_rows`)
    zeros      0
    normal     N(0, c / D), fairseq's distribution for a new embedding matrix; biases are 0
    subword    the mean of the rows of the word's subwords
    distill    `subword` plus a trained shift in matrices that are read (`resize.distill`); mu in output matrices

A word's rows in several matrices, and its output bias (a matrix of one column), come from the same draw: they are one
row of the matrices side by side, so that their joint distribution is right.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from embinit_fairseq.init.weights import Bound, Combination, bound_of

if TYPE_CHECKING:
    import torch

#: (N, D), or (N,) for a bias: a NumPy array or a torch tensor on the CPU
Table = Union[np.ndarray, "torch.Tensor"]

#: --distill-<name> -> default. Sentences per word as in the authors' package. The rate was tried on one small tied
#: model (D 128): 0.001 is slower, 0.01 ends 4 % lower but doubles KL
DISTILL: dict[str, float] = {"sentences": 100, "epochs": 3, "lr": 3e-3, "tokens": 1024}

#: elements of a matrix or of z at a time
_BLOCK_ELEMENTS = 4_000_000
#: a normal number takes as long as this many products inside a matrix product
_NORMAL = 500
#: the eigenvectors of a (D, D) matrix take as long as D^3 times this many products
_EIGH = 40


@dataclass(frozen=True)
class Recipe:
    """The input of a method.

    method: of METHODS. count: k. averaged: (n,) rows E. scale: c; None: the method's own. subwords: the rows of
    each new word's subwords. shifts: matrix -> (k, D), of `distill`. has_bound: no trained row is an output row.
    """

    method: str
    count: int
    averaged: np.ndarray
    scale: float | None = None
    seed: int = 1
    subwords: Sequence[np.ndarray] = ()
    shifts: Mapping[str, np.ndarray] = field(default_factory=dict)
    has_bound: bool = True

    @property
    def c(self) -> float:
        """Return the scale of the noise; 0 for methods without noise."""
        return (METHODS[self.method].scale or 0.0) if self.scale is None else self.scale

    def generator(self, purpose: str) -> np.random.Generator:
        """Return a new stream of random numbers for one purpose."""
        return np.random.default_rng(np.random.SeedSequence([self.seed, zlib.crc32(purpose.encode())]))


def new_rows(recipe: Recipe, tables: Mapping[str, Sequence[Table]]) -> dict[str, list[np.ndarray]]:
    """Return name of a matrix -> rows of the new words, float64 (k, D) or (k,), for each of its copies.

    All matrices have the same rows (symbols). Copies of a matrix, such as an average over updates, get the same draw.
    """
    names = [name for name, copies in tables.items() for _ in copies]
    flat = [table for copies in tables.values() for table in copies]
    rows = METHODS[recipe.method].rows(recipe, names, flat)
    shaped = iter(new.reshape(-1) if table.ndim == 1 else new for new, table in zip(rows, flat))
    return {name: [next(shaped) for _ in copies] for name, copies in tables.items()}


def _averages(recipe: Recipe, names: Sequence[str], tables: Sequence[Table]) -> list[np.ndarray]:
    return [np.tile(mean_row(table, recipe.averaged), (recipe.count, 1)) for table in tables]


def _averages_of_subwords(recipe: Recipe, names: Sequence[str], tables: Sequence[Table]) -> list[np.ndarray]:
    return [np.stack([mean_row(table, subwords) for subwords in recipe.subwords]) for table in tables]


def _distilled(recipe: Recipe, names: Sequence[str], tables: Sequence[Table]) -> list[np.ndarray]:
    """Return rows with the model's shift, also for an average over updates, which reads the word as the model does."""
    pairs = zip(_averages_of_subwords(recipe, names, tables), _averages(recipe, names, tables))
    return [
        read + recipe.shifts[name] if name in recipe.shifts else written for name, (read, written) in zip(names, pairs)
    ]


def _gaussian(recipe: Recipe, names: Sequence[str], tables: Sequence[Table]) -> list[np.ndarray]:
    return gaussian_rows(tables, recipe.averaged, recipe.count, recipe.c, recipe.generator("gaussian"))


def _zeros(recipe: Recipe, names: Sequence[str], tables: Sequence[Table]) -> list[np.ndarray]:
    return [np.zeros((recipe.count, columns_of(table))) for table in tables]


def _normal(recipe: Recipe, names: Sequence[str], tables: Sequence[Table]) -> list[np.ndarray]:
    shapes = [(recipe.count, columns_of(table)) for table in tables]
    return [
        np.zeros(shape)
        if table.ndim == 1
        else recipe.generator(f"normal {name}").normal(0.0, math.sqrt(recipe.c / shape[1]), shape)
        for name, table, shape in zip(names, tables, shapes)
    ]


def mean_row(table: Table, rows: np.ndarray) -> np.ndarray:
    """Return the mean of the rows, (D,), accumulated in float64."""
    total = np.zeros(columns_of(table))
    for part in _parts(len(rows), len(total)):
        total += take_rows(table, rows[part]).sum(axis=0, dtype=np.float64)
    return total / len(rows)


def gaussian_rows(
    tables: Sequence[Table], rows: np.ndarray, count: int, scale: float, generator: np.random.Generator
) -> list[np.ndarray]:
    """Draw `count` rows from N(mu, c Sigma) of the matrices side by side: one (count, D) array per matrix.

    Two algorithms have exactly this distribution, also if Sigma is singular (fewer rows than columns). Their numbers
    differ, so the shapes decide which numbers a seed gives:

        without Sigma   (E - mu)^T z / sqrt(n) with z ~ N(0, I_n): less work for few new words
        with Sigma      Sigma's eigenvectors times D normal numbers per word: less work for many (`sigma_pays`)
    """
    means = [mean_row(table, rows) for table in tables]
    with_sigma = sigma_pays(len(rows), sum(map(len, means)), count)
    drawn = (_noise_with_sigma if with_sigma else _noise_without_sigma)(tables, means, rows, count, generator)
    return [mean + math.sqrt(scale) * part for mean, part in zip(means, drawn)]


def sigma_pays(rows: int, columns: int, count: int) -> bool:
    """Return True if the algorithm with Sigma takes less time, as for small D and many words.

    With: n D^2 / 2, and D^3 times a constant. Without: n k (D + a constant).
    """
    return columns**2 * (rows // 2 + _EIGH * columns + count) < rows * count * (columns + _NORMAL)


def _noise_without_sigma(
    tables: Sequence[Table], means: list[np.ndarray], rows: np.ndarray, count: int, generator: np.random.Generator
) -> list[np.ndarray]:
    """Return z^T (E - mu) / sqrt(n) per matrix. z is drawn row by row, so that the size of a block does not matter."""
    noise = [np.zeros((count, len(mean))) for mean in means]
    widest = max(count, *map(len, means))
    for part in _parts(len(rows), widest):
        z = generator.standard_normal((part.stop - part.start, count), dtype=np.float32)
        for table, mean, total in zip(tables, means, noise):
            total += z.T @ _centred(take_rows(table, rows[part]), mean)
    return [total / math.sqrt(len(rows)) for total in noise]


def _noise_with_sigma(
    tables: Sequence[Table], means: list[np.ndarray], rows: np.ndarray, count: int, generator: np.random.Generator
) -> list[np.ndarray]:
    """Return g diag(sqrt(w)) V^T with Sigma = V diag(w) V^T and g ~ N(0, I)."""
    edges = np.cumsum([len(mean) for mean in means])
    sigma = np.zeros((edges[-1], edges[-1]))
    for part in _parts(len(rows), edges[-1]):
        block = np.hstack([_centred(take_rows(table, rows[part]), mean) for table, mean in zip(tables, means)])
        sigma += block.T @ block
    values, vectors = np.linalg.eigh(sigma / len(rows))
    g = generator.standard_normal((count, edges[-1])) * np.sqrt(values.clip(min=0.0))
    return np.split(g @ vectors.T, edges[:-1], axis=1)


def bound(recipe: Recipe, stays: np.ndarray) -> Bound | None:
    """Return the limit of KL(old || new); None for methods whose new rows are not means of old ones.

    stays: (n,) bool, the old rows that the new model has, too.
    """
    combine = METHODS[recipe.method].combine
    return None if combine is None or not recipe.has_bound else bound_of(*combine(recipe), stays)


def _one_mean(recipe: Recipe) -> tuple[list[Combination], list[int]]:
    """Return the one row of W that all new words have."""
    return [(recipe.averaged, None)], [recipe.count]


def _means_of_subwords(recipe: Recipe) -> tuple[list[Combination], list[int]]:
    """Return a row of W for each word."""
    return [(subwords, None) for subwords in recipe.subwords], [1] * recipe.count


@dataclass(frozen=True)
class Method:
    """One `--method NAME`.

    Args:
        help: says how the new rows are made.
        rows: (recipe, names of the matrices, matrices) -> rows of the new words, (k, D), for each matrix.
        scale: c by default; None if there is no noise.
        combine: for rows that are means of old ones, the different rows of W and how many words have each. Of a trained
            method, those of the output matrix.
        needs_subwords: `Recipe.subwords` must have the subwords of every word.
        needs_text: `Recipe.shifts` must have rows that were trained on a text.
    """

    help: str
    rows: Callable[[Recipe, Sequence[str], Sequence[Table]], list[np.ndarray]]
    scale: float | None = None
    combine: Callable[[Recipe], tuple[list[Combination], list[int]]] | None = None
    needs_subwords: bool = False
    needs_text: bool = False


#: Name -> method, in the order of tables. To add one: a function and a line here. The scale of the gaussian is that of
#: Hewitt's code, the scale of `normal` that of fairseq.
METHODS = {
    "avg": Method("the mean of the old rows", _averages, combine=_one_mean),
    "gaussian": Method("drawn with mean and covariance of the old rows", _gaussian, scale=1e-5),
    "zeros": Method("0", _zeros),
    "normal": Method("drawn as fairseq's new embeddings, N(0, 1/D)", _normal, scale=1.0),
    "subword": Method(
        "the mean of the rows of the word's subwords",
        _averages_of_subwords,
        combine=_means_of_subwords,
        needs_subwords=True,
    ),
    "distill": Method(
        "trained on --distill-text until the model reads the word as its subwords",
        _distilled,
        combine=_one_mean,
        needs_subwords=True,
        needs_text=True,
    ),
}


def columns_of(table: Table) -> int:
    """Return D; 1 for a bias."""
    return 1 if table.ndim == 1 else int(table.shape[1])


def _parts(length: int, columns: int) -> Iterator[slice]:
    step = max(1, _BLOCK_ELEMENTS // columns)
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


def _centred(block: np.ndarray, mean: np.ndarray) -> np.ndarray:
    return block - mean.astype(block.dtype)
