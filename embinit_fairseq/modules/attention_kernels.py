"""Attention with an additive bias: softmax(q k^T * scale + bias) v, by the fastest kernel that can compute it.

    eager   matrix products and a softmax; everywhere; states the equation
    sdpa    torch.nn.functional.scaled_dot_product_attention
    flex    torch.nn.attention.flex_attention, compiled; the bias is never expanded over the batch

B: batch, H: num_heads, T: tgt_len, S: src_len, d: head_dim. The bias (H, T, S) is the same for all sentences and
layers, so `prepare` converts it for a kernel once per forward pass, not once per layer.
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
    """What attention adds to its logits: bias (H, T, S) or None, and the lowest number where padding_mask (B, S) is
    True. prepared: both in the kernel's own form."""

    kernel: str
    bias: Tensor | None = None
    padding_mask: Tensor | None = None
    prepared: Any = None
    #: `eager` appends the probabilities (B, H, T, S) of each layer, before dropout
    weights: list[Tensor] | None = None


def prepare(kernel: str, bias: Tensor | None, padding_mask: Tensor | None) -> AttentionBias:
    """Return the bias of all layers of one forward pass."""
    return AttentionBias(kernel, bias, padding_mask, _PREPARE[kernel](bias, padding_mask))


def attend(q: Tensor, k: Tensor, v: Tensor, attn_bias: AttentionBias, scale: float, dropout: float = 0.0) -> Tensor:
    """q (B, H, T, d), k and v (B, H, S, d) -> (B, H, T, d). dropout: rate for the probabilities."""
    return _ATTEND[attn_bias.kernel](q, k, v, attn_bias, scale, dropout)


# ---- The choice of a kernel ----


@dataclass(frozen=True)
class Situation:
    """What the choice depends on. dropout: rate for the probabilities; torch_version: (2, 6), say."""

    device: str
    dtype: torch.dtype
    head_dim: int
    needs_grad: bool
    dropout: float
    torch_version: tuple[int, int]


def situation(x: Tensor, head_dim: int, dropout: float) -> Situation:
    """Return the situation of attention on x."""
    return Situation(x.device.type, x.dtype, head_dim, torch.is_grad_enabled(), dropout, torch_version())


@functools.cache
def torch_version() -> tuple[int, int]:
    """Return the major and minor version of PyTorch."""
    major, minor, *_ = torch.__version__.split(".")
    return int(major), int(minor)


def choose_kernel(requested: str, at: Situation) -> tuple[str, str]:
    """Return (kernel, reason): for `auto` the fastest that was measured, else the requested one.

    Raises:
        OptionError: if the requested kernel cannot compute this.
    """
    if requested == "flex":
        _check_flex(at)
    if requested == "sdpa" and at.torch_version < (2, 1):
        raise OptionError("--attention-kernel sdpa needs PyTorch 2.1 or later: update it or choose auto")
    if requested != "auto":
        return requested, "asked for by --attention-kernel"
    if at.device == "cpu" and at.needs_grad:
        return "eager", "PyTorch's fused CPU kernels take no dropout and no gradient of a bias"
    if at.torch_version < (2, 1):
        return "eager", "PyTorch before 2.1 has no fused kernel with a scale"
    return "sdpa", "fused by PyTorch"


def check_trainable(requested: str, head_dim: int, dropout: float) -> None:
    """Raise before a training what `choose_kernel` would raise in its first batch.

    The device is assumed to be a GPU if there is one, the numbers to be in single precision.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    choose_kernel(requested, Situation(device, torch.float32, head_dim, True, dropout, torch_version()))


def _check_flex(at: Situation) -> None:
    compiled = at.device != "cpu"  # on a CPU PyTorch runs a plain statement of it, in any dimension and type
    version = ".".join(map(str, at.torch_version))
    obstacles = [
        (at.torch_version < (2, 6), f"needs PyTorch 2.6 or later for a bias that learns; this is {version}"),
        (at.dropout > 0, "has no dropout of attention weights: add --attention-dropout 0"),
        (not compiled and at.needs_grad, "has no gradients on a CPU"),
        (compiled and at.head_dim < 16, f"needs heads of dimension 16 or more, these have {at.head_dim}"),
        (compiled and at.dtype == torch.float64, "sums in single precision, the model has double precision"),
    ]
    for applies, reason in obstacles:
        if applies:
            raise OptionError(
                f"--attention-kernel flex {reason}; or choose auto (from_pretrained: attention_kernel='auto')"
            )


# ---- eager ----


def attention_weights(q: Tensor, k: Tensor, attn_bias: AttentionBias, scale: float) -> Tensor:
    """Return softmax(q k^T * scale + bias), (B, H, T, S), in at least single precision."""
    scores = (q * scale) @ k.transpose(-2, -1)  # in place from here: its gradient does not need it
    if attn_bias.bias is not None:
        scores.add_(attn_bias.bias)
    if attn_bias.padding_mask is not None:
        scores.masked_fill_(attn_bias.padding_mask[:, None, None], torch.finfo(scores.dtype).min)
    return F.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))


def _eager(q: Tensor, k: Tensor, v: Tensor, attn_bias: AttentionBias, scale: float, dropout: float) -> Tensor:
    weights = attention_weights(q, k, attn_bias, scale).to(v.dtype)
    if attn_bias.weights is not None:
        attn_bias.weights.append(weights)
    return F.dropout(weights, dropout) @ v


# ---- sdpa ----


def _sdpa_mask(bias: Tensor | None, padding_mask: Tensor | None) -> Tensor | None:
    """Return (1, H, T, S), (B, 1, 1, S) or, only if there is padding and a bias, (B, H, T, S)."""
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


# ---- flex ----


def _flex_score_mod(bias: Tensor | None, padding_mask: Tensor | None) -> Callable | None:
    if bias is None and padding_mask is None:
        return None

    def add_bias(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        """One logit and its place, scalars -> the logit with the bias, or the lowest number at padding."""
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

    kernel: Any = _compiled_flex() if q.is_cuda else flex_attention  # on a CPU it is for tests only
    return kernel(q, k, v, score_mod=attn_bias.prepared, scale=scale)


_PREPARE = {"eager": lambda bias, padding_mask: None, "sdpa": _sdpa_mask, "flex": _flex_score_mod}
_ATTEND = {"eager": _eager, "sdpa": _sdpa, "flex": _flex}
#: choices of --attention-kernel
KERNELS = ("auto", *_ATTEND)
