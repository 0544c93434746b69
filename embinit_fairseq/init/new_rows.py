"""Rows of new words for the embeddings of a trained model (Hewitt 2021): METHODS. Pure functions, NumPy only.

Letters: E the rows that are averaged, n x D; mu their mean; Sigma = (E - mu)^T (E - mu) / n; k new words; c the scale
of the noise.

    avg        mu
    gaussian   N(mu, c Sigma), as mu + sqrt(c / n) (E - mu)^T z with z ~ N(0, I_n): Sigma is not formed
    zeros      0
    normal     N(0, c / D), fairseq's distribution for a new table; biases are 0
    subword    the mean of the rows of the word's pieces

A word's rows in several tables, and its output bias (a table of one column), come from the same z: they are one row of
the tables side by side, so that their joint distribution is right.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

import numpy as np

if TYPE_CHECKING:
    import torch

#: (N, D), or (N,) for a bias: a NumPy array or a torch tensor on the CPU
Table = Union[np.ndarray, "torch.Tensor"]

_BLOCK_ELEMENTS = 4_000_000  # of a table or of z, at a time
_NORMAL = 500  # a normal number takes as long as so many products inside a matrix product,
_EIGH = 40  # and the eigenvectors of a matrix of D columns as long as D^3 times so many


@dataclass(frozen=True)
class Recipe:
    """method: one of METHODS. count: k. averaged: (n,) rows E. scale: c; None: that of METHODS. pieces: rows a word."""

    method: str
    count: int
    averaged: np.ndarray
    scale: float | None = None
    seed: int = 1
    pieces: Sequence[np.ndarray] = ()

    @property
    def c(self) -> float:
        """The scale of the noise; 0 for methods that have none."""
        return (METHODS[self.method].scale or 0.0) if self.scale is None else self.scale

    def generator(self, purpose: str) -> np.random.Generator:
        """A fresh stream of random numbers for one purpose."""
        return np.random.default_rng(np.random.SeedSequence([self.seed, zlib.crc32(purpose.encode())]))


def new_rows(recipe: Recipe, tables: Mapping[str, Sequence[Table]]) -> dict[str, list[np.ndarray]]:
    """Name of a table -> rows of the new words, float64 (k, D) or (k,), for each of its copies.

    All tables have the same rows (symbols). Copies of a table, like an average over updates, get the same draw.
    """
    names = [name for name, copies in tables.items() for _ in copies]
    flat = [table for copies in tables.values() for table in copies]
    rows = METHODS[recipe.method].rows(recipe, names, flat)
    shaped = iter(found.reshape(-1) if table.ndim == 1 else found for found, table in zip(rows, flat))
    return {name: [next(shaped) for _ in copies] for name, copies in tables.items()}


def _averages(recipe: Recipe, names: Sequence[str], tables: Sequence[Table]) -> list[np.ndarray]:
    return [np.tile(mean_row(table, recipe.averaged), (recipe.count, 1)) for table in tables]


def _averages_of_pieces(recipe: Recipe, names: Sequence[str], tables: Sequence[Table]) -> list[np.ndarray]:
    return [np.stack([mean_row(table, pieces) for pieces in recipe.pieces]) for table in tables]


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
    """The mean of the rows, (D,), accumulated in float64."""
    total = np.zeros(columns_of(table))
    for part in _parts(len(rows), len(total)):
        total += take_rows(table, rows[part]).sum(axis=0, dtype=np.float64)
    return total / len(rows)


def gaussian_rows(
    tables: Sequence[Table], rows: np.ndarray, count: int, scale: float, generator: np.random.Generator
) -> list[np.ndarray]:
    """`count` draws from N(mu, c Sigma) of the tables side by side, cut into one (count, D) array a table.

    Through Sigma or past it: both have exactly this distribution, also where Sigma is singular (fewer rows than
    columns).
    """
    means = [mean_row(table, rows) for table in tables]
    through = sigma_pays(len(rows), sum(map(len, means)), count)
    drawn = (_noise_with_sigma if through else _noise_without_sigma)(tables, means, rows, count, generator)
    return [mean + math.sqrt(scale) * part for mean, part in zip(means, drawn)]


def sigma_pays(rows: int, columns: int, count: int) -> bool:
    """Is the way through Sigma shorter (n D^2 / 2 and D^3 times a constant) than that past it (n k, D + a constant)?

    It is where D is small and there are many words.
    """
    return columns**2 * (rows // 2 + _EIGH * columns + count) < rows * count * (columns + _NORMAL)


def _noise_without_sigma(
    tables: Sequence[Table], means: list[np.ndarray], rows: np.ndarray, count: int, generator: np.random.Generator
) -> list[np.ndarray]:
    """z^T (E - mu) / sqrt(n) for every table. z is drawn row by row, so that no size of a block changes it."""
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
    """g diag(sqrt(w)) V^T with Sigma = V diag(w) V^T and g ~ N(0, I)."""
    edges = np.cumsum([len(mean) for mean in means])
    sigma = np.zeros((edges[-1], edges[-1]))
    for part in _parts(len(rows), edges[-1]):
        block = np.hstack([_centred(take_rows(table, rows[part]), mean) for table, mean in zip(tables, means)])
        sigma += block.T @ block
    values, vectors = np.linalg.eigh(sigma / len(rows))
    g = generator.standard_normal((count, edges[-1])) * np.sqrt(values.clip(min=0.0))
    return np.split(g @ vectors.T, edges[:-1], axis=1)


def bound(recipe: Recipe) -> float | None:
    """What KL(old || new) never exceeds where every new row is a mean of old ones; None for other methods.

    The logit of such a word w is sum_i a_i l_i over old logits, so that (Jensen) its exp is at most
    sum_i a_i exp(l_i) <= max(a) Z, and KL = log(1 + sum_w exp(l_w) / Z) <= log(1 + sum_w max(a_w)).
    """
    largest = METHODS[recipe.method].largest_shares
    return None if largest is None else math.log1p(largest(recipe))


def _share_of_average(recipe: Recipe) -> float:
    """a_i = 1 / n for each of k words: log(1 + k / n) (Hewitt 2021)."""
    return recipe.count / len(recipe.averaged)


def _shares_of_pieces(recipe: Recipe) -> float:
    """1 / m for a word of m different pieces."""
    return float(sum(np.unique(pieces, return_counts=True)[1].max() / len(pieces) for pieces in recipe.pieces))


@dataclass(frozen=True)
class Method:
    """One `--method NAME`. help: what the new rows are.

    rows: (recipe, names of the tables, tables) -> rows of the new words, (k, D), for each. scale: c where none is
    given; None: there is no noise. largest_shares: sum over the new words of the largest weight that an old row has in
    theirs, where rows are means of old ones. needs_pieces: of every word, `Recipe.pieces`.
    """

    help: str
    rows: Callable[[Recipe, Sequence[str], Sequence[Table]], list[np.ndarray]]
    scale: float | None = None
    largest_shares: Callable[[Recipe], float] | None = None
    needs_pieces: bool = False


#: name -> method, in the order of tables. To add one is to add a function and a line here. The scale of the gaussian is
#: that of Hewitt's code, that of `normal` fairseq's.
METHODS = {
    "avg": Method("the mean of the old rows", _averages, largest_shares=_share_of_average),
    "gaussian": Method("drawn with mean and covariance of the old rows", _gaussian, scale=1e-5),
    "zeros": Method("0", _zeros),
    "normal": Method("drawn as fairseq's new embeddings, N(0, 1/D)", _normal, scale=1.0),
    "subword": Method(
        "the mean of the rows of the word's pieces",
        _averages_of_pieces,
        largest_shares=_shares_of_pieces,
        needs_pieces=True,
    ),
}


def columns_of(table: Table) -> int:
    """D; 1 for a bias."""
    return 1 if table.ndim == 1 else int(table.shape[1])


def _parts(length: int, columns: int) -> Iterator[slice]:
    step = max(1, _BLOCK_ELEMENTS // columns)
    for start in range(0, length, step):
        yield slice(start, min(start + step, length))


def take_rows(table: Table, rows: np.ndarray) -> np.ndarray:
    """(len(rows), D) in the table's precision, at least float32; a view where the rows follow each other."""
    first, last = int(rows[0]), int(rows[-1])
    together = last - first + 1 == len(rows) and bool((np.diff(rows) == 1).all())
    chosen: Any = table[first : last + 1] if together else table[rows]
    if not isinstance(chosen, np.ndarray):
        chosen = chosen.detach()
        chosen = (chosen if chosen.element_size() >= 4 else chosen.float()).numpy()  # NumPy has no bfloat16
    return chosen.reshape(len(rows), -1)


def _centred(block: np.ndarray, mean: np.ndarray) -> np.ndarray:
    return block - mean.astype(block.dtype)
