"""What a decoder keeps between two steps of incremental decoding. It takes no gradient.

N: rows (sentences times beam), H: num_heads, d: head_dim, S: src_len.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


class DecoderCache:
    """The state of one batch, all layers.

    sentence (N,): which sentence of the encoder's batch a row belongs to. Rows of one sentence have the same `memory`,
    so that beam search, which mostly exchanges rows of one sentence, leaves it alone.
    memory: keys and values of cross-attention, per layer (N / beam, H, S, d) each; `beam` rows in a row share theirs.
    bias (H, capacity, capacity): positions and causal mask, not a matter of rows.
    length: tokens seen so far.
    """

    def __init__(self, sentence: Tensor, memory: list[tuple[Tensor, Tensor]], beam: int = 1) -> None:
        self.sentence, self.memory, self.beam = sentence, memory, beam
        self.length = 0
        self.bias: Tensor | None = None
        self._order: Tensor | None = None
        self._past: list[Tensor | None] = [None] * len(memory)  # (2, N, H, capacity, d) each: keys, values
        self._storage: list[Tensor | None] = [None] * len(memory)  # what these are views of
        self._spare: Tensor | None = None

    def reorder(self, new_order: Tensor) -> None:
        """Row n becomes what row `new_order[n]` was; there may be fewer rows than before, or more."""
        self._order = new_order if self._order is None else self._order.index_select(0, new_order)
        sentence = self.sentence.index_select(0, new_order)
        if not torch.equal(sentence, self.sentence):
            self._reorder_memory(new_order // self.beam)
        self.sentence = sentence

    def _reorder_memory(self, rows: Tensor) -> None:
        """rows (N,): the row of memory that each new row needs; shared as before if they come `beam` at a time."""
        if len(rows) % self.beam == 0 and bool((rows == rows[:: self.beam].repeat_interleave(self.beam)).all()):
            rows = rows[:: self.beam]
        else:
            self.beam = 1
        self.memory = [(k.index_select(0, rows), v.index_select(0, rows)) for k, v in self.memory]

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (N, H, t, d) of new tokens -> those of all tokens, (N, H, length + t, d).

        The past is copied from one buffer into another only to put its rows into order, or when it is full. Layers take
        turns with the spare storage: fresh memory in every step would cost more than the copy.
        """
        total = self.length + k.shape[2]
        past = buffer = self._past[layer]
        if past is None or self._order is not None or past.shape[3] < total:
            storage, buffer = self._buffer(k, total)
            if past is not None:
                self._copy(past, buffer)
            self._spare, self._storage[layer], self._past[layer] = self._storage[layer], storage, buffer
        buffer[0, :, :, self.length : total] = k
        buffer[1, :, :, self.length : total] = v
        return buffer[0, :, :, :total], buffer[1, :, :, :total]

    def advance(self, tokens: int) -> None:
        """All layers have seen `tokens` more."""
        self.length += tokens
        self._order = None

    def _copy(self, past: Tensor, buffer: Tensor) -> None:
        past, buffer = past[..., : self.length, :], buffer[..., : self.length, :]
        if self._order is None:
            buffer.copy_(past)
        else:
            torch.index_select(past, 1, self._order, out=buffer)

    def _buffer(self, k: Tensor, total: int) -> tuple[Tensor, Tensor]:
        """Storage, the spare one if it is large enough, and a view of it: (2, N, H, capacity, d), capacity >= total.

        Rows that are put into order in every step (beam search) need no room behind them, and are read faster without.
        """
        rows, heads, _, dim = k.shape
        room = next_power_of_two(total)
        shape = (2, rows, heads, room if self._order is None else total, dim)
        spare, self._spare = self._spare, None
        if spare is None or spare.numel() < math.prod(shape):
            spare = k.new_empty(2 * rows * heads * room * dim)
        return spare, spare[: math.prod(shape)].view(shape)


def next_power_of_two(length: int) -> int:
    """At least 32."""
    return max(32, 1 << (length - 1).bit_length())


def beam_of(place: Tensor, distinct: int) -> int:
    """place (N,), numbers below `distinct`. How many rows each number has, if they come in order; else 1."""
    beam = len(place) // distinct
    in_order = torch.arange(distinct, device=place.device).repeat_interleave(beam)
    return beam if torch.equal(place, in_order) else 1


def distinct_rows(sentence: Tensor) -> tuple[Tensor, Tensor]:
    """sentence (N,) -> one row of each sentence (M,), and for every row its place among these (N,)."""
    distinct, place = torch.unique(sentence, return_inverse=True)
    rows = torch.arange(len(sentence), device=sentence.device)
    return rows.new_empty(len(distinct)).scatter_(0, place, rows), place
