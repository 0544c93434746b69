"""Define a transformer decoder layer, post-LN (default) or pre-LN, and its state in incremental decoding.

    post-LN   x = LN_1(x + drop(attn(x)));   x = LN_2(x + drop(cross(x, h)));   x = LN_3(x + drop(ffn(x)))
    pre-LN    x = x + drop(attn(LN_1 x));    x = x + drop(cross(LN_2 x, h));    x = x + drop(ffn(LN_3 x))
    cross     softmax((x W^Q) (h W^K)^T / sqrt(d)) (h W^V) W^O

attn, ffn: as in encoder_layer.py, with a causal mask in the attention bias. h: the encoder's output. TUPE and Duo
(Li et al. 2020) use the layer; Duo has n streams in x (n, B, T, C) and in h.

B: batch, T: tgt_len, S: src_len, C: embed_dim, kdim: the encoder's C, H: num_heads, d: head_dim, N: rows of attention
(sentences, times beam in incremental decoding, times streams).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from embinit_fairseq.modules.attention_kernels import AttentionContext, attend, attention_weights
from embinit_fairseq.modules.encoder_layer import Attention, EncoderLayer, LayerConfig

#: keys and values of the encoder's output, (N, H, S, d)
Memory = tuple[Tensor, Tensor]


class CrossAttention(Attention):
    """Attention to the encoder's output, whose keys and values come from one matrix product (rows k, v)."""

    q_proj: nn.Module
    kv_proj: nn.Module

    def __init__(self, cfg: LayerConfig, kdim: int) -> None:
        super().__init__(cfg)
        self.q_proj = nn.Linear(cfg.embed_dim, cfg.embed_dim)
        self.kv_proj = nn.Linear(kdim, 2 * cfg.embed_dim)
        self.out_proj = nn.Linear(cfg.embed_dim, cfg.embed_dim)

    def memory(self, encoder_out: Tensor) -> Memory:
        """Return keys and values of encoder_out (..., S, kdim)."""
        k, v = self.kv_proj(encoder_out).chunk(2, dim=-1)
        return self.split_heads(k), self.split_heads(v)

    def forward(
        self, x: Tensor, memory: Memory, context: AttentionContext, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Return cross(x, h), of the shape of x (..., T, C), and the weights (..., H, T, S) if needed, else None.

        memory may have fewer rows than x: consecutive rows of x (the beam of a sentence) then share a row of memory
        and of the padding mask.
        """
        q = self.split_heads(self.q_proj(x))
        beam, weights = len(q) // len(memory[0]), None
        q = _join_beam(q, beam)
        if need_weights:
            weights = attention_weights(q, memory[0], context, self.scale)
            y = F.dropout(weights, self.active_dropout).to(x.dtype) @ memory[1]
            weights = _split_beam(weights, beam).unflatten(0, x.shape[:-2])
        else:
            y = attend(q, *memory, context, self.scale, self.active_dropout)
        return self.out_proj(_split_beam(y, beam).transpose(1, 2).reshape(x.shape)), weights


def _join_beam(q: Tensor, beam: int) -> Tensor:
    """Join queries with the same keys: (N, H, T, d) -> (N / beam, H, beam T, d)."""
    return q if beam == 1 else q.unflatten(0, (-1, beam)).transpose(1, 2).flatten(2, 3)


def _split_beam(y: Tensor, beam: int) -> Tensor:
    """Undo `_join_beam`: (N / beam, H, beam T, d) -> (N, H, T, d)."""
    return y if beam == 1 else y.unflatten(2, (beam, -1)).transpose(1, 2).flatten(0, 1)


class DecoderLayer(EncoderLayer):
    """Self-attention, cross-attention and feed-forward network, of any self_attn and encoder_attn."""

    encoder_attn: Any
    encoder_attn_layer_norm: nn.LayerNorm

    def forward(  # type: ignore[override]  # a decoder layer is no encoder layer, but has its parts
        self,
        x: Tensor,
        self_context: AttentionContext,
        memory: Memory,
        cross_context: AttentionContext,
        need_weights: bool = False,
        extend: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the layer's output, of the shape of x (..., T, C), and the weights of cross-attention or None.

        Args:
            self_context: context of self-attention; its bias has the causal mask.
            memory: keys and values of `encoder_attn`.
            need_weights: return the weights (..., H, T, S).
            extend: used in incremental decoding, where x are the new tokens; see `SelfAttention`.
        """
        norm = self.self_attn_layer_norm
        x = self.after(x, self.self_attn(self.before(x, norm), self_context, extend=extend), norm)
        norm = self.encoder_attn_layer_norm
        y, weights = self.encoder_attn(self.before(x, norm), memory, cross_context, need_weights)
        return self.feed_forward(self.after(x, y, norm)), weights


def causal(bias: Tensor) -> Tensor:
    """Return bias (H, T, T) with the keys after each query masked."""
    future = torch.ones(bias.shape[-2:], dtype=torch.bool, device=bias.device).triu(1)
    return bias.masked_fill(future, torch.finfo(bias.dtype).min)


# ---- Incremental decoding ----


class DecoderCache:
    """Hold the state of one batch between two steps, for all layers, without gradient.

    Attributes:
        sentence: (N,), the sentence of each row. Rows of one sentence have the same `memory`, which does not change
            when beam search exchanges these rows.
        memory: per layer, keys and values of cross-attention, (N / beam, H, S, d); `beam` consecutive rows share one.
        bias: (H, capacity, capacity), positions and causal mask, the same for all rows.
        length: number of tokens in the past.
    """

    def __init__(self, sentence: Tensor, memory: list[Memory], beam: int = 1) -> None:
        self.sentence, self.memory, self.beam = sentence, memory, beam
        self.length = 0
        self.bias: Tensor | None = None
        self._order: Tensor | None = None
        self._past: list[Tensor | None] = [None] * len(memory)  # per layer (2, N, H, length, d): keys, values
        self._spare: Tensor | None = None

    def reorder(self, new_order: Tensor) -> None:
        """Make row n the old row `new_order[n]`; the number of rows may change."""
        self._order = new_order if self._order is None else self._order.index_select(0, new_order)
        sentence = self.sentence.index_select(0, new_order)
        if not torch.equal(sentence, self.sentence):
            rows = new_order // self.beam
            first = rows[:: self.beam]
            if len(rows) % self.beam == 0 and torch.equal(rows, first.repeat_interleave(self.beam)):
                rows = first
            else:
                self.beam = 1
            self.memory = [(k.index_select(0, rows), v.index_select(0, rows)) for k, v in self.memory]
        self.sentence = sentence

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values of new tokens, (N, H, t, d), and return all of them, (N, H, length + t, d).

        The past is copied, with its rows reordered, into the memory of the previous layer's past, which is not needed
        any more: allocating memory in every step would cost more than the copy.
        """
        past, length = self._past[layer], self.length
        shape = (2, *k.shape[:2], length + k.shape[2], k.shape[3])
        if self._spare is None or self._spare.numel() < math.prod(shape):
            room = next_power_of_two(shape[3]) * math.prod(shape) // shape[3]
            self._spare = k.new_empty(room)
        joined = self._spare[: math.prod(shape)].view(shape)
        if past is not None and self._order is not None:
            torch.index_select(past, 1, self._order, out=joined[:, :, :, :length])
        elif past is not None:
            joined[:, :, :, :length] = past
        joined[0, :, :, length:], joined[1, :, :, length:] = k, v
        self._spare, self._past[layer] = None if past is None else past._base, joined
        return joined[0], joined[1]

    def advance(self, tokens: int) -> None:
        """Add the new tokens to `length`, after all layers have seen them."""
        self.length += tokens
        self._order = None


def next_power_of_two(length: int) -> int:
    """Return the smallest power of two that is at least `length`, and at least 32."""
    return max(32, 1 << (length - 1).bit_length())


def beam_of(place: Tensor, distinct: int) -> int:
    """Return the number of consecutive rows per sentence, 1 if it differs. place: (N,), the sentence of each row."""
    beam = len(place) // distinct
    in_order = torch.arange(distinct, device=place.device).repeat_interleave(beam)
    return beam if torch.equal(place, in_order) else 1


def distinct_rows(sentence: Tensor) -> tuple[Tensor, Tensor]:
    """Return one row of each sentence, (M,), and the place among these of every row, (N,). sentence: (N,)."""
    distinct, place = torch.unique(sentence, return_inverse=True)
    rows = torch.arange(len(sentence), device=sentence.device)
    return rows.new_empty(len(distinct)).scatter_(0, place, rows), place
