"""scripts/run_result.py: a folder holds one run, whatever stage it is in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "run_result.py"


@pytest.fixture
def begin(tmp_path: Path):
    """Calls `begin` on tmp_path/run with the words of a command; the vectors are tmp_path/v.txt."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/dict.txt").write_text("a 1\n")
    (tmp_path / "v.txt").write_text("a 1 2\n")

    def call(*words: str) -> str:
        vectors = ["--embed-init-path", f"encoder={tmp_path / 'v.txt'}", f"decoder={tmp_path}"]
        command = [sys.executable, SCRIPT, "begin", "--run", tmp_path / "run", "--data", tmp_path / "data"]
        command += ["--label", "seed=1", "--", "fairseq-train", *vectors, *words]
        return subprocess.run(command, capture_output=True, text=True).stderr

    return call


@pytest.mark.parametrize("stage", ["checkpoints/checkpoint_last.pt", "result.json"])
@pytest.mark.parametrize("change", ["options", "data", "vectors"])
def test_another_run_is_refused_while_it_trains_and_when_it_has_ended(tmp_path: Path, begin, stage: str, change: str):
    assert begin("--lr", "0.1") == ""
    record = (tmp_path / "run/training.json").read_text()
    assert list(json.loads(record)["vector_files"]) == [str(tmp_path / "v.txt")]
    (tmp_path / "run" / stage).parent.mkdir(exist_ok=True)
    (tmp_path / "run" / stage).write_text("{}")
    assert begin("--lr", "0.1", "--max-epoch", "9") == "", "more epochs are the same run"
    if change == "data":
        (tmp_path / "data/dict.txt").write_text("b 1\n")
    elif change == "vectors":
        (tmp_path / "v.txt").write_text("a 1 3\n")
    refused = begin("--lr", "0.2" if change == "options" else "0.1")
    what = {"options": "other options: ", "data": "other data", "vectors": f"another content of {tmp_path / 'v.txt'}"}
    assert f"error: {tmp_path / 'run'} holds a run with {what[change]}" in refused
    assert refused.endswith("choose another --output, or remove that folder\n")


def test_the_options_that_must_stay(tmp_path: Path):
    """Also those of train.sh, and without a command in front: a grid compares them before it starts its runs."""
    words = ["--save-every", "50", "--lr", "1e-3", "--", "--max-update", "9", "--label", "a b"]
    for options, expected in ((words, "--lr 1e-3 -- --label 'a b'\n"), ([], "\n")):
        command = [sys.executable, SCRIPT, "fixed", "--", *options]
        assert subprocess.run(command, capture_output=True, text=True).stdout == expected


def test_a_run_that_failed_before_it_saved_anything_may_be_repaired(begin):
    assert begin("--lr", "0.1") == begin("--lr", "0.2") == ""


def test_damaged_records_are_named(tmp_path: Path, begin):
    begin()
    (tmp_path / "run/training.json").write_text('{"labels"')
    (tmp_path / "run/result.json").write_text("{")
    assert begin("--lr", "0.1").startswith(f"error: {tmp_path / 'run/training.json'}: not JSON")
    command = [sys.executable, SCRIPT, "finished", "--run", tmp_path / "run", "--epochs", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stderr.startswith(f"error: {tmp_path / 'run/result.json'}: not JSON")
