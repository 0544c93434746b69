"""Compute fairseq's loss, and GLUE's metrics over the whole validation set (`--criterion sentence_prediction_metrics`).

fairseq 0.12.2 averages accuracy over batches and has no other metric. Here every batch adds to sums from which the
metric is computed: the confusion counts of a classification, or a place for each example's prediction and target, by
its number. Both have a fixed size, so that fairseq can add them up over batches and workers (the batch of an idle
worker counts nothing) and keep them in a checkpoint; lists could be gathered on GPUs only.

All metrics are percentages, as in GLUE's tables and as fairseq's accuracy. A correlation that is undefined, since all
predictions are equal, is logged as 0: nan would end fairseq's search for the best checkpoint.
"""

# no `from __future__ import annotations`: fairseq reads the types of the fields, not their names
import functools
import math
from argparse import ArgumentParser
from dataclasses import dataclass, field
from typing import Any, List, Optional  # noqa: UP035  fairseq recognises lists by the name of typing's

import torch
from fairseq.criterions import register_criterion
from fairseq.criterions.sentence_prediction import SentencePredictionConfig, SentencePredictionCriterion
from fairseq.logging import metrics
from fairseq.logging.meters import MetersDict
from omegaconf import DictConfig
from torch import Tensor, nn

from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.modules.glue_metrics import BINARY, CLASSIFICATION, REGRESSION

#: not a number but the counts themselves, as a list of rows
CONFUSION = "confusion"
METRICS = (*CLASSIFICATION, *REGRESSION, CONFUSION)


@dataclass
class SentencePredictionMetricsConfig(SentencePredictionConfig):
    """Hold fairseq's options and the choice of metrics."""

    glue_metrics: Optional[List[str]] = field(  # noqa: UP006
        default=None,
        metadata={
            "help": "metrics to log after each validation, for --best-checkpoint-metric, too (default: accuracy; with "
            f"--regression-target pearson spearman). For classes: {', '.join(CLASSIFICATION)}, and {CONFUSION}, "
            f"counts with a row for each true class; for numbers: {', '.join(REGRESSION)}"
        },
    )
    positive_label: str = field(
        default="1", metadata={"help": "the label whose F1 is computed (1: paraphrase in MRPC, duplicate in QQP)"}
    )


@register_criterion("sentence_prediction_metrics", dataclass=SentencePredictionMetricsConfig)
class SentencePredictionMetrics(SentencePredictionCriterion):
    """Train `--task sentence_prediction` or another task with `label_dictionary` and `cfg.num_classes`."""

    def __init__(self, cfg: SentencePredictionMetricsConfig, task: Any) -> None:
        super().__init__(cfg, task)
        defaults = ["pearson", "spearman"] if cfg.regression_target else ["accuracy"]
        self.glue_metrics = list(cfg.glue_metrics or defaults)
        self.root = cfg._get_parent() if isinstance(cfg, DictConfig) else None
        num_classes = task.cfg.num_classes
        check_metrics(self.glue_metrics, cfg.regression_target, num_classes)
        if self.root is not None:
            check_best_checkpoint(self.root.checkpoint, self.glue_metrics)
        self.positive_class = None
        if any(name in BINARY for name in self.glue_metrics):
            labels = [task.label_dictionary[task.label_dictionary.nspecial + number] for number in range(num_classes)]
            if cfg.positive_label not in labels:
                raise OptionError(
                    f"--positive-label {cfg.positive_label}: the labels are {', '.join(labels)}; name the one whose F1 "
                    "is meant"
                )
            self.positive_class = labels.index(cfg.positive_label)

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add the options; several metrics are separated by spaces, which fairseq's dataclasses cannot express."""
        option = SentencePredictionMetricsConfig.__dataclass_fields__["glue_metrics"]
        parser.add_argument(
            "--glue-metrics", nargs="+", choices=METRICS, metavar="METRIC", help=option.metadata["help"]
        )
        super().add_args(parser)  # leaves out options that exist

    def forward(self, model: nn.Module, sample: dict[str, Any], reduce: bool = True) -> tuple[Tensor, int, dict]:
        """Return fairseq's (loss, sample size, logging output), in validation with the sums of a metric as `_<metric>`.

        Raises DataError for a split without labels.
        """
        if "target" not in sample:
            files = "SPLIT.label, a number per line" if self.regression_target else "SPLIT.bin and SPLIT.idx"
            raise DataError(f"{self.task.cfg.data}/label has no labels for this split: expected {files}")
        outputs: list[Tensor] = []  # the logits, which fairseq's forward does not return
        handle = model.register_forward_hook(lambda module, inputs, output: outputs.append(output[0].detach()))
        try:
            loss, sample_size, logging_output = super().forward(model, sample, reduce)
        finally:
            handle.remove()
        if not self.training:
            logging_output.pop("ncorrect", None)  # fairseq would log an accuracy rounded to 0.1 %
            sums = self.values(outputs[0], sample) if self.regression_target else self.counts(outputs[0], sample)
            logging_output.update({f"_{name}": sums for name in self.glue_metrics})
        return loss, sample_size, logging_output

    def counts(self, logits: Tensor, sample: dict[str, Any]) -> Tensor:
        """Count the examples of class i taken for class j, (K, K). Of two classes, the second one is positive."""
        classes = logits.shape[-1]
        flat = sample["target"].view(-1) * classes + logits.argmax(dim=-1)
        counts = torch.bincount(flat, minlength=classes**2).view(classes, classes).double()
        return counts.flip(0, 1) if self.positive_class == 0 else counts

    def values(self, logits: Tensor, sample: dict[str, Any]) -> Tensor:
        """Return prediction, target and 1 in the example's column, else 0: (3, N), N the size of the validation set."""
        values = torch.zeros(3, self.validation_size(), dtype=torch.double, device=logits.device)
        predictions, targets = logits.view(-1).double(), sample["target"].view(-1).double()
        values[:, sample["id"]] = torch.stack([predictions, targets, torch.ones_like(targets)])
        return values

    def validation_size(self) -> int:
        """Return the size of the largest set: fairseq adds up the sums of all sets in a meter that nobody reads."""
        sizes = {name: len(dataset) for name, dataset in self.task.datasets.items()}
        if self.root is not None and len(sizes) > 1:
            dataset = self.root.dataset
            if dataset.train_subset not in (dataset.valid_subset or "").split(","):
                sizes.pop(dataset.train_subset, None)
        return max(sizes.values())

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict[str, Any]]) -> None:
        """Log fairseq's values, and each metric as a function of its sums so far."""
        SentencePredictionCriterion.reduce_metrics(logging_outputs)
        for name in METRICS:
            key = f"_{name}"
            sums = [log[key] for log in logging_outputs if key in log]
            if sums:
                forget_other_sizes(key, sums[0])
                metrics.log_scalar_sum(key, sum(sums))
                metrics.log_derived(name, functools.partial(percentage, name))


def forget_other_sizes(key: str, sums: Tensor) -> None:
    """Reset meters of sums that another validation set left in another shape, as fairseq-validate loads set after set.

    Only the meter over all sets, which nobody reads, has such sums.
    """
    for aggregator in metrics.get_active_aggregators():
        if key in aggregator and getattr(aggregator[key].sum, "shape", sums.shape) != sums.shape:
            aggregator[key].reset()


def percentage(name: str, meters: MetersDict) -> Any:
    """Return a metric of the sums in fairseq's meters, in percent with two digits, 0 where undefined; or the counts."""
    sums = meters[f"_{name}"].sum.cpu().numpy()
    if name == CONFUSION:
        return sums.astype(int).tolist()
    if name in CLASSIFICATION:
        value = CLASSIFICATION[name](sums)
    else:
        predictions, targets, _ = sums[:, sums[2] > 0]
        value = REGRESSION[name](predictions, targets)
    return 0.0 if math.isnan(value) else round(100 * value, 2)


def check_metrics(names: list[str], regression: bool, num_classes: int) -> None:
    """Raise OptionError for metrics that do not exist or do not fit the task."""
    fitting = list(REGRESSION) if regression else [*CLASSIFICATION, CONFUSION]
    for name in names:
        if name not in fitting:
            task = "with --regression-target" if regression else "without --regression-target"
            raise OptionError(f"--glue-metrics {name}: {task} choose among: {', '.join(fitting)}")
        if name in BINARY and num_classes != 2:
            raise OptionError(
                f"--glue-metrics {name}: F1 is that of one class of two, but there are --num-classes {num_classes}; "
                "choose accuracy, mcc or macro_f1, which are defined for several classes"
            )
    if regression and num_classes != 1:
        raise OptionError(
            f"--num-classes {num_classes} with --regression-target: correlations are of one number, give 1"
        )


def check_best_checkpoint(checkpoint: DictConfig, names: list[str]) -> None:
    """Raise OptionError if the best checkpoint is to be chosen by a metric that is not logged, or by its minimum."""
    best = checkpoint.best_checkpoint_metric
    if best in METRICS and best not in names:
        raise OptionError(
            f"--best-checkpoint-metric {best} is not computed: add it to --glue-metrics {' '.join(names)}"
        )
    if best in METRICS and not checkpoint.maximize_best_checkpoint_metric:
        raise OptionError(
            f"--best-checkpoint-metric {best} would keep the worst checkpoint: add --maximize-best-checkpoint-metric"
        )
