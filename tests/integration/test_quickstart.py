"""scripts/quickstart.sh from an empty folder to the table, much shortened; again; and with wrong options."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
#: name of the row -> --embed-init
STRATEGIES = {"pretrained_xavier": "pretrained_xavier", "shuffled_xavier": "shuffled"}
SHORT = "--epochs 1 --train 150 --test 20 --monolingual 1500 --dim 8".split()


def quickstart(*options: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run it from another directory, in the environment of this Python."""
    environment = {**os.environ, "VENV": sys.prefix}
    command = ["bash", str(REPOSITORY / "scripts" / "quickstart.sh"), *options]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    if not (Path(sys.prefix) / "bin" / "fairseq-train").exists():
        pytest.skip(f"{sys.prefix} is no environment with fairseq: run scripts/test.sh")
    folder = tmp_path_factory.mktemp("quickstart")
    done = quickstart(*SHORT, "--strategies", " ".join(STRATEGIES), "--output", "out", folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done


@pytest.mark.end_to_end
def test_table_curves_and_records(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = finished
    output = folder / "out"
    table = (output / "table.md").read_text(encoding="utf-8")
    assert table in done.stdout
    assert [line.split("|")[1].strip() for line in table.splitlines()[2:4]] == list(STRATEGIES)
    assert "signature `nrefs:1" in table
    assert (output / "curves.png").read_bytes().startswith(b"\x89PNG")
    ratios = {}
    for strategy in STRATEGIES:
        assert f"{strategy:<18} epoch  1/1" in done.stdout  # progress
        result = json.loads((output / "runs" / strategy / "result.json").read_text(encoding="utf-8"))
        assert result["labels"] == {"direction": "de-en", "init": strategy, "seed": "1"}
        assert set(result["init"]["slots"]) == {"encoder", "decoder"}
        assert {slot["strategy"] for slot in result["init"]["slots"].values()} == {STRATEGIES[strategy]}
        ratios[strategy] = [slot["absorption_ratio"] for slot in result["init"]["slots"].values()]
        assert all(slot["coverage_tokens"] > 0.5 for slot in result["init"]["slots"].values())
        assert result["scores"]["sentences"] == 20
        hypotheses = (output / "runs" / strategy / "test.hypothesis.txt").read_text(encoding="utf-8")
        assert hypotheses.count("\n") == 20
    assert ratios["shuffled_xavier"] == pytest.approx(ratios["pretrained_xavier"], rel=0.02)
    assert f"{output / 'vectors.de.txt'}: " in done.stderr
    assert ".part" not in done.stderr  # the names of unfinished files are nobody's business
    assert not list(output.rglob("*.part"))
    assert not list(output.rglob("*.tmp"))


@pytest.mark.end_to_end
def test_second_call_repeats_nothing(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, first = finished
    checkpoints = {path: path.stat().st_mtime_ns for path in (folder / "out").rglob("*.pt")}
    again = quickstart(*SHORT, "--strategies", " ".join(STRATEGIES), "--output", "out", folder=folder)
    assert again.returncode == 0, again.stderr
    assert {path: path.stat().st_mtime_ns for path in (folder / "out").rglob("*.pt")} == checkpoints
    assert "epoch" not in again.stdout.split("| initialisation")[0]
    assert (folder / "out" / "table.md").read_text(encoding="utf-8") in first.stdout


@pytest.mark.end_to_end
def test_other_options_need_another_folder(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = finished
    other = quickstart(*SHORT, "--seed", "2", "--output", "out", folder=folder)
    assert other.returncode != 0
    assert "other options" in other.stderr
    assert "--output" in other.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--strategies", "xavier glove"], "--strategies glove: not known"),
        (["--epochs", "0"], "--epochs 0: expected a whole number above 0"),
        (["--dim", "10"], "--dim 10: must be a multiple of 4"),
        (["--colour", "red"], "--colour: no such option"),
        (["--seed"], "--seed needs a value"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_made(options: list[str], message: str, tmp_path: Path) -> None:
    done = quickstart(*options, folder=tmp_path)
    assert done.returncode != 0
    assert message in done.stderr
    assert not list(tmp_path.iterdir())


def test_help_shows_the_options(tmp_path: Path) -> None:
    done = quickstart("--help", folder=tmp_path)
    assert done.returncode == 0
    assert "--strategies" in done.stdout
