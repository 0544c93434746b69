"""Buckets of relative positions (T5, as used by Ke et al. 2021, section 2.1 and the authors' code).

r = j - i is the position of the key minus that of the query. Near distances have a bucket each, far ones share buckets
that grow with the logarithm of the distance; everything beyond `max_distance` falls into the last one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def relative_position_buckets(
    relative_position: Tensor, num_buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
) -> Tensor:
    """Integer tensor of r = key - query, any shape -> bucket of each, same shape, in [0, num_buckets).

    bidirectional: r <= 0 uses the lower half of the buckets, r > 0 the upper half. Otherwise (decoders, which never
    see r > 0) all buckets serve the past. Float32 with truncation, as everywhere T5's buckets are used.
    """
    offset = torch.zeros_like(relative_position)
    if bidirectional:
        num_buckets //= 2
        offset = (relative_position > 0).to(relative_position.dtype) * num_buckets
        distance = relative_position.abs()
    else:
        distance = (-relative_position).clamp(min=0)
    num_exact = num_buckets // 2
    growth = torch.log(distance.clamp(min=1).float() / num_exact) / math.log(max_distance / num_exact)
    far = (num_exact + (growth * (num_buckets - num_exact)).to(distance.dtype)).clamp(max=num_buckets - 1)
    return offset + torch.where(distance < num_exact, distance, far)
