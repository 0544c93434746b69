"""One transformer decoder layer, post-LN (default) or pre-LN.

post-LN: x = LN_1(x + drop(attn(x)));  x = LN_2(x + drop(cross(x, h)));  x = LN_3(x + drop(fc2(drop_act(act(fc1 x)))))
pre-LN:  x = x + drop(attn(LN_1 x));   x = x + drop(cross(LN_2 x, h));   x = x + drop(fc2(drop_act(act(fc1 LN_3 x))))

h: the encoder's output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from embinit_fairseq.errors import OptionError
from embinit_fairseq.modules.attention_kernels import AttentionBias, attend, attention_weights
from embinit_fairseq.modules.encoder_layer import ACTIVATIONS, LayerConfig, ResidualLayer, SelfAttention

# ---- Left-padded batches for layers that count positions by columns -------------------------------------------------
# A position is a column here, so a sentence behind padding would be read as if it stood further back, by an amount that
# depends on its neighbours in the batch. Its row is rotated until it begins in column 0, and rotated back at the end.


def leading_padding(padding_mask: Tensor) -> Tensor:
    """padding_mask (batch, len), True at padding -> how many columns of padding each row begins with, (batch,)."""
    return padding_mask.long().cumprod(dim=1).sum(dim=1)


def rotate_left(x: Tensor, shift: Tensor) -> Tensor:
    """x (batch, len, ...): row b moves `shift[b]` columns to the left, what falls out comes in again on the right.

    A negative shift, as in `rotate_left(rotate_left(x, shift), -shift)`, moves to the right.
    """
    batch, length = x.shape[:2]
    columns = (torch.arange(length, device=x.device) + shift.unsqueeze(1)) % length
    return x[torch.arange(batch, device=x.device).unsqueeze(1), columns]


# ----------------------------------------------------------------------------------------------------------------------
# Dropout that stays on when a trained model is used (fairseq's `--retain-dropout`: Monte Carlo dropout).


def retain_dropout_(model: nn.Module, classes: Sequence[str] | None = None) -> None:
    """Puts the dropouts of `model`, and nothing else, into training mode; they stay so until `model.train` is called.

    classes: names of the classes of modules whose own dropouts are meant (default: all). Raises OptionError for a name
    that stands for none, and for no name at all.
    """
    holders = [module for module in model.modules() if _dropouts(module)]
    known = sorted({type(holder).__name__ for holder in holders})
    if classes is not None and not classes:
        raise OptionError(f"--retain-dropout-modules names none; there are {', '.join(known)}")
    for name in classes or ():
        if name not in known:
            raise OptionError(
                f"--retain-dropout-modules {name}: no module with dropout is called so; there are {', '.join(known)}"
            )
    for holder in holders:
        if classes is None or type(holder).__name__ in classes:
            for dropout in _dropouts(holder):
                dropout.training = True


def _dropouts(module: nn.Module) -> list[nn.Module]:
    """What asks its own `training` whether to drop: dropout modules within it, and attention, which keeps a rate."""
    inner = [child for child in module.children() if isinstance(child, nn.Dropout)]
    return [*inner, *([module] if isinstance(getattr(module, "dropout", None), (int, float)) else [])]


# ---- What a decoder keeps between two steps of incremental decoding. It takes no gradient ---------------------------
# N: rows (sentences times beam), H: num_heads, d: head_dim, S: src_len.


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
        past = self._past[layer]
        if past is None or self._order is not None or past.shape[3] < total:
            storage, buffer = self._buffer(k, total)
            if past is not None:
                self._copy(past, buffer)
            self._spare, self._storage[layer], self._past[layer] = self._storage[layer], storage, buffer
        else:
            buffer = past
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
    """The smallest power of two that is at least `length`, and at least 32."""
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


# ---- The two attentions of a decoder layer --------------------------------------------------------------------------
#     self-attention     softmax((x W^Q) (x W^K)^T / sqrt(num_terms d) + B) (x W^V) W^O     B: positions and causal mask
#     cross-attention    softmax((x W^Q) (h W^K)^T / sqrt(d)) (h W^V) W^O                   h: the encoder's output
#
# Cross-attention has no positional term: h comes from an encoder that knows its positions.

#: keys and values, (batch, num_heads, src_len, head_dim) each
Memory = tuple[Tensor, Tensor]


class DecoderSelfAttention(SelfAttention):
    """Self-attention that can go on from what a cache holds."""

    def step(self, x: Tensor, attn_bias: AttentionBias, cache: DecoderCache, layer: int) -> Tensor:
        """x (rows, t, C): the tokens after those of the cache; attn_bias for t queries and all keys -> (rows, t, C)."""
        q, k, v = (self._heads(each) for each in self.qkv_proj(x).chunk(3, dim=-1))
        y = attend(q, *cache.extend(layer, k, v), attn_bias, self.scale, self.dropout if self.training else 0.0)
        return self.out_proj(y.transpose(1, 2).reshape(x.shape))


class CrossAttention(nn.Module):
    """C: embed_dim. Keys and values come from an encoder of dimension kdim by one matrix product (rows k, v)."""

    def __init__(self, embed_dim: int, num_heads: int, kdim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.scale = (embed_dim // num_heads) ** -0.5
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.kv_proj = nn.Linear(kdim, 2 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def memory(self, encoder_out: Tensor) -> Memory:
        """encoder_out (batch, src_len, kdim) -> keys and values, (batch, num_heads, src_len, head_dim) each."""
        k, v = self.kv_proj(encoder_out).chunk(2, dim=-1)
        return self._heads(k), self._heads(v)

    def forward(
        self, x: Tensor, memory: Memory, attn_bias: AttentionBias, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """x (batch, tgt_len, C) -> the same shape, and the weights (batch, num_heads, tgt_len, src_len) if needed."""
        q, weights = self._heads(self.q_proj(x)), None
        dropout = self.dropout if self.training else 0.0
        if need_weights:
            weights = attention_weights(q, memory[0], attn_bias, self.scale)
            y = F.dropout(weights, dropout).to(x.dtype) @ memory[1]
        else:
            y = attend(q, *memory, attn_bias, self.scale, dropout)
        return self.out_proj(y.transpose(1, 2).reshape(x.shape)), weights

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)  # (batch, num_heads, len, head_dim)


# ----------------------------------------------------------------------------------------------------------------------


class DecoderBlocks(ResidualLayer):
    """Self-attention, cross-attention and feed-forward network, for all tokens at once or step by step.

    B: batch, T: tgt_len, S: src_len. Layers of several streams have one dimension more in front.
    """

    encoder_attn: Any
    encoder_attn_layer_norm: nn.LayerNorm

    def after_attention(self, x: Tensor, y: Tensor, norm: nn.LayerNorm) -> Tensor:
        """Residual of an attention y."""
        return self.after(x, y, norm)

    def forward(
        self, x: Tensor, self_bias: AttentionBias, encoder_out: Tensor, cross_bias: AttentionBias, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """x (B, T, C), encoder_out (B, S, kdim) -> x and the weights of cross-attention (B, num_heads, T, S).

        self_bias holds the causal mask. The weights are None unless asked for.
        """
        norm = self.self_attn_layer_norm
        x = self.after_attention(x, self.self_attn(self.before(x, norm), self_bias), norm)
        return self._rest(x, self.encoder_attn.memory(encoder_out), cross_bias, need_weights)

    def step(
        self,
        x: Tensor,
        self_bias: AttentionBias,
        cache: DecoderCache,
        layer: int,
        cross_bias: AttentionBias,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """As forward, for the tokens after those of the cache, in which this is layer number `layer`; extends it."""
        norm = self.self_attn_layer_norm
        x = self.after_attention(x, self.self_attn.step(self.before(x, norm), self_bias, cache, layer), norm)
        return self._rest(x, cache.memory[layer], cross_bias, need_weights)

    def _rest(
        self, x: Tensor, memory: Memory, cross_bias: AttentionBias, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        norm = self.encoder_attn_layer_norm
        y, weights = self.encoder_attn(self.before(x, norm), memory, cross_bias, need_weights)
        return self.feed_forward(self.after_attention(x, y, norm)), weights


class DecoderLayer(DecoderBlocks):
    """Of one stream. kdim: dimension of the encoder."""

    def __init__(self, cfg: LayerConfig, kdim: int) -> None:
        super().__init__()
        self.normalize_before = cfg.normalize_before
        self.activation = ACTIVATIONS[cfg.activation]
        self.self_attn = DecoderSelfAttention(cfg.embed_dim, cfg.num_heads, cfg.attention_dropout, cfg.num_terms)
        self.self_attn_layer_norm = nn.LayerNorm(cfg.embed_dim)
        self.encoder_attn = CrossAttention(cfg.embed_dim, cfg.num_heads, kdim, cfg.attention_dropout)
        self.encoder_attn_layer_norm = nn.LayerNorm(cfg.embed_dim)
        self.fc1 = nn.Linear(cfg.embed_dim, cfg.ffn_embed_dim)
        self.fc2 = nn.Linear(cfg.ffn_embed_dim, cfg.embed_dim)
        self.final_layer_norm = nn.LayerNorm(cfg.embed_dim)
        self.dropout = nn.Dropout(cfg.dropout)
        self.activation_dropout = nn.Dropout(cfg.activation_dropout)


def causal(bias: Tensor) -> Tensor:
    """bias (num_heads, tgt_len, tgt_len) with the keys behind each query shut off."""
    future = torch.ones(bias.shape[-2:], dtype=torch.bool, device=bias.device).triu(1)
    return bias.masked_fill(future, torch.finfo(bias.dtype).min)
