"""Initialisation of the Duo transformer: the laws of fairseq's `transformer`, so that a comparison with it is fair.

W_Q, W_K, W_V     U(-a, a), a^2 = 6 / (4 C): Xavier with gain 1/sqrt(2); with kdim != C a^2 = 6 / (fan_in + C)
W_O               Xavier, bias zero
the rest          as it was made: nn.Linear (also the biases of Q, K, V), nn.LayerNorm, Fusion, FusedTables
"""

from __future__ import annotations

import math

from torch import nn

from embinit_fairseq.modules.duo_attention import DuoCrossAttention, DuoSelfAttention
from embinit_fairseq.modules.streams import StreamLinear

_GAIN = 1 / math.sqrt(2)


def init_duo_params(module: nn.Module) -> None:
    """For `Module.apply`: the projections of attention."""
    if isinstance(module, DuoSelfAttention):
        _init_projections(module.in_proj, module.out_proj.in_features, _GAIN)
        _init_output(module.out_proj)
    elif isinstance(module, DuoCrossAttention):
        embed_dim, kdim = module.out_proj.in_features, module.kv_proj.weight.shape[2]
        for linear in (module.q_proj, module.kv_proj):
            _init_projections(linear, embed_dim, _GAIN if embed_dim == kdim else 1.0)
        _init_output(module.out_proj)


def _init_projections(linear: StreamLinear, embed_dim: int, gain: float) -> None:
    """Q, K and V of each stream are matrices of their own, of embed_dim rows."""
    for stream in linear.weight.detach():
        for weight in stream.split(embed_dim):
            nn.init.xavier_uniform_(weight, gain)


def _init_output(out_proj: nn.Linear) -> None:
    nn.init.xavier_uniform_(out_proj.weight)
    nn.init.zeros_(out_proj.bias)
