"""GLUE's metrics against their definitions, written out for one example after the other."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embinit_fairseq.criterions import sentence_prediction_metrics as glue_metrics


def counts_of(true, predicted, classes):
    counts = np.zeros((classes, classes))
    for i, j in zip(true, predicted):
        counts[i, j] += 1
    return counts


def plain_covariance(a, b):
    """Sum over the columns of the covariances of two lists of vectors."""
    n, total = len(a), 0.0
    for k in range(len(a[0])):
        mean_a, mean_b = sum(row[k] for row in a) / n, sum(row[k] for row in b) / n
        total += sum((x[k] - mean_a) * (y[k] - mean_b) for x, y in zip(a, b))
    return total


def plain_pearson(x, y):
    x, y = [[value] for value in x], [[value] for value in y]
    return plain_covariance(x, y) / math.sqrt(plain_covariance(x, x) * plain_covariance(y, y))


def plain_ranks(values):
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2 for value in values
    ]


labels = st.integers(2, 5).flatmap(
    lambda classes: st.tuples(
        st.just(classes), st.lists(st.tuples(*[st.integers(0, classes - 1)] * 2), min_size=1, max_size=40)
    )
)


@given(labels)
@settings(deadline=None)
def test_matthews_is_the_correlation_of_class_indicators(drawn):
    """Gorodkin 2004, eq. 4: for any number of classes."""
    classes, pairs = drawn
    true, predicted = zip(*pairs)
    x, y = ([[float(label == k) for k in range(classes)] for label in side] for side in (true, predicted))
    spread = plain_covariance(x, x) * plain_covariance(y, y)
    expected = plain_covariance(x, y) / math.sqrt(spread) if len(set(true)) > 1 and len(set(predicted)) > 1 else 0.0
    assert glue_metrics.matthews(counts_of(true, predicted, classes)) == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
@settings(deadline=None)
def test_two_classes_by_their_four_counts(pairs):
    tp, tn = sum(t and p for t, p in pairs), sum(not t and not p for t, p in pairs)
    fp, fn = sum(p and not t for t, p in pairs), sum(t and not p for t, p in pairs)
    counts = counts_of(*zip(*[(int(t), int(p)) for t, p in pairs]), 2)
    assert glue_metrics.accuracy(counts) == pytest.approx((tp + tn) / len(pairs))
    product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    assert glue_metrics.matthews(counts) == pytest.approx(
        (tp * tn - fp * fn) / math.sqrt(product) if product else 0.0, abs=1e-12
    )
    precision, recall = tp / (tp + fp) if tp + fp else 0.0, tp / (tp + fn) if tp + fn else 0.0
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    assert glue_metrics.f1(counts) == pytest.approx(f1)
    assert glue_metrics.accuracy_and_f1(counts) == pytest.approx((f1 + (tp + tn) / len(pairs)) / 2)


#: few distinct values: ties are frequent
numbers = st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=2, max_size=30).filter(
    lambda pairs: all(len(set(side)) > 1 for side in zip(*pairs))
)


@given(numbers)
@settings(deadline=None)
def test_correlations_with_ties(pairs):
    x, y = map(list, zip(*pairs))
    pearson, spearman = plain_pearson(x, y), plain_pearson(plain_ranks(x), plain_ranks(y))
    assert glue_metrics.average_ranks(np.array(x)).tolist() == plain_ranks(x)
    assert glue_metrics.pearson(x, y) == pytest.approx(pearson, abs=1e-12)
    assert glue_metrics.spearman(x, y) == pytest.approx(spearman, abs=1e-12)
    assert glue_metrics.pearson_and_spearman(x, y) == pytest.approx((pearson + spearman) / 2, abs=1e-12)


def test_correlations_of_values_far_from_zero_or_tiny():
    x, y = np.array([1.0, 2.0, 4.0, 3.0]), np.array([2.0, 1.0, 5.0, 4.0])
    expected = plain_pearson(x, y)
    for scale, shift in ((1.0, 1e6), (1e-200, 0.0), (1e200, 0.0), (-1e-3, 7.0)):
        assert glue_metrics.pearson(x * scale + shift, y) == pytest.approx(math.copysign(1, scale) * expected, abs=1e-9)


def test_what_is_undefined():
    assert glue_metrics.matthews(counts_of([0, 1, 1], [1, 1, 1], 2)) == 0
    assert glue_metrics.f1(counts_of([0, 0], [0, 0], 2)) == 0
    assert math.isnan(glue_metrics.accuracy(np.zeros((2, 2))))
    # 0.1 + 0.1 + 0.1 != 0.3: the mean of a constant need not be that constant
    for x in ([0.1, 0.1, 0.1], [1.0, math.nan, 2.0], [1.0, math.inf, 2.0]):
        assert math.isnan(glue_metrics.pearson(x, [1.0, 2.0, 3.0]))
        assert math.isnan(glue_metrics.pearson([1.0, 2.0, 3.0], x))
    for x in ([0.1, 0.1, 0.1], [1.0, math.nan, 2.0]):
        assert math.isnan(glue_metrics.spearman(x, [1.0, 2.0, 3.0]))
    assert math.isnan(glue_metrics.pearson([1.0], [2.0]))


def test_examples_that_were_validated_twice_or_never():
    """Predictions and targets are sums over the times an example was seen: twice, once, never, once."""
    seen = torch.tensor([(2.0, 2.0, 0.0, 4.0), (0.0, 3.0, 0.0, 2.0), (2, 1, 0, 1)], dtype=torch.float64)
    x, y = [1.0, 2.0, 4.0], [0.0, 3.0, 2.0]
    for name, expected in (("pearson", plain_pearson(x, y)), ("spearman", 1 - 6 * 2 / (3 * 8))):
        assert glue_metrics.percentage(name, {f"_{name}": SimpleNamespace(sum=seen)}) == round(100 * expected, 2)
