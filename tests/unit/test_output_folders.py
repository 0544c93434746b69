"""Folders of output: complete or not there, and errors that say what is wrong."""

from __future__ import annotations

import os

import pytest
from run_folders import write_run

from embinit_fairseq.checkpoints.folder import replacing_folder
from embinit_fairseq.cli.main import main
from embinit_fairseq.errors import CheckpointError


def test_a_block_that_ends_well(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").touch()
    with replacing_folder(tmp_path / "out") as folder:
        (folder / "new").write_text("whole")
        assert os.listdir(tmp_path / "out") == ["old"]
    assert os.listdir(tmp_path) == ["out"]
    assert os.listdir(tmp_path / "out") == ["new"]


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (
            OSError(28, "No space left on device"),
            CheckpointError,
            r"out: cannot be .*\(No space left",
        ),
        (
            RuntimeError("PytorchStreamWriter failed writing file"),
            CheckpointError,
            "free",
        ),
        (RuntimeError("unexpected pos 64 vs 0"), CheckpointError, "cannot be written"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), RuntimeError, "^DefaultCPUAllocator"),
        (ValueError("of a model"), ValueError, "^of a model"),
    ],
)
def test_a_block_that_fails(tmp_path, error, expected, message):
    """What torch's writer says is about the disk; what a model says is not."""

    def write():
        with replacing_folder(tmp_path / "out") as folder:
            (folder / "half").touch()
            raise error

    with pytest.raises(expected, match=message):
        write()
    assert os.listdir(tmp_path) == []


def test_compare_makes_no_folder_before_it_has_something_to_write(tmp_path, capsys):
    assert main(["compare", str(tmp_path / "nowhere"), "--output", str(tmp_path / "a" / "b")]) == 2
    assert "nowhere" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []
    run = write_run(tmp_path / "run", {"init": "xavier", "seed": "1"}, [2.0])
    (tmp_path / "file").touch()
    assert main(["compare", str(run), "--output", str(tmp_path / "file" / "b")]) == 2
    assert f"--output {tmp_path}/file/b: cannot be made ({tmp_path}/file is no folder)" in capsys.readouterr().err
    assert main(["compare", str(run), "--output", str(tmp_path / "a" / "b")]) == 0
    assert (tmp_path / "a" / "b" / "results.md").is_file()
