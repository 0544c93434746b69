"""Compute the cross-entropy of logits over a dictionary, by blocks of rows, with label smoothing as in fairseq.

    lse_n   = log sum_v exp x_nv
    nll_n   = lse_n - x_nt                                t: the target of row n
    loss_n  = (1 - eps - e) nll_n + e sum_v (lse_n - x_nv)           e = eps / (V - 1)
    dloss_n / dx_nv = exp(x_nv - lse_n) - e - (1 - eps - e) [v = t]

N rows, V symbols. `log_softmax` followed by `nll_loss` makes matrices of N x V in single precision, whatever the type
of the logits: the log-probabilities, their gradient, and the gradient of the logits. Here one matrix is made, in the
type of the logits: the gradient, along with the loss, so that exponentials are computed once. The gradient is made by
blocks of rows that fit the processor's cache, in single precision (double for double logits, as the sums).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

#: numbers per block: two megabytes, half of them logits, about a second cache; on a GPU as many as keep it busy
BLOCK_NUMBERS = {"cpu": 2**19, "cuda": 2**25}
#: factor of the stored gradient: 6e-8 is the smallest number of float16, and probabilities are smaller
KEPT_SCALE = {torch.float16: 2.0**14}


def fused_cross_entropy(
    logits: Tensor, target: Tensor, ignore_index: int, label_smoothing: float = 0.0, reduce: bool = True
) -> tuple[Tensor, Tensor]:
    """Return (loss, nll) of logits (N, V) and target (N): sums over the rows, or both (N) without `reduce`.

    Rows whose target is `ignore_index` have loss 0. nll has no gradient. Both are float32, or float64 as the logits.
    """
    loss, nll = _FusedCrossEntropy.apply(logits, target, ignore_index, label_smoothing)
    return (loss.sum(), nll.sum()) if reduce else (loss, nll)


class _FusedCrossEntropy(torch.autograd.Function):
    """Compute losses of rows, and their gradient for an upstream gradient of 1."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, ignore_index: int, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        """Return the smoothed loss and the negative log-likelihood of each row, (N), 0 where ignored."""
        precise, symbols = torch.promote_types(logits.dtype, torch.float32), logits.size(1)
        at_target, lse, total = (torch.empty(len(logits), dtype=precise, device=logits.device) for _ in range(3))
        gradient = torch.empty_like(logits) if ctx.needs_input_grad[0] else None
        exact = gradient if logits.dtype == precise else None  # else blocks are rounded into it
        ignored = target.eq(ignore_index)
        column = target.masked_fill(ignored, 0)[:, None]  # an ignored index may be outside of the columns
        weight = ignored.logical_not().to(precise)[:, None] * KEPT_SCALE.get(logits.dtype, 1)
        share = label_smoothing / max(1, symbols - 1)
        for rows in _rows(logits):
            block = logits[rows].to(precise)
            probs = torch.softmax(block, dim=1, out=exact[rows] if exact is not None else None)
            lse[rows] = block.amax(dim=1) - probs.amax(dim=1).log()  # the largest is at least 1 / V: nothing is lost
            at_target[rows] = block.gather(1, column[rows])[:, 0]
            if label_smoothing:
                torch.sum(block, dim=1, out=total[rows])
            if gradient is not None:
                probs.mul_(weight[rows])
                if label_smoothing:
                    probs.sub_(share * weight[rows])
                probs.scatter_add_(1, column[rows], (label_smoothing + share - 1) * weight[rows])
                if exact is None:
                    gradient[rows] = probs
        nll = (lse - at_target).masked_fill_(ignored, 0)
        loss = (1 - label_smoothing - share) * nll
        if label_smoothing:
            loss += share * (symbols * lse - total).masked_fill_(ignored, 0)
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, _: Any) -> tuple[Tensor, None, None, None]:
        """Return the gradient that forward has stored, times the gradient of the losses."""
        (gradient,) = ctx.saved_tensors
        factor = grad_loss / KEPT_SCALE.get(gradient.dtype, 1)
        if factor.device.type == "cpu" and bool((factor == 1).all()):
            return gradient, None, None, None
        result = torch.empty_like(gradient)  # a graph that is retained needs the stored one again
        for rows in _rows(gradient):  # products are in the type of the factor, single precision
            result[rows] = gradient[rows] * factor[rows, None]
        return result, None, None, None


def _rows(matrix: Tensor) -> Iterator[slice]:
    """Return the rows of the blocks, in order."""
    numbers = BLOCK_NUMBERS.get(matrix.device.type, BLOCK_NUMBERS["cuda"])
    size = max(1, numbers // max(1, matrix.size(1)))
    return (slice(begin, min(begin + size, len(matrix))) for begin in range(0, len(matrix), size))
