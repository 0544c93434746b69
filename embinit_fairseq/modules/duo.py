"""Duo (Li et al. 2020), torch only: linear maps per stream, attention between two streams (section 3.2.1), encoder and
decoder layers (sections 3.2 to 3.4), fusion and logits (section 3.3). Each part says its equations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from embinit_fairseq.modules.attention_kernels import AttentionBias, attend, attention_weights
from embinit_fairseq.modules.decoder_layer import DecoderBlocks, DecoderCache, Memory
from embinit_fairseq.modules.encoder_layer import ACTIVATIONS, LayerConfig, ResidualLayer

# ----------------------------------------------------------------------------------------------------------------------
# Several streams of the same words, computed together: x (n, B, T, C), stream s by weight s in one batched product.
#
# n: streams (Duo: S is stream 0, P is stream 1), B: batch, T: length, C: embed_dim.


class StreamLinear(nn.Module):
    """y^s = x^s W_s^T + b_s for every stream s; weight (n, out, in), bias (n, out), drawn as nn.Linear draws them."""

    def __init__(self, num_streams: int, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_streams, out_features, in_features))
        self.bias = nn.Parameter(torch.empty(num_streams, out_features))
        bound = 1 / math.sqrt(in_features)
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """x (n, ..., in) -> (n, ..., out)."""
        flat = x.reshape(x.shape[0], -1, x.shape[-1])
        y = torch.baddbmm(self.bias.unsqueeze(1), flat, self.weight.transpose(1, 2))
        return y.view(*x.shape[:-1], -1)

    def extra_repr(self) -> str:
        """What print(model) says."""
        streams, out_features, in_features = self.weight.shape
        return f"num_streams={streams}, in_features={in_features}, out_features={out_features}"


def values_for_queries(x: Tensor) -> Tensor:
    """x (n, ...): stream s gets what stream s + 1 holds. The queries and keys of stream s meet these values."""
    return x if x.shape[0] == 1 else x.roll(-1, 0)


def back_to_values(x: Tensor) -> Tensor:
    """x (n, ...): what the queries of stream s collected goes to stream s + 1, whose values it is made of: undoes the
    above."""
    return x if x.shape[0] == 1 else x.roll(1, 0)


# ----------------------------------------------------------------------------------------------------------------------
# Duo attention: the queries and keys of one stream weigh the values of the other. Li et al. 2020, section 3.2.1.
#
#     A^S = MultiHead(Q^P, K^P, V^S)                                                                        equation (4)
#     A^P = MultiHead(Q^S, K^S, V^P)                                                                        equation (5)
#     C^S = MultiHead(y^P, K = h^P, V = h^S),  C^P = MultiHead(y^S, K = h^S, V = h^P)       h: the encoder's two streams
#
# Results stand in the order of the queries: entry S is A^P, entry P is A^S (`back_to_values` exchanges them). Each
# stream has a projection for Q; those for K and V are six matrices with Q's, or fewer, as SHARING says:
#
#     off      each stream has its own W_K and its own W_V
#     stream   each stream has one matrix for both:      K^S = V^S = S W^S,    K^P = V^P = P W^P
#     pair     the streams have the same two matrices:   K^S = S W_K, K^P = P W_K,  V^S = S W_V, V^P = P W_V
#
# The output projection belongs to both streams. With one stream (`off`) this is ordinary attention.
# n: streams, B: batch, T: tgt_len, S: src_len, C: embed_dim.


@dataclass(frozen=True)
class Sharing:
    """One `--duo-share-weights NAME`. help: for people. matrices: 2, one for keys and one for values, or 1 for both.

    common: has the other stream the same matrices?
    """

    help: str
    matrices: int
    common: bool = False

    def projection(self, num_streams: int, in_features: int, out_features: int) -> nn.Module:
        """x (n, ..., in) -> keys and values of all streams, (n, ..., matrices * out)."""
        size = in_features, self.matrices * out_features
        return nn.Linear(*size) if self.common else StreamLinear(num_streams, *size)

    def keys_and_values(self, kv: Tensor) -> tuple[Tensor, Tensor]:
        """(n, ..., matrices * C) -> keys and values, (n, ..., C) each."""
        parts = kv.chunk(self.matrices, dim=-1)
        return parts[0], parts[-1]


#: name -> way of sharing; to add one is to add a line here
SHARING = {
    "off": Sharing("6 projections in each attention", matrices=2),
    "stream": Sharing("4: one for keys and values of a stream", matrices=1),
    "pair": Sharing("4: one for the keys of both streams, one for their values", matrices=2, common=True),
}


class DuoSelfAttention(nn.Module):
    """Projections come from one batched product over the streams: rows q, k, v (off) or q, kv (stream).

    Where streams have matrices in common, q comes from such a product, k and v of both from one plain product.
    """

    def __init__(
        self, num_streams: int, embed_dim: int, num_heads: int, dropout: float = 0.0, share_weights: str = "stream"
    ) -> None:
        super().__init__()
        self.num_heads, self.dropout, self.sharing = num_heads, dropout, SHARING[share_weights]
        self.scale = (embed_dim // num_heads) ** -0.5
        if self.sharing.common:
            self.q_proj = StreamLinear(num_streams, embed_dim, embed_dim)
            self.kv_proj = self.sharing.projection(num_streams, embed_dim, embed_dim)
        else:
            self.in_proj = StreamLinear(num_streams, embed_dim, (1 + self.sharing.matrices) * embed_dim)
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
        if self.sharing.common:
            q, kv = self.q_proj(x), self.kv_proj(x)
        else:
            qkv = self.in_proj(x)
            q, kv = qkv[..., : x.shape[-1]], qkv[..., x.shape[-1] :]
        k, v = self.sharing.keys_and_values(kv)
        v = values_for_queries(v)
        return split_heads(q, self.num_heads), split_heads(k, self.num_heads), split_heads(v, self.num_heads)


class DuoCrossAttention(nn.Module):
    """Queries from the decoder's streams; keys and values from the encoder's, of dimension kdim."""

    def __init__(
        self,
        num_streams: int,
        embed_dim: int,
        num_heads: int,
        kdim: int,
        dropout: float = 0.0,
        share_weights: str = "stream",
    ) -> None:
        super().__init__()
        self.num_heads, self.dropout, self.sharing = num_heads, dropout, SHARING[share_weights]
        self.scale = (embed_dim // num_heads) ** -0.5
        self.q_proj = StreamLinear(num_streams, embed_dim, embed_dim)
        self.kv_proj = self.sharing.projection(num_streams, kdim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def memory(self, encoder_out: Tensor) -> Memory:
        """encoder_out (n, B, S, kdim) -> keys, and the values that go with them, (n B, num_heads, S, d) each."""
        k, v = self.sharing.keys_and_values(self.kv_proj(encoder_out))
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
    """(N, num_heads, T, d) -> (N / beam, num_heads, beam T, d): queries that meet the same keys are joined."""
    return q if beam == 1 else q.unflatten(0, (-1, beam)).transpose(1, 2).flatten(2, 3)


def beams_apart(y: Tensor, beam: int) -> Tensor:
    """(N / beam, num_heads, beam T, d) -> (N, num_heads, T, d): undoes `beams_together`."""
    return y if beam == 1 else y.unflatten(2, (beam, -1)).transpose(1, 2).flatten(0, 1)


# ---- Encoder and decoder layers of the Duo transformer. Li et al. 2020, sections 3.2 to 3.4 -------------------------
# A layer holds n streams x (n, B, T, C). Layer norms, output projections and feed-forward networks are shared by them.
#
#     duo_norm off    x^P <- LN(x^P + A^S),  x^S <- LN(x^S + A^P)      the residual of the stream that asked
#     duo_norm on     x^S <- LN(x^S + A^S),  x^P <- LN(x^P + A^P)     equation (6): of the stream whose values these are
#
# A^S is what queries and keys of P make of the values of S. The same holds for cross-attention. Pre-LN normalises what
# enters a block instead. B: batch, T: tgt_len, C: embed_dim.


@dataclass(frozen=True)
class StreamConfig:
    """num_streams: 2, or 1 for an ordinary transformer. share_weights: which projections are one matrix."""

    num_streams: int = 2
    share_weights: str = "stream"
    duo_norm: bool = True


def make_parts(layer: ResidualLayer, cfg: LayerConfig, streams: StreamConfig) -> None:
    """What encoder and decoder layers have in common."""
    layer.normalize_before = cfg.normalize_before
    layer.activation = ACTIVATIONS[cfg.activation]
    layer.self_attn = DuoSelfAttention(
        streams.num_streams, cfg.embed_dim, cfg.num_heads, cfg.attention_dropout, streams.share_weights
    )
    layer.self_attn_layer_norm = nn.LayerNorm(cfg.embed_dim)
    layer.fc1 = nn.Linear(cfg.embed_dim, cfg.ffn_embed_dim)
    layer.fc2 = nn.Linear(cfg.ffn_embed_dim, cfg.embed_dim)
    layer.final_layer_norm = nn.LayerNorm(cfg.embed_dim)
    layer.dropout = nn.Dropout(cfg.dropout)
    layer.activation_dropout = nn.Dropout(cfg.activation_dropout)


class DuoEncoderLayer(ResidualLayer):
    """Self-attention and feed-forward network."""

    def __init__(self, cfg: LayerConfig, streams: StreamConfig) -> None:
        super().__init__()
        self.duo_norm = streams.duo_norm
        make_parts(self, cfg, streams)

    def forward(self, x: Tensor, attn_bias: AttentionBias) -> Tensor:
        """x (n, B, T, C) -> the same shape; the padding mask of attn_bias has n B rows."""
        norm = self.self_attn_layer_norm
        y = self.self_attn(self.before(x, norm), attn_bias)
        return self.feed_forward(self.after(x, back_to_values(y) if self.duo_norm else y, norm))


class DuoDecoderLayer(DecoderBlocks):
    """x (n, B, T, C), encoder_out (n, B, S, kdim), weights (n, B, num_heads, T, S). kdim: the encoder's C."""

    def __init__(self, cfg: LayerConfig, streams: StreamConfig, kdim: int) -> None:
        super().__init__()
        self.duo_norm = streams.duo_norm
        make_parts(self, cfg, streams)
        self.encoder_attn = DuoCrossAttention(
            streams.num_streams, cfg.embed_dim, cfg.num_heads, kdim, cfg.attention_dropout, streams.share_weights
        )
        self.encoder_attn_layer_norm = nn.LayerNorm(cfg.embed_dim)

    def after_attention(self, x: Tensor, y: Tensor, norm: nn.LayerNorm) -> Tensor:
        """y stands in the order of the queries."""
        return self.after(x, back_to_values(y) if self.duo_norm else y, norm)


# ---- From the decoder's streams to logits. Li et al. 2020, section 3.3 and the last row of Table 5 ------------------
#
#     fusion       f = [y^S, y^P] W_F,  logits = f O^T,  O = [E_S, E_P] W_O: W_O is learned, E_S and E_P are the inputs'
#     no fusion    logits = y^S (M_S E_S)^T + y^P (M_P E_P)^T: each stream against the matrix that it started from
#
# E_s (V, D_s): a stream's embedding matrix; M_s: the map from D_s to d = embed_dim, the identity where they are equal.
# If output and input embeddings are not tied, the logits are one linear map of f, or of [y^S, y^P].


class Fusion(nn.Module):
    """[y^S, y^P] W_F: n streams of dimension d become one."""

    def __init__(self, num_streams: int, embed_dim: int) -> None:
        super().__init__()
        self.proj = nn.Linear(num_streams * embed_dim, embed_dim, bias=False)
        nn.init.xavier_uniform_(self.proj.weight)

    def forward(self, x: Tensor) -> Tensor:
        """x (..., n d) -> (..., d)."""
        return self.proj(x)


class FusedTables(nn.Module):
    """O = [E_S, E_P] W_O for embedding matrices of dimensions `dims`.

    With matrices from N(0, 1/D_s) the rows of O are distributed like those of a matrix of dimension d, N(0, 1/d).
    """

    def __init__(self, dims: list[int], embed_dim: int) -> None:
        super().__init__()
        self.proj = nn.Linear(sum(dims), embed_dim, bias=False)
        self.dims = dims
        self.register_buffer("kept", None, persistent=False)
        nn.init.normal_(self.proj.weight, std=(len(dims) * embed_dim) ** -0.5)

    def forward(self, tables: list[Tensor]) -> Tensor:
        """tables (V, D_s) -> O (V, d)."""
        if self.kept is not None:
            return self.kept
        parts = self.proj.weight.split(self.dims, dim=1)
        return sum_of_products(tables, [part.transpose(0, 1) for part in parts])

    @torch.no_grad()
    def keep_(self, tables: list[Tensor]) -> None:
        """Make O now, once and for all: for a model whose parameters will not change any more."""
        self.kept = self(tables)

    def is_cheaper_factored(self, rows: int, tables: list[Tensor]) -> bool:
        """Does f O^T for so many rows of f take fewer multiplications without O? With V >> d below about 2 d rows."""
        words, dim, embed_dim = len(tables[0]), sum(self.dims), self.proj.out_features
        making = 0 if self.kept is not None else words * dim * embed_dim
        return rows * dim * (embed_dim + words) < making + rows * embed_dim * words

    def factored(self, f: Tensor, tables: list[Tensor]) -> Tensor:
        """f (..., d) -> f O^T without O."""
        parts = F.linear(f, self.proj.weight.transpose(0, 1)).split(self.dims, dim=-1)
        return logits_of_streams(parts, tables)


def logits_of_streams(streams: list[Tensor], tables: list[Tensor]) -> Tensor:
    """streams (..., D_s), tables (V, D_s) -> the sum of their products, (..., V)."""
    flat = [stream.reshape(-1, stream.shape[-1]) for stream in streams]
    return sum_of_products(flat, [table.transpose(0, 1) for table in tables]).view(*streams[0].shape[:-1], -1)


def sum_of_products(left: list[Tensor], right: list[Tensor]) -> Tensor:
    """Sum over s of left_s @ right_s, without a second array of the size of the result."""
    total = left[0] @ right[0]
    for one, other in zip(left[1:], right[1:]):
        total = torch.addmm(total, one, other)
    return total
