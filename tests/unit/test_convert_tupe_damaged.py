"""`embinit convert-tupe` on files that are dangerous, damaged or of something else: an error, and nothing written."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path

import authors_tupe as authors
import pytest
import torch
from authors_tupe import ENCODER, HEAD
from convert_tupe_files import SYMBOLS, Files, left_in
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embinit_fairseq.convert_tupe.convert import convert_dictionary
from embinit_fairseq.errors import CheckpointError, DataError, EmbinitError, OptionError

FUZZ = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


class Malicious:
    """Its pickle makes a directory when it is executed."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("place", ["args", "extra_state", "model"])
def test_nothing_in_the_file_is_executed(files, legacy, place):
    trace = files.folder / "executed"
    with pytest.raises(CheckpointError, match=r"ref\.pt: .*mkdir.*not executed"):
        files.convert(files.save(legacy=legacy, **{place: Malicious(trace)}))
    assert left_in(files.folder) == ["ref.pt", "theirs.txt"]


def test_the_allow_list_is_left_as_it_was(files):
    before = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    try:
        torch.serialization.add_safe_globals([Namespace])
        files.convert()
        assert torch.serialization.get_safe_globals() == [Namespace]
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


def without(name):
    return lambda weights: weights.pop(name)


def reshaped(name, *shape):
    return lambda weights: weights.update({name: torch.zeros(shape)})


def nan_in(name, value):
    return lambda weights: weights[ENCODER + name].view(-1)[3:4].fill_(value)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (without(ENCODER + "pos.weight"), "no decoder.sentence_encoder.pos.weight"),
        (without(ENCODER + "emb_layer_norm.bias"), "emb_layer_norm.bias is missing"),
        (reshaped(ENCODER + "layers.0.self_attn.q_proj.weight", 8, 8), "q_proj.weight is unknown"),
        (reshaped(ENCODER + "layers.7.fc1.weight", 12, 8), "layers.2.*missing"),
        (reshaped(ENCODER + "pos_q_linear.bias", 4), r"\(4,\).*\(8,\)"),
        (reshaped(ENCODER + "embed_tokens.weight", SYMBOLS), "not 2 dimensions"),
        (reshaped(ENCODER + "relative_attention_bias.weight", 32, 2), "31 relative buckets"),
        (reshaped(ENCODER + "pos_proj.weight", 3, 8), "pos_proj.weight cannot be halved"),
        (reshaped("decoder.lm_head.weight", SYMBOLS, 8), "decoder.lm_head.weight is not the table of embeddings"),
        (reshaped(HEAD + "out_proj.weight", 3, 8), "early commit"),
        (reshaped(HEAD + "dense.weight", 3, 8), "incomplete"),
        (lambda weights: weights.update({ENCODER + "pos_ln.bias": [1.0]}), "pos_ln.bias is a list"),
        (lambda weights: weights.update({ENCODER + "pos_ln.bias": torch.arange(8)}), "torch.int64"),
        (lambda weights: weights.clear(), r"pos\.weight.*holds nothing"),
        (nan_in("embed_tokens.weight", float("nan")), "embed_tokens.weight holds NaN or infinity; .*earlier"),
        (nan_in("pos_ln.bias", float("-inf")), "pos_ln.bias holds NaN or infinity"),
    ],
)
def test_state_dicts_that_are_not_theirs(files, change, expected):
    weights = authors.make_weights(SYMBOLS)
    args = authors.make_args(weights)
    change(weights)
    with pytest.raises(CheckpointError, match=rf"ref\.pt: .*{expected}"):
        files.convert(files.save(weights, args))
    assert left_in(files.folder) == ["ref.pt", "theirs.txt"]


@FUZZ
@given(data=st.data())
def test_any_missing_name_or_other_shape_is_noticed(tmp_path, data):
    files, weights = Files(tmp_path), authors.make_weights(SYMBOLS, classes=3)
    args = authors.make_args(weights)
    name = data.draw(st.sampled_from(list(weights)))
    if data.draw(st.booleans()) and not name.endswith("relative_attention_bias.weight"):  # without it: TUPE-A
        del weights[name]
    else:
        weights[name] = torch.zeros(*weights[name].shape[:-1], weights[name].shape[-1] + 2)
    with pytest.raises(EmbinitError):
        files.convert(files.save(weights, args))
    assert not Path(files.output).exists()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([1], "holds a list"),
        ({"state": 1}, "no model in it"),
        ({"model": [1]}, "no model in it"),
        ({"model": {1: torch.ones(1)}}, "no model in it"),
        ({"model": {"encoder.sentence_encoder.positions.absolute.q_proj.weight": torch.ones(2, 2)}}, "already"),
        ({"model": {"decoder.sentence_encoder.embed_positions.weight": torch.ones(2, 2)}}, "not TUPE"),
        ({"model": {"encoder.embed_tokens.weight": torch.ones(2, 2)}}, "holds encoder.embed_tokens.weight"),
    ],
)
def test_files_of_something_else(files, content, expected):
    torch.save(content, files.folder / "ref.pt")
    with pytest.raises(CheckpointError, match=rf"ref\.pt: .*{expected}"):
        files.convert(str(files.folder / "ref.pt"))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"activation_fn": "gelu_accurate"}, "activation_fn gelu_accurate"),
        ({"dropout": "much"}, "dropout is 'much'"),
        ({"dropout": 5}, "dropout is 5, not from 0 to 1"),
        ({"attention_dropout": -0.1}, "attention_dropout is -0.1, not from 0 to 1"),
        ({"pooler_dropout": float("nan")}, "pooler_dropout is nan, not from 0 to 1"),
        ({"max_rel_pos": True}, "max_rel_pos is True"),
        ({"max_rel_pos": 8}, "max_rel_pos is 8, not at least 9"),  # 32 buckets: 8 for near distances
        ({"mask_prob": 15}, "mask_prob is 15, not from 0 to 1"),
        ({"leave_unmasked_prob": 0.5, "random_token_prob": 0.6}, "random_token_prob is 0.6, not from 0 to 0.5"),
        ({"tokens_per_sample": 0}, "tokens_per_sample is 0, not at least 1"),
        ({"sample_break_mode": "never"}, "sample_break_mode is 'never'"),
        ({"task": "sentence_prediction"}, "without a classification head"),
        ({"init_token": SYMBOLS}, "_token is .*, not from 0 to 16"),
        ({"separator_token": -1}, "_token is .*, not from 0 to 16"),
    ],
)
def test_options_that_cannot_be(files, changes, expected):
    classes = any(name.endswith("_token") for name in changes)
    weights = authors.make_weights(SYMBOLS, classes=3 if classes else 0)
    args = authors.make_args(weights, **(authors.fine_tuned(**changes) if classes else changes))
    with pytest.raises(CheckpointError, match=rf"ref\.pt: .*{expected}"):
        files.convert(files.save(weights, args))
    assert left_in(files.folder) == ["ref.pt", "theirs.txt"]


@pytest.mark.parametrize(
    ("classes", "regression", "labels", "expected"),
    [
        (3, False, 2, r"labels\.txt: 2 labels.*3 classes.*--label-dict"),
        (3, False, 4, r"labels\.txt: 4 labels.*3 classes.*--label-dict"),
        (1, True, 1, r"--label-dict .*labels\.txt: this model predicts no classes"),
        (0, None, 1, r"--label-dict .*labels\.txt: this model predicts no classes"),
    ],
)
def test_labels_that_do_not_fit(files, classes, regression, labels, expected):
    weights = authors.make_weights(SYMBOLS, classes=classes)
    changes = {} if regression is None else authors.fine_tuned(regression_target=regression)
    file = authors.write_dictionary(files.folder / "labels.txt", [(str(label), 1) for label in range(labels)])
    with pytest.raises((DataError, OptionError), match=expected):
        files.convert(files.save(weights, authors.make_args(weights, **changes)), label_dictionary=file)


def test_missing_files(files):
    with pytest.raises(CheckpointError, match=r"--checkpoint .*absent\.pt: no such checkpoint"):
        files.convert(str(files.folder / "absent.pt"))
    with pytest.raises(CheckpointError, match=r"--checkpoint .*: a folder"):
        files.convert(str(files.folder))
    files.dictionary = str(files.folder / "absent.txt")
    with pytest.raises(DataError, match=r"absent\.txt: no such file"):
        files.convert()


@FUZZ
@given(data=st.data())
def test_damaged_files(tmp_path, data):
    files = Files(tmp_path)
    path = Path(files.save(legacy=data.draw(st.booleans()), fp16=True))
    content = path.read_bytes()
    place = data.draw(st.integers(0, 400) | st.integers(0, 10**6)) % len(content)
    new = data.draw(st.binary(max_size=8))
    cut = data.draw(st.booleans())
    path.write_bytes(content[:place] if cut else content[:place] + new + content[place + len(new) :])
    try:
        files.convert(str(path), force=True)
    except EmbinitError:
        return
    assert len(files.written()["model"]) == len(authors.make_weights(SYMBOLS))


# --- dictionaries


@pytest.mark.parametrize("change", [-4, -3, -1, 1, 3])
def test_a_dictionary_of_another_model(tmp_path, change):
    path = authors.write_dictionary(tmp_path / "theirs.txt", authors.words_of_dictionary(24))
    with pytest.raises(DataError, match=r"theirs\.txt: 17 lines make 25 symbols.*has \d+ rows; give --dict"):
        convert_dictionary(path, 25 + change)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        *((text, 1) for text in (b"word\n", b"the x\n", b"the 1.5\n", "the \u00b2\n".encode(), b"\xff 1\n")),
        (b"the 1\n\na 1\n", 2),
        (b"", None),
        (None, None),
    ],
)
def test_files_that_are_no_dictionary(tmp_path, content, line):
    if content is None:
        (tmp_path / "dict.txt").mkdir()
    else:
        (tmp_path / "dict.txt").write_bytes(content)
    with pytest.raises(DataError, match=rf"dict\.txt:{line}: " if line else r"dict\.txt"):
        convert_dictionary(str(tmp_path / "dict.txt"), 9)
