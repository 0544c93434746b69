"""The Duo transformer (Li et al. 2020, section 3.2): two streams of the same words, each by its own embeddings.

    A^S = MultiHead(Q^P, K^P, V^S),  A^P = MultiHead(Q^S, K^S, V^P)                             equations (4) and (5)
    C^S = MultiHead(y^P, K = h^P, V = h^S),  C^P = MultiHead(y^S, K = h^S, V = h^P)             h: the encoder's streams
    x^S <- LN(x^S + A^S),  x^P <- LN(x^P + A^P)                                                 equation (6), duo_norm
    x^P <- LN(x^P + A^S),  x^S <- LN(x^S + A^P)                                                 without duo_norm

The queries and keys of one stream weigh the values of the other. With duo_norm the residual comes from the stream of
the values, else from the stream of the queries; the same holds for cross-attention. Layer norms, output projections
and feed-forward networks are shared by the streams. With one stream all this is an ordinary transformer.

    fusion       f = [y^S, y^P] W_F,  logits = f O^T,  O = [E_S, E_P] W_O        section 3.3, last row of Table 5
    no fusion    logits = y^S (M_S E_S)^T + y^P (M_P E_P)^T

E_s (V, D_s): a stream's embedding matrix; M_s: the map from D_s to d = embed_dim, the identity where they are equal.
If output and input embeddings are not tied, the logits are one linear map of f, or of [y^S, y^P].

x (n, B, T, C): n streams (S is 0, P is 1), B: batch, T: tgt_len, S: src_len, C: embed_dim, H: num_heads, V: symbols.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from embinit_fairseq.modules.attention_kernels import AttentionContext, attend
from embinit_fairseq.modules.decoder_layer import CrossAttention, DecoderLayer, Memory
from embinit_fairseq.modules.encoder_layer import Attention, EncoderLayer, LayerConfig


class StreamLinear(nn.Module):
    """Map every stream: y^s = x^s W_s^T + b_s; weight (n, out, in), bias (n, out), drawn as nn.Linear draws them."""

    def __init__(self, num_streams: int, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_streams, out_features, in_features))
        self.bias = nn.Parameter(torch.empty(num_streams, out_features))
        bound = 1 / math.sqrt(in_features)
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Map each stream of x (n, ..., in) by its own matrix, in one batched product -> (n, ..., out)."""
        flat = x.reshape(x.shape[0], -1, x.shape[-1])
        y = torch.baddbmm(self.bias.unsqueeze(1), flat, self.weight.transpose(1, 2))
        return y.view(*x.shape[:-1], -1)


def exchange(x: Tensor) -> Tensor:
    """Exchange the two streams of x (n, ...); one stream is returned as it is."""
    return x if x.shape[0] == 1 else x.roll(1, 0)


@dataclass(frozen=True)
class Sharing:
    """Describe a value of `--duo-share-weights`: projections for keys and values; queries have one per stream.

    Args:
        matrices: per stream 2, one for keys and one for values, or 1 for both.
        common: whether both streams have the same matrices.
    """

    help: str
    matrices: int
    common: bool = False

    def projection(self, num_streams: int, in_features: int, out_features: int) -> nn.Module:
        """Return the map x (n, ..., in) -> keys and values of all streams, (n, ..., matrices * out)."""
        size = in_features, self.matrices * out_features
        return nn.Linear(*size) if self.common else StreamLinear(num_streams, *size)

    def keys_and_values(self, kv: Tensor) -> tuple[Tensor, Tensor]:
        """Split (n, ..., matrices * C) into keys, and the values of the other stream, (n, ..., C)."""
        parts = kv.chunk(self.matrices, dim=-1)
        return parts[0], exchange(parts[-1])


#: --duo-share-weights -> projections of streams S and P; to add a way of sharing, add a line
SHARING = {
    # K^S = S W_K^S, V^S = S W_V^S, K^P = P W_K^P, V^P = P W_V^P
    "off": Sharing("6 projections in each attention", matrices=2),
    # K^S = V^S = S W^S, K^P = V^P = P W^P
    "stream": Sharing("4: one for keys and values of a stream", matrices=1),
    # K^S = S W_K, K^P = P W_K, V^S = S W_V, V^P = P W_V
    "pair": Sharing("4: one for the keys of both streams, one for their values", matrices=2, common=True),
}


@dataclass(frozen=True)
class StreamConfig:
    """Hold num_streams (2, or 1 for an ordinary transformer), share_weights (a name in SHARING), and duo_norm (6)."""

    num_streams: int = 2
    share_weights: str = "stream"
    duo_norm: bool = True


class DuoSelfAttention(Attention):
    """Compute equations (4) and (5). The projections of all streams are one batched product: rows q, k, v or q, kv.

    If streams have matrices in common (pair), only q is batched; k and v of both streams are one plain product.
    """

    def __init__(self, cfg: LayerConfig, streams: StreamConfig) -> None:
        super().__init__(cfg)
        num_streams, embed_dim, self.duo_norm = streams.num_streams, cfg.embed_dim, streams.duo_norm
        self.sharing = SHARING[streams.share_weights]
        if self.sharing.common:
            self.q_proj = StreamLinear(num_streams, embed_dim, embed_dim)
            self.kv_proj = self.sharing.projection(num_streams, embed_dim, embed_dim)
        else:
            self.in_proj = StreamLinear(num_streams, embed_dim, (1 + self.sharing.matrices) * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(
        self,
        x: Tensor,
        context: AttentionContext,
        extend: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
    ) -> Tensor:
        """Return A^S and A^P of x (n, B, T, C), each in the place of its residual.

        Args:
            context: a context whose padding mask has n B rows, stream by stream.
            extend: as for `SelfAttention`, with n B rows, stream by stream.
        """
        if self.sharing.common:
            q, kv = self.q_proj(x), self.kv_proj(x)
        else:
            qkv = self.in_proj(x)
            q, kv = qkv[..., : x.shape[-1]], qkv[..., x.shape[-1] :]
        q, k, v = map(self.split_heads, (q, *self.sharing.keys_and_values(kv)))
        if extend is not None:
            k, v = extend(k, v)
        y = attend(q, k, v, context, self.scale, self.active_dropout)
        y = self.out_proj(y.transpose(1, 2).reshape(x.shape))
        return exchange(y) if self.duo_norm else y


class DuoCrossAttention(CrossAttention):
    """Attend with queries of the decoder's streams to keys and values of the encoder's, of dimension kdim."""

    def __init__(self, cfg: LayerConfig, streams: StreamConfig, kdim: int) -> None:
        Attention.__init__(self, cfg)
        num_streams, embed_dim, self.duo_norm = streams.num_streams, cfg.embed_dim, streams.duo_norm
        self.sharing = SHARING[streams.share_weights]
        self.q_proj = StreamLinear(num_streams, embed_dim, embed_dim)
        self.kv_proj = self.sharing.projection(num_streams, kdim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def memory(self, encoder_out: Tensor) -> Memory:
        """Return keys, and the values that they weigh, (n B, H, S, d), of encoder_out (n, B, S, kdim)."""
        k, v = self.sharing.keys_and_values(self.kv_proj(encoder_out))
        return self.split_heads(k), self.split_heads(v)

    def forward(
        self, x: Tensor, memory: Memory, context: AttentionContext, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Return C^S and C^P of x (n, B, T, C), each in the place of its residual, and the weights (n, B, H, T, S).

        Weights are in the order of the queries' streams.
        """
        y, weights = super().forward(x, memory, context, need_weights)
        return exchange(y) if self.duo_norm else y, weights


class DuoEncoderLayer(EncoderLayer):
    """A layer of n streams, x (n, B, T, C) -> the same shape."""

    def __init__(self, cfg: LayerConfig, streams: StreamConfig) -> None:
        super().__init__(cfg, DuoSelfAttention(cfg, streams))


class DuoDecoderLayer(DecoderLayer):
    """A layer of n streams, x (n, B, T, C) -> the same shape. Cross-attention is made last."""

    def __init__(self, cfg: LayerConfig, streams: StreamConfig, kdim: int) -> None:
        super().__init__(cfg, DuoSelfAttention(cfg, streams))
        self.encoder_attn = DuoCrossAttention(cfg, streams, kdim)
        self.encoder_attn_layer_norm = nn.LayerNorm(cfg.embed_dim)


class Fusion(nn.Module):
    """Make one stream of n: [y^S, y^P] W_F."""

    def __init__(self, num_streams: int, embed_dim: int) -> None:
        super().__init__()
        self.proj = nn.Linear(num_streams * embed_dim, embed_dim, bias=False)
        nn.init.xavier_uniform_(self.proj.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Join the streams side by side, x (..., n d), to (..., d)."""
        return self.proj(x)


class FusedTables(nn.Module):
    """Compute O = [E_S, E_P] W_O for embedding matrices of dimensions `dims`.

    With matrices from N(0, 1/D_s) the rows of O have the distribution of embeddings of dimension d, N(0, 1/d).
    """

    def __init__(self, dims: list[int], embed_dim: int) -> None:
        super().__init__()
        self.proj = nn.Linear(sum(dims), embed_dim, bias=False)
        self.dims = dims
        self.register_buffer("final", None, persistent=False)
        nn.init.normal_(self.proj.weight, std=(len(dims) * embed_dim) ** -0.5)

    def forward(self, tables: list[Tensor]) -> Tensor:
        """Return O (V, d) of the tables (V, D_s)."""
        if self.final is not None:
            return self.final
        parts = self.proj.weight.split(self.dims, dim=1)
        return sum_of_products(tables, [part.transpose(0, 1) for part in parts])

    @torch.no_grad()
    def finalise_(self, tables: list[Tensor]) -> None:
        """Compute O once, for a model whose parameters are final."""
        self.final = self(tables)

    def is_cheaper_factored(self, rows: int, tables: list[Tensor]) -> bool:
        """Return True if f O^T takes fewer multiplications without O, for `rows` rows of f.

        With V much larger than d this holds below about 2 d rows.
        """
        words, dim, embed_dim = len(tables[0]), sum(self.dims), self.proj.out_features
        making = 0 if self.final is not None else words * dim * embed_dim
        return rows * dim * (embed_dim + words) < making + rows * embed_dim * words

    def factored(self, f: Tensor, tables: list[Tensor]) -> Tensor:
        """Return f O^T for f (..., d), without O."""
        parts = F.linear(f, self.proj.weight.transpose(0, 1)).split(self.dims, dim=-1)
        return logits_of_streams(parts, tables)


def logits_of_streams(streams: list[Tensor], tables: list[Tensor]) -> Tensor:
    """Return the sum over s of stream_s table_s^T, (..., V), for streams (..., D_s) and tables (V, D_s)."""
    flat = [stream.reshape(-1, stream.shape[-1]) for stream in streams]
    return sum_of_products(flat, [table.transpose(0, 1) for table in tables]).view(*streams[0].shape[:-1], -1)


def sum_of_products(left: list[Tensor], right: list[Tensor]) -> Tensor:
    """Return the sum over s of left_s @ right_s, without a second array of the size of the result."""
    total = left[0] @ right[0]
    for left_s, right_s in zip(left[1:], right[1:]):
        total = torch.addmm(total, left_s, right_s)
    return total
