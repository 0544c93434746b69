"""scripts/multi30k/duo.sh on the made-up corpus of the Multi30k scripts' tests."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from test_multi30k_scripts import LAYERS, SCRIPTS, TINY, bash, corpus, pytestmark  # noqa: F401
from trainings import pretend_finished

ARCHS = ["transformer", "transformer_equal", "duo_meta", "duo_shared", "duo_norm", "duo"]
INITS = ["xavier", "pretrained_xavier"]


@pytest.fixture(scope="module")
def grid(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """Three models are trained: those with parameters to compare, and one with vectors for both tables."""
    output = tmp_path_factory.mktemp("duo ladder")
    common = ["--output", output, "--directions", "de-en", "--seeds", 1, "--epochs", 1, "--jobs", 2, "--dim", 16]
    model = ["--", *TINY[2:], *LAYERS]
    second = tmp_path_factory.mktemp("other vectors") / "de.vec"
    second.write_text("mann " + " ".join(["0.5", "-0.5"] * 8) + "\nfrau " + " ".join(["0.25", "-1"] * 8) + "\n")
    bleu = [
        "--eval-bleu",
        "--eval-bleu-args",
        '{"beam": 1, "max_len_a": 1.2, "max_len_b": 10}',
        "--eval-tokenized-bleu",
    ]
    for archs, inits, options in (
        (["transformer_equal"], ["xavier"], []),
        (["duo"], INITS[1:], ["--vectors-p", f"de={second}"]),
    ):
        grid_of = ["--archs", *archs, "--inits", *inits, *options]
        bash(SCRIPTS / "run.sh", *common, *grid_of, *model, *bleu, DATA=str(corpus))
    trained = {"transformer_equal.xavier", "duo.pretrained_xavier", "duo_norm.xavier"}
    names = {f"{arch}.{init}".removeprefix("transformer.") for arch in ARCHS for init in INITS} - trained

    def ladder(**options):
        vectors = ["--vectors-p", f"de={second}"]  # as above, since a run keeps its options
        return bash(SCRIPTS / "duo.sh", *common, "--inits", *INITS, *vectors, *model, DATA=str(corpus), **options)

    runs = [f"de-en.{name}.seed1" for name in names]
    pretend_finished(
        output / "runs", runs, output / "runs/de-en.transformer_equal.xavier.seed1", lambda: ladder(check=False)
    )
    ladder()
    assert sum(log.stat().st_size > 0 for log in output.glob("runs/*/train.log")) == 3
    return output


def record(grid: Path, name: str) -> dict:
    return json.loads((grid / f"runs/de-en.{name}.seed1/result.json").read_text())


def test_one_table_with_the_whole_ladder(grid: Path) -> None:
    rows = [line.split("|")[1].strip() for line in (grid / "results.md").read_text().splitlines() if line[:2] == "| "]
    assert {f"{arch}, {init}" for arch in ARCHS for init in INITS} <= set(rows)
    assert (grid / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_rung_is_what_its_name_says_and_bleu_is_measured_after_every_epoch(grid: Path) -> None:
    result = record(grid, "duo_norm.xavier")
    command = shlex.split(result["command"])
    assert command[command.index("--arch") + 1] == "duo_transformer"
    assert command[command.index("--duo-fusion") + 1] == "off"
    assert not {"--duo-norm", "--duo-share-weights"} & set(command)
    assert {"valid_bleu", "valid_ppl"} <= set(result["epochs"]["1"])


def test_the_wider_transformer_has_as_many_parameters_as_duo(grid: Path) -> None:
    wider, duo = record(grid, "transformer_equal.xavier"), record(grid, "duo.pretrained_xavier")
    layers, dim = 2, 16
    assert abs(wider["parameters"]["all"] - duo["parameters"]["all"]) <= layers * (2 * dim + 1) / 2
    assert "--arch transformer " in wider["command"]


def test_both_tables_get_their_vectors(grid: Path) -> None:
    slots = record(grid, "duo.pretrained_xavier")["init"]["slots"]
    assert {slot: report["strategy"] for slot, report in slots.items()} == {
        "encoder": "pretrained_xavier",
        "decoder": "pretrained_xavier",
        "encoder_p": "pretrained_xavier",
        "decoder_p": "xavier",  # has no vectors
    }


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        ("duo.sh", ["--archs", "duo"], "--archs is fixed here; use run.sh"),
        ("duo.sh", ["duo"], "duo: no such option"),
        ("duo.sh", [], "--output is needed"),
        ("run.sh", ["--output", "out", "--vectors-p", "de=/dev/null"], "--archs transformer has a second table"),
        ("run.sh", ["--output", "out", "--archs", "duo", "--vectors-p", "de=none.vec"], "none.vec: no such file"),
        ("run.sh", ["--output", "out", "--archs", "duo", "--vectors-p", "fr=a.vec"], "give de=PATH or en=PATH"),
        ("train.sh", ["--data", "d", "--output", "o", "--arch", "duo_big"], "--arch duo_big: not known; choose one of"),
    ],
)
def test_wrong_options(script: str, arguments: list[str], message: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = bash(SCRIPTS / script, *arguments, check=False)
    assert result.returncode != 0
    assert message in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "passed_on"),
    [
        ([], "-- --"),
        (["--", "--lr", "1"], "-- --lr 1 --"),
        (["--", "--", "--amp"], "-- -- --amp"),
        (["--", "--lr", "1", "--", "--amp"], "-- --lr 1 -- --amp"),
        (["--", "--", "--archs", "a", "--inits", "b"], "-- -- --archs a --inits b"),
    ],
)
def test_options_of_train_sh_and_of_fairseq_train(given: list[str], passed_on: str, tmp_path: Path) -> None:
    scripts = tmp_path / "scripts/multi30k"
    scripts.mkdir(parents=True)
    for name in ("duo.sh", "archs.sh", "../common.sh"):
        (scripts / name).write_text((SCRIPTS / name).read_text())
    (scripts / "run.sh").write_text('echo "$*"\n')
    line = bash(scripts / "duo.sh", "--output", "out", *given).stdout.strip()
    grid = f"--archs {' '.join(ARCHS)} --inits xavier --output out"
    assert line.startswith(f"{grid} {passed_on} --eval-bleu "), line
