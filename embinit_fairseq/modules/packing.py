"""Batches without their padding: what looks at one token at a time need not look at padding.

Sentences of different lengths are padded to the longest one, and a batch of them may be mostly padding. Behind the
embeddings, an encoder's linear maps, layer norms and dropout take the tokens alone, one after the other; only attention
sees rows of one length.
"""

from __future__ import annotations

from torch import Tensor

#: with less padding than this share of a batch, what is saved is less than what packing and spreading cost
WORTHWHILE = 1 / 16


class Packing:
    """Where the N tokens of a batch are. padding_mask: (batch, len), True at padding."""

    def __init__(self, padding_mask: Tensor) -> None:
        self.shape = padding_mask.shape
        self.places = padding_mask.logical_not().flatten().nonzero().squeeze(1)

    def pack(self, x: Tensor) -> Tensor:
        """(batch, len, C) -> (N, C)."""
        return x.flatten(0, 1).index_select(0, self.places)

    def spread(self, x: Tensor) -> Tensor:
        """(N, C) -> (batch, len, C), zero at padding."""
        rows = x.new_zeros(self.shape.numel(), x.shape[-1])
        return rows.index_copy(0, self.places, x).unflatten(0, self.shape)


def packing_of(padding_mask: Tensor | None, tokens: int) -> Packing | None:
    """The packing of a batch with so many tokens, or None where it is not worthwhile."""
    if padding_mask is None or padding_mask.numel() - tokens < WORTHWHILE * padding_mask.numel():
        return None
    return Packing(padding_mask)
