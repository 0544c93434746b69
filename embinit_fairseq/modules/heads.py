"""What stands on top of a sentence encoder. C: embed_dim, V: symbols of the dictionary."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from embinit_fairseq.modules.encoder_layer import ACTIVATIONS

#: choices of --pooler-activation-fn
POOLER_ACTIVATIONS = {"tanh": torch.tanh, **ACTIVATIONS}


class MaskedLMHead(nn.Module):
    """LN(act(x W + b)) E^T + bias, with the token embeddings E (V, D): the parameter itself, not a copy.

    D is C, but for a model whose embeddings have another width than its features (`features_dim`): W is C x D.
    """

    def __init__(self, embed_tokens: nn.Embedding, activation: str, features_dim: int | None = None) -> None:
        super().__init__()
        num_embeddings, embed_dim = embed_tokens.weight.shape
        self.activation = ACTIVATIONS[activation]
        self.dense = nn.Linear(features_dim or embed_dim, embed_dim)
        self.layer_norm = nn.LayerNorm(embed_dim)
        self.weight = embed_tokens.weight
        self.bias = nn.Parameter(torch.zeros(num_embeddings))

    def forward(self, features: Tensor, masked_tokens: Tensor | None = None) -> Tensor:
        """features (batch, tgt_len, C) -> logits (batch, tgt_len, V); with masked_tokens (batch, tgt_len): (N, V)."""
        if masked_tokens is not None:
            features = features[masked_tokens]
        return F.linear(self.layer_norm(self.activation(self.dense(features))), self.weight, self.bias)


class ClassificationHead(nn.Module):
    """tanh(x_0 W + b), dropout, linear: x_0 is the feature of `<s>`; no dropout before W, as in the authors' code."""

    def __init__(self, embed_dim: int, inner_dim: int, num_classes: int, activation: str, dropout: float) -> None:
        super().__init__()
        self.activation = POOLER_ACTIVATIONS[activation]
        self.dense = nn.Linear(embed_dim, inner_dim)
        self.dropout = nn.Dropout(dropout)
        self.out_proj = nn.Linear(inner_dim, num_classes)

    def forward(self, features: Tensor) -> Tensor:
        """features (batch, tgt_len, C) -> logits (batch, num_classes)."""
        return self.out_proj(self.dropout(self.activation(self.dense(features[:, 0]))))
