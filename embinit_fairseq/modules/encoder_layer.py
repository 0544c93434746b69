"""Define a transformer encoder layer, post-LN (default) or pre-LN; its self-attention; batches without padding.

    post-LN   x = LN_1(x + drop(attn(x)));      x = LN_2(x + drop(fc2(drop_act(act(fc1 x)))))
    pre-LN    x = x + drop(attn(LN_1 x));       x = x + drop(fc2(drop_act(act(fc1 LN_2 x))))
    attn      softmax((x W^Q) (x W^K)^T / sqrt(num_terms d) + B) (x W^V) W^O       Ke et al. 2021, equations (4) to (11)

B: the attention bias that the caller gives, positions and padding; it may also rotate queries and keys. num_terms: the
terms that queries and keys sum, see position_encoding.py. C: embed_dim, H: num_heads, d: head_dim, T: tgt_len,
N: tokens of a batch without its padding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from embinit_fairseq.modules.attention_kernels import AttentionContext, attend

#: choices of --activation-fn; gelu is the exact one (erf)
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "relu": F.relu}
#: smallest share of padding in a batch for which leaving it out saves more than it costs
WORTHWHILE = 1 / 16


@dataclass(frozen=True)
class LayerConfig:
    """Hold dimensions and dropouts of one layer. num_terms: see the head of this file."""

    embed_dim: int
    ffn_embed_dim: int
    num_heads: int
    num_terms: int = 1
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    activation: str = "gelu"
    normalize_before: bool = False

    @property
    def head_dim(self) -> int:
        """Return the dimension of a head, d."""
        return self.embed_dim // self.num_heads


class Packing:
    """Hold the places of the N tokens of a batch, whose sentences are padded to the longest one.

    After the embeddings, linear maps, layer norms and dropout take the N tokens alone; only attention sees rows of one
    length. padding_mask: (batch, len), True at padding.
    """

    def __init__(self, padding_mask: Tensor) -> None:
        self.shape = padding_mask.shape
        self.places = padding_mask.logical_not().flatten().nonzero().squeeze(1)

    def pack(self, x: Tensor) -> Tensor:
        """Leave out padding: (batch, len, C) -> (N, C)."""
        return x.flatten(0, 1).index_select(0, self.places)

    def spread(self, x: Tensor) -> Tensor:
        """Undo `pack`: (N, C) -> (batch, len, C), zero at padding."""
        rows = x.new_zeros(self.shape.numel(), x.shape[-1])
        return rows.index_copy(0, self.places, x).unflatten(0, self.shape)


def packing_of(padding_mask: Tensor, padding: int) -> Packing | None:
    """Return the packing of a batch with `padding` columns of padding, or None if packing would not save time."""
    return Packing(padding_mask) if padding >= WORTHWHILE * padding_mask.numel() else None


class Attention(nn.Module):
    """Hold number and scale of the heads. Child modules are linear maps: projections, and `out_proj` (W^O)."""

    out_proj: nn.Linear

    def __init__(self, cfg: LayerConfig, num_terms: int = 1) -> None:
        super().__init__()
        self.num_heads, self.dropout = cfg.num_heads, cfg.attention_dropout
        self.scale = (num_terms * cfg.head_dim) ** -0.5

    @property
    def active_dropout(self) -> float:
        """Return the rate of dropout of the probabilities, 0 outside training."""
        return self.dropout if self.training else 0.0

    def split_heads(self, x: Tensor) -> Tensor:
        """Split the last dimension into heads: (..., T, C) -> (rows, H, T, d)."""
        return x.reshape(-1, x.shape[-2], self.num_heads, x.shape[-1] // self.num_heads).transpose(1, 2)


class SelfAttention(Attention):
    """Self-attention whose queries, keys and values come from one matrix product (rows q, k, v)."""

    def __init__(self, cfg: LayerConfig) -> None:
        super().__init__(cfg, cfg.num_terms)
        self.qkv_proj = nn.Linear(cfg.embed_dim, 3 * cfg.embed_dim)
        self.out_proj = nn.Linear(cfg.embed_dim, cfg.embed_dim)

    def forward(
        self,
        x: Tensor,
        context: AttentionContext,
        projections: tuple[Tensor, Tensor] | None = None,
        packing: Packing | None = None,
        extend: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
    ) -> Tensor:
        """Return attn(x), of the shape of x.

        Args:
            x: (batch, T, C), or (N, C) with a packing.
            projections: (T, C) to add to queries and keys.
            extend: in incremental decoding, turns keys and values of new tokens into those of all tokens.
        """
        qkv = self.qkv_proj(x)
        q, k, v = (qkv if packing is None else packing.spread(qkv)).chunk(3, dim=-1)
        if projections is not None:
            q, k = q + projections[0], k + projections[1]
        q, k, v = self.split_heads(q), self.split_heads(k), self.split_heads(v)
        if context.rotation is not None:
            q, k = context.rotation(q, k)
        if extend is not None:
            k, v = extend(k, v)
        y = attend(q, k, v, context, self.scale, self.active_dropout).transpose(1, 2).flatten(2)
        return self.out_proj(y if packing is None else packing.pack(y))


class EncoderLayer(nn.Module):
    """Attention and feed-forward network with residuals. The parts have fairseq's names.

    Initial values and the order of a checkpoint's optimizer state depend on the order in which the parts are made.

    Args:
        self_attn: default SelfAttention.
        encoder_attn: cross-attention, in a decoder layer only.
    """

    def __init__(
        self, cfg: LayerConfig, self_attn: nn.Module | None = None, encoder_attn: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.normalize_before = cfg.normalize_before
        self.activation = ACTIVATIONS[cfg.activation]
        self.self_attn = SelfAttention(cfg) if self_attn is None else self_attn
        self.self_attn_layer_norm = nn.LayerNorm(cfg.embed_dim)
        if encoder_attn is not None:
            self.encoder_attn = encoder_attn
            self.encoder_attn_layer_norm = nn.LayerNorm(cfg.embed_dim)
        self.fc1 = nn.Linear(cfg.embed_dim, cfg.ffn_embed_dim)
        self.fc2 = nn.Linear(cfg.ffn_embed_dim, cfg.embed_dim)
        self.final_layer_norm = nn.LayerNorm(cfg.embed_dim)
        self.dropout = nn.Dropout(cfg.dropout)
        self.activation_dropout = nn.Dropout(cfg.activation_dropout)

    def forward(self, x: Tensor, context: AttentionContext, *options: Any) -> Tensor:
        """Return the layer's output, of the shape of x. options: further arguments of `self_attn`."""
        norm = self.self_attn_layer_norm
        y = self.self_attn(self.before(x, norm), context, *options)
        return self.feed_forward(self.after(x, y, norm))

    def before(self, x: Tensor, norm: nn.LayerNorm) -> Tensor:
        """Return the input of a block."""
        return norm(x) if self.normalize_before else x

    def after(self, x: Tensor, y: Tensor, norm: nn.LayerNorm) -> Tensor:
        """Return a block's output y with the residual x, and with layer norm unless it came before."""
        x = x + self.dropout(y)
        return x if self.normalize_before else norm(x)

    def feed_forward(self, x: Tensor) -> Tensor:
        """Return the feed-forward block of x (..., C), with residual, of the same shape."""
        hidden = self.activation(self.fc1(self.before(x, self.final_layer_norm)))
        return self.after(x, self.fc2(self.activation_dropout(hidden)), self.final_layer_norm)
