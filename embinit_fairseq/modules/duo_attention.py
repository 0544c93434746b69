"""Duo attention: the queries and keys of one stream weigh the values of the other. Li et al. 2020, section 3.2.1.

    A^S = MultiHead(Q^P, K^P, V^S)                                                                        equation (4)
    A^P = MultiHead(Q^S, K^S, V^P)                                                                        equation (5)
    C^S = MultiHead(y^P, K = h^P, V = h^S),  C^P = MultiHead(y^S, K = h^S, V = h^P)        h: the encoder's two streams

Results stand in the order of the queries: entry S is A^P, entry P is A^S (`back_to_values` exchanges them). Q, K and V
have a projection per stream (six; share_weights: one for K and V together, four), the output projection is shared.
With one stream this is ordinary attention. n: streams, B: batch, T: tgt_len, S: src_len, C: width.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from embinit_fairseq.modules.attention_kernels import AttentionBias, attend, attention_weights
from embinit_fairseq.modules.decoder_attention import Memory
from embinit_fairseq.modules.decoder_cache import DecoderCache
from embinit_fairseq.modules.streams import StreamLinear, values_for_queries


class DuoSelfAttention(nn.Module):
    """Projections of all streams come from one batched product (rows q, k, v; share_weights: q, kv)."""

    def __init__(
        self, num_streams: int, embed_dim: int, num_heads: int, dropout: float = 0.0, share_weights: bool = True
    ) -> None:
        super().__init__()
        self.num_heads, self.dropout, self.share_weights = num_heads, dropout, share_weights
        self.scale = (embed_dim // num_heads) ** -0.5
        self.in_proj = StreamLinear(num_streams, embed_dim, (2 if share_weights else 3) * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x: Tensor, attn_bias: AttentionBias) -> Tensor:
        """x (n, B, T, C) -> the same shape; the padding mask of attn_bias has n B rows, stream by stream."""
        y = attend(*self._project(x), attn_bias, self.scale, self.dropout if self.training else 0.0)
        return self.out_proj(join_heads(y, x.shape))

    def step(self, x: Tensor, attn_bias: AttentionBias, cache: DecoderCache, layer: int) -> Tensor:
        """x (n, rows, t, C): the tokens after those of the cache, which holds n rows -> (n, rows, t, C)."""
        q, k, v = self._project(x)
        y = attend(q, *cache.extend(layer, k, v), attn_bias, self.scale, self.dropout if self.training else 0.0)
        return self.out_proj(join_heads(y, x.shape))

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, *v = self.in_proj(x).chunk(2 if self.share_weights else 3, dim=-1)
        v = values_for_queries(v[0] if v else k)
        return split_heads(q, self.num_heads), split_heads(k, self.num_heads), split_heads(v, self.num_heads)


class DuoCrossAttention(nn.Module):
    """Queries from the decoder's streams; keys and values from the encoder's, of width kdim."""

    def __init__(
        self,
        num_streams: int,
        embed_dim: int,
        num_heads: int,
        kdim: int,
        dropout: float = 0.0,
        share_weights: bool = True,
    ) -> None:
        super().__init__()
        self.num_heads, self.dropout, self.share_weights = num_heads, dropout, share_weights
        self.scale = (embed_dim // num_heads) ** -0.5
        self.q_proj = StreamLinear(num_streams, embed_dim, embed_dim)
        self.kv_proj = StreamLinear(num_streams, kdim, embed_dim if share_weights else 2 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def memory(self, encoder_out: Tensor) -> Memory:
        """encoder_out (n, B, S, kdim) -> keys, and the values that go with them, (n B, num_heads, S, d) each."""
        kv = self.kv_proj(encoder_out)
        k, v = (kv, kv) if self.share_weights else kv.chunk(2, dim=-1)
        return split_heads(k, self.num_heads), split_heads(values_for_queries(v), self.num_heads)

    def forward(
        self, x: Tensor, memory: Memory, attn_bias: AttentionBias, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """x (n, B, T, C) -> the same shape, and the weights (n, B, num_heads, T, S) if needed.

        memory may have fewer rows than the n B of x: each then serves as many rows in a row (the beam of a sentence),
        and so does each row of the padding mask.
        """
        q, weights = split_heads(self.q_proj(x), self.num_heads), None
        dropout, beam = self.dropout if self.training else 0.0, len(q) // len(memory[0])
        q = beams_together(q, beam)
        if need_weights:
            weights = attention_weights(q, memory[0], attn_bias, self.scale)
            y = F.dropout(weights, dropout).to(x.dtype) @ memory[1]
            weights = beams_apart(weights, beam).unflatten(0, (x.shape[0], -1))
        else:
            y = attend(q, *memory, attn_bias, self.scale, dropout)
        return self.out_proj(join_heads(beams_apart(y, beam), x.shape)), weights


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(n, B, T, C) -> (n B, num_heads, T, d)."""
    return x.reshape(-1, x.shape[2], num_heads, x.shape[3] // num_heads).transpose(1, 2)


def join_heads(y: Tensor, shape: tuple[int, ...]) -> Tensor:
    """(n B, num_heads, T, d) -> shape (n, B, T, C)."""
    return y.transpose(1, 2).reshape(shape)


def beams_together(q: Tensor, beam: int) -> Tensor:
    """(N, num_heads, T, d) -> (N / beam, num_heads, beam T, d): what is asked of the same keys."""
    return q if beam == 1 else q.unflatten(0, (-1, beam)).transpose(1, 2).flatten(2, 3)


def beams_apart(y: Tensor, beam: int) -> Tensor:
    """The inverse."""
    return y if beam == 1 else y.unflatten(2, (beam, -1)).transpose(1, 2).flatten(0, 1)
