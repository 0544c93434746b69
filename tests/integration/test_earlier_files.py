"""Files of an earlier revision (tests/data/earlier/make.sh) still load, go on, compare and translate."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from pre_training import REPOSITORY
from programs import PYTHON
from trainings import run_to_end

from embinit_fairseq.checkpoints.reading import load_checkpoint
from embinit_fairseq.cli.main import main

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
def test_a_run_goes_on(earlier, name) -> None:
    before = load_checkpoint(str(earlier / name / "checkpoints/checkpoint_last.pt"))
    record = json.loads((earlier / name / "training.json").read_text())
    program, *flags = record["command"].replace("--max-epoch 2", "--max-epoch 3").split()
    assert program == "fairseq-train"
    run_to_end([PYTHON, "-m", "fairseq_cli.train", *flags])
    after = load_checkpoint(str(earlier / name / "checkpoints/checkpoint_last.pt"))
    assert after["model"].keys() == before["model"].keys()
    assert [state["optimizer_history"][-1]["num_updates"] for state in (before, after)] == [10, 15]
    assert any(not torch.equal(after["model"][key], value) for key, value in before["model"].items())


def test_runs_are_compared_and_an_expanded_model_translates(earlier, capsys) -> None:
    assert main(["compare", *RUNS, "--json"]) == 0
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    for row in table["rows"]:
        result = json.loads((earlier / row["labels"]["arch"] / "result.json").read_text())
        assert row["runs"][0]["best"]["valid_loss"] == pytest.approx(result["best"]["valid_loss"])
    for file in (earlier / "data/bin").glob("valid.*"):
        shutil.copy(file, earlier / "expanded")
    flags = "expanded --path expanded/model.pt --gen-subset valid --beam 2 --cpu --batch-size 8".split()
    assert run_to_end([PYTHON, "-m", "fairseq_cli.generate", *flags]).count("\nH-") == 8
    words = [len((earlier / folder / "dict.de.txt").read_text().splitlines()) for folder in ("data/bin", "expanded")]
    assert words[1] == words[0] + 2
