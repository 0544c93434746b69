"""A training that begins with a checkpoint of a model with other options is refused, and every flag is named."""

from __future__ import annotations

import functools
import re

import pytest
import torch
from tupe_models import built_for_training, options_of, save_checkpoint

from embinit_fairseq.errors import OptionError

TASK_OF = {"embinit_classifier": "sentence_prediction", "tupe_transformer": "translation"}
SIDE = "--encoder-embed-dim 8 --encoder-ffn-embed-dim 8 --encoder-layers 1 --encoder-attention-heads 1"
SIDES = f"{SIDE} {SIDE.replace('encoder', 'decoder')}"
START = ("--restore-file", "--finetune-from-model", "checkpoint_last.pt")


def saved(folder, arch, flags, name="checkpoint_last.pt"):
    """A checkpoint that holds no weights: only its options are looked at."""
    folder.mkdir(exist_ok=True)
    return save_checkpoint(folder / name, trained_with(arch, flags), {}, _name="masked_lm")


@functools.cache  # nothing takes longer here than fairseq's making of a configuration
def trained_with(arch, flags):
    return options_of(arch, *flags.split(), task=TASK_OF.get(arch, "masked_lm"))


def start(arch, flags, *where, task=None):
    return built_for_training(arch, *flags.split(), *where, task=task or TASK_OF.get(arch, "masked_lm"))


def start_with(how, arch, theirs, ours, tmp_path, **task):
    """Build a model that fairseq would load such a checkpoint over."""
    checkpoint = saved(tmp_path / "theirs", arch, theirs)
    if how == "checkpoint_last.pt":
        where = ["--save-dir", checkpoint.parent]
    else:
        where = [how, checkpoint, "--save-dir", tmp_path / "ours"]
    return start(arch, ours, *where, **task)


@pytest.mark.parametrize(
    ("arch", "theirs", "ours", "said"),
    [
        ("tupe_tiny", "--encoder-attention-heads 8", "", "--encoder-attention-heads 8 (here 4)"),
        ("tupe_tiny", "--embedding-normalize", "", "--embedding-normalize (here without)"),
        ("tupe_tiny", "", "--embedding-normalize", "no --embedding-normalize (here with it)"),
        ("tupe_tiny", "--encoder-normalize-before", "", "--encoder-normalize-before (here without)"),
        ("tupe_tiny", "--activation-fn relu", "", "--activation-fn relu (here gelu)"),
        ("tupe_tiny", "--rel-pos", "", "--rel-pos (here without)"),
        ("tupe_tiny", "--rel-pos --max-rel-pos 64", "--rel-pos", "--max-rel-pos 64 (here 128)"),
        ("bert_r_tiny", "--rel-pos-bins 16", "", "--rel-pos-bins 16 (here 32)"),
        ("tupe_tiny", "--rel-pos --tupe-reset paper", "--rel-pos", "--tupe-reset paper (here official)"),
        (  # tables of the same number of rows
            "tupe_tiny",
            "--tupe-tie-cls --max-positions 129",
            "",
            "--max-positions 129 (here 128), --tupe-tie-cls (here without)",
        ),
        ("tupe_tiny", "--encoder-layers 3 --encoder-ffn-embed-dim 8", "", "--encoder-ffn-embed-dim 8 (here 1024), "),
        ("electra_tiny", "--generator-attention-heads 2", "", "--generator-attention-heads 2 (here 1)"),
        ("electra_tupe_tiny", "--max-rel-pos 64", "", "--max-rel-pos 64 (here 128)"),
        (
            "embinit_classifier",
            "--encoder-embed-dim 300",
            "--encoder-embed-dim 300 --encoder-attention-heads 5",
            "10 (h",
        ),
        ("embinit_classifier", "--pooling cls", "", "--pooling cls (here mean)"),
        ("embinit_classifier", "--encoder-learned-pos", "", "--encoder-learned-pos (here without)"),
        ("embinit_classifier", "", "--no-scale-embedding", "no --no-scale-embedding (here with it)"),
        ("embinit_classifier", "", "--no-token-positional-embeddings", "no --no-token-positional-embeddings (here"),
        ("tupe_transformer", "--decoder-attention-heads 4", "", "--decoder-attention-heads 4 (here 8)"),
        ("tupe_transformer", "--activation-fn gelu", "", "--activation-fn gelu (here relu)"),
        ("tupe_transformer", "--decoder-normalize-before", "", "--decoder-normalize-before (here without)"),
        ("tupe_transformer", "--no-scale-embedding", "", "--no-scale-embedding (here without)"),
        ("tupe_transformer", "--rel-pos --max-rel-pos 64", "--rel-pos", "--max-rel-pos 64 (here 128)"),
        ("tupe_transformer", "--max-source-positions 9", "", "--max-source-positions 9 (here 1024)"),
        (
            "tupe_transformer",
            "--share-decoder-input-output-embed",
            "",
            "--share-decoder-input-output-embed (here without)",
        ),
        ("tupe_transformer", "", "--share-all-embeddings", "no --share-all-embeddings (here with it)"),
    ],
)
def test_other_options_are_named(arch, theirs, ours, said, tmp_path):
    with pytest.raises(OptionError, match=f"was trained with other options: .*{re.escape(said)}.*Give those of its"):
        start_with("--restore-file", arch, theirs, ours, tmp_path)


@pytest.mark.parametrize("how", START)
@pytest.mark.parametrize("task", ["masked_lm", "sentence_prediction"])
def test_every_way_to_begin_with_a_checkpoint_is_looked_at(how, task, tmp_path):
    with pytest.raises(OptionError, match=r"theirs/checkpoint_last.pt .*--encoder-attention-heads 2 \(here 4\)"):
        start_with(how, "tupe_tiny", "--encoder-attention-heads 2", "", tmp_path, task=task)


@pytest.mark.parametrize("how", START)
@pytest.mark.parametrize(
    ("arch", "theirs", "ours"),
    [
        ("tupe_tiny", "--rel-pos", "--rel-pos --dropout 0.3 --attention-kernel sdpa --checkpoint-activations"),
        ("tupe_tiny", "--rel-pos-bins 16 --tupe-reset paper", ""),  # without effect: no difference
        ("bert_r_tiny", "--max-positions 64", "--max-positions 32"),  # no table
        ("electra_tiny", "", "--pooler-dropout 0.5"),
        ("embinit_classifier", "--encoder-embed-dim 300 --max-positions 9", "--encoder-embed-dim 300"),
        ("embinit_classifier", "", "--encoder-attention-heads 8"),  # the default's name
        ("tupe_transformer", "--rel-pos-bins 16", "--decoder-embed-dim 512"),
        ("tupe_transformer", "--share-all-embeddings", "--share-all-embeddings --share-decoder-input-output-embed"),
    ],
)
def test_what_is_the_same_function_is_accepted(how, arch, theirs, ours, tmp_path):
    start_with(how, arch, theirs, ours, tmp_path)


def test_fine_tuning_does_not_ask_about_the_generator(tmp_path):
    flags = "--generator-attention-heads 2"
    start_with("--finetune-from-model", "electra_tiny", flags, "", tmp_path, task="sentence_prediction")


def test_another_architecture_is_named(tmp_path):
    for theirs, ours in (("electra_tiny", "tupe_tiny"), ("tupe_tiny", "electra_tiny"), ("roberta", "tupe_tiny")):
        checkpoint = save_checkpoint(tmp_path / "other.pt", {"_name": theirs}, {}, _name="masked_lm")
        message = f"other.pt holds a model of --arch {theirs}, here one of --arch {ours} is built: give --arch {theirs}"
        with pytest.raises(OptionError, match=message):
            start(ours, "", "--finetune-from-model", checkpoint, "--save-dir", tmp_path)


@pytest.mark.parametrize("model", [None, {}, {"_name": "nobody_knows"}, {"_name": "tupe"}])
def test_checkpoints_that_say_little_are_left_to_fairseq(model, tmp_path):
    """Also options younger than the checkpoint: they had their defaults."""
    torch.save({"cfg": {"model": model}, "model": {}}, tmp_path / "checkpoint_last.pt")
    sizes = "--encoder-layers 12 --encoder-embed-dim 768 --encoder-ffn-embed-dim 3072 --encoder-attention-heads 12"
    start("tupe_tiny", f"{sizes} --max-positions 512", "--save-dir", tmp_path)


@pytest.mark.parametrize(
    ("arch", "task", "flags", "symbols", "slot", "remedy"),
    [
        ("tupe_tiny", "masked_lm", SIDE, (12, None), "encoder", "--srcdict"),
        ("bert_ad_tiny", "sentence_prediction", SIDE, (12, None), "encoder", "--srcdict"),
        ("electra_tiny", "masked_lm", SIDE, (12, None), "encoder", "--srcdict"),
        ("embinit_classifier", "sentence_prediction", SIDE, (12, None), "encoder", "--srcdict"),
        ("duo_classifier", "sentence_prediction", "", (12, None), "encoder", "--srcdict"),
        ("tupe_transformer", "translation", SIDES, (14, 12), "decoder", "--tgtdict"),
        ("duo_transformer_tiny", "translation", "", (12, 14), "encoder", "--srcdict"),
        (
            "tupe_transformer",
            "translation",
            f"{SIDES} --share-all-embeddings",
            (12, None),
            "encoder and decoder",
            "--joined-dictionary --srcdict",
        ),
    ],
)
def test_data_of_another_dictionary(arch, task, flags, symbols, slot, remedy, tmp_path):
    """The checkpoint has 14 symbols on either side, the data 12 on one of them (slot)."""
    theirs = built_for_training(arch, *flags.split(), task=task, symbols=14).state_dict()
    checkpoint = save_checkpoint(tmp_path / "best.pt", options_of(arch, *flags.split(), task=task), theirs)
    source, target = symbols
    message = (
        rf"best.pt was trained with 14 symbols \({slot}, special ones included\), the data have 12: .*{remedy} DICT.txt"
    )
    begin = [*flags.split(), "--finetune-from-model", checkpoint, "--save-dir", tmp_path / "new"]
    with pytest.raises(OptionError, match=message):
        built_for_training(arch, *begin, task=task, symbols=source, target_symbols=target)
    built_for_training(arch, *begin, task=task, symbols=14)


def test_a_file_that_is_no_checkpoint_is_left_to_fairseq(tmp_path):
    (tmp_path / "checkpoint_last.pt").write_text("no checkpoint")
    start("tupe_tiny", "", "--save-dir", tmp_path)
