"""Compute the two losses of ELECTRA (Clark et al. 2020, section 2): `--criterion electra` for --task masked_lm.

    loss = mean of -log p_G(x_t | x_masked) over masked tokens
         + rtd_weight * mean of the binary cross-entropy of D(x_corrupt, t) over all tokens but padding

fairseq adds up losses and sample sizes over workers and --update-freq and divides once, but the two means have two
denominators. The sample size here is the number of tokens, so the second mean is exact. The task masks `--mask-prob` of
the tokens of each sentence, rounded up or down at random; the share is exact in expectation. The first sum is divided
by mask_prob * tokens: an unbiased estimate of its mean, and the same however a batch is split. The log has both means
with their exact denominators, over all batches since the last line or of a validation.
"""

# no `from __future__ import annotations`: fairseq reads the types of the fields, not their names
import logging
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from fairseq import utils
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from fairseq.logging.meters import safe_round
from omegaconf import II
from torch import Tensor, nn

from embinit_fairseq.errors import OptionError
from embinit_fairseq.models.electra import ReplacedTokens

logger = logging.getLogger(__name__)


@dataclass
class ElectraCriterionConfig(FairseqDataclass):
    """Hold the options of the criterion."""

    rtd_weight: float = field(default=50.0, metadata={"help": "weight of the loss of replaced-token detection"})
    seed: int = II("common.seed")


@register_criterion("electra", dataclass=ElectraCriterionConfig)
class ElectraCriterion(FairseqCriterion):
    """Train `--arch electra_*` by `--task masked_lm`, or by a task that masks in the same way."""

    def __init__(self, cfg: ElectraCriterionConfig, task: Any) -> None:
        super().__init__(task)
        self.rtd_weight, self.seed = cfg.rtd_weight, cfg.seed
        if not 0 <= cfg.rtd_weight < math.inf:
            raise OptionError(f"--rtd-weight {cfg.rtd_weight}: must be 0 or more (the paper's: 50)")
        mask_prob = getattr(task.cfg, "mask_prob", None)
        if mask_prob is None:
            raise OptionError("--criterion electra needs a task that masks tokens: give --task masked_lm")
        self.mask_prob: float = mask_prob
        for flag in ("leave_unmasked_prob", "random_token_prob"):
            if getattr(task.cfg, flag, 0) > 0:
                logger.warning("ELECTRA masks every chosen token: add --%s 0", flag.replace("_", "-"))

    def forward(self, model: nn.Module, sample: dict[str, Any], reduce: bool = True) -> tuple[Tensor, Tensor, dict]:
        """Return the summed loss in nats, the number of tokens, and sums for the log."""
        src_tokens, target = sample["net_input"]["src_tokens"], sample["target"]
        masked_tokens, present = target.ne(self.padding_idx), src_tokens.ne(self.padding_idx)
        noise = self._noise(model, sample).to(src_tokens.device)
        output = model(**sample["net_input"], masked_tokens=masked_tokens, noise=noise)
        if not isinstance(output, ReplacedTokens):
            raise OptionError("--criterion electra belongs to the electra_* architectures: give --arch electra_base")
        masked_targets = target[masked_tokens]
        mlm_logits, rtd_logits = _single(output.generator_logits), _single(output.logits)
        replaced = output.corrupted_tokens.ne(torch.where(masked_tokens, target, src_tokens))
        mlm_loss = F.cross_entropy(mlm_logits, masked_targets, reduction="sum")
        rtd_losses = F.binary_cross_entropy_with_logits(rtd_logits, replaced.to(rtd_logits), reduction="none")
        rtd_loss = rtd_losses.masked_fill(~present, 0.0).sum()
        loss = mlm_loss / self.mask_prob + self.rtd_weight * rtd_loss
        sample_size, flagged = present.sum(), rtd_logits.gt(0) & present
        logging_output = {
            "loss": loss.detach(),
            "ntokens": sample["ntokens"],
            "nsentences": sample["nsentences"],
            "sample_size": sample_size,
            "weighted_tokens": self.rtd_weight * sample_size,
            "mlm_loss": mlm_loss.detach(),
            "rtd_loss": rtd_loss.detach(),
            "masked": masked_tokens.sum(),
            "guessed": mlm_logits.argmax(-1).eq(masked_targets).sum(),
            "replaced": replaced.sum(),
            "flagged": flagged.sum(),
            "hits": (flagged & replaced).sum(),
        }
        return loss, sample_size, logging_output

    def _noise(self, model: nn.Module, sample: dict[str, Any]) -> Tensor:
        update = getattr(model, "num_updates", 0) if model.training else 0  # the same draws in every validation
        return uniform_noise(self.seed, update, sample["id"].tolist(), sample["target"].shape[1])

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict[str, Any]]) -> None:
        """Log losses in bits per token and rates in percent, over all tokens, not averaged over batches."""

        def total(key: str) -> float:
            return float(sum(log.get(key, 0) for log in logging_outputs))

        tokens, masked, replaced, flagged, hits = map(total, ("sample_size", "masked", "replaced", "flagged", "hits"))
        rtd_weight = total("weighted_tokens") / max(tokens, 1)
        _log_mean("mlm_loss", total("mlm_loss") / math.log(2), masked, digits=3)
        _log_mean("rtd_loss", total("rtd_loss") / math.log(2), tokens, digits=4)
        metrics.log_derived(
            "loss",
            lambda meters: safe_round(meters["mlm_loss"].avg + rtd_weight * meters["rtd_loss"].avg, 3),
            priority=0,
        )
        metrics.log_derived("ppl", lambda meters: utils.get_perplexity(meters["mlm_loss"].avg))
        _log_mean("mlm_accuracy", 100 * total("guessed"), masked)
        _log_mean("replaced", 100 * replaced, tokens)
        _log_mean("rtd_precision", 100 * hits, flagged)
        _log_mean("rtd_recall", 100 * hits, replaced)
        _log_mean("rtd_original", 100 * (tokens - replaced - flagged + hits), tokens - replaced)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Return True: every value is a sum."""
        return True


def uniform_noise(seed: int, update: int, ids: list[int], length: int) -> Tensor:
    """Return (len(ids), length) single-precision numbers in [0, 1), a function of (seed, update, sentence, column).

    Draws do not depend on the number of workers or on the neighbours in a batch, and change no global random state.
    """
    words = [seed & 0xFFFFFFFFFFFFFFFF, update]
    rows = [np.random.default_rng([*words, sentence]).random(length, dtype=np.float32) for sentence in ids]
    return torch.from_numpy(np.stack(rows))


def _single(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _log_mean(name: str, total: float, count: float, digits: int = 1) -> None:
    metrics.log_scalar(name, total / count if count else 0.0, count, round=digits)
