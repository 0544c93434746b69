"""Attention with an additive bias: softmax(q k^T * scale + mask) v. In the place of `modules/attention_kernels.py`.

Fused by `scaled_dot_product_attention`, or spelled out where the probabilities are wanted (`eager`). B: batch,
H: num_heads, T: length, d: head_dim.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class AttentionBias(NamedTuple):
    """mask (1 or B, 1 or H, 1 or T, T), added to the logits of every layer, or None. weights: a list to which each
    layer appends its probabilities (B, H, T, T); needs `eager`."""

    mask: Tensor | None
    eager: bool = False
    weights: list[Tensor] | None = None


def additive_mask(bias: Tensor | None, padding_mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """bias (H, T, T) or None, padding_mask (B, T), True at padding, or None -> what AttentionBias calls mask.

    Keys at padding get the lowest number of the type, after the bias.
    """
    if padding_mask is None:
        return None if bias is None else bias.unsqueeze(0)
    if bias is None:
        bias = torch.zeros((), dtype=dtype, device=padding_mask.device)
    padding_mask = padding_mask[:, None, None]
    return torch.where(padding_mask, torch.finfo(bias.dtype).min, bias)


def attend(q: Tensor, k: Tensor, v: Tensor, attn_bias: AttentionBias, scale: float, dropout: float = 0.0) -> Tensor:
    """q, k, v (B, H, T, d) -> (B, H, T, d); dropout acts on the probabilities, `weights` gets them before it."""
    mask = attn_bias.mask
    if not attn_bias.eager:
        mask = None if mask is None else mask.to(q.dtype)  # autocast may have made another type of q
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale)
    scores = (q * scale) @ k.transpose(-2, -1)
    if mask is not None:
        scores = scores + mask
    weights = F.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(v.dtype)
    if attn_bias.weights is not None:
        attn_bias.weights.append(weights)
    return F.dropout(weights, dropout) @ v
