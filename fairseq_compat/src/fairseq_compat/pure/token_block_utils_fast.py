"""Cuts blocks of tokens like ``fairseq.data.token_block_utils_fast``."""

from __future__ import annotations

import numpy as np


def _get_slice_indices_fast(
    sizes: np.ndarray, break_mode: str | None, block_size: int, document_sep_len: int
) -> np.ndarray:
    """Return where blocks begin and end in the row of all tokens: an array of shape (blocks, 2).

    Args:
        sizes: tokens of each sentence.
        break_mode: none: blocks of block_size; complete: of whole sentences; complete_doc: of whole sentences of one
            document, which end with a sentence of document_sep_len tokens; eos: of one sentence.
        block_size: tokens of a block, if it has more than one sentence.
        document_sep_len: tokens of an empty sentence.
    """
    if break_mode is None or break_mode == "none":
        total = int(sizes.sum())
        starts = np.arange(0, total, block_size, dtype=np.int64)
        return np.stack([starts, np.minimum(starts + block_size, total)], axis=1)
    if break_mode == "eos":
        ends = sizes.cumsum()
        return np.stack([ends - sizes, ends], axis=1)
    if break_mode == "complete":
        blocks = _whole_sentences(sizes.tolist(), block_size, 0, None)
    elif break_mode == "complete_doc":
        blocks = _whole_sentences(sizes.tolist(), block_size, 1, document_sep_len)
    else:
        raise ValueError(f"Invalid break_mode: {break_mode}")
    return np.array(blocks, dtype=np.int64).reshape(len(blocks), -1)


def _whole_sentences(sizes: list[int], block_size: int, dropped: int, separator: int | None) -> list[tuple[int, int]]:
    """Return blocks of whole sentences with more than `dropped` tokens; a sentence of `separator` tokens ends one."""
    blocks = []
    begin = length = 0
    for size in sizes:
        ends_document = separator is not None and size == separator
        if ends_document or (length > 0 and length + size > block_size):
            if length > dropped:
                blocks.append((begin, begin + length))
            begin, length = begin + length, 0
        if ends_document:
            begin += size
        else:
            length += size
    if length > dropped:
        blocks.append((begin, begin + length))
    return blocks


def _get_block_to_dataset_index_fast(sizes: np.ndarray, slice_indices: np.ndarray) -> np.ndarray:
    """Return per block its first sentence, the offset there, and its last sentence: an array of shape (blocks, 3)."""
    ends = sizes.cumsum()

    def sentence(tokens: np.ndarray) -> np.ndarray:
        """Return the sentence of each token; at the end of a sentence the next one begins, be it empty."""
        at = np.searchsorted(ends, tokens, side="left")
        at_end = ends[np.minimum(at, len(ends) - 1)] == tokens
        return np.where(tokens == 0, 0, at + at_end)

    starts, stops = slice_indices[:, 0], slice_indices[:, 1]
    first = sentence(starts)
    offsets = starts - np.concatenate([[0], ends])[first]
    last = np.where(stops <= starts, first, sentence(stops - 1))
    return np.stack([first, offsets, last], axis=1).astype(np.int64)
