"""Options of all our models that are out of range, contradict each other or have no effect: refused by their flag."""

from __future__ import annotations

import pytest
import torch
from fairseq import checkpoint_utils
from tupe_models import SMALL, built, built_for_training, configuration, options_of, save_checkpoint, task_with

from embinit_fairseq.errors import OptionError
from embinit_fairseq.models.tupe import TupeModel
from embinit_fairseq.modules import attention_kernels

TASK_OF = {"embinit_classifier": "sentence_prediction", "tupe_transformer": "translation"}


def refused(arch, flags, message, tmp_path):
    with pytest.raises(OptionError, match=message):
        built_for_training(arch, *flags.split(), "--save-dir", tmp_path, task=TASK_OF.get(arch, "masked_lm"))


@pytest.mark.parametrize(
    ("arch", "flags", "message"),
    [
        ("tupe_tiny", "", "flex has no dropout of attention weights: add --attention-dropout 0"),
        (
            "electra_tiny",
            "--attention-dropout 0 --generator-attention-heads 8",
            "width 16 or more, these have 8",
        ),
    ],
)
def test_a_kernel_that_cannot_train_is_refused_before_a_training(arch, flags, message, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(attention_kernels, "_installed", lambda: ((2, 8), True))
    refused(arch, f"--attention-kernel flex {flags}", message, tmp_path)


@pytest.mark.parametrize("arch", ["tupe_tiny", "electra_tiny", "embinit_classifier", "tupe_transformer"])
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--encoder-layers 0", "--encoder-layers 0: must be at least 1"),
        ("--encoder-embed-dim 0", "--encoder-embed-dim 0: must be at least 1"),
        ("--encoder-embed-dim -8", "--encoder-embed-dim -8: must be at least 1"),
        ("--encoder-ffn-embed-dim 0", "--encoder-ffn-embed-dim 0: must be at least 1"),
        ("--encoder-attention-heads 0", "--encoder-attention-heads 0: must be at least 1"),
        ("--encoder-attention-heads 7", "--encoder-attention-heads 7 does not divide --encoder-embed-dim"),
        ("--dropout 1.5", "--dropout 1.5: must be from 0 to 1"),
        ("--dropout nan", "--dropout nan: must be from 0 to 1"),
        ("--attention-dropout -0.1", "--attention-dropout -0.1: must be from 0 to 1"),
        ("--activation-dropout 2", "--activation-dropout 2.0: must be from 0 to 1"),
    ],
)
def test_numbers_out_of_range(arch, flags, message, tmp_path):
    refused(arch, flags, message, tmp_path)


@pytest.mark.parametrize(
    ("arch", "flags", "message"),
    [
        ("tupe_tiny", "--max-positions 2", "--max-positions 2: must be at least 3"),
        ("embinit_classifier", "--max-positions 2", "--max-positions 2: must be at least 3"),
        ("tupe_transformer", "--max-source-positions 2", "--max-source-positions 2: must be at least 3"),
        ("tupe_transformer", "--max-target-positions 0", "--max-target-positions 0: must be at least 3"),
        ("tupe_transformer", "--decoder-layers 0", "--decoder-layers 0: must be at least 1"),
        ("tupe_transformer", "--decoder-attention-heads 5", "--decoder-attention-heads 5 does not .*-embed-dim 512"),
        ("tupe_tiny", "--pooler-dropout 1.01", "--pooler-dropout 1.01: must be from 0 to 1"),
        ("electra_tiny", "--generator-layers 0", "--generator-layers 0: must be at least 1"),
        ("electra_tiny", "--generator-embed-dim 0", "--generator-embed-dim 0: must be at least 1"),
        ("electra_tiny", "--generator-ffn-embed-dim -1", "--generator-ffn-embed-dim -1: must be at least 1"),
        ("electra_tiny", "--generator-attention-heads 3", "--generator-attention-heads 3 does not .*-embed-dim 64"),
        ("tupe_tiny", "--rel-pos --rel-pos-bins 0", "--rel-pos-bins 0 .* must be an even number"),
        ("tupe_tiny", "--rel-pos --rel-pos-bins 2", "--rel-pos-bins 2 .* at least 4"),
        ("tupe_tiny", "--rel-pos --rel-pos-bins 7", "--rel-pos-bins 7 .* must be an even number"),
        ("bert_r_tiny", "--rel-pos-bins 64 --max-rel-pos 16", "the distance more than 16"),
        ("tupe_transformer", "--rel-pos --rel-pos-bins 0", "--rel-pos-bins 0 .* must be an even number"),
        ("tupe_transformer", "--rel-pos --max-rel-pos 3", "--max-rel-pos 3: .* the distance more than"),
    ],
)
def test_numbers_out_of_range_of_single_models(arch, flags, message, tmp_path):
    refused(arch, flags, message, tmp_path)


def test_ranges_hold_without_fairseqs_parser():
    with pytest.raises(OptionError, match="--encoder-layers 0: must be at least 1"):
        built("tupe_tiny", "--encoder-layers", "0")


@pytest.mark.parametrize(
    ("arch", "flags", "message"),
    [
        ("bert_a_tiny", "--rel-pos", "--rel-pos belongs to the tupe_"),
        ("bert_r_base", "--rel-pos", "--rel-pos belongs to the tupe_"),
        ("bert_ad_tiny", "--tupe-tie-cls", "--tupe-tie-cls belongs to the tupe_"),
        ("bert_a_tiny", "--tupe-reset paper", "--tupe-reset paper has no effect here: it has nothing to reset"),
        ("tupe_tiny", "--tupe-reset paper", "--tupe-reset paper has no effect here: .* goes with tupe_. --rel-pos"),
        ("tupe_tiny", "--rel-pos --tupe-reset paper --tupe-tie-cls", "--tupe-reset paper has no effect here"),
        ("tupe_tiny", "--rel-pos-bins 16", "--rel-pos-bins 16 has no effect here: it needs relative positions"),
        ("bert_ad_tiny", "--max-rel-pos 64", "--max-rel-pos 64 has no effect here: it needs relative positions"),
        ("electra_tiny", "--rel-pos-bins 16", "--rel-pos-bins 16 has no effect here: it needs relative positions"),
        ("tupe_transformer", "--rel-pos-bins 16", "--rel-pos-bins 16 has no effect here: it needs --rel-pos"),
        ("tupe_transformer", "--max-rel-pos 64", "--max-rel-pos 64 has no effect here: it needs --rel-pos"),
        (
            "embinit_classifier",
            "--encoder-learned-pos --no-token-positional-embeddings",
            "--encoder-learned-pos has no effect with --no-token-positional-embeddings",
        ),
    ],
)
def test_options_without_effect(arch, flags, message, tmp_path):
    refused(arch, flags, message, tmp_path)


@pytest.mark.parametrize(
    ("arch", "flags"),
    [
        ("tupe_tiny", "--rel-pos --rel-pos-bins 16 --max-rel-pos 64 --tupe-reset paper"),
        ("tupe_tiny", "--rel-pos --rel-pos-bins 16 --tupe-tie-cls"),
        ("bert_r_tiny", "--rel-pos-bins 16 --max-rel-pos 64"),
        ("bert_a_tiny", "--rel-pos-bins 32 --max-rel-pos 128 --tupe-reset official"),
        ("electra_tupe_tiny", "--rel-pos-bins 16 --generator-attention-heads 2"),
        ("tupe_transformer", "--rel-pos --rel-pos-bins 16 --max-rel-pos 64"),
    ],
)
def test_options_with_effect_and_defaults(arch, flags, tmp_path):
    built_for_training(arch, *flags.split(), "--save-dir", tmp_path, task=TASK_OF.get(arch, "masked_lm"))


def test_a_checkpoint_whose_options_have_no_effect_goes_on_being_loaded(tmp_path):
    """They were accepted once."""
    flags = [*SMALL, "--max-positions", "10", "--rel-pos-bins", "16", "--tupe-reset", "paper"]
    weights = built("tupe_tiny", *flags).state_dict()
    (tmp_path / "dict.txt").write_text("".join(f"w{number} 1\n" for number in range(7)))
    cfg = options_of("tupe_tiny", *flags)
    save_checkpoint(tmp_path / "old.pt", cfg, weights, _name="masked_lm", data=str(tmp_path), tokens_per_sample=10)
    (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task([str(tmp_path / "old.pt")])
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_blocks_longer_than_the_model_are_refused_before_they_are_dropped():
    cfg = configuration("tupe_tiny", *SMALL)
    TupeModel.build_model(cfg, task_with(12, tokens_per_sample=128))
    with pytest.raises(OptionError, match=r"--tokens-per-sample 129 is more than --max-positions 128.*dropped"):
        TupeModel.build_model(cfg, task_with(12, tokens_per_sample=129))
