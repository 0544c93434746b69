"""One transformer encoder layer, post-LN (default) or pre-LN.

post-LN: x = LN_1(x + drop(attn(x)));      x = LN_2(x + drop(fc2(drop_act(act(fc1 x)))))
pre-LN:  x = x + drop(attn(LN_1 x));       x = x + drop(fc2(drop_act(act(fc1 LN_2 x))))
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from embinit_fairseq.modules.attention_kernels import AttentionBias
from embinit_fairseq.modules.packing import Packing
from embinit_fairseq.modules.self_attention import SelfAttention

#: choices of --activation-fn; gelu is the exact one (erf)
ACTIVATIONS = {"gelu": F.gelu, "relu": F.relu}


@dataclass(frozen=True)
class LayerConfig:
    """Widths and dropouts of one layer."""

    embed_dim: int
    ffn_embed_dim: int
    num_heads: int
    num_terms: int = 1
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    activation: str = "gelu"
    normalize_before: bool = False


class EncoderLayer(nn.Module):
    """Names of the parts are fairseq's."""

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
        if self.normalize_before:
            x = x + self.dropout(self.self_attn(self.self_attn_layer_norm(x), attn_bias, projections, packing))
            return x + self._feed_forward(self.final_layer_norm(x))
        x = self.self_attn_layer_norm(x + self.dropout(self.self_attn(x, attn_bias, projections, packing)))
        return self.final_layer_norm(x + self._feed_forward(x))

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.fc2(self.activation_dropout(self.activation(self.fc1(x)))))
