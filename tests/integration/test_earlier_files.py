"""Files of an earlier revision (tests/data/earlier/make.sh) still load, go on, compare and translate."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from programs import PYTHON
from trainings import REPOSITORY, run_to_end

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
def test_embinit_run_knows_the_run(earlier, name, capfd) -> None:
    """The recorded call does nothing, one with more epochs goes on, another --lr is refused."""
    last = earlier / name / "checkpoints/checkpoint_last.pt"
    before, written = load_checkpoint(str(last)), last.read_bytes()
    program, *flags = json.loads((earlier / name / "training.json").read_text())["command"].split()
    assert program == "fairseq-train"

    def call(*changes: str, code: int = 0) -> str:
        assert main(["run", name, "--", PYTHON, "-m", "fairseq_cli.train", *flags, *changes]) == code
        return capfd.readouterr().err

    assert "finished before" in call()
    assert "--lr was 0.01, is 0.02" in call("--max-epoch", "3", "--lr", "0.02", code=2)
    assert last.read_bytes() == written
    call("--max-epoch", "3")
    after = load_checkpoint(str(last))
    assert after["model"].keys() == before["model"].keys()
    assert [state["optimizer_history"][-1]["num_updates"] for state in (before, after)] == [10, 15]
    assert any(not torch.equal(after["model"][key], value) for key, value in before["model"].items())
    assert list(json.loads((earlier / name / "result.json").read_text())["epochs"]) == ["1", "2", "3"]


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
