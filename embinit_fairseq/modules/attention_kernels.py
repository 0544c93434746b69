"""Compute attention with an additive bias, softmax(q k^T * scale + bias) v, by the fastest kernel that can do it.

    eager   matrix products and a softmax; everywhere; states the equation
    sdpa    torch.nn.functional.scaled_dot_product_attention

B: batch, H: num_heads, T: tgt_len, S: src_len, d: head_dim. The bias (H, T, S) is the same for all sentences and
layers, so `prepare` converts it for a kernel once per forward pass, not once per layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from embinit_fairseq.modules.fixed_positions import Rotation


@dataclass(frozen=True)
class AttentionContext:
    """Hold the further inputs of attention, which are the same in all layers of one forward pass.

    Args:
        kernel: the kernel that computes attention.
        bias: (H, T, S).
        padding_mask: (B, S); logits are the lowest number where it is True.
        prepared: bias and padding_mask in the kernel's own form.
        weights: a list to which `eager` appends the probabilities (B, H, T, S) of each layer, before dropout.
        rotation: function of queries and keys (B, H, T, d), which self-attention calls before `attend`.
    """

    kernel: str
    bias: Tensor | None = None
    padding_mask: Tensor | None = None
    prepared: Any = None
    weights: list[Tensor] | None = None
    rotation: Rotation | None = None


def prepare(
    kernel: str, bias: Tensor | None, padding_mask: Tensor | None, rotation: Rotation | None = None
) -> AttentionContext:
    """Return the context of all layers of one forward pass."""
    return AttentionContext(kernel, bias, padding_mask, _PREPARE[kernel](bias, padding_mask), rotation=rotation)


def attend(q: Tensor, k: Tensor, v: Tensor, context: AttentionContext, scale: float, dropout: float = 0.0) -> Tensor:
    """Compute attention: q (B, H, T, d), k and v (B, H, S, d) -> (B, H, T, d). dropout: rate for probabilities."""
    return _ATTEND[context.kernel](q, k, v, context, scale, dropout)


# ---- The choice of a kernel ----


#: major and minor version of PyTorch
TORCH = tuple(int(number) for number in torch.__version__.split(".")[:2])


def choose_kernel(requested: str, device: str, needs_grad: bool) -> tuple[str, str]:
    """Return (kernel, reason): for `auto` the fastest that was measured, else the requested one.

    Args:
        requested: a value of --attention-kernel.
        device: type of the device.
        needs_grad: True for a training.
    """
    if requested in _ATTEND:
        return requested, "asked for by --attention-kernel"
    if device == "cpu" and needs_grad:
        return "eager", "PyTorch's fused CPU kernels take no dropout and no gradient of a bias"
    if TORCH < (2, 1):
        return "eager", "PyTorch before 2.1 has no fused kernel with a scale"
    return "sdpa", "fused by PyTorch"


# ---- eager ----


def attention_weights(q: Tensor, k: Tensor, context: AttentionContext, scale: float) -> Tensor:
    """Return softmax(q k^T * scale + bias), (B, H, T, S), in at least single precision."""
    scores = (q * scale) @ k.transpose(-2, -1)  # in place from here: its gradient does not need it
    if context.bias is not None:
        scores.add_(context.bias)
    if context.padding_mask is not None:
        scores.masked_fill_(context.padding_mask[:, None, None], torch.finfo(scores.dtype).min)
    return F.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))


def _eager(q: Tensor, k: Tensor, v: Tensor, context: AttentionContext, scale: float, dropout: float) -> Tensor:
    weights = attention_weights(q, k, context, scale).to(v.dtype)
    if context.weights is not None:
        context.weights.append(weights)
    return F.dropout(weights, dropout) @ v


# ---- sdpa ----


def _sdpa_mask(bias: Tensor | None, padding_mask: Tensor | None) -> Tensor | None:
    """Return (1, H, T, S), (B, 1, 1, S) or, only if there is padding and a bias, (B, H, T, S)."""
    if padding_mask is None:
        return None if bias is None else bias.unsqueeze(0)
    if bias is None:
        return ~padding_mask[:, None, None]
    return bias.masked_fill(padding_mask[:, None, None], torch.finfo(bias.dtype).min)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, context: AttentionContext, scale: float, dropout: float) -> Tensor:
    mask = context.prepared
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale)


_PREPARE = {"eager": lambda bias, padding_mask: None, "sdpa": _sdpa_mask}
_ATTEND = {"eager": _eager, "sdpa": _sdpa}
#: choices of --attention-kernel
KERNELS = ("auto", *_ATTEND)
