"""--regression-target: the loss is the mean squared error divided by log 2, 44 % too high; now it is the error.

Symptom: ``--task sentence_prediction --regression-target`` (STS-B) with predictions that are wrong by 1 prints a loss
    of 1.443: fairseq takes it for a logarithm, and converts it to bits.
Where: fairseq/criterions/sentence_prediction.py:120 (``reduce_metrics``, also of ``sentence_prediction_adapters``).
Remedy: the loss of numbers is not converted. A training that began without the fix and continues with it compares
    losses of two units in ``checkpoint_best.pt`` and ``--patience``.
Upstream: fairseq issue 1566.
"""

from __future__ import annotations

import math
from functools import partial

from fairseq_compat.patches import wrap

BROKEN = r"F\.mse_loss\(logits, targets"


def patch_criterion(name, module) -> None:
    @wrap(getattr(module, name))
    def forward(original, self, model, sample, reduce=True):
        loss, sample_size, logged = original(self, model, sample, reduce)
        if self.regression_target:
            logged["loss"] = logged["loss"] * math.log(2)  # fairseq divides by it
        return loss, sample_size, logged


PATCHES = {
    "fairseq.criterions.sentence_prediction": partial(patch_criterion, "SentencePredictionCriterion"),
    "fairseq.criterions.sentence_prediction_adapters": partial(patch_criterion, "SentencePredictionCriterionAdapters"),
}
