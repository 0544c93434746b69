"""What is logged of a metric: the percentage of the sums so far, each branch of it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("fairseq", reason="this belongs to a criterion of fairseq; install it with scripts/setup.sh")
from embinit_fairseq.criterions.sentence_prediction_metrics import percentage


def of(name, *rows):
    return percentage(name, {f"_{name}": SimpleNamespace(sum=torch.tensor(rows, dtype=torch.float64))})


def test_classification_is_computed_from_counts():
    """Rows are true classes, columns predicted ones."""
    tp, fn, fp, tn = 5, 1, 2, 1
    matthews = (tp * tn - fp * fn) / ((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)) ** 0.5
    assert of("mcc", (tn, fp), (fn, tp)) == pytest.approx(100 * matthews, abs=0.005)
    assert of("mcc", (tn, fp), (fn, tp)) == round(100 * matthews, 2)


def test_regression_is_computed_from_means_of_what_was_seen():
    """Predictions and targets are sums over the times an example was seen: twice, once, never, once."""
    predictions, targets, times = (2.0, 2.0, 0.0, 4.0), (0.0, 3.0, 0.0, 2.0), (2, 1, 0, 1)
    x, y = (1.0, 2.0, 4.0), (0.0, 3.0, 2.0)  # without the one that was not seen
    mean_x, mean_y = sum(x) / 3, sum(y) / 3
    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y))
    pearson = covariance / (sum((a - mean_x) ** 2 for a in x) * sum((b - mean_y) ** 2 for b in y)) ** 0.5
    assert of("pearson", predictions, targets, times) == round(100 * pearson, 2)
    assert of("spearman", predictions, targets, times) == 50.0  # ranks 1 2 3 and 1 3 2: 1 - 6 * 2 / (3 * 8)


def test_what_is_undefined_is_zero_not_nan():
    """nan would end fairseq's search for the best checkpoint."""
    assert of("pearson", (1.0, 1.0, 1.0), (0.0, 3.0, 2.0), (1, 1, 1)) == 0.0
    assert of("spearman", (0.0, 3.0, 2.0), (1.0, 1.0, 1.0), (1, 1, 1)) == 0.0
