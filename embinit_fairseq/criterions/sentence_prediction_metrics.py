"""`--criterion sentence_prediction_metrics`: the stock loss, and GLUE's metrics over the whole validation set.

fairseq 0.12.2 averages accuracy over batches and knows no other metric. Here every batch adds to sums from which the
metric is computed: the confusion counts of a classification, or a place for each example's prediction and target, found
by its number. Both are of a fixed size, so that fairseq can add them up over batches and workers (batches with which an
idle worker fills up count nothing), keep them in a checkpoint, and they do not grow.

All metrics are percentages, as in GLUE's tables and as fairseq's accuracy. A correlation that is undefined, since all
predictions are equal, is logged as 0: nan would end fairseq's search for the best checkpoint.
"""

# no `from __future__ import annotations`: fairseq reads the types of the fields, not their names
import contextlib
import functools
import math
from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, List, Optional  # noqa: UP035  fairseq recognises lists by the name of typing's

import numpy as np
import torch
from fairseq.criterions import register_criterion
from fairseq.criterions.sentence_prediction import SentencePredictionConfig, SentencePredictionCriterion
from fairseq.logging import metrics
from fairseq.logging.meters import MetersDict
from omegaconf import DictConfig
from torch import Tensor, nn

from embinit_fairseq.errors import DataError, OptionError

# ---- The metrics of GLUE over a whole validation set; numpy only ----------------------------------------------------
# Letters: K classes; C the (K, K) counts, C[i, j] examples of class i that were taken for class j. Correlations are
# between two vectors (N,). All results are fractions: 1.0 is perfect.


def accuracy(counts: np.ndarray) -> float:
    """Share of the diagonal of C; nan for no examples."""
    total = float(np.sum(counts))
    return float(np.trace(counts)) / total if total else math.nan


def matthews(counts: np.ndarray) -> float:
    """Matthews' correlation of C, for K > 2 the R_K statistic (Gorodkin 2004, eq. 8); 0 if one side is constant."""
    counts = np.asarray(counts, dtype=np.float64)
    total, right = counts.sum(), np.trace(counts)
    true, predicted = counts.sum(axis=1), counts.sum(axis=0)
    spread = math.sqrt(total**2 - true @ true) * math.sqrt(total**2 - predicted @ predicted)
    return float((right * total - true @ predicted) / spread) if spread else 0.0


def f1(counts: np.ndarray) -> float:
    """F1 of class 1 of a (2, 2) C; 0 if that class neither occurs nor is predicted."""
    hits, errors = float(counts[1][1]), float(counts[0][1] + counts[1][0])
    return 2 * hits / (2 * hits + errors) if hits or errors else 0.0


def accuracy_and_f1(counts: np.ndarray) -> float:
    """The mean of the two, by which GLUE ranks MRPC and QQP."""
    return (accuracy(counts) + f1(counts)) / 2


def class_f1(counts: np.ndarray) -> np.ndarray:
    """(K,) F1 of each class of C; 0 for one that neither occurs nor is predicted."""
    counts = np.asarray(counts, dtype=np.float64)
    both = counts.sum(axis=0) + counts.sum(axis=1)
    return 2 * np.diag(counts) / np.where(both > 0, both, 1)


def macro_f1(counts: np.ndarray) -> float:
    """The mean of the classes' F1, each as heavy as the others."""
    return float(class_f1(counts).mean())


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Correlation of two vectors (N,); nan if one of them is constant or not finite."""
    x, y = (np.asarray(values, dtype=np.float64) for values in (x, y))
    # asked of the values themselves: the deviations of a constant from its rounded mean need not be 0
    if len(x) < 2 or not all(np.isfinite(values).all() and np.ptp(values) > 0 for values in (x, y)):
        return math.nan
    x, y = (values - values.mean() for values in (x, y))
    x, y = (values / np.abs(values).max() for values in (x, y))  # squares must neither overflow nor vanish
    return float(np.clip(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)), -1.0, 1.0))


def average_ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1 of a vector (N,); equal values share the mean of their ranks."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(sizes) - (sizes - 1) / 2)[group]


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Pearson's correlation of the ranks, with ties; nan if one vector is constant or holds a nan."""
    if np.isnan(x).any() or np.isnan(y).any():
        return math.nan
    return pearson(average_ranks(x), average_ranks(y))


def pearson_and_spearman(x: np.ndarray, y: np.ndarray) -> float:
    """The mean of the two, by which GLUE ranks STS-B."""
    return (pearson(x, y) + spearman(x, y)) / 2


# ----------------------------------------------------------------------------------------------------------------------

CLASSIFICATION = {
    "accuracy": accuracy,
    "mcc": matthews,
    "f1": f1,
    "acc_and_f1": accuracy_and_f1,
    "macro_f1": macro_f1,
}
REGRESSION = {
    "pearson": pearson,
    "spearman": spearman,
    "pearson_and_spearman": pearson_and_spearman,
}
#: no number but C itself, as a list of rows
CONFUSION = "confusion"
METRICS = (*CLASSIFICATION, *REGRESSION, CONFUSION)
NEED_POSITIVE = ("f1", "acc_and_f1")


@dataclass
class SentencePredictionMetricsConfig(SentencePredictionConfig):
    """The stock options and the choice of metrics."""

    glue_metrics: Optional[List[str]] = field(  # noqa: UP006
        default=None,
        metadata={
            "help": "logged after each validation and usable as --best-checkpoint-metric (default: accuracy; with "
            f"--regression-target pearson spearman). For classes: {', '.join(CLASSIFICATION)}, and {CONFUSION}, "
            f"counts with a row for each true class; for numbers: {', '.join(REGRESSION)}"
        },
    )
    positive_label: str = field(
        default="1", metadata={"help": "the label whose F1 is meant (1: paraphrase in MRPC, duplicate in QQP)"}
    )


@register_criterion("sentence_prediction_metrics", dataclass=SentencePredictionMetricsConfig)
class SentencePredictionMetrics(SentencePredictionCriterion):
    """For `--task sentence_prediction` or another task with `label_dictionary` and `cfg.num_classes`."""

    def __init__(self, cfg: SentencePredictionMetricsConfig, task: Any) -> None:
        super().__init__(cfg, task)
        defaults = ["pearson", "spearman"] if cfg.regression_target else ["accuracy"]
        self.glue_metrics = list(cfg.glue_metrics or defaults)
        self.root = cfg._get_parent() if isinstance(cfg, DictConfig) else None
        check_metrics(self.glue_metrics, cfg.regression_target, task.cfg.num_classes)
        if self.root is not None:
            check_best_checkpoint(self.root.checkpoint, self.glue_metrics)
        self.positive_class = None
        if any(name in NEED_POSITIVE for name in self.glue_metrics):
            self.positive_class = class_of(cfg.positive_label, task.label_dictionary, task.cfg.num_classes)

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """The options; several metrics are separated by blanks, which fairseq's dataclasses cannot express."""
        option = SentencePredictionMetricsConfig.__dataclass_fields__["glue_metrics"]
        parser.add_argument(
            "--glue-metrics", nargs="+", choices=METRICS, metavar="METRIC", help=option.metadata["help"]
        )
        super().add_args(parser)  # leaves out what is there

    def forward(self, model: nn.Module, sample: dict[str, Any], reduce: bool = True) -> tuple[Tensor, int, dict]:
        """The stock (loss, sample size, logging output), in validation with each metric's sums as `_<metric>`.

        Raises DataError for a split without labels.
        """
        if "target" not in sample:
            files = "SPLIT.label, a number a line" if self.regression_target else "SPLIT.bin and SPLIT.idx"
            raise DataError(f"{self.task.cfg.data}/label has no labels for this split: expected {files}")
        with remembered_logits(model) as logits:
            loss, sample_size, logging_output = super().forward(model, sample, reduce)
        if not self.training:
            logging_output.pop("ncorrect", None)  # from it fairseq would log an accuracy rounded to 0.1 %
            sums = self.values(logits[0], sample) if self.regression_target else self.counts(logits[0], sample)
            logging_output.update({f"_{name}": sums for name in self.glue_metrics})
        return loss, sample_size, logging_output

    def counts(self, logits: Tensor, sample: dict[str, Any]) -> Tensor:
        """(K, K): examples of class i taken for class j. Of two classes, the positive one is the second."""
        classes = logits.shape[-1]
        flat = sample["target"].view(-1) * classes + logits.argmax(dim=-1)
        table = torch.bincount(flat, minlength=classes**2).view(classes, classes).double()
        return table.flip(0, 1) if self.positive_class == 0 else table

    def values(self, logits: Tensor, sample: dict[str, Any]) -> Tensor:
        """(3, N): prediction, target and 1 at the example's number, else 0. N: size of the validation set."""
        table = torch.zeros(3, self.validation_size(), dtype=torch.double, device=logits.device)
        predictions, targets = logits.view(-1).double(), sample["target"].view(-1).double()
        table[:, sample["id"]] = torch.stack([predictions, targets, torch.ones_like(targets)])
        return table

    def validation_size(self) -> int:
        """That of the largest set, since fairseq adds up the sums of all sets in a place that nobody reads."""
        sizes = {name: len(dataset) for name, dataset in self.task.datasets.items()}
        if self.root is not None and len(sizes) > 1:
            dataset = self.root.dataset
            if dataset.train_subset not in (dataset.valid_subset or "").split(","):
                sizes.pop(dataset.train_subset, None)
        return max(sizes.values())

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict[str, Any]]) -> None:
        """Log the stock values, and each metric as a function of its sums so far."""
        SentencePredictionCriterion.reduce_metrics(logging_outputs)
        for name in METRICS:
            key = f"_{name}"
            if any(key in log for log in logging_outputs):
                metrics.log_scalar_sum(key, sum(log[key] for log in logging_outputs if key in log))
                metrics.log_derived(name, functools.partial(percentage, name))


def percentage(name: str, meters: MetersDict) -> Any:
    """A metric of the sums in fairseq's meters, in percent with two digits, 0 where it is undefined; or the counts."""
    sums = meters[f"_{name}"].sum.cpu().numpy()
    if name == CONFUSION:
        return sums.astype(int).tolist()
    if name in CLASSIFICATION:
        value = CLASSIFICATION[name](sums)
    else:
        predictions, targets, times = sums[:, sums[2] > 0]
        value = REGRESSION[name](predictions / times, targets / times)
    return 0.0 if math.isnan(value) else round(100 * value, 2)


@contextlib.contextmanager
def remembered_logits(model: nn.Module) -> Iterator[list[Tensor]]:
    """A list that gets what the model returns first; the stock criterion keeps it to itself."""
    seen: list[Tensor] = []
    handle = model.register_forward_hook(lambda module, inputs, outputs: seen.append(outputs[0].detach()))
    try:
        yield seen
    finally:
        handle.remove()


def check_metrics(names: list[str], regression: bool, num_classes: int) -> None:
    """Raise OptionError for metrics that do not exist or do not fit the task."""
    of_classes = [*CLASSIFICATION, CONFUSION]
    known, other = (list(REGRESSION), of_classes) if regression else (of_classes, list(REGRESSION))
    for name in names:
        if name in other:
            remedy = "drop --regression-target" if regression else "it needs --regression-target"
            raise OptionError(f"--glue-metrics {name}: {remedy}, or choose among: {', '.join(known)}")
        if name not in known:
            raise OptionError(f"--glue-metrics {name}: not known; choose among: {', '.join(known)}")
        if name in NEED_POSITIVE and num_classes != 2:
            raise OptionError(
                f"--glue-metrics {name}: F1 is that of one class of two, but there are --num-classes {num_classes}; "
                "choose accuracy, mcc or macro_f1, which are defined for several classes"
            )
    if regression and num_classes != 1:
        raise OptionError(
            f"--num-classes {num_classes} with --regression-target: correlations are of one number, give 1"
        )


def check_best_checkpoint(checkpoint: DictConfig, names: list[str]) -> None:
    """Raise OptionError if the checkpoint to keep is to be chosen by a metric that is not logged, or wrongly."""
    best = checkpoint.best_checkpoint_metric
    if best == CONFUSION:
        raise OptionError(f"--best-checkpoint-metric {best} is no number: choose among {', '.join(CLASSIFICATION)}")
    if best in METRICS and best not in names:
        raise OptionError(
            f"--best-checkpoint-metric {best} is not computed: add it to --glue-metrics {' '.join(names)}"
        )
    if best in METRICS and not checkpoint.maximize_best_checkpoint_metric:
        raise OptionError(
            f"--best-checkpoint-metric {best} would keep the worst checkpoint: add --maximize-best-checkpoint-metric"
        )


def class_of(label: str, dictionary: Any, num_classes: int) -> int:
    """The class, from 0, of a label; raises OptionError if none of the first `num_classes` is spelled so."""
    labels = [dictionary[dictionary.nspecial + at] for at in range(num_classes)]
    if label not in labels:
        raise OptionError(
            f"--positive-label {label}: the labels are {', '.join(labels)}; name the one whose F1 is meant"
        )
    return labels.index(label)
