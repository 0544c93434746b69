"""`embinit convert-tupe`: what is renamed and inferred. Outputs of the models: tests/integration."""

from __future__ import annotations

import random
from collections import OrderedDict
from pathlib import Path

import authors_tupe as authors
import pytest
import torch
from authors_tupe import ENCODER
from convert_tupe_files import SYMBOLS, Files, left_in

from embinit_fairseq.errors import DataError, OptionError


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("fp16", [False, True])
def test_every_number_arrives(files, legacy, fp16):
    weights = authors.make_weights(SYMBOLS, pre_ln=True, classes=3)
    args = authors.make_args(weights, **authors.fine_tuned())
    record = files.convert(files.save(weights, args, legacy=legacy, fp16=fp16))
    state = files.written()
    ours = state["model"]
    assert len(ours) == len(weights)
    assert {value.dtype for value in ours.values()} == {torch.float32}
    theirs_flat = sorted(float((w.half().float() if fp16 else w).sum()) for w in weights.values())
    assert sorted(float(value.sum()) for value in ours.values()) == theirs_flat
    head = ours["encoder.lm_head.weight"]
    assert head.data_ptr() == ours["encoder.sentence_encoder.embed_tokens.weight"].data_ptr()
    assert record["stored_as"] == (["float16"] if fp16 else ["float32"])
    assert record["written_as"] == ["float32"]
    assert record["num_updates"] == state["optimizer_history"][-1]["num_updates"] == 7
    assert "last_optimizer_state" not in state
    assert len(record["left_out"]) == 2


def test_half_precision_can_be_kept(files):
    record = files.convert(files.save(fp16=True), half=True)
    assert {value.dtype for value in files.written()["model"].values()} == {torch.float16}
    assert record["written_as"] == ["float16"]


def test_a_checkpoint_that_was_written_on_a_gpu(files, monkeypatch):
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
    checkpoint = files.save(legacy=True)
    monkeypatch.undo()
    assert b"cuda:0" in Path(checkpoint).read_bytes()
    files.convert(checkpoint)


@pytest.mark.parametrize("rel_pos", [False, True])
@pytest.mark.parametrize("emb_norm", [False, True])
@pytest.mark.parametrize("pre_ln", [False, True])
def test_options_come_from_names_and_shapes(files, rel_pos, emb_norm, pre_ln):
    weights = authors.make_weights(SYMBOLS, 8, 10, 3, 9, rel_pos, emb_norm, pre_ln)
    wrong = authors.make_args(weights, rel_pos=not rel_pos, embedding_normalize=not emb_norm, encoder_layers=12)
    files.convert(files.save(weights, wrong))
    cfg = files.written()["cfg"]
    assert cfg["task"]["tokens_per_sample"] == 9  # 12 in its args: the model takes no more than it has positions
    model = cfg["model"]
    expected = {"rel_pos": rel_pos, "embedding_normalize": emb_norm, "encoder_normalize_before": pre_ln}
    expected |= {"encoder_layers": 3, "encoder_embed_dim": 8, "encoder_ffn_embed_dim": 10, "max_positions": 9}
    expected |= {"encoder_attention_heads": 2, "dropout": 0.2, "attention_dropout": 0.15, "pooler_dropout": 0.05}
    expected |= {"rel_pos_bins": 32, "max_rel_pos": 128, "activation_fn": "gelu", "tupe_reset": "official"}
    assert {name: model[name] for name in expected} == expected


def test_tupe_a_has_no_use_for_a_distance(files):
    weights = authors.make_weights(SYMBOLS, rel_pos=False)
    record = files.convert(files.save(weights, authors.make_args(weights, max_rel_pos=7)))
    assert "--max-rel-pos" not in record["train_with"]
    assert files.written()["cfg"]["model"]["max_rel_pos"] == 128


def test_the_flags_build_the_model(files):
    record = files.convert(files.save(authors.make_weights(SYMBOLS, emb_norm=False)))
    assert record["train_with"].startswith("--arch tupe_base --rel-pos --encoder-layers 2 --encoder-embed-dim 8 ")
    assert "--embedding-normalize" not in record["train_with"]


@pytest.mark.parametrize(
    ("rel_pos", "in_args", "given_heads", "expected"),
    [
        (True, None, None, 2),
        (False, 4, None, 4),
        (False, None, 4, 4),
        (True, 2, 2, 2),
        (True, 4, None, "differ"),
        (True, None, 4, "--heads"),
        (False, 2, 4, "differ"),
        (False, None, None, "give --heads"),
        (False, None, 3, "do not divide the width 8"),
    ],
)
def test_number_of_heads(files, rel_pos, in_args, given_heads, expected):
    weights = authors.make_weights(SYMBOLS, rel_pos=rel_pos)
    args = authors.make_args(weights, encoder_attention_heads=in_args)
    checkpoint = files.save(weights, args)
    if isinstance(expected, int):
        assert files.convert(checkpoint, num_heads=given_heads)["encoder_attention_heads"] == expected
        return
    with pytest.raises(OptionError, match=expected):
        files.convert(checkpoint, num_heads=given_heads)
    assert left_in(files.folder) == ["ref.pt", "theirs.txt"]


def test_a_bare_state_dict_will_do(files):
    weights = authors.make_weights(SYMBOLS, rel_pos=False)
    torch.save(weights, files.folder / "bare.pt")
    record = files.convert(str(files.folder / "bare.pt"), num_heads=2)
    assert (record["encoder_attention_heads"], record["num_updates"], record["left_out"]) == (2, 0, [])


def test_early_commits_with_one_matrix_and_a_stored_table(files):
    weights = authors.make_weights(SYMBOLS)
    early = OrderedDict(weights)
    for part in ("weight", "bias"):
        pair = [early.pop(f"{ENCODER}pos_{letter}_linear.{part}") for letter in "qk"]
        early[f"{ENCODER}pos_proj.{part}"] = torch.cat(pair)
    early[f"{ENCODER}rp_bucket"] = torch.zeros(16, 16, dtype=torch.long)
    files.convert(files.save(early))
    ours = files.written()["model"]
    for letter in "qk":
        name = f"encoder.sentence_encoder.positions.absolute.{letter}_proj.weight"
        assert torch.equal(ours[name], weights[f"{ENCODER}pos_{letter}_linear.weight"])
        assert ours[name].untyped_storage().nbytes() == ours[name].numel() * 4


@pytest.mark.parametrize("regression", [False, True])
def test_fine_tuned(files, regression):
    weights = authors.make_weights(SYMBOLS, classes=1 if regression else 3)
    args = authors.make_args(weights, **authors.fine_tuned(regression_target=regression))
    record = files.convert(files.save(weights, args))
    cfg = files.written()["cfg"]
    expected = {"_name": "sentence_prediction", "num_classes": 1 if regression else 3, "init_token": 0}
    expected |= {"separator_token": 2, "shorten_method": "truncate", "regression_target": regression}
    assert {name: cfg["task"][name] for name in expected} == expected
    assert cfg["criterion"]["regression_target"] is regression
    written = ["model.pt", "dict.txt", "input0/dict.txt"] + ([] if regression else ["label/dict.txt"])
    assert record["files"] == written
    assert all((Path(files.output) / name).is_file() for name in written)
    assert record["made_up_labels"] is not regression
    if not regression:
        assert (Path(files.output) / "label/dict.txt").read_text() == "class0 1\nclass1 1\nclass2 1\n"


def test_labels_of_a_fine_tuned_model(files):
    weights = authors.make_weights(SYMBOLS, classes=3)
    checkpoint = files.save(weights, authors.make_args(weights, **authors.fine_tuned()))
    labels = authors.write_dictionary(
        files.folder / "labels.txt", [("1", 9), ("0", 8), ("2", 5), ("madeupword0000", 0)]
    )
    files.convert(checkpoint, label_dictionary=labels)
    assert (Path(files.output) / "label/dict.txt").read_text() == Path(labels).read_text()
    short = authors.write_dictionary(files.folder / "short.txt", [("1", 9), ("0", 8)])
    with pytest.raises(DataError, match=r"short\.txt: 2 labels.*3 classes.*--label-dict"):
        files.convert(checkpoint, label_dictionary=short, force=True)
    long = authors.write_dictionary(files.folder / "long.txt", [(str(label), 1) for label in range(4)])
    with pytest.raises(DataError, match=r"long\.txt: 4 labels.*3 classes.*--label-dict"):
        files.convert(checkpoint, label_dictionary=long, force=True)


@pytest.mark.parametrize("regression", [None, True])
def test_labels_for_a_model_without_classes(files, regression):
    weights = authors.make_weights(SYMBOLS, classes=1 if regression else 0)
    changes = authors.fine_tuned(regression_target=True) if regression else {}
    checkpoint = files.save(weights, authors.make_args(weights, **changes))
    with pytest.raises(OptionError, match=r"--label-dict .*theirs\.txt: this model predicts no classes"):
        files.convert(checkpoint, label_dictionary=files.dictionary)


def test_reading_the_file_does_not_disturb_global_random_states(files):
    torch.manual_seed(5)
    random.seed(5)
    expected = (torch.rand(1), random.random())
    torch.manual_seed(5)
    random.seed(5)
    checkpoint = str(files.folder / "ref.pt")
    authors.save(checkpoint, authors.make_weights(SYMBOLS), None)
    files.convert(checkpoint)
    assert (torch.rand(1), random.random()) == expected
