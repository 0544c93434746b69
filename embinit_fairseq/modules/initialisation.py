"""Draw initial values.

BERT-type models: every matrix from N(0, 0.02^2), biases zero, layer norms 1 and 0.

Translation models: the distributions of fairseq's `transformer`, for a fair comparison with it.

    W_Q, W_K, W_V     U(-a, a), a^2 = 6 / (4 C): Xavier with gain 1/sqrt(2); with kdim != C a^2 = 6 / (fan_in + C)
    W_O               Xavier, bias zero
    the rest          PyTorch's own: nn.Linear (also the biases of Q, K, V), nn.LayerNorm; Fusion, FusedTables
    embeddings        N(0, 1/C), padding zero

fairseq has no U_Q and U_K, no layer norm of positions, and no buckets. Here U has the distribution of W and a bias of
zero: both terms of the logits start with the same variance (1/8 for inputs of unit variance). Position vectors and
buckets have the distribution of embeddings, as fairseq's learned positions and T5's buckets have.
"""

from __future__ import annotations

import math
from typing import cast

from torch import Tensor, nn

from embinit_fairseq.modules.encoder_layer import Attention
from embinit_fairseq.modules.position_encoding import UntiedPositions

#: standard deviation of the matrices of BERT-type models
BERT_STD = 0.02
_GAIN = 1 / math.sqrt(2)


def init_bert_params(module: nn.Module) -> None:
    """Initialise one module of a finished BERT-type model, for `Module.apply`.

    The padding row of a matrix with a padding index is set to zero.
    """
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=BERT_STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        nn.init.zeros_(module.weight[module.padding_idx])


def init_transformer_params(module: nn.Module) -> None:
    """Initialise one module of a translation model, for `Module.apply`: attention and untied positions."""
    if isinstance(module, Attention):
        embed_dim = module.out_proj.in_features
        linears = [linear for linear in module.children() if linear is not module.out_proj]
        weights = [cast(Tensor, linear.weight).detach() for linear in linears]
        gain = _GAIN if all(weight.shape[-1] == embed_dim for weight in weights) else 1.0
        for weight in weights:
            for matrix in weight.flatten(end_dim=-2).split(embed_dim):  # W_Q, W_K and W_V of each stream
                nn.init.xavier_uniform_(matrix, gain)
        nn.init.xavier_uniform_(module.out_proj.weight)
        nn.init.zeros_(module.out_proj.bias)
    elif isinstance(module, UntiedPositions):
        absolute = module.absolute
        for projection in (absolute.q_proj, absolute.k_proj):
            nn.init.xavier_uniform_(projection.weight, _GAIN)
            nn.init.zeros_(projection.bias)
        init_table(absolute.embed_positions.weight, absolute.q_proj.in_features)
        if module.relative is not None:
            init_table(module.relative.embed_buckets.weight, absolute.q_proj.in_features)


def init_table(weight: Tensor, embed_dim: int) -> None:
    """Draw an embedding matrix from N(0, 1 / embed_dim)."""
    nn.init.normal_(weight, std=embed_dim**-0.5)
