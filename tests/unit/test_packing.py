"""Tokens without padding: which ones, in which order, and what it saves."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_encoders import BOS, FFN, C, encoder, padded
from torch.utils.flop_counter import FlopCounterMode

from embinit_fairseq.modules.packing import Packing, packing_of

masks = st.integers(1, 7).flatmap(
    lambda length: st.lists(st.lists(st.booleans(), min_size=length, max_size=length), min_size=1, max_size=5)
)


@settings(deadline=None, max_examples=50)
@given(masks)
def test_packing_and_spreading(rows):
    padding_mask = torch.tensor(rows)
    x = torch.randn(*padding_mask.shape, 3, dtype=torch.float64, requires_grad=True)
    packing = Packing(padding_mask)
    packed = packing.pack(x)
    assert torch.equal(packed, x[~padding_mask])
    spread = packing.spread(packed)
    assert torch.equal(spread, x.masked_fill(padding_mask.unsqueeze(-1), 0.0))
    weights = torch.randn_like(x)
    (spread * weights).sum().backward()
    assert torch.equal(x.grad, weights.masked_fill(padding_mask.unsqueeze(-1), 0.0))


@pytest.mark.parametrize(
    ("padding", "packed"), [(0, False), (3, False), (4, True), (40, True)], ids=["none", "few", "1/16", "many"]
)
def test_only_where_it_saves_something(padding, packed):
    padding_mask = torch.zeros(4, 16, dtype=torch.bool)
    for at in range(padding):
        padding_mask[at % 4, 15 - at // 4] = True
    assert (packing_of(padding_mask, 64 - padding) is not None) == packed


def test_no_mask_no_packing():
    assert packing_of(None, 10) is None


@pytest.mark.parametrize("training", [False, True])
def test_linear_maps_take_the_tokens_alone(monkeypatch, training):
    """Of 4 sentences with 2, 2, 2 and 8 tokens: 14 tokens, not 32. All else is as before."""
    sentences, layers = [[BOS, 2]] * 3 + [[BOS, 4, 5, 6, 7, 8, 9, 2]], 2
    module = encoder("tupe_a", layers, attention_kernel="eager").train(training)
    module.requires_grad_(training)  # for no gradients: under no_grad the counter does not work

    def products():
        with FlopCounterMode(display=False) as counted:
            module(padded(sentences))
        return counted.get_total_flops()

    packed = products()
    monkeypatch.setattr("embinit_fairseq.modules.packing.WORTHWHILE", 2)
    assert products() - packed == layers * 2 * (32 - 14) * (4 * C * C + 2 * C * FFN)
