"""Draws from a generator: distribution, reproducibility, the symbol that is never drawn; the detector's head."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("fairseq", reason="the noise is made by a criterion of fairseq; install it with scripts/setup.sh")
from embinit_fairseq.criterions.electra import uniform_noise
from embinit_fairseq.modules.heads import ReplacedTokenHead, draw_tokens

LAST = 1 - 2**-24  # the largest single-precision number under 1
LOGITS = torch.tensor([0.3, 5.0, -1.0, 1.2, 0.0, -2.5])
NEVER = 1


def probabilities_of(logits):
    """exp(x) / sum of exp, without the symbol that is never drawn."""
    weights = np.exp(logits.double().numpy())
    weights[NEVER] = 0
    return weights / weights.sum()


def draws(noise, logits=LOGITS):
    return draw_tokens(logits.expand(len(noise), -1), noise, NEVER)


def test_evenly_spaced_noise_gives_every_token_its_share():
    size = 100_000
    noise = (torch.arange(size, dtype=torch.float64) + 0.5) / size
    shares = torch.bincount(draws(noise), minlength=6).numpy() / size
    np.testing.assert_allclose(shares, probabilities_of(LOGITS), atol=1.1 / size)
    assert shares[NEVER] == 0


@given(st.lists(st.floats(-30, 30), min_size=3, max_size=9), st.sampled_from([0.0, 1e-7, 0.25, 0.5, LAST]))
def test_what_has_no_probability_is_not_drawn(logits, noise):
    logits = torch.tensor(logits)
    logits[-1] = -torch.inf
    drawn = int(draw_tokens(logits.unsqueeze(0), torch.tensor([noise]), NEVER))
    assert drawn not in (NEVER, len(logits) - 1)


def test_a_certain_padding_is_not_drawn_either():
    logits = torch.zeros(5, 4).index_fill(1, torch.tensor([NEVER]), 1e4)
    assert draw_tokens(logits, torch.tensor([0.0, 0.2, 0.4, 0.8, LAST]), NEVER).tolist() == [0, 0, 2, 3, 3]
    assert logits[0].tolist() == [0, 1e4, 0, 0]  # the caller's logits are as they were


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_sums_in_single_precision(dtype):
    """In half precision a sum of 3,000 equal shares would stop growing half way."""
    logits, noise = torch.zeros(4, 3001, dtype=dtype), torch.tensor([0.1, 0.5, 0.9, LAST])
    assert draw_tokens(logits, noise, NEVER).tolist() == [301, 1501, 2701, 3000]


def test_draws_of_nothing_and_without_gradient():
    assert draw_tokens(torch.zeros(0, 6), torch.zeros(0), NEVER).shape == (0,)
    assert not draws(torch.rand(3), torch.zeros(3, 6, requires_grad=True)).requires_grad


def test_noise_depends_on_seed_update_and_sentence_and_on_nothing_else():
    noise = uniform_noise(1, 2, [3, 4], 5)
    assert noise.shape == (2, 5)
    assert noise.dtype == torch.float32
    assert torch.equal(noise[1:], uniform_noise(1, 2, [4], 9)[:, :5])  # neighbours and padding change nothing
    others = [uniform_noise(2, 2, [3], 5), uniform_noise(1, 3, [3], 5), uniform_noise(1, 2, [5], 5), noise[1:]]
    assert all(not torch.isclose(noise[0], other).any() for other in others)
    assert uniform_noise(-1, 0, [0], 1).shape == (1, 1)


def test_global_random_states_are_neither_used_nor_disturbed():
    states = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        states.append((uniform_noise(1, 2, [3], 4), torch.rand(1), np.random.rand(), random.random()))
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    assert torch.equal(states[0][0], states[1][0])
    assert states[1][1:] == (torch.rand(1), np.random.rand(), random.random())


def test_the_head_is_a_layer_and_a_number():
    head, x = ReplacedTokenHead(4, "relu"), torch.randn(2, 3, 4)
    w = head.state_dict()
    hidden = (x @ w["dense.weight"].T + w["dense.bias"]).clamp(min=0)
    expected = (hidden * w["out_proj.weight"][0]).sum(-1) + w["out_proj.bias"]
    torch.testing.assert_close(head(x), expected)
    assert head(x).shape == (2, 3)
