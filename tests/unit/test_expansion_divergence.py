"""Numbers of `--verify`. Oracle: KL by its definition, over both distributions, in double precision."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embinit_fairseq.expand.evaluation import divergence, histogram, rounded_bound, summary

LOGITS = st.lists(st.floats(-80, 80), min_size=1, max_size=6)


@given(old=LOGITS, new=LOGITS)
@settings(max_examples=200, deadline=None)
def test_the_identity_is_the_divergence(old, new):
    old, new = np.array(old), np.array(new)
    log_p = old - np.logaddexp.reduce(old)
    log_q = old - np.logaddexp.reduce(np.concatenate([old, new]))
    expected = float((np.exp(log_p) * (log_p - log_q)).sum())
    found = float(divergence(torch.from_numpy(old)[None], torch.from_numpy(new)[None]))
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)
    share = np.exp(new - np.logaddexp.reduce(np.concatenate([old, new]))).sum()
    assert -math.expm1(-found) == pytest.approx(share, rel=1e-9, abs=1e-12)


def test_small_divergences_of_many_words_are_exact():
    """log(1 + 1 / 250,000), where 1 + x would lose half of the digits in single precision."""
    old, new = torch.full((1, 250_000), -20.0), torch.full((1, 1), -20.0)
    assert float(divergence(old, new)) == pytest.approx(math.log1p(1 / 250_000), rel=1e-12)


def test_rounding_moves_the_bound_a_little():
    bound = math.log(1 + 10 / 32_000)
    single, half = (rounded_bound(bound, 20.0, torch.finfo(dtype).eps) for dtype in (torch.float32, torch.float16))
    assert bound < single < 1.001 * bound
    assert single < half < 1.1 * bound
    assert rounded_bound(bound, 0.0, 0.0) == pytest.approx(bound * 1.0001, rel=1e-3)


def test_summaries():
    kl = np.array([0.0, 0.1, 0.2, 0.3])
    found = summary(kl, 0.25, 0.26)
    assert (found["mean"], found["max"], found["q50"]) == pytest.approx((0.15, 0.3, 0.15))
    assert found["new_words_probability"] == pytest.approx(sum(1 - math.exp(-value) for value in kl) / 4)
    assert (found["bound"], found["holds"]) == (0.25, False)
    assert summary(kl, 0.25, 0.31)["holds"]
    assert "holds" not in summary(kl, None, None)


def test_histograms():
    found = histogram(np.array([0.0, 0.1, 0.19, 0.2]), bins=2)
    assert found["counts"] == [1, 3]
    assert found["edges"] == pytest.approx([0.0, 0.1, 0.2])
    assert sum(histogram(np.zeros(5))["counts"]) == 5
