"""Frozen rows, also where the optimizer steps a single-precision copy of half-precision parameters."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from embinit_fairseq.errors import OptionError, SlotError
from embinit_fairseq.hooks.freeze import Freeze, apply_freezes, parse_freeze
from embinit_fairseq.hooks.slots import Slot

KNOWN = np.array([False, False, True, True, False])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("encoder", Freeze("encoder")),
        ("encoder:known", Freeze("encoder", known=True)),
        ("encoder:200", Freeze("encoder", until=200)),
        ("encoder_p:known:200", Freeze("encoder_p", known=True, until=200)),
    ],
)
def test_values_of_the_flag(text, expected):
    assert parse_freeze([text]) == [expected]
    assert str(expected) == text


@pytest.mark.parametrize("text", ["", ":known", "encoder:", "encoder:1.5", "encoder:200:known", "encoder:known:1:2"])
def test_other_values_are_refused(text):
    with pytest.raises(OptionError, match="SLOT:known"):
        parse_freeze([text])


class Half:
    """What fairseq's FP16Optimizer does: steps a single-precision copy, flat or not, and copies it back."""

    def __init__(self, params, flat):
        self.fp16_params = params
        if flat:
            self.fp32_params = {0: nn.Parameter(torch.cat([p.data.float().view(-1) for p in params]))}
        else:
            self.fp32_params = [nn.Parameter(p.data.float()) for p in params]

    def step(self):
        flat = isinstance(self.fp32_params, dict)
        offset = 0
        for at, p in enumerate(self.fp16_params):
            master = self.fp32_params[0].data[offset : offset + p.numel()] if flat else self.fp32_params[at].data
            master.mul_(0.9)  # decoupled weight decay
            master.sub_(0.1 * p.grad.float().reshape(master.shape))
            p.data.copy_(master.view_as(p))
            offset += p.numel()


class Single:
    def __init__(self, params):
        self.params = params

    def step(self):
        for p in self.params:
            p.data.mul_(0.9)
            p.data.sub_(0.1 * p.grad)


def prepare(dtype):
    torch.manual_seed(0)
    first, embedding = nn.Parameter(torch.randn(3, 2, dtype=dtype)), nn.Embedding(5, 4, padding_idx=1).to(dtype)
    slot = Slot("encoder", embedding, SimpleNamespace(), nn.Module())
    task = SimpleNamespace(optimizer_step=lambda optimizer, model, update_num: optimizer.step())
    return first, embedding, {"encoder": slot}, task


@pytest.mark.parametrize("kind", ["single", "flat", "list"])
def test_known_rows_stay_until_the_update_and_move_after_it(kind):
    dtype = torch.float32 if kind == "single" else torch.float16
    first, embedding, slots, task = prepare(dtype)
    assert apply_freezes([Freeze("encoder", True, 3)], slots, {"encoder": KNOWN}, task) == {
        "encoder": "encoder:known:3"
    }
    params = [first, embedding.weight]
    optimizer = Single(params) if kind == "single" else Half(params, kind == "flat")
    begin, began = embedding.weight.detach().clone(), first.detach().clone()
    masters = None
    for update in range(5):
        embedding.set_num_updates(update)  # fairseq calls it before each forward
        for p in params:
            p.grad = None
        (embedding(torch.tensor([0, 2, 3, 4])).sum() + first.sum()).backward()
        frozen = embedding.weight.grad[KNOWN]
        assert bool(frozen.any()) == (update >= 3)
        task.optimizer_step(optimizer, model=None, update_num=update)
        same = (embedding.weight.detach() == begin).all(1).numpy()
        assert same[KNOWN].all() == (update < 3)
        assert not same[[0, 4]].any()
        if update == 2 and kind != "single":
            masters = optimizer.fp32_params[0][6:].view(5, 4) if kind == "flat" else optimizer.fp32_params[1]
            assert torch.equal(masters[KNOWN], begin[KNOWN].float())  # no jump when they thaw
    assert not torch.equal(first.detach(), began)


def test_whole_tables_are_left_out_of_training():
    _, embedding, slots, task = prepare(torch.float32)
    apply_freezes([Freeze("encoder")], slots, {}, task)
    assert not embedding.weight.requires_grad


@pytest.mark.parametrize(
    ("freezes", "known", "error", "message"),
    [
        ([Freeze("decoder")], {}, SlotError, "no slot 'decoder'; it has: encoder"),
        ([Freeze("encoder", known=True)], {"encoder": None}, OptionError, "--embed-init-path encoder=PATH"),
        ([Freeze("encoder"), Freeze("encoder", until=3)], {}, OptionError, "named twice"),
    ],
)
def test_what_cannot_be_frozen_is_named(freezes, known, error, message):
    _, _, slots, task = prepare(torch.float32)
    with pytest.raises(error, match=message):
        apply_freezes(freezes, slots, known, task)
