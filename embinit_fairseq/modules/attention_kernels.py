"""Attention with an additive bias: softmax(q k^T * scale + bias) v, by the fastest kernel that can do it.

    eager   matrix products and a softmax; everywhere; the statement of the equation
    sdpa    torch.nn.functional.scaled_dot_product_attention
    flex    torch.nn.attention.flex_attention, compiled; the bias is never expanded over the batch

B: batch, H: num_heads, T: tgt_len, S: src_len, d: head_dim. The bias (H, T, S) is the same for every sentence and
layer, so what a kernel needs of it is made once per forward pass (`prepare`), not once per layer.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from embinit_fairseq.errors import OptionError

#: the PyTorch whose scaled_dot_product_attention takes a scale
SDPA_SINCE = (2, 1)


@dataclass(frozen=True)
class AttentionBias:
    """bias (H, T, S) or None; padding_mask (B, S), True at padding, or None; `prepared` is the kernel's own form."""

    kernel: str
    bias: Tensor | None = None
    padding_mask: Tensor | None = None
    prepared: Any = None
    #: `eager` appends the probabilities (B, H, T, S) of each layer, before dropout
    weights: list[Tensor] | None = None


def prepare(kernel: str, bias: Tensor | None, padding_mask: Tensor | None) -> AttentionBias:
    """What `attend` needs, for all layers of one forward pass."""
    return AttentionBias(kernel, bias, padding_mask, _PREPARE[kernel](bias, padding_mask))


def attend(q: Tensor, k: Tensor, v: Tensor, attn_bias: AttentionBias, scale: float, dropout: float = 0.0) -> Tensor:
    """q (B, H, T, d), k and v (B, H, S, d) -> (B, H, T, d); dropout acts on the attention's probabilities."""
    return _ATTEND[attn_bias.kernel](q, k, v, attn_bias, scale, dropout)


@dataclass(frozen=True)
class Situation:
    """What the choice of a kernel depends on. dropout: of the attention's probabilities; torch_version: (2, 6), say."""

    device: str
    dtype: torch.dtype
    head_dim: int
    needs_grad: bool
    dropout: float
    torch_version: tuple[int, int]
    has_triton: bool


def situation(x: Tensor, head_dim: int, dropout: float) -> Situation:
    """What is there to attend to x, here and now."""
    return Situation(x.device.type, x.dtype, head_dim, torch.is_grad_enabled(), dropout, *_installed())


@functools.cache
def _installed() -> tuple[tuple[int, int], bool]:
    major, minor, *_ = torch.__version__.split(".")
    return (int(major), int(minor)), importlib.util.find_spec("triton") is not None


def choose_kernel(requested: str, at: Situation) -> tuple[str, str]:
    """-> (kernel, why). `auto` takes the fastest that was measured, another name is taken at its word.

    Raises OptionError for a kernel that cannot do what is asked of it here.
    """
    if requested == "flex":
        _check_flex(at)
    if requested == "sdpa" and at.torch_version < SDPA_SINCE:
        raise OptionError("--attention-kernel sdpa needs PyTorch 2.1 or later: update it or choose auto")
    if requested != "auto":
        return requested, "asked for by --attention-kernel"
    if at.device == "cpu" and at.needs_grad:
        return "eager", "PyTorch's fused CPU kernels take no dropout and no gradient of a bias"
    if at.torch_version < SDPA_SINCE:
        return "eager", "PyTorch before 2.1 has no fused kernel with a scale"
    return "sdpa", "fused by PyTorch"


def check_trainable(requested: str, head_dim: int, dropout: float) -> None:
    """Before a training: raises what `choose_kernel` would in its first batch, as far as that is known by then.

    A GPU that is there is taken for the one that trains (on a CPU flex is refused in any case), and numbers for single
    precision.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    choose_kernel(requested, Situation(device, torch.float32, head_dim, True, dropout, *_installed()))


def _check_flex(at: Situation) -> None:
    """On a CPU PyTorch runs a plain statement of it, for which dimensions and types do not matter."""
    version, compiled = ".".join(map(str, at.torch_version)), at.device != "cpu"
    power_of_two = at.head_dim & (at.head_dim - 1) == 0
    obstacles = [
        (at.torch_version < (2, 6), f"needs PyTorch 2.6 or later for a bias that learns; this is {version}"),
        (at.device not in ("cpu", "cuda"), f"runs on CUDA, not on {at.device}"),
        (at.dropout > 0, "has no dropout of attention weights: add --attention-dropout 0"),
        (not compiled and at.needs_grad, "has no gradients on a CPU"),
        (compiled and not at.has_triton, "is compiled by Triton, which is not installed"),
        (compiled and at.head_dim < 16, f"needs heads of dimension 16 or more, these have {at.head_dim}"),
        (
            compiled and at.torch_version == (2, 6) and not power_of_two,
            "needs a power of two as head_dim in PyTorch 2.6",
        ),
        (compiled and at.dtype == torch.float64, "sums in single precision, the model has double precision"),
    ]
    for applies, what in obstacles:
        if applies:
            raise OptionError(
                f"--attention-kernel flex {what}; or choose auto (from_pretrained: attention_kernel='auto')"
            )


def attention_weights(q: Tensor, k: Tensor, attn_bias: AttentionBias, scale: float) -> Tensor:
    """softmax(q k^T * scale + bias), (B, H, T, S), in at least single precision."""
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

    if dropout:  # training is refused before it begins; this is for --retain-dropout
        raise OptionError(
            "--attention-kernel flex has no dropout of attention weights: choose auto (for a trained "
            "model: --model-overrides \"{'attention_kernel': 'auto'}\")"
        )
    kernel: Any = _compiled_flex() if q.is_cuda else flex_attention  # on a CPU it is for tests only
    return kernel(q, k, v, score_mod=attn_bias.prepared, scale=scale)


_PREPARE = {"eager": lambda bias, padding_mask: None, "sdpa": _sdpa_mask, "flex": _flex_score_mod}
_ATTEND = {"eager": _eager, "sdpa": _sdpa, "flex": _flex}
#: choices of --attention-kernel
KERNELS = ("auto", *_ATTEND)
