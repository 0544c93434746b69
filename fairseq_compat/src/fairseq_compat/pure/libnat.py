"""Computes insertions and deletions between two sentences like ``fairseq.libnat`` (Gu et al. 2019).

The distribution of fairseq on the index lacks the source of that part, so that Levenshtein and insertion transformers
do not start with it; a checkout that was compiled brings its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np


def _distances(x: Sequence[int], y: Sequence[int]) -> list[list[int]]:
    """Return the fewest edits, (len(x) + 1, len(y) + 1), from each beginning of x to each beginning of y."""
    target, steps = np.asarray(y, dtype=np.int64), np.arange(len(y) + 1)
    rows = [steps]
    for number, token in enumerate(x, start=1):
        above = rows[-1]
        row = np.empty_like(above)
        row[0] = number
        row[1:] = np.minimum(above[1:] + 1, above[:-1] + 2 * (target != token))
        rows.append(np.minimum.accumulate(row - steps) + steps)  # and from the left, one for each insertion
    return [row.tolist() for row in rows]


def _steps(x: Sequence[int], y: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Yield (edit, token) from the end of both to their beginning; of equal edits insertion is first, then deletion."""
    distance = _distances(x, y)
    i, j = len(x), len(y)
    while i or j:
        if j and distance[i][j - 1] < distance[i][j]:
            j -= 1
            yield "insert", y[j]
        elif i and distance[i - 1][j] < distance[i][j]:
            i -= 1
            yield "delete", x[i]
        else:
            i, j = i - 1, j - 1
            yield "keep", x[i]


def _path(x: Sequence[int], y: Sequence[int], terminal: int, deletion: int | None) -> list[list[int]]:
    """Return the insertions before each token of x and after the last; then, without a symbol for it, the deletions."""
    cells: list[list[int]] = [[] for _ in range(len(x) + 1 + (deletion is None))]
    if not x:
        return [list(y), *cells[1:]]
    place = 0  # tokens of x that were passed
    for what, token in reversed(list(_steps(x, y))):
        if what == "insert":
            cells[place].append(token)
            continue
        if deletion is None:
            cells[-1].append(int(what == "delete"))
        elif what == "delete":
            cells[place].append(deletion)
        place += 1
    return [cell or [terminal] for cell in cells]


def compute_ed2(xs: Sequence[Sequence[int]], ys: Sequence[Sequence[int]]) -> list[int]:
    """Return the fewest insertions and deletions for each pair."""
    return [_distances(x, y)[-1][-1] for x, y in zip(xs, ys)]


def suggested_ed2_path(
    xs: Sequence[Sequence[int]], ys: Sequence[Sequence[int]], terminal_symbol: int
) -> list[list[list[int]]]:
    """Return len(x) + 2 lists per pair: tokens to insert in each place, and 1 for each token of x to delete, else 0.

    An empty list is [terminal_symbol].
    """
    return [_path(x, y, terminal_symbol, None) for x, y in zip(xs, ys)]


def suggested_ed2_path_with_delete(
    xs: Sequence[Sequence[int]], ys: Sequence[Sequence[int]], terminal_symbol: int, deletion_symbol: int
) -> list[list[list[int]]]:
    """Return len(x) + 1 lists per pair, where deletion_symbol among the insertions deletes the next token of x."""
    return [_path(x, y, terminal_symbol, deletion_symbol) for x, y in zip(xs, ys)]
