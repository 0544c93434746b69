"""Several streams of the same words, computed together: x (n, B, T, C), stream s by weight s in one batched product.

n: streams (Duo: S is stream 0, P is stream 1), B: batch, T: length, C: width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class StreamLinear(nn.Module):
    """y^s = x^s W_s^T + b_s for every stream s; weight (n, out, in), bias (n, out), drawn as nn.Linear draws them."""

    def __init__(self, num_streams: int, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_streams, out_features, in_features))
        self.bias = nn.Parameter(torch.empty(num_streams, out_features))
        bound = 1 / math.sqrt(in_features)
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """x (n, ..., in) -> (n, ..., out)."""
        flat = x.reshape(x.shape[0], -1, x.shape[-1])
        y = torch.baddbmm(self.bias.unsqueeze(1), flat, self.weight.transpose(1, 2))
        return y.view(*x.shape[:-1], -1)

    def extra_repr(self) -> str:
        """What print(model) says."""
        streams, out_features, in_features = self.weight.shape
        return f"num_streams={streams}, in_features={in_features}, out_features={out_features}"


def values_for_queries(x: Tensor) -> Tensor:
    """x (n, ...): stream s gets what stream s + 1 holds. The queries and keys of stream s meet these values."""
    return x if x.shape[0] == 1 else x.roll(-1, 0)


def back_to_values(x: Tensor) -> Tensor:
    """The inverse: what the queries of stream s found goes to stream s + 1, whose values it is made of."""
    return x if x.shape[0] == 1 else x.roll(1, 0)
