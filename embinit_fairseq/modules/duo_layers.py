"""Encoder and decoder layers of the Duo transformer. Li et al. 2020, sections 3.2 to 3.4.

A layer holds n streams x (n, B, T, C). Layer norms, output projections and feed-forward networks are shared by them.

    duo_norm off    x^P <- LN(x^P + A^S),  x^S <- LN(x^S + A^P)      the residual of the stream that asked
    duo_norm on     x^S <- LN(x^S + A^S),  x^P <- LN(x^P + A^P)      equation (6): of the stream whose values these are

A^S is what queries and keys of P found in the values of S (`duo_attention`). The same holds for cross-attention. pre-LN
normalises what enters a block instead. B: batch, T: tgt_len, C: width.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from embinit_fairseq.modules.attention_kernels import AttentionBias
from embinit_fairseq.modules.decoder_attention import Memory
from embinit_fairseq.modules.decoder_cache import DecoderCache
from embinit_fairseq.modules.duo_attention import DuoCrossAttention, DuoSelfAttention
from embinit_fairseq.modules.encoder_layer import ACTIVATIONS, LayerConfig
from embinit_fairseq.modules.streams import back_to_values


@dataclass(frozen=True)
class StreamConfig:
    """num_streams: 2, or 1 for an ordinary transformer; share_weights: K and V of a stream have one projection."""

    num_streams: int = 2
    share_weights: bool = True
    duo_norm: bool = True


class DuoLayer(nn.Module):
    """What encoder and decoder layers have in common: self-attention, feed-forward part, norms, whose residual."""

    def __init__(self, cfg: LayerConfig, streams: StreamConfig) -> None:
        super().__init__()
        self.normalize_before, self.duo_norm = cfg.normalize_before, streams.duo_norm
        self.activation = ACTIVATIONS[cfg.activation]
        self.self_attn = DuoSelfAttention(
            streams.num_streams, cfg.embed_dim, cfg.num_heads, cfg.attention_dropout, streams.share_weights
        )
        self.self_attn_layer_norm = nn.LayerNorm(cfg.embed_dim)
        self.fc1 = nn.Linear(cfg.embed_dim, cfg.ffn_embed_dim)
        self.fc2 = nn.Linear(cfg.ffn_embed_dim, cfg.embed_dim)
        self.final_layer_norm = nn.LayerNorm(cfg.embed_dim)
        self.dropout = nn.Dropout(cfg.dropout)
        self.activation_dropout = nn.Dropout(cfg.activation_dropout)

    def before(self, x: Tensor, norm: nn.LayerNorm) -> Tensor:
        """What a block is given."""
        return norm(x) if self.normalize_before else x

    def after(self, x: Tensor, y: Tensor, norm: nn.LayerNorm) -> Tensor:
        """Residual, and layer norm unless it came before."""
        x = x + self.dropout(y)
        return x if self.normalize_before else norm(x)

    def after_attention(self, x: Tensor, y: Tensor, norm: nn.LayerNorm) -> Tensor:
        """The same with y in the order of the queries."""
        return self.after(x, back_to_values(y) if self.duo_norm else y, norm)

    def feed_forward(self, x: Tensor) -> Tensor:
        """x (n, B, T, C) -> the same shape, with residual."""
        hidden = self.activation(self.fc1(self.before(x, self.final_layer_norm)))
        return self.after(x, self.fc2(self.activation_dropout(hidden)), self.final_layer_norm)


class DuoEncoderLayer(DuoLayer):
    """Self-attention and feed-forward network."""

    def forward(self, x: Tensor, attn_bias: AttentionBias) -> Tensor:
        """x (n, B, T, C) -> the same shape; the padding mask of attn_bias has n B rows."""
        norm = self.self_attn_layer_norm
        return self.feed_forward(self.after_attention(x, self.self_attn(self.before(x, norm), attn_bias), norm))


class DuoDecoderLayer(DuoLayer):
    """With cross-attention between the two. kdim: width of the encoder."""

    def __init__(self, cfg: LayerConfig, streams: StreamConfig, kdim: int) -> None:
        super().__init__(cfg, streams)
        self.encoder_attn = DuoCrossAttention(
            streams.num_streams, cfg.embed_dim, cfg.num_heads, kdim, cfg.attention_dropout, streams.share_weights
        )
        self.encoder_attn_layer_norm = nn.LayerNorm(cfg.embed_dim)

    def forward(
        self, x: Tensor, self_bias: AttentionBias, encoder_out: Tensor, cross_bias: AttentionBias, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """x (n, B, T, C), encoder_out (n, B, S, kdim) -> x and the weights of cross-attention (n, B, num_heads, T, S).

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
