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
from embinit_fairseq.modules.fixed_positions import Rotation


@dataclass(frozen=True)
class AttentionContext:
    """What attention needs besides queries, keys and values, the same in all layers of one forward pass.

    Args:
        kernel: the kernel that computes attention.
        bias: (H, T, S).
        padding_mask: (B, S); logits are the lowest number where it is True.
        prepared: bias and padding_mask in the kernel's own form.
        weights: a list to which `eager` appends the probabilities (B, H, T, S) of each layer, before dropout.
        rotation: what self-attention does to queries and keys (B, H, T, d) before it calls `attend`.
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


def choose_kernel(
    requested: str, device: str, dtype: torch.dtype, head_dim: int, dropout: float, needs_grad: bool
) -> tuple[str, str]:
    """Return (kernel, reason): for `auto` the fastest that was measured, else the requested one.

    Args:
        requested: a value of --attention-kernel.
        dropout: rate for the probabilities.

    Raises:
        OptionError: if `flex` is requested and cannot compute this.
    """
    if requested == "flex":
        _check_flex(device, dtype, head_dim, dropout, needs_grad)
    if requested != "auto":
        return requested, "asked for by --attention-kernel"
    if device == "cpu" and needs_grad:
        return "eager", "PyTorch's fused CPU kernels take no dropout and no gradient of a bias"
    if TORCH < (2, 1):
        return "eager", "PyTorch before 2.1 has no fused kernel with a scale"
    return "sdpa", "fused by PyTorch"


def _check_flex(device: str, dtype: torch.dtype, head_dim: int, dropout: float, needs_grad: bool) -> None:
    compiled = device != "cpu"  # on a CPU PyTorch runs a plain statement of it, in any dimension and type
    version = ".".join(map(str, TORCH))
    obstacles = {
        f"needs PyTorch 2.6 or later for a bias that learns; this is {version}": TORCH < (2, 6),
        "has no dropout of attention weights: add --attention-dropout 0": dropout > 0,
        "has no gradients on a CPU": not compiled and needs_grad,
        f"needs heads of dimension 16 or more, these have {head_dim}": compiled and head_dim < 16,
        "sums in single precision, the model has double precision": compiled and dtype == torch.float64,
    }
    for reason, applies in obstacles.items():
        if applies:
            raise OptionError(
                f"--attention-kernel flex {reason}; or choose auto (from_pretrained: attention_kernel='auto')"
            )


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


# ---- flex ----


def _flex_score_mod(bias: Tensor | None, padding_mask: Tensor | None) -> Callable | None:
    if bias is None and padding_mask is None:
        return None

    def add_bias(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
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


def _flex(q: Tensor, k: Tensor, v: Tensor, context: AttentionContext, scale: float, dropout: float) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    kernel: Any = _compiled_flex() if q.is_cuda else flex_attention  # on a CPU it is for tests only
    return kernel(q, k, v, score_mod=context.prepared, scale=scale)


_PREPARE = {"eager": lambda bias, padding_mask: None, "sdpa": _sdpa_mask, "flex": _flex_score_mod}
_ATTEND = {"eager": _eager, "sdpa": _sdpa, "flex": _flex}
#: choices of --attention-kernel
KERNELS = ("auto", *_ATTEND)
