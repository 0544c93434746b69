"""`embinit convert-tupe`: what is renamed and inferred, the dictionary, the folder. Outputs: tests/integration."""

from __future__ import annotations

import io
import json
import os
from collections import OrderedDict
from pathlib import Path

import authors_tupe as authors
import pytest
import torch
from authors_tupe import ENCODER
from convert_tupe_files import SYMBOLS, Files, left_in
from fairseq.data import Dictionary
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embinit_fairseq.cli.main import main
from embinit_fairseq.convert_tupe.convert import convert_dictionary
from embinit_fairseq.errors import OptionError


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


@pytest.mark.parametrize(
    ("rel_pos", "emb_norm", "pre_ln"), [(True, True, False), (True, False, True), (False, True, True)]
)
def test_options_come_from_names_and_shapes(files, rel_pos, emb_norm, pre_ln):
    weights = authors.make_weights(SYMBOLS, 8, 10, 3, 9, rel_pos, emb_norm, pre_ln)
    wrong = {"rel_pos": not rel_pos, "embedding_normalize": not emb_norm, "encoder_layers": 12, "max_rel_pos": 77}
    record = files.convert(files.save(weights, authors.make_args(weights, **wrong)))
    cfg = files.written()["cfg"]
    assert cfg["task"]["tokens_per_sample"] == 9  # 12 in its args: the model takes no more than it has positions
    model = cfg["model"]
    expected = {"rel_pos": rel_pos, "embedding_normalize": emb_norm, "encoder_normalize_before": pre_ln}
    expected |= {"encoder_layers": 3, "encoder_embed_dim": 8, "encoder_ffn_embed_dim": 10, "max_positions": 9}
    expected |= {"encoder_attention_heads": 2, "dropout": 0.2, "attention_dropout": 0.15, "pooler_dropout": 0.05}
    expected |= {"rel_pos_bins": 32, "activation_fn": "gelu", "tupe_reset": "official"}
    expected["max_rel_pos"] = 77 if rel_pos else 128  # TUPE-A has no use for a distance
    assert {name: model[name] for name in expected} == expected
    flags = record["train_with"]
    assert flags.startswith("--arch tupe_base --rel-pos --max-rel-pos 77 --encoder-layers 3 ") == rel_pos
    given = ("--max-rel-pos" in flags, "--embedding-normalize" in flags, "--encoder-normalize-before" in flags)
    assert given == (rel_pos, emb_norm, pre_ln)


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
    entries = [("1", 9), ("0", 8), ("2", 5), ("madeupword0000", 0)]
    labels = authors.write_dictionary(files.folder / "labels.txt", entries)
    files.convert(checkpoint, label_dictionary=labels)
    assert (Path(files.output) / "label/dict.txt").read_text() == Path(labels).read_text()


# --- the dictionary: the same symbol at the same id


FUZZ = settings(
    max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<file>", "<email>", "<url>"]
SYMBOL = st.text(st.characters(blacklist_categories=("Cs", "Zs", "Zl", "Zp", "Cc")), min_size=1, max_size=4)


def their_ids(entries) -> dict[str, int]:
    """Their Dictionary: seven specials, the lines (of a symbol that stands twice the last counts), `<mask>`."""
    symbols = [*SPECIALS, *(symbol for symbol, _ in entries)]
    if "<mask>" not in symbols:
        symbols.append("<mask>")
    return {symbol: number for number, symbol in enumerate(symbols)}, len(symbols)


def fairseq_ids(text) -> tuple[dict[str, int], int]:
    dictionary = Dictionary()
    dictionary.add_from_file(io.StringIO(text))
    dictionary.add_symbol("<mask>")  # as masked_lm and sentence_prediction do
    return dictionary.indices, len(dictionary)


@FUZZ
@given(
    st.lists(
        st.tuples(SYMBOL | st.sampled_from([*SPECIALS, "<mask>", "a", "madeupword0000"]), st.integers(0, 10**9)),
        min_size=1,
        max_size=12,
    )
)
def test_ids_agree(tmp_path, entries):
    ids, size = their_ids(entries)
    path = authors.write_dictionary(tmp_path / "theirs.txt", entries)
    converted = convert_dictionary(path, size)
    assert converted.added == 3
    assert fairseq_ids(converted.text) == (ids, size)


def test_a_converted_file_is_not_shifted_again(tmp_path):
    entries = [*((symbol, 1) for symbol in SPECIALS[4:]), *authors.words_of_dictionary(24)]
    path = authors.write_dictionary(tmp_path / "dict.txt", entries)
    converted = convert_dictionary(path, 25)
    assert converted.added == 0
    assert converted.text == (tmp_path / "dict.txt").read_text()
    assert fairseq_ids(converted.text)[0]["w0"] == 7


def test_the_number_of_rows_decides_what_a_file_is(tmp_path):
    """Words that are spelled like the specials: with three rows more, the file is theirs as it stands."""
    entries = [*((symbol, 1) for symbol in SPECIALS[4:]), *authors.words_of_dictionary(24)]
    path = authors.write_dictionary(tmp_path / "dict.txt", entries)
    converted = convert_dictionary(path, 28)
    assert converted.added == 3
    assert converted.text.splitlines()[3] == "<file> 1 #fairseq:overwrite"
    assert fairseq_ids(converted.text) == their_ids(entries)
    # and what comes out is recognised
    (tmp_path / "again.txt").write_text(converted.text)
    assert convert_dictionary(str(tmp_path / "again.txt"), 28).text == converted.text


def test_windows_and_no_last_newline(tmp_path):
    (tmp_path / "dict.txt").write_bytes(b"a 1\r\nb 1")
    assert convert_dictionary(str(tmp_path / "dict.txt"), 10).text.endswith("\na 1\nb 1\n")


# --- the command


def command(files, checkpoint, *more) -> int:
    return main(
        ["convert-tupe", "--checkpoint", checkpoint, "--dict", files.dictionary, "--output", files.output, *more]
    )


def test_json_into_a_folder_that_is_a_link(files, capsys):
    (files.folder / "real").mkdir()
    os.symlink(files.folder / "real", files.folder / "out")
    assert command(files, files.save(fp16=True), "--json") == 0
    record = json.loads(capsys.readouterr().out)
    expected = {"task": "masked_lm", "rel_pos": True, "num_symbols": SYMBOLS, "specials_added": 3, "num_updates": 7}
    assert {name: record[name] for name in expected} == expected
    assert Path(files.output).is_symlink()
    assert left_in(files.folder / "real") == ["dict.txt", "model.pt"]


def test_for_people(files, capsys):
    weights = authors.make_weights(SYMBOLS, rel_pos=False, classes=3)
    checkpoint = files.save(weights, authors.make_args(weights, **authors.fine_tuned()), fp16=True)
    assert command(files, checkpoint) == 0
    text = capsys.readouterr().out
    for part in (
        *("TUPE-A, 7 updates (2 layers, width 8", "float16, written as float32", "3 classes", "<url> added"),
        *("--label-dict gives the real ones", "the optimiser's state", "label/dict.txt", "--arch tupe_base"),
    ):
        assert part in text


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        (["--heads", "0"], "--heads must be at least 1"),
        (["--heads", "4"], "differ"),
        (["--label-dict", "x"], "--label"),
    ],
)
def test_errors_are_one_line(files, capsys, extra, expected):
    assert command(files, files.save(), *extra) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert captured.err.startswith("embinit convert-tupe: error: ")
    assert expected in captured.err
