"""`expand_vocabulary` on input that cannot be used: an error that says what to do, and nothing is written."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from expand_checkpoints import FAMILIES, WORDS, dictionary, make

from embinit_fairseq.errors import CheckpointError, DataError, EmbinitError, OptionError


def test_a_dictionary_that_does_not_fit(tmp_path):
    for family, tables in (("roberta", "a table of 14 rows"), ("transformer", "the encoder of .* a table of 15 rows")):
        checkpoint = make(tmp_path / family, family)
        other = tmp_path / family / "other.txt"
        other.write_text(dictionary([*WORDS, "a", "b", "c", "d", "e"]))
        with pytest.raises(DataError, match=rf"--dict .*other\.txt: .* symbols \(4 specials, 14 lines.*{tables}"):
            checkpoint.expand(dictionary=str(other))
        assert not checkpoint.output.exists()
        assert sorted(path.name for path in checkpoint.folder.iterdir()) == ["c.pt", "data", "new.txt", "other.txt"]


def test_a_side_that_does_not_fit(tmp_path):
    with pytest.raises(DataError, match=r"dict\.en\.txt: 13 symbols .* the encoder of .*c\.pt a table of 15 rows"):
        make(tmp_path, "transformer").expand(side="encoder")


def test_words_that_are_there_already(tmp_path):
    checkpoint = make(tmp_path, "roberta")
    for word, line in (("w3", 2), ("<mask>", 2)):
        with pytest.raises(DataError, match=rf"new\.txt:{line}: the dictionary has {word!r} already"):
            checkpoint.expand(words=("x", word))


def test_models_that_cannot_be_expanded(tmp_path):
    softmax = "--adaptive-softmax-cutoff 5,8 --adaptive-softmax-factor 1"
    for more in (f"{softmax} --adaptive-input --adaptive-input-cutoff 5,8 --adaptive-input-factor 1", softmax):
        with pytest.raises(CheckpointError, match=r"c\.pt: .*\(--adaptive-softmax-cutoff, --adaptive-input\)"):
            make(tmp_path, "lm", flags=more).expand()
    with pytest.raises(CheckpointError, match=r"has only the first 10 of 13 symbols \(--output-dictionary-size"):
        make(tmp_path, "lm", flags="--output-dictionary-size 10").expand()
    FAMILIES["fconv"] = "--task language_modeling --tokens-per-sample 16 --arch fconv_lm --decoder-embed-dim 8 "
    FAMILIES["fconv"] += "--decoder-layers [(8,3)] --decoder-attention False"
    try:
        with pytest.raises(CheckpointError, match="weight normalisation"):
            make(tmp_path, "fconv").expand()
    finally:
        del FAMILIES["fconv"]


def test_checkpoints_that_are_none(tmp_path):
    checkpoint = make(tmp_path, "lm_tied")
    whole, tied = (tmp_path / "c.pt").read_bytes(), "decoder.output_projection.weight"
    weights, cfg = checkpoint.state["model"], checkpoint.state["cfg"]
    mistakes = {
        "safely": whole[: len(whole) // 2],
        "no 'model' in it": {"cfg": {}, "epoch": 3},
        "no 'cfg'": {"model": weights, "cfg": None},
        "fully_sharded": {**checkpoint.state, "fsdp_metadata": {}},
        "no table with a row for every symbol": {
            **checkpoint.state,
            "model": {"layer.weight": weights["decoder.layers.0.fc1.weight"]},
        },
        "differ in the file": {**checkpoint.state, "model": {**weights, tied: weights[tied] + 1}},
        "cannot be loaded": {
            **checkpoint.state,
            "model": {key: value for key, value in weights.items() if not key.endswith("fc1.weight")},
        },
        "a model of --arch of_nobody, which neither fairseq nor this plugin has; .*--user-dir": {
            **checkpoint.state,
            "cfg": {**cfg, "model": {**cfg["model"], "_name": "of_nobody", "arch": "of_nobody"}},
        },
        "its 'cfg' is of type int": {**checkpoint.state, "cfg": 5},
        "its 'extra_state' is of type int, .* name another checkpoint": {**checkpoint.state, "extra_state": 7},
        "its 'optimizer_history' is of type dict": {**checkpoint.state, "optimizer_history": {"a": 1}},
        "cannot be set up": {**checkpoint.state, "cfg": {**cfg, "task": {**cfg["task"], "_name": "of_a_plugin"}}},
    }
    for expected, content in mistakes.items():
        if isinstance(content, bytes):
            (tmp_path / "c.pt").write_bytes(content)
        else:
            torch.save(content, checkpoint.path)
        with pytest.raises(CheckpointError, match=expected):
            checkpoint.expand()
        assert not checkpoint.output.exists()
    (tmp_path / "c.pt").unlink()
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        checkpoint.expand()


def test_tables_that_are_not_finite(tmp_path):
    """Also in the row of <pad>, which `all` averages; the message is not that the two names of the table differ."""
    for family, number, row in (("lm_tied", math.nan, 6), ("lm_tied", math.inf, 12), ("transformer", math.nan, 1)):
        checkpoint = make(tmp_path, family)
        checkpoint.state["model"]["decoder.embed_tokens.weight"][row, 0] = number
        checkpoint.save()
        with pytest.raises(
            CheckpointError, match=r"c\.pt: decoder\.embed_tokens\.weight holds NaN or infinity; name an"
        ):
            checkpoint.expand(average_over="words")
        assert not checkpoint.output.exists()


def test_averages_that_are_not_of_the_model(tmp_path):
    checkpoint, key, tied = make(tmp_path, "lm_tied"), "decoder.embed_tokens.weight", "decoder.output_projection.weight"
    weights = checkpoint.state["model"]
    other = "decoder.layers.0.fc1.weight"
    nan = weights[key].clone()
    nan[3, 3] = math.nan
    mistakes = {
        rf"\(extra_state, ema\) has {key} of shape \(3, 3\), but the model of \(13, 8\); .*another": {
            key: torch.ones(3, 3)
        },
        rf"has {other} of shape \(2,\), but": {**weights, other: torch.ones(2)},
        rf"has {key} of shape None": {key: [1.0]},
        f"ema {key} holds NaN or infinity": {key: nan},
        f"ema {key} and {tied} are one table in the model, but differ": {**weights, tied: weights[key] + 1},
    }
    for expected, average in mistakes.items():
        checkpoint.state["extra_state"]["ema"] = average
        checkpoint.save()
        with pytest.raises(CheckpointError, match=rf"c\.pt: .*{expected}"):
            checkpoint.expand()
        assert not checkpoint.output.exists()


def test_noise_that_half_precision_cannot_hold(tmp_path):
    checkpoint = make(tmp_path, "lm_tied", tweak=lambda model: [parameter.mul_(20) for parameter in model.parameters()])
    checkpoint.state["model"] = {key: value.half() for key, value in checkpoint.state["model"].items()}
    checkpoint.save()
    with pytest.raises(
        OptionError, match=r"--noise-scale: a new row of .* is too large for torch\.float16; choose a sm"
    ):
        checkpoint.expand("gaussian", noise_scale=9e9, reset_optimizer=True)
    assert not checkpoint.output.exists()
    checkpoint.expand("gaussian", noise_scale=1.0, reset_optimizer=True)


def test_dictionaries_as_fairseq_reads_them(tmp_path):
    checkpoint = make(tmp_path, "lm_tied")
    path, text = Path(checkpoint.dictionary), dictionary()
    path.write_text(text.replace("w3 7\n", "w3 7\n\n"))
    with pytest.raises(
        DataError, match=r"dict\.txt:5: an empty line, which fairseq refuses in a dictionary; remove it"
    ):
        checkpoint.expand()
    path.write_bytes(text.replace("\n", "\r").encode())
    checkpoint.expand()
    assert (checkpoint.output / "dict.txt").read_bytes() == f"{text}x 1\ny 1\nz 1\n".encode()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"noise_scale": 0.1}, "--noise-scale 0.1: --method avg has no noise"),
        ({"method": "gaussian", "noise_scale": -1.0}, "--noise-scale -1.0: a factor"),
        ({"method": "gaussian", "noise_scale": math.nan}, "--noise-scale nan"),
        ({"seed": -1}, "--seed -1"),
        ({"method": "mean"}, "--method mean: choose from avg"),
        ({"average_over": "none"}, "--average-over none: choose from all, words"),
        ({"user_dir": "/nowhere"}, "--user-dir /nowhere: no plugin of fairseq"),
        ({"words": ()}, "no word in it"),
        ({"method": "subword"}, "needs the pieces of 'x'"),
    ],
)
def test_options_that_cannot_be_used(tmp_path, options, expected):
    checkpoint = make(tmp_path, "lm_tied")
    with pytest.raises(EmbinitError, match=expected):
        checkpoint.expand(**options)
    assert not checkpoint.output.exists()
