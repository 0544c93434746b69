"""State of a trained tupe_* model loaded into another: heads that come and go, positions that do not fit."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("fairseq", reason="these are architectures of fairseq; install it with scripts/setup.sh")
from tupe_models import small

from embinit_fairseq.errors import OptionError


def trained_state(arch="tupe_tiny", flags="", num_classes=None):
    model = small(arch, flags)
    if num_classes:
        model.register_classification_head("h", num_classes=num_classes)
    return {name: value + 1 for name, value in model.state_dict().items()}


def test_checkpoint_without_a_head_leaves_the_new_head_as_it_is():
    model = small("tupe_tiny")
    model.register_classification_head("h", num_classes=2)
    before = model.classification_heads["h"].dense.weight.clone()
    state = trained_state()
    model.load_state_dict(state)
    assert torch.equal(model.classification_heads["h"].dense.weight, before)
    assert torch.equal(model.encoder.lm_head.dense.weight, state["encoder.lm_head.dense.weight"])


def test_heads_of_a_checkpoint_are_made_if_they_are_missing():
    model, state = small("tupe_tiny"), trained_state(num_classes=3)
    model.bfloat16().load_state_dict(state)
    head = model.classification_heads["h"]
    assert head.out_proj.weight.dtype == torch.bfloat16
    assert torch.equal(head.out_proj.weight, state["classification_heads.h.out_proj.weight"].bfloat16())


def test_the_number_of_classes_asked_for_wins_over_that_of_the_checkpoint(caplog):
    model, state = small("tupe_tiny"), trained_state(num_classes=3)
    model.register_classification_head("h", num_classes=2)
    before = model.classification_heads["h"].out_proj.weight.clone()
    model.load_state_dict(state)
    assert torch.equal(model.classification_heads["h"].out_proj.weight, before)
    assert "the checkpoint's head 'h' has 3 classes, the model's 2: the model's is kept" in caplog.text


@pytest.mark.parametrize(
    ("theirs", "ours", "message"),
    [
        ("", "--max-positions 12", "the checkpoint has 10 positions, the model 12: give --max-positions 10"),
        ("", "--max-positions 9", "give --max-positions 10, or --tupe-tie-cls as at its training"),
        ("", "--tupe-tie-cls", "--tupe-tie-cls as at its training"),
        ("--rel-pos", "", "the checkpoint has relative positions: add --rel-pos"),
        ("", "--rel-pos", "the checkpoint has no relative positions: drop --rel-pos"),
        ("--rel-pos", "--rel-pos --tupe-reset paper", "has 33 rows, the model's 32: give --rel-pos-bins, --tupe-reset"),
    ],
)
def test_a_checkpoint_of_other_positions_is_refused_with_the_flag_to_give(theirs, ours, message):
    model = small("tupe_tiny", ours)
    with pytest.raises(OptionError, match=message):
        model.load_state_dict(trained_state(flags=theirs))
