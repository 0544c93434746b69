"""Initial values of BERT-type models: every matrix from N(0, 0.02^2), biases zero, layer norms 1 and 0."""

from __future__ import annotations

from torch import nn

STANDARD_DEVIATION = 0.02


def init_bert_params(module: nn.Module) -> None:
    """For `Module.apply`, on a finished model. Only a matrix with a padding index has that row set to zero."""
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=STANDARD_DEVIATION)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        nn.init.zeros_(module.weight[module.padding_idx])
