"""scripts/trained_dictionaries.py: data may be elsewhere, but their dictionaries must be those of the training."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import trained_dictionaries

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "some data" / "bin"
    folder.mkdir(parents=True)
    for name in ("dict.de.txt", "dict.en.txt", "train.de-en.de.bin", "train.de-en.de.idx"):
        (folder / name).write_text(f"{name} 1\nand 2\n")
    return folder.parent


@pytest.fixture
def run(data: Path, tmp_path: Path) -> Path:
    """What train.sh writes before it trains."""
    command = [sys.executable, SCRIPTS / "run_result.py", "begin", "--run", tmp_path / "run", "--data", data / "bin"]
    subprocess.run([*command, "--", "fairseq-train", data / "bin"], check=True)
    return tmp_path / "run"


def test_the_same_dictionaries_anywhere_with_other_texts_are_right(data: Path, run: Path, tmp_path: Path) -> None:
    trained_dictionaries.check(data, run)
    shutil.move(data, tmp_path / "moved")
    (tmp_path / "moved/bin/train.de-en.de.bin").write_text("other")  # nor is it read
    trained_dictionaries.check(tmp_path / "moved", run)


def test_others_are_refused(data: Path, run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(data, other)
    path = other / "bin/dict.en.txt"
    path.write_text("and 2\ndict.en.txt 1\n")
    where = f"--run {run} was trained with .*: give the data of that training, which were in {data}/bin"
    with pytest.raises(
        SystemExit, match=rf"^error: --data {other}: bin/dict.en.txt \([0-9a-f]{{64}}\) is not .* {where}$"
    ):
        trained_dictionaries.check(other, run)
    path.unlink()
    with pytest.raises(SystemExit, match=rf"--data {other}: bin/dict.en.txt \(missing\) is not .* {where}$"):
        trained_dictionaries.check(other, run)


def test_a_run_of_another_program_is_named(data: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=f"^error: --run {tmp_path}: no training.json in it; run train.sh first"):
        trained_dictionaries.check(data, tmp_path)
