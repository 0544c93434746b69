"""Initial values of translation models. Those of Duo have the distributions of fairseq's
`transformer`, so that a comparison with it is fair:

W_Q, W_K, W_V     U(-a, a), a^2 = 6 / (4 C): Xavier with gain 1/sqrt(2); with kdim != C a^2 = 6 / (fan_in + C)
W_O               Xavier, bias zero
the rest          as it was made: nn.Linear (also the biases of Q, K, V), nn.LayerNorm, Fusion, FusedTables
"""

from __future__ import annotations

import math
from typing import cast

from torch import Tensor, nn

from embinit_fairseq.modules.decoder_layer import CrossAttention
from embinit_fairseq.modules.duo import DuoCrossAttention, DuoSelfAttention
from embinit_fairseq.modules.encoder_layer import SelfAttention
from embinit_fairseq.modules.position_encoding import UntiedPositions

# ----------------------------------------------------------------------------------------------------------------------
# Initial values of translation models: the distributions of fairseq's `transformer`, for a fair comparison.
#
#     W_Q, W_K, W_V     U(-a, a), a^2 = 6 / (4 C): Xavier with gain 1/sqrt(2); with kdim != C a^2 = 6 / (fan_in + C)
#     W_O               Xavier, bias zero
#     the rest          PyTorch's own: nn.Linear (also the biases of Q, K, V), nn.LayerNorm
#     embeddings        N(0, 1/C), padding zero
#
# fairseq has no U_Q and U_K, no positions behind a layer norm and no buckets. U has the distribution of W and a bias of
# zero: both terms of the logits start with the same variance (1/8 for inputs of unit variance). The matrices have that
# of embeddings, as fairseq's learned positions and T5's buckets do.

_GAIN = 1 / math.sqrt(2)


def init_transformer_params(module: nn.Module) -> None:
    """For `Module.apply`: attention and positions. fc1, fc2 and layer norms are right as PyTorch makes them."""
    if isinstance(module, SelfAttention):
        nn.init.xavier_uniform_(module.qkv_proj.weight)  # 3 C rows in one: the bound of each third with the gain
        _init_output(module.out_proj)
    elif isinstance(module, CrossAttention):
        embed_dim, kdim = module.q_proj.in_features, module.kv_proj.in_features
        gain = _GAIN if embed_dim == kdim else 1.0
        for weight in (module.q_proj.weight, *module.kv_proj.weight.chunk(2)):
            nn.init.xavier_uniform_(weight, gain)
        _init_output(module.out_proj)
    elif isinstance(module, UntiedPositions):
        _init_positions(module)


def init_table(weight: Tensor, embed_dim: int) -> None:
    """N(0, 1 / embed_dim)."""
    nn.init.normal_(weight, std=embed_dim**-0.5)


def _init_output(out_proj: nn.Linear) -> None:
    nn.init.xavier_uniform_(out_proj.weight)
    nn.init.zeros_(out_proj.bias)


def _init_positions(positions: UntiedPositions) -> None:
    absolute, relative = positions.absolute, positions.relative
    embed_dim = absolute.q_proj.in_features
    for projection in (absolute.q_proj, absolute.k_proj):
        nn.init.xavier_uniform_(projection.weight, _GAIN)
        nn.init.zeros_(projection.bias)
    init_table(absolute.embed_positions.weight, embed_dim)
    if relative is not None:
        init_table(relative.embed_buckets.weight, embed_dim)


# ----------------------------------------------------------------------------------------------------------------------


def init_duo_params(module: nn.Module) -> None:
    """For `Module.apply`: the projections of attention."""
    if isinstance(module, (DuoSelfAttention, DuoCrossAttention)):
        embed_dim = module.out_proj.in_features
        linears = [linear for linear in module.children() if linear is not module.out_proj]
        projections = [cast(Tensor, linear.weight).detach() for linear in linears]
        gain = _GAIN if all(weight.shape[-1] == embed_dim for weight in projections) else 1.0
        for weight in projections:
            for matrix in weight.flatten(end_dim=-2).split(embed_dim):  # Q, K and V of each stream are one each
                nn.init.xavier_uniform_(matrix, gain)
        _init_output(module.out_proj)
