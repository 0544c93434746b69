"""Replaced-token detection (ELECTRA; Clark et al. 2020, section 2): a generator's draws and the detector's head.

x_masked has <mask> at the chosen positions; the generator gives p_G(x_t | x_masked) there. x_corrupt has a draw from
p_G instead, and the discriminator says for every token how likely it was replaced (1 - D in the paper). Tokens are
discrete: nothing flows back through the draw. N: chosen positions of a batch, V: symbols of the dictionary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from embinit_fairseq.modules.encoder_layer import ACTIVATIONS


def draw_tokens(logits: Tensor, noise: Tensor, never: int) -> Tensor:
    """One token for each row, (N,), by the inverse of the cumulative softmax, in at least single precision.

    logits (N, V); noise (N,), uniform in [0, 1): equal noise, equal draw. `never` is a symbol that is not drawn.
    """
    with torch.no_grad():
        scores = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
        scores[:, never] = -torch.inf
        cumulative = scores.softmax(-1).cumsum(-1)
        threshold = noise.to(cumulative).unsqueeze(1) * cumulative[:, -1:]  # rounding leaves the sum near, not at, 1
        return torch.searchsorted(cumulative, threshold, right=True).squeeze(1).clamp(max=logits.shape[1] - 1)


class ReplacedTokenHead(nn.Module):
    """act(x W + b) w + c: the logit of "this token was replaced"."""

    def __init__(self, embed_dim: int, activation: str) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.dense = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, 1)

    def forward(self, features: Tensor) -> Tensor:
        """features (batch, tgt_len, C) -> logits (batch, tgt_len)."""
        return self.out_proj(self.activation(self.dense(features))).squeeze(-1)
