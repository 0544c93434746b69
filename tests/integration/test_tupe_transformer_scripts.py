"""scripts/multi30k/absorption.sh on the made-up corpus of the Multi30k scripts' tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_multi30k_scripts import LAYERS, SCRIPTS, TINY, bash, corpus, pytestmark  # noqa: F401
from trainings import pretend_finished


@pytest.fixture(scope="module")
def grid(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """One direction, one seed; four of the six runs were there before, one of them from run.sh."""
    output = tmp_path_factory.mktemp("absorp tion")
    common = ["--output", output, "--directions", "de-en", "--seeds", 1, "--epochs", 1, "--jobs", 2, "--dim", 16]
    model = ["--", *TINY[2:], *LAYERS]
    bash(SCRIPTS / "run.sh", *common, "--inits", "xavier", *model, DATA=str(corpus))

    def grid(**options):
        return bash(SCRIPTS / "absorption.sh", *common, *model, DATA=str(corpus), **options)

    untrained = ["pretrained", "tupe_transformer.xavier", "tupe_transformer.pretrained_xavier"]
    runs = output / "runs"
    names = [f"de-en.{name}.seed1" for name in untrained]
    pretend_finished(runs, names, runs / "de-en.xavier.seed1", lambda: grid(check=False))
    for name in names[1:]:  # positions are not added there
        result = json.loads((runs / name / "result.json").read_text())
        for slot in result["init"]["slots"].values():
            slot["absorption_ratio"] = None
        (runs / name / "result.json").write_text(json.dumps(result))
    before = {path: path.stat().st_mtime_ns for path in output.glob("runs/*/result.json")}
    grid()
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert sum(log.stat().st_size > 0 for log in output.glob("runs/*/train.log")) == 3
    return output


def test_one_table_with_both_architectures_and_the_absorption_ratio(grid: Path) -> None:
    lines = [line.split("|")[1:-1] for line in (grid / "results.md").read_text().splitlines() if line.startswith("|")]
    header, _, *rows = [[field.strip() for field in line] for line in lines]
    rows = [row for row in rows if len(row) == len(header)][:6]  # below: differences to the first row
    inits = ["xavier", "pretrained", "pretrained_xavier"]
    assert [row[0] for row in rows] == [f"{arch}, {i}" for arch in ("transformer", "tupe_transformer") for i in inits]
    for side in ("encoder", "decoder"):
        column = header.index(f"absorption ratio, {side}")
        ratios = {row[0]: row[column].split(" ± ")[0] for row in rows}
        assert {ratio for name, ratio in ratios.items() if name.startswith("tupe")} == {"-"}
        for init in inits:
            result = json.loads((grid / f"runs/de-en.{init}.seed1/result.json").read_text())
            ratio = result["init"]["slots"][side]["absorption_ratio"]
            assert ratios[f"transformer, {init}"] == f"{ratio:.2f}"
        xavier, standardised = (float(ratios[f"transformer, {init}"]) for init in ("xavier", "pretrained_xavier"))
        assert standardised == pytest.approx(xavier, rel=0.1)
    assert (grid / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_runs_say_what_they_are(grid: Path) -> None:
    result = json.loads((grid / "runs/de-en.tupe_transformer.pretrained.seed1/result.json").read_text())
    assert result["labels"] == {"direction": "de-en", "arch": "tupe_transformer", "init": "pretrained", "seed": "1"}
    assert "--arch tupe_transformer" in result["command"]
    assert result["init"]["strategy"] == "pretrained"
    assert result["scores"]["bleu_tokenized"]["score"] >= 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--inits", "none"], "--inits is fixed here; use run.sh"),
        (["--archs", "transformer"], "--archs is fixed here; use run.sh"),
        ([], "--output is needed"),
    ],
)
def test_wrong_options(arguments: list[str], message: str) -> None:
    result = bash(SCRIPTS / "absorption.sh", *arguments, check=False)
    assert result.returncode != 0
    assert message in result.stderr


def test_unknown_architectures_are_refused(tmp_path: Path) -> None:
    result = bash(SCRIPTS / "run.sh", "--output", tmp_path, "--archs", "lstm", check=False)
    assert result.returncode != 0
    assert "--archs lstm: not known; choose one of: transformer tupe_transformer" in result.stderr
