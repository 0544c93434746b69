"""Define the heads of a sentence encoder.

    language model    LN(act(x W + b)) E^T + bias
    classification    drop(tanh(x_0 W + b)) W_2 + b_2                     x_0: the feature of `<s>`
    labels            drop(e) W [+ b]                                     e: the vector of a text
    ELECTRA           act(x W + b) w + c                                  Clark et al. 2020, section 2

C: embed_dim, V: symbols of the dictionary, E (V, D): token embeddings, N: chosen positions of a batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from embinit_fairseq.modules.encoder_layer import ACTIVATIONS

#: choices of --pooler-activation-fn
POOLER_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, **ACTIVATIONS}


class MaskedLMHead(nn.Module):
    """Compute logits of all symbols. E is the parameter itself, not a copy. W is C x D; C: features_dim."""

    def __init__(self, embed_tokens: nn.Embedding, activation: str, features_dim: int) -> None:
        super().__init__()
        num_embeddings, embed_dim = embed_tokens.weight.shape
        self.activation = ACTIVATIONS[activation]
        self.dense = nn.Linear(features_dim, embed_dim)
        self.layer_norm = nn.LayerNorm(embed_dim)
        self.weight = embed_tokens.weight
        self.bias = nn.Parameter(torch.zeros(num_embeddings))

    def forward(self, features: Tensor, masked_tokens: Tensor | None = None) -> Tensor:
        """Return logits (batch, tgt_len, V) of features (batch, tgt_len, C), or (N, V) at masked_tokens."""
        if masked_tokens is not None:
            features = features[masked_tokens]
        return F.linear(self.layer_norm(self.activation(self.dense(features))), self.weight, self.bias)


class ClassificationHead(nn.Module):
    """Compute logits of classes, without dropout before W, as in TUPE's code."""

    def __init__(self, embed_dim: int, inner_dim: int, num_classes: int, activation: str, dropout: float) -> None:
        super().__init__()
        self.activation = POOLER_ACTIVATIONS[activation]
        self.dense = nn.Linear(embed_dim, inner_dim)
        self.dropout = nn.Dropout(dropout)
        self.out_proj = nn.Linear(inner_dim, num_classes)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (batch, num_classes) of features (batch, tgt_len, C)."""
        return self.out_proj(self.dropout(self.activation(self.dense(features[:, 0]))))


class LabelLayer(nn.Module):
    """Compute logits of classes. W starts with Xavier's distribution, b is zero."""

    def __init__(self, dim: int, num_classes: int, dropout: float = 0.0, bias: bool = True) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.projection = nn.Linear(dim, num_classes, bias=bias)
        nn.init.xavier_uniform_(self.projection.weight)
        if bias:
            nn.init.zeros_(self.projection.bias)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (batch, num_classes) of features (batch, dim)."""
        return self.projection(self.dropout(features))


def draw_tokens(logits: Tensor, noise: Tensor, never: int) -> Tensor:
    """Return the tokens (N,) that replace the masked ones, drawn from the generator's p_G(x_t | x_masked).

    Uses the inverse of the cumulative softmax, in at least single precision. Tokens are discrete: there is no gradient.

    Args:
        logits: (N, V), the generator's logits.
        noise: (N,), uniform in [0, 1); equal noise gives equal draws.
        never: a symbol that is not drawn.
    """
    with torch.no_grad():
        scores = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
        scores[:, never] = -torch.inf
        cumulative = scores.softmax(-1).cumsum(-1)
        threshold = noise.to(cumulative).unsqueeze(1) * cumulative[:, -1:]  # rounding leaves the sum near, not at, 1
        return torch.searchsorted(cumulative, threshold, right=True).squeeze(1).clamp(max=logits.shape[1] - 1)


class ReplacedTokenHead(nn.Module):
    """Compute the logit of "this token was replaced" (1 - D in the paper), for every token."""

    def __init__(self, embed_dim: int, activation: str) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.dense = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, 1)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (batch, tgt_len) of features (batch, tgt_len, C)."""
        return self.out_proj(self.activation(self.dense(features))).squeeze(-1)
