"""`embinit convert-tupe`: the folder it writes, what it prints, its errors of one line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import authors_tupe as authors
import pytest
from convert_tupe_files import SYMBOLS, Files, left_in

from embinit_fairseq.cli.main import main
from embinit_fairseq.convert_tupe.convert import convert_tupe


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def test_an_empty_folder_a_new_path_and_a_link_are_fine(files):
    (files.folder / "real").mkdir()
    os.symlink(files.folder / "real", files.folder / "out")
    files.convert()
    assert Path(files.output).is_symlink()
    assert left_in(files.folder / "real") == ["dict.txt", "model.pt"]
    convert_tupe(files.save(), files.dictionary, str(files.folder / "a" / "b"))
    assert left_in(files.folder / "a") == ["b"]
    assert files.folder.joinpath("a", "b").stat().st_mode & 0o777 == 0o777 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


# --- the command


def test_json(files, capsys):
    argv = ["--checkpoint", files.save(fp16=True), "--dict", files.dictionary, "--output", files.output, "--json"]
    assert main(["convert-tupe", *argv]) == 0
    record = json.loads(capsys.readouterr().out)
    expected = {"task": "masked_lm", "rel_pos": True, "num_symbols": SYMBOLS, "specials_added": 3, "num_updates": 7}
    assert {name: record[name] for name in expected} == expected


def test_for_people(files, capsys):
    weights = authors.make_weights(SYMBOLS, rel_pos=False, classes=3)
    checkpoint = files.save(weights, authors.make_args(weights, **authors.fine_tuned()), fp16=True)
    assert main(["convert-tupe", "--checkpoint", checkpoint, "--dict", files.dictionary, "--output", files.output]) == 0
    text = capsys.readouterr().out
    for part in ("TUPE-A, 7 updates (2 layers, width 8", "float16, written as float32", "3 classes", "<url> added"):
        assert part in text
    for part in ("--label-dict gives the real ones", "the optimiser's state", "label/dict.txt", "--arch tupe_base"):
        assert part in text


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        (["--heads", "0"], "--heads must be at least 1"),
        (["--heads", "4"], "differ"),
        (["--label-dict", "x"], "predicts no classes"),
    ],
)
def test_errors_are_one_line(files, capsys, extra, expected):
    argv = ["--checkpoint", files.save(), "--dict", files.dictionary, "--output", files.output, *extra]
    assert main(["convert-tupe", *argv]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("embinit convert-tupe: error: ")
    assert expected in captured.err
    assert captured.err.count("\n") == 1


def test_help_names_the_options(capsys):
    assert main(["convert-tupe", "--help"]) == 0
    text = capsys.readouterr().out
    for flag in ("--checkpoint", "--dict", "--output", "--label-dict", "--heads", "--half", "--force", "--json"):
        assert flag in text
