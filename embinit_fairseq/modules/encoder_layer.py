"""One transformer encoder layer, post-LN (default) or pre-LN.

post-LN: x = LN_1(x + drop(attn(x)));      x = LN_2(x + drop(fc2(drop_act(act(fc1 x)))))
pre-LN:  x = x + drop(attn(LN_1 x));       x = x + drop(fc2(drop_act(act(fc1 LN_2 x))))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from embinit_fairseq.errors import check_heads
from embinit_fairseq.modules.attention_kernels import AttentionBias, attend

# ---- Batches without their padding: what looks at one token at a time need not look at padding ----------------------
# Sentences of different lengths are padded to the longest one, and a batch of them may be mostly padding. Behind the
# embeddings, an encoder's linear maps, layer norms and dropout take the tokens alone, one after the other; only
# attention sees rows of one length.

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


# ---- Multi-head self-attention that adds whatever positional bias it is given ---------------------------------------
# softmax((x W^Q) (x W^K)^T / sqrt(num_terms d) + B) (x W^V) W^O           Ke et al. 2021, equations (4) to (11)


class SelfAttention(nn.Module):
    """C: embed_dim. Queries, keys and values come from one matrix product (rows q, k, v)."""

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, num_terms: int = 1) -> None:
        super().__init__()
        check_heads(num_heads, embed_dim, "num_heads", "embed_dim")
        self.num_heads, self.dropout = num_heads, dropout
        self.scale = (num_terms * (embed_dim // num_heads)) ** -0.5
        self.qkv_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(
        self,
        x: Tensor,
        attn_bias: AttentionBias,
        projections: tuple[Tensor, Tensor] | None = None,
        packing: Packing | None = None,
    ) -> Tensor:
        """x (batch, tgt_len, C), or (N, C) with a packing -> the same shape.

        projections: (tgt_len, C) to add to queries and keys, or None.
        """
        qkv = self.qkv_proj(x)
        q, k, v = (qkv if packing is None else packing.spread(qkv)).chunk(3, dim=-1)
        if projections is not None:
            q, k = q + projections[0], k + projections[1]
        dropout = self.dropout if self.training else 0.0
        y = attend(self._heads(q), self._heads(k), self._heads(v), attn_bias, self.scale, dropout)
        y = y.transpose(1, 2).flatten(2)
        return self.out_proj(y if packing is None else packing.pack(y))

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)  # (batch, num_heads, len, head_dim)


# ----------------------------------------------------------------------------------------------------------------------

#: choices of --activation-fn; gelu is the exact one (erf)
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "relu": F.relu}


@dataclass(frozen=True)
class LayerConfig:
    """Dimensions and dropouts of one layer."""

    embed_dim: int
    ffn_embed_dim: int
    num_heads: int
    num_terms: int = 1
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    activation: str = "gelu"
    normalize_before: bool = False


class ResidualLayer(nn.Module):
    """Blocks with residuals, post-LN or pre-LN.

    Each layer makes the parts, which have fairseq's names, in an order of its own: that of their random numbers.
    """

    normalize_before: bool
    activation: Callable[[Tensor], Tensor]
    self_attn: Any
    self_attn_layer_norm: nn.LayerNorm
    fc1: nn.Linear
    fc2: nn.Linear
    final_layer_norm: nn.LayerNorm
    dropout: nn.Dropout
    activation_dropout: nn.Dropout

    def before(self, x: Tensor, norm: nn.LayerNorm) -> Tensor:
        """What a block is given."""
        return norm(x) if self.normalize_before else x

    def after(self, x: Tensor, y: Tensor, norm: nn.LayerNorm) -> Tensor:
        """Residual, and layer norm unless it came before."""
        x = x + self.dropout(y)
        return x if self.normalize_before else norm(x)

    def feed_forward(self, x: Tensor) -> Tensor:
        """x (..., C) -> the same shape, with residual."""
        hidden = self.activation(self.fc1(self.before(x, self.final_layer_norm)))
        return self.after(x, self.fc2(self.activation_dropout(hidden)), self.final_layer_norm)


class EncoderLayer(ResidualLayer):
    """Self-attention and feed-forward network."""

    def __init__(self, cfg: LayerConfig) -> None:
        super().__init__()
        self.normalize_before = cfg.normalize_before
        self.activation = ACTIVATIONS[cfg.activation]
        self.self_attn = SelfAttention(cfg.embed_dim, cfg.num_heads, cfg.attention_dropout, cfg.num_terms)
        self.self_attn_layer_norm = nn.LayerNorm(cfg.embed_dim)
        self.fc1 = nn.Linear(cfg.embed_dim, cfg.ffn_embed_dim)
        self.fc2 = nn.Linear(cfg.ffn_embed_dim, cfg.embed_dim)
        self.final_layer_norm = nn.LayerNorm(cfg.embed_dim)
        self.dropout = nn.Dropout(cfg.dropout)
        self.activation_dropout = nn.Dropout(cfg.activation_dropout)

    def forward(
        self,
        x: Tensor,
        attn_bias: AttentionBias,
        projections: tuple[Tensor, Tensor] | None = None,
        packing: Packing | None = None,
    ) -> Tensor:
        """x (batch, tgt_len, C), or (N, C) with a packing -> the same shape."""
        norm = self.self_attn_layer_norm
        attended = self.self_attn(self.before(x, norm), attn_bias, projections, packing)
        return self.feed_forward(self.after(x, attended, norm))
