"""fairseq-generate --retain-dropout: dropout where training has it, in the full forward and in incremental decoding."""

from __future__ import annotations

import random
import re

import duo_reference
import pytest
import torch
import tupe_transformer_reference

pytest.importorskip("fairseq", reason="these are architectures of fairseq; install it with scripts/setup.sh")
from decoding import SOURCES, Decoding, assert_steps_are_equal, outputs, searched
from fairseq.dataclass.configs import FairseqConfig, GenerationConfig
from omegaconf import OmegaConf
from tupe_reference import visible_dropout
from tupe_transformer_reference import EOS, batch_of

from embinit_fairseq.errors import OptionError

PREVIOUS = [[EOS, 6, 9, 4], [EOS, 5, 5, 8], [EOS, 7, 3, 11]]
RATES = {"dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.3}
each_model = pytest.mark.parametrize("family", [duo_reference, tupe_transformer_reference], ids=["duo", "tupe"])


def logits_of(model):
    return model(batch_of(SOURCES), None, batch_of(PREVIOUS))[0]


@each_model
@torch.no_grad()
def test_it_drops_what_training_drops(family, monkeypatch):
    visible_dropout(monkeypatch)
    model = family.randomised(**RATES, attention_kernel="eager").train()
    expected = logits_of(model)
    assert not torch.allclose(logits_of(model.eval()), expected)
    model.make_generation_fast_(retain_dropout=True)
    model.eval()  # as the search does
    torch.testing.assert_close(logits_of(model), expected, rtol=1e-12, atol=1e-12)


@each_model
@torch.no_grad()
def test_incremental_equals_full(family, monkeypatch):
    visible_dropout(monkeypatch)
    model = family.randomised(**RATES, attention_kernel="eager")
    model.make_generation_fast_(retain_dropout=True)
    assert_steps_are_equal(Decoding(model), random.Random(1), 8, 1e-12)


@pytest.mark.parametrize("names", ["DuoEncoderLayer,DuoCrossAttention", ["DuoEncoderLayer", "DuoCrossAttention"]])
def test_only_the_modules_that_are_named(names):
    model = duo_reference.randomised(**RATES)
    model.make_generation_fast_(retain_dropout=True, retain_dropout_modules=names)
    on = {name for name, module in model.named_modules() if module.training}
    layers = [f"encoder.layers.{n}.{dropout}" for n in (0, 1) for dropout in ("dropout", "activation_dropout")]
    assert on == {*layers, "decoder.layers.0.encoder_attn", "decoder.layers.1.encoder_attn"}


@pytest.mark.parametrize("names", ["SelfAttention , CrossAttention", "SelfAttention,CrossAttention,"])
def test_names_are_whole_names_whatever_is_between_them(names):
    model = tupe_transformer_reference.randomised(**RATES)
    model.make_generation_fast_(retain_dropout=True, retain_dropout_modules=names)
    on = {type(module).__name__ for module in model.modules() if module.training}
    assert on == {"SelfAttention", "CrossAttention"}  # not DecoderSelfAttention


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retain_dropout": True, "retain_dropout_modules": ""}, "names none; there are DuoCrossAttention, "),
        ({"retain_dropout": True, "retain_dropout_modules": []}, "names none; there are DuoCrossAttention, "),
        ({"retain_dropout_modules": ["DuoEmbedding"]}, "means nothing without --retain-dropout: give both, or neither"),
    ],
)
def test_nothing_to_be_retained(options, message):
    with pytest.raises(OptionError, match=f"--retain-dropout-modules {message}"):
        duo_reference.randomised(**RATES).make_generation_fast_(**options)


def generation(**options):
    """The part of fairseq's configuration that `prepare_for_inference_` reads."""
    return OmegaConf.structured(FairseqConfig(generation=GenerationConfig(**options)))


def test_modules_without_the_flag_are_refused_on_the_command_line():
    model = duo_reference.randomised(**RATES)
    with pytest.raises(OptionError, match="--retain-dropout-modules means nothing without --retain-dropout"):
        model.prepare_for_inference_(generation(retain_dropout_modules="DuoEncoderLayer"))


@pytest.mark.parametrize(
    ("options", "classes"),
    [
        ({}, set()),
        ({"retain_dropout": True, "retain_dropout_modules": "DuoCrossAttention"}, {"DuoCrossAttention"}),
    ],
)
def test_the_command_line_reaches_the_model(options, classes):
    model = duo_reference.randomised(**RATES)
    model.prepare_for_inference_(generation(**options))
    assert {type(module).__name__ for module in model.modules() if module.training} == classes


def test_a_module_that_does_not_exist():
    model = duo_reference.randomised(**RATES)
    known = "DuoCrossAttention, DuoDecoderLayer, DuoEmbedding, DuoEncoderLayer, DuoSelfAttention"
    message = f"--retain-dropout-modules TransformerLayer: no module with dropout is called so; there are {known}"
    with pytest.raises(OptionError, match=message):
        model.make_generation_fast_(retain_dropout=True, retain_dropout_modules=["TransformerLayer"])


@each_model
@torch.no_grad()
def test_without_the_option_nothing_drops(family):
    model = family.randomised(**RATES)
    expected = logits_of(model)
    model.make_generation_fast_()
    assert not any(module.training for module in model.modules())
    torch.testing.assert_close(logits_of(model), expected, rtol=1e-12, atol=1e-12)


@each_model
@torch.no_grad()
def test_without_the_option_no_step_of_decoding_drops(family):
    model = family.randomised(**RATES, attention_kernel="eager")
    model.make_generation_fast_()
    assert_steps_are_equal(Decoding(model), random.Random(1), 8, 1e-12)


@each_model
def test_searches_differ_by_the_seed_alone(family):
    model = family.randomised(**{**RATES, "dropout": 0.5})
    model.make_generation_fast_(retain_dropout=True)

    def search(seed):
        torch.manual_seed(seed)
        return outputs(searched(model, SOURCES))

    assert search(1) == search(1)
    assert len({str(search(seed)) for seed in range(4)}) > 1


def test_flex_cannot_drop():
    model = tupe_transformer_reference.randomised(**RATES, attention_kernel="flex")
    model.make_generation_fast_(retain_dropout=True)
    remedy = re.escape("choose auto (for a trained model: --model-overrides \"{'attention_kernel': 'auto'}\")")
    with pytest.raises(OptionError, match=remedy), torch.no_grad():
        logits_of(model)
