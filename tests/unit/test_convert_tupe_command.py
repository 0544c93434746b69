"""`embinit convert-tupe`: the folder it writes, what it prints, its errors of one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import authors_tupe as authors
import pytest
from convert_tupe_files import SYMBOLS, Files, left_in

from embinit_fairseq.checkpoints.convert_tupe import convert_tupe
from embinit_fairseq.cli.main import main
from embinit_fairseq.errors import CheckpointError


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def test_an_existing_folder(files):
    files.convert()
    old = (Path(files.output) / "model.pt").stat().st_ino
    with pytest.raises(CheckpointError, match=r"not empty.*--force"):
        files.convert()
    assert (Path(files.output) / "model.pt").stat().st_ino == old
    files.convert(force=True)
    assert (Path(files.output) / "model.pt").stat().st_ino != old
    assert left_in(files.folder) == ["out", "ref.pt", "theirs.txt"]


def test_force_deletes_nothing_that_is_not_ours(files):
    (files.folder / "out").mkdir()
    (files.folder / "out" / "thesis.tex").write_text("years of work")
    with pytest.raises(CheckpointError, match=r"--force would delete thesis\.tex"):
        files.convert(force=True)
    assert left_in(files.output) == ["thesis.tex"]


def test_the_input_may_not_lie_in_the_output(files):
    checkpoint = files.save()
    (files.folder / "out").mkdir()
    os.rename(checkpoint, f"{files.output}/model.pt")
    with pytest.raises(CheckpointError, match="lies in this folder"):
        files.convert(f"{files.output}/model.pt", force=True)
    assert left_in(files.output) == ["model.pt"]


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


def test_places_that_cannot_be_written(files):
    checkpoint = files.save()
    (files.folder / "out").write_text("a file")
    with pytest.raises(CheckpointError, match="a file of this name"):
        files.convert(checkpoint)
    files.output = f"{files.output}/below"
    with pytest.raises(CheckpointError, match=r"cannot be written \(Not a directory\).*--output"):
        files.convert(checkpoint)


@pytest.mark.parametrize("earlier", [False, True])
def test_a_full_disk(files, earlier):
    checkpoint = files.save(authors.make_weights(SYMBOLS, dim=64, ffn=64))
    if earlier:
        files.convert(files.save())
        checkpoint = files.save(authors.make_weights(SYMBOLS, dim=64, ffn=64))
        before = (Path(files.output) / "model.pt").read_bytes()
    code = (
        "import resource, sys; from embinit_fairseq.cli.main import main;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY)); sys.exit(main(sys.argv[1:]))"
    )
    argv = ["--checkpoint", checkpoint, "--dict", files.dictionary, "--output", files.output, "--force"]
    done = subprocess.run([sys.executable, "-c", code, "convert-tupe", *argv], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "cannot be written" in done.stderr
    assert "free some space" in done.stderr
    assert left_in(files.folder) == (["out"] if earlier else []) + ["ref.pt", "theirs.txt"]
    if earlier:
        assert (Path(files.output) / "model.pt").read_bytes() == before


def test_the_old_folder_comes_back_if_the_new_one_cannot_take_its_place(files, monkeypatch):
    files.convert()
    rename = Path.rename

    def fail_for_the_new_one(self, target):
        if self.name.endswith(".tmp"):
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_for_the_new_one)
    with pytest.raises(CheckpointError, match="Input/output error"):
        files.convert(force=True)
    assert left_in(files.folder) == ["out", "ref.pt", "theirs.txt"]
    assert left_in(files.output) == ["dict.txt", "model.pt"]


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
