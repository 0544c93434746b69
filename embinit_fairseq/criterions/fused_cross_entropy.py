"""`--criterion fused_cross_entropy` and `fused_label_smoothed_cross_entropy`: fairseq's losses in less time and memory.

Both equal `cross_entropy` and `label_smoothed_cross_entropy` up to rounding, have the same options, log the same names,
and continue each other's checkpoints. The matrix of log-probabilities is never made (`blockwise_cross_entropy`).
The logits come from the model's output; a model whose probabilities are not the softmax of the logits is refused.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

import torch
from fairseq.criterions import register_criterion
from fairseq.criterions.cross_entropy import CrossEntropyCriterion, CrossEntropyCriterionConfig
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from torch import Tensor, nn

from embinit_fairseq.errors import OptionError
from embinit_fairseq.modules.blockwise_cross_entropy import fused_cross_entropy

#: models whose probabilities were compared with their logits
_CHECKED: WeakSet[nn.Module] = WeakSet()


@register_criterion("fused_cross_entropy", dataclass=CrossEntropyCriterionConfig)
class FusedCrossEntropy(CrossEntropyCriterion):
    """Compute fairseq's `cross_entropy`."""

    def compute_loss(self, model: Any, net_output: Any, sample: dict[str, Any], reduce: bool = True) -> Any:
        """Return (loss, loss): a sum, or without `reduce` a loss for each token of the batch."""
        check_logits(self, model, net_output)
        logits, target = net_output[0], model.get_targets(sample, net_output)
        loss, _ = fused_cross_entropy(
            logits.reshape(-1, logits.size(-1)), target.reshape(-1), self.padding_idx, reduce=reduce
        )
        return loss, loss


@register_criterion("fused_label_smoothed_cross_entropy", dataclass=LabelSmoothedCrossEntropyCriterionConfig)
class FusedLabelSmoothedCrossEntropy(LabelSmoothedCrossEntropyCriterion):
    """Compute fairseq's `label_smoothed_cross_entropy`."""

    def compute_loss(self, model: nn.Module, net_output: Any, sample: dict[str, Any], reduce: bool = True) -> Any:
        """Return (loss, negative log-likelihood): sums, or without `reduce` one for each token of the batch, (N, 1)."""
        check_logits(self, model, net_output)
        logits, target = self.get_logits_and_target(model, net_output, sample)
        loss, nll = fused_cross_entropy(logits, target, self.padding_idx, self.eps, reduce)
        return (loss, nll) if reduce else (loss[:, None], nll[:, None])

    def compute_accuracy(self, model: nn.Module, net_output: Any, sample: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return (correct tokens, tokens), for --report-accuracy."""
        logits, target = self.get_logits_and_target(model, net_output, sample)
        real = target.ne(self.padding_idx)
        return (logits.argmax(1).eq(target) & real).sum(), real.sum()

    def get_logits_and_target(self, model: Any, net_output: Any, sample: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return logits (N, V) and target (N), without the tokens of --ignore-prefix-size."""
        logits, target = net_output[0], model.get_targets(sample, net_output)
        logits, target = logits[:, self.ignore_prefix_size :], target[:, self.ignore_prefix_size :]
        return logits.reshape(-1, logits.size(-1)), target.reshape(-1)


# A checkpoint names the class of its criterion, and fairseq continues a training only with this class.
FusedCrossEntropy.__name__ = CrossEntropyCriterion.__name__
FusedLabelSmoothedCrossEntropy.__name__ = LabelSmoothedCrossEntropyCriterion.__name__


def check_logits(criterion: Any, model: Any, net_output: Any) -> None:
    """Raise OptionError if the model's probabilities are not the softmax of net_output[0].

    Both are compared for the first sentence of the first batch of a model.
    """
    if model in _CHECKED:
        return
    name = "label_smoothed_cross_entropy" if hasattr(criterion, "eps") else "cross_entropy"
    remedy = f"give --criterion {name}"
    if getattr(getattr(model, "decoder", model), "adaptive_softmax", None) is not None:
        raise OptionError(f"--criterion fused_{name}: --adaptive-softmax-cutoff computes no logits; {remedy}")
    with torch.no_grad(), torch.autocast(net_output[0].device.type, enabled=False):
        logits = net_output[0][:1].detach()
        expected = model.get_normalized_probs((logits, *net_output[1:]), log_probs=True)
        if not torch.allclose(expected.float(), logits.float().log_softmax(-1), rtol=1e-3, atol=1e-3):
            raise OptionError(
                f"--criterion fused_{name}: {type(model).__name__} has probabilities of its own; {remedy}"
            )
    _CHECKED.add(model)
