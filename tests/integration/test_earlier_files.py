"""Files of an earlier revision (tests/data/earlier/make.sh) still load, go on, compare and translate."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from programs import PYTHON

from embinit_fairseq.checkpoints.reading import load_checkpoint
from embinit_fairseq.cli.main import main

REPOSITORY = Path(__file__).resolve().parents[2]
RUNS = ("transformer", "duo", "tupe_transformer")

pytestmark = pytest.mark.end_to_end


@pytest.fixture
def earlier(tmp_path, monkeypatch) -> Path:
    """A copy of the files, from whose folder they were made."""
    shutil.copytree(REPOSITORY / "tests/data/earlier", tmp_path, dirs_exist_ok=True)
    (tmp_path / "embinit_fairseq").symlink_to(REPOSITORY / "embinit_fairseq")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", RUNS)
def test_a_run_goes_on_with_its_losses(earlier, name) -> None:
    record = json.loads((earlier / name / "training.json").read_text())
    command = record["command"].replace("--max-epoch 2", "--max-epoch 3").split()
    assert command[0] == "fairseq-train"
    done = subprocess.run([PYTHON, "-m", "fairseq_cli.train", *command[1:]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    after = load_checkpoint(str(earlier / name / "checkpoints/checkpoint_last.pt"))
    before = load_checkpoint(str(REPOSITORY / "tests/data/earlier" / name / "checkpoints/checkpoint_last.pt"))
    assert after["model"].keys() == before["model"].keys()
    updates = [state["optimizer_history"][-1]["num_updates"] for state in (before, after)]
    assert updates == [10, 15]
    assert any(not torch.equal(after["model"][key], value) for key, value in before["model"].items())


def test_runs_are_compared(earlier, capsys) -> None:
    assert main(["compare", *RUNS, "--json"]) == 0
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    for row in table["rows"]:
        result = json.loads((earlier / row["labels"]["arch"] / "result.json").read_text())
        assert row["runs"][0]["best"]["valid_loss"] == pytest.approx(result["best"]["valid_loss"])


def test_an_expanded_model_translates(earlier) -> None:
    for side in ("de", "en"):
        for split in ("valid",):
            for end in ("bin", "idx"):
                shutil.copy(earlier / f"data/bin/{split}.de-en.{side}.{end}", earlier / "expanded")
    command = "fairseq_cli.generate expanded --path expanded/model.pt --gen-subset valid --beam 2 --cpu --batch-size 8"
    done = subprocess.run([PYTHON, "-m", *command.split()], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\nH-") == 8
    assert len((earlier / "expanded/dict.de.txt").read_text().splitlines()) == 2 + len(
        (earlier / "data/bin/dict.de.txt").read_text().splitlines()
    )
