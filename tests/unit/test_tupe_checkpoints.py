"""State of a trained tupe_* model loaded into another: heads that come and go, options that do not fit."""

from __future__ import annotations

import logging

import pytest
import torch

pytest.importorskip("fairseq", reason="these are architectures of fairseq; install it with scripts/setup.sh")
from electra_models import model_for
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


def test_a_model_for_a_task_that_does_not_mask_leaves_the_language_model_head_out(caplog):
    model, state = small("tupe_tiny", masking=False), trained_state()
    assert model.encoder.lm_head is None
    with caplog.at_level(logging.INFO):
        model.load_state_dict(dict(state))
    assert "6 tensors of the pre-training are left out: language-model head" in caplog.text
    own = model.state_dict()
    assert set(state) - set(own) == {name for name in state if name.startswith("encoder.lm_head.")}
    assert all(torch.equal(value, state[name]) for name, value in own.items())
    caplog.clear()
    small("tupe_tiny", masking=False).load_state_dict(own)  # as a fine-tuned checkpoint has them
    assert "left out" not in caplog.text


@pytest.mark.parametrize("arch", ["tupe_tiny", "bert_a_tiny", "bert_r_tiny", "bert_ad_tiny"])
def test_fine_tuning_uses_every_parameter(arch):
    """So that several workers need no --find-unused-parameters."""
    model = small(arch, masking=False)
    model.register_classification_head("h", num_classes=2)
    model(torch.tensor([[0, 5, 6, 7, 2]]), classification_head_name="h")[0].sum().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_without_a_language_model_head_its_jobs_are_refused():
    model = small("tupe_tiny", masking=False)
    with pytest.raises(OptionError, match=r"no language-model head, which a fine-tuned one leaves behind.*masked_lm"):
        model(torch.tensor([[0, 5, 2]]))
    with pytest.raises(OptionError, match="has no language-model head, which fine-tuning leaves behind: continue pre-"):
        small("tupe_tiny").load_state_dict(model.state_dict())


@pytest.mark.parametrize(
    ("theirs", "ours", "message"),
    [
        ("", "--max-positions 12", "the checkpoint has 10 positions, the model 12: give --max-positions 10"),
        ("", "--max-positions 9", "give --max-positions 10, or --tupe-tie-cls as at its training"),
        ("", "--tupe-tie-cls", "--tupe-tie-cls as at its training"),
        ("--rel-pos", "", "the checkpoint has relative positions: add --rel-pos"),
        ("", "--rel-pos", "the checkpoint has no relative positions: drop --rel-pos"),
        ("--rel-pos", "--rel-pos --tupe-reset paper", "has 33 rows, the model's 32: give --rel-pos-bins, --tupe-reset"),
        ("--rel-pos", "--rel-pos --rel-pos-bins 16", "has 33 rows, the model's 17: give --rel-pos-bins, --tupe-reset"),
        ("--rel-pos", "--rel-pos --encoder-attention-heads 4", "2 attention heads, the model 4: give --encoder-att"),
        ("--embedding-normalize", "", "layer norm on the embeddings: add --embedding-normalize"),
        ("", "--embedding-normalize", "no layer norm on the embeddings: drop --embedding-normalize"),
        ("--encoder-normalize-before", "", "layer norm behind the last layer: add --encoder-normalize-before"),
        ("", "--encoder-normalize-before", "no layer norm behind the last layer: drop --encoder-normalize-before"),
        (
            "--encoder-layers 2",
            "",
            r"has encoder.sentence_encoder.layers.1.* \(and 11 more\): give --arch, the number of",
        ),
        ("--encoder-ffn-embed-dim 4", "", "fc1.weight is 4 x 8, the model's 6 x 8: give --arch and its sizes"),
        ("--encoder-embed-dim 16", "", "embed_tokens.weight is 12 x 16, the model's 12 x 8: give --arch and its sizes"),
        ("--position-encoding added", "", "has other positions than the model .*: give --arch or --position-encoding"),
        ("--position-encoding relative", "--position-encoding added", "has other positions than the model"),
        ("--rel-pos", "--position-encoding relative", "has other positions than the model"),
    ],
)
def test_weights_of_a_model_with_other_options_are_refused_with_the_flag_to_give(theirs, ours, message):
    model = small("tupe_tiny", ours)
    with pytest.raises(OptionError, match=message):
        model.load_state_dict(trained_state(flags=theirs))


def test_weights_for_another_dictionary_are_refused():
    with pytest.raises(OptionError, match=r"checkpoint has 12 symbols, the dictionary 13: use the dict.txt of"):
        small("tupe_tiny", symbols=13).load_state_dict(trained_state())


def test_the_generators_heads_are_named():
    options = {"position_encoding": "untied", "rel_pos": True}
    with pytest.raises(OptionError, match="has 3 attention heads, the model 2: give --generator-attention-heads 3"):
        model_for(**options, generator_attention_heads=2).load_state_dict(model_for(**options).state_dict())
