"""One transformer decoder layer, post-LN (default) or pre-LN.

post-LN: x = LN_1(x + drop(attn(x)));  x = LN_2(x + drop(cross(x, h)));  x = LN_3(x + drop(fc2(drop_act(act(fc1 x)))))
pre-LN:  x = x + drop(attn(LN_1 x));   x = x + drop(cross(LN_2 x, h));   x = x + drop(fc2(drop_act(act(fc1 LN_3 x))))

h: the encoder's output.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from embinit_fairseq.modules.attention_kernels import AttentionBias
from embinit_fairseq.modules.decoder_attention import CrossAttention, DecoderSelfAttention, Memory
from embinit_fairseq.modules.decoder_cache import DecoderCache
from embinit_fairseq.modules.encoder_layer import ACTIVATIONS, LayerConfig


class DecoderLayer(nn.Module):
    """Names of the parts are fairseq's. kdim: width of the encoder."""

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

    def forward(
        self, x: Tensor, self_bias: AttentionBias, encoder_out: Tensor, cross_bias: AttentionBias, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """x (batch, tgt_len, C), encoder_out (batch, src_len, kdim) -> x and the weights of cross-attention.

        self_bias holds the causal mask. The weights (batch, num_heads, tgt_len, src_len) are None unless asked for.
        """
        x = self._after(
            x, self.self_attn(self._before(x, self.self_attn_layer_norm), self_bias), self.self_attn_layer_norm
        )
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
        x = self._after(x, self.self_attn.step(self._before(x, norm), self_bias, cache, layer), norm)
        return self._rest(x, cache.memory[layer], cross_bias, need_weights)

    def _rest(
        self, x: Tensor, memory: Memory, cross_bias: AttentionBias, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        norm = self.encoder_attn_layer_norm
        attended, weights = self.encoder_attn(self._before(x, norm), memory, cross_bias, need_weights)
        x = self._after(x, attended, norm)
        hidden = self.activation(self.fc1(self._before(x, self.final_layer_norm)))
        return self._after(x, self.fc2(self.activation_dropout(hidden)), self.final_layer_norm), weights

    def _before(self, x: Tensor, norm: nn.LayerNorm) -> Tensor:
        return norm(x) if self.normalize_before else x

    def _after(self, x: Tensor, y: Tensor, norm: nn.LayerNorm) -> Tensor:
        x = x + self.dropout(y)
        return x if self.normalize_before else norm(x)


def causal(bias: Tensor) -> Tensor:
    """bias (num_heads, tgt_len, tgt_len) with the keys behind each query shut off."""
    future = torch.ones(bias.shape[-2:], dtype=torch.bool, device=bias.device).triu(1)
    return bias.masked_fill(future, torch.finfo(bias.dtype).min)
