"""The two attentions of a decoder layer.

    self-attention     softmax((x W^Q) (x W^K)^T / sqrt(num_terms d) + B) (x W^V) W^O     B: positions and causal mask
    cross-attention    softmax((x W^Q) (h W^K)^T / sqrt(d)) (h W^V) W^O                   h: the encoder's output

Cross-attention has no positional term: h comes from an encoder that knows its positions.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from embinit_fairseq.modules.attention_kernels import AttentionBias, attend, attention_weights
from embinit_fairseq.modules.decoder_cache import DecoderCache
from embinit_fairseq.modules.self_attention import SelfAttention

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
    """C: embed_dim. Keys and values come from an encoder of width kdim by one matrix product (rows k, v)."""

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
