"""Makes batches by size like ``fairseq.data.data_utils_fast``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def batch_by_size_vec(
    indices: np.ndarray, num_tokens_vec: np.ndarray, max_tokens: int, max_sentences: int, bsz_mult: int
) -> list[np.ndarray]:
    """Return consecutive batches that are as large as the limits allow.

    Args:
        indices: the examples, in the order in which they are to be batched.
        num_tokens_vec: length of each of them; a batch costs its longest one times its number of examples.
        max_tokens: largest cost of a batch; 0 or less: no limit.
        max_sentences: examples of a batch; 0 or less: no limit.
        bsz_mult: a batch has fewer examples than this, or a multiple of it.
    """
    if len(indices) == 0:
        return []
    longest_of_all = np.max(num_tokens_vec)
    assert max_tokens <= 0 or longest_of_all <= max_tokens, (
        f"Sentences lengths should not exceed max_tokens={max_tokens}"
    )

    ends = [0]  # of the batches; the last one still grows
    begin = longest = rest_longest = 0  # the rest: examples after the last end, fewer than a multiple
    for position, length in enumerate(num_tokens_vec.tolist()):
        end = position + 1
        rest_longest = max(rest_longest, length)
        together = max(longest, rest_longest)
        count = end - begin
        if 0 < max_sentences < count or 0 < max_tokens < count * together:
            if 0 < max_tokens < rest_longest * (end - ends[-1]):  # the rest without this one is a batch, too
                ends.append(position)
                rest_longest = length
            begin, longest, rest_longest = ends[-1], rest_longest, 0
            ends.append(end)
        elif count < bsz_mult or count % bsz_mult == 0:
            ends[-1], longest, rest_longest = end, together, 0
    if ends[-1] == len(indices):
        ends.pop()
    return np.split(indices, ends)


def batch_by_size_fn(
    indices: np.ndarray, num_tokens_fn: Callable[[int], int], max_tokens: int, max_sentences: int, bsz_mult: int
) -> list[np.ndarray]:
    """Return the batches of `batch_by_size_vec`, with a function for the length of an example."""
    lengths = np.fromiter((num_tokens_fn(index) for index in indices.tolist()), np.int64, len(indices))
    return batch_by_size_vec(indices, lengths, max_tokens, max_sentences, bsz_mult)


def batch_fixed_shapes_fast(
    indices: np.ndarray, num_tokens_fn: Callable[[int], int], fixed_shapes_sorted: np.ndarray
) -> list[list[int]]:
    """Return consecutive batches, none larger than the last of the shapes (examples, tokens of the longest)."""
    shapes = [tuple(shape) for shape in fixed_shapes_sorted.tolist()]
    batches: list[list[int]] = []
    batch: list[int] = []
    longest = 0
    left = shapes
    for index in indices.tolist():
        longest = max(longest, num_tokens_fn(index))
        fitting = next((at for at, shape in enumerate(left) if len(batch) < shape[0] and longest <= shape[1]), None)
        if fitting is None:
            batches.append(batch)
            batch, longest, left = [], 0, shapes
        else:
            left = left[fitting:]
        batch.append(index)
    return [*batches, batch] if batch else batches
