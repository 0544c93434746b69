"""Attention with an additive bias: softmax(q k^T * scale + bias) v, by the fastest kernel that can do it.

    eager   matrix products and a softmax; everywhere; the statement of the equation
    sdpa    torch.nn.functional.scaled_dot_product_attention
    flex    torch.nn.attention.flex_attention, compiled; the bias is never expanded over the batch

B: batch, H: num_heads, T: tgt_len, S: src_len, d: head_dim. The bias (H, T, S) is the same for every sentence and
layer, so what a kernel needs of it is made once per forward pass (`prepare`), not once per layer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from embinit_fairseq.errors import OptionError


@dataclass(frozen=True)
class AttentionBias:
    """bias (H, T, S) or None; padding_mask (B, S), True at padding, or None; `prepared` is the kernel's own form."""

    kernel: str
    bias: Tensor | None = None
    padding_mask: Tensor | None = None
    prepared: Any = None


def prepare(kernel: str, bias: Tensor | None, padding_mask: Tensor | None) -> AttentionBias:
    """What `attend` needs, for all layers of one forward pass."""
    return AttentionBias(kernel, bias, padding_mask, _PREPARE[kernel](bias, padding_mask))


def attend(q: Tensor, k: Tensor, v: Tensor, attn_bias: AttentionBias, scale: float, dropout: float = 0.0) -> Tensor:
    """q (B, H, T, d), k and v (B, H, S, d) -> (B, H, T, d); dropout acts on the attention's probabilities."""
    return _ATTEND[attn_bias.kernel](q, k, v, attn_bias, scale, dropout)


def choose_kernel(requested: str, device: torch.device, needs_grad: bool, dropout: float) -> tuple[str, str]:
    """-> (kernel, why). `auto` takes the fastest that the situation allows; another name is taken at its word.

    Raises OptionError for a kernel that cannot do what is asked of it here.
    """
    if requested == "flex":
        _check_flex(device, needs_grad, dropout)
    if requested == "sdpa" and not sdpa_is_available():
        raise OptionError("--attention-kernel sdpa needs PyTorch 2.1 or later: update it or choose auto")
    if requested != "auto":
        return requested, "asked for by --attention-kernel"
    if device.type == "cpu" and needs_grad:
        return "eager", "PyTorch's fused CPU kernels take no dropout and no gradient of a bias"
    if device.type == "cuda" and needs_grad and dropout == 0 and flex_is_available():
        return "flex", "no dropout of attention weights"
    if not sdpa_is_available():
        return "eager", "PyTorch before 2.1 has no fused kernel with a scale"
    return "sdpa", "fused by PyTorch"


def _check_flex(device: torch.device, needs_grad: bool, dropout: float) -> None:
    if dropout > 0:
        raise OptionError(
            "--attention-kernel flex has no dropout of attention weights: add --attention-dropout 0 or choose sdpa"
        )
    if device.type == "cpu" and needs_grad:
        raise OptionError(
            "--attention-kernel flex has no gradients on a CPU: choose auto (from_pretrained: attention_kernel='auto')"
        )
    if device.type == "cuda" and not flex_is_available():
        raise OptionError("--attention-kernel flex needs PyTorch 2.5 or later and Triton: choose auto")


@functools.cache
def sdpa_is_available() -> bool:
    """scaled_dot_product_attention is in this PyTorch and takes a scale."""
    x = torch.zeros(1, 1, 1, 1)
    try:
        F.scaled_dot_product_attention(x, x, x, scale=1.0)
    except (AttributeError, TypeError):
        return False
    return True


@functools.cache
def flex_is_available() -> bool:
    """flex_attention is in this PyTorch and Triton is there to compile it."""
    try:
        import torch.nn.attention.flex_attention
        import triton
    except ImportError:
        return False
    return bool(torch.nn.attention.flex_attention and triton)


def _eager(q: Tensor, k: Tensor, v: Tensor, attn_bias: AttentionBias, scale: float, dropout: float) -> Tensor:
    scores = (q * scale) @ k.transpose(-2, -1)  # (B, H, T, S); in place from here: its gradient does not need it
    if attn_bias.bias is not None:
        scores.add_(attn_bias.bias)
    if attn_bias.padding_mask is not None:
        scores.masked_fill_(attn_bias.padding_mask[:, None, None], torch.finfo(scores.dtype).min)
    at_least_float = torch.promote_types(scores.dtype, torch.float32)
    weights = F.softmax(scores, dim=-1, dtype=at_least_float).to(v.dtype)
    return F.dropout(weights, dropout) @ v


def _sdpa_mask(bias: Tensor | None, padding_mask: Tensor | None) -> Tensor | None:
    """(1, H, T, S), (B, 1, 1, S) or, only if there is padding and a bias, (B, H, T, S)."""
    if padding_mask is None:
        return None if bias is None else bias.unsqueeze(0)
    if bias is None:
        return ~padding_mask[:, None, None]
    return bias.masked_fill(padding_mask[:, None, None], torch.finfo(bias.dtype).min)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, attn_bias: AttentionBias, scale: float, dropout: float) -> Tensor:
    mask = attn_bias.prepared
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale)


def _flex_score_mod(bias: Tensor | None, padding_mask: Tensor | None) -> Callable | None:
    if bias is None and padding_mask is None:
        return None

    def add_bias(score, b, h, q_idx, kv_idx):
        if bias is not None:
            score = score + bias[h, q_idx, kv_idx]
        if padding_mask is not None:
            score = torch.where(padding_mask[b, kv_idx], torch.finfo(score.dtype).min, score)
        return score

    return add_bias


@functools.cache
def _compiled_flex() -> Callable:
    from torch.nn.attention.flex_attention import flex_attention

    # not dynamic=False: after eight lengths of input PyTorch would leave the fused kernel for good
    return torch.compile(flex_attention)


def _flex(q: Tensor, k: Tensor, v: Tensor, attn_bias: AttentionBias, scale: float, dropout: float) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    kernel = _compiled_flex() if q.is_cuda else flex_attention  # on a CPU it is for tests only
    return kernel(q, k, v, score_mod=attn_bias.prepared, scale=scale)


_PREPARE = {"eager": lambda bias, padding_mask: None, "sdpa": _sdpa_mask, "flex": _flex_score_mod}
_ATTEND = {"eager": _eager, "sdpa": _sdpa, "flex": _flex}
#: choices of --attention-kernel
KERNELS = ("auto", *_ATTEND)
