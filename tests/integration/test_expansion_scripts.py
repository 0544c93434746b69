"""scripts/expansion on made-up sentences, through bash and the real fairseq and embinit commands."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import subprocess
from pathlib import Path

import pytest
from programs import VENV

REPO = Path(__file__).resolve().parents[2]
SCRIPTS = REPO / "scripts" / "expansion"
SMALL = "--bpe-size 60 --words 5 --valid-lines 20".split()
TINY = "--lm-updates 20 --layers 1 --dim 8 --heads 2 --ffn 8 --updates 4 --every 2".split()

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(not (VENV / "bin" / "fairseq-train").is_file(), reason="fairseq is not installed beside pytest"),
]


def bash(script: str, *arguments: object, check: bool = True, **environment: object) -> subprocess.CompletedProcess:
    variables = {**os.environ, "VENV": str(VENV), "OMP_NUM_THREADS": "1", "DATA": "", **environment}
    command = ["bash", str(SCRIPTS / script), *map(str, arguments)]
    result = subprocess.run(
        command, env={key: str(value) for key, value in variables.items()}, capture_output=True, text=True, check=False
    )
    if check and result.returncode != 0:
        pytest.fail(f"{script} {arguments}: exit code {result.returncode}\n{result.stdout}\n{result.stderr}")
    return result


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 words of two syllables and 12 of four, which BPE with few merges splits; empty lines, as in WikiText."""
    folder, generator = tmp_path_factory.mktemp("people's text"), random.Random(0)
    syllables = "ba de ki lo mu na pe ri so tu".split()
    words = [first + second for first in syllables for second in syllables][:40]
    words += ["".join(generator.sample(syllables, 4)) for _ in range(12)]
    lines = [" ".join(generator.choice(words) for _ in range(generator.randint(4, 12))) for _ in range(340)]
    lines = [f" {line} <unk> \n \n" if number % 3 == 0 else f" {line} \n" for number, line in enumerate(lines)]
    (folder / "wiki.train.tokens").write_text("".join(lines[:300]))
    (folder / "valid.txt.gz").write_bytes(gzip.compress("".join(lines[300:]).encode()))
    return folder


@pytest.fixture(scope="module")
def experiment(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("an experiment's folder")
    arguments = ["--output", output, "--methods", "none", "avg", "--seeds", 1, "--jobs", 1, *SMALL, *TINY]
    bash("run.sh", *arguments, "--", "--batch-tokens", 200, DATA=text)
    return output


def curve(run: Path) -> dict[str, dict[str, float]]:
    return json.loads((run / "result.json").read_text())["scores"]["curve"]


def adapt(experiment: Path, output: Path, method: str, *arguments: object, **how: bool) -> subprocess.CompletedProcess:
    folders = ["--data", experiment / "data", "--models", experiment / "models", "--output", output]
    return bash("adapt.sh", *folders, "--method", method, "--every", 2, "--batch-tokens", 200, *arguments, **how)


def test_prepared_text(experiment: Path, text: Path) -> None:
    data = experiment / "data"
    lines = gzip.decompress((text / "valid.txt.gz").read_bytes()).decode().splitlines()
    words = [line.split() for line in lines if line.split()][:20]
    assert [line.split() for line in (data / "corpus/valid").read_text().splitlines()] == words
    for kind in ("old", "new"):
        cut = [f"{line} ".replace("@@ ", "").split() for line in (data / f"text/{kind}/valid").read_text().splitlines()]
        assert cut == words
    table = [line.split("\t") for line in (data / "words.tsv").read_text().splitlines()[1:]]
    running = (data / "corpus/train").read_text().split()
    assert [int(train) for _, _, train, _ in table] == [running.count(word) for word, *_ in table]
    assert len(table) == 5
    old, new = ((data / f"text/{kind}/train").read_text().split() for kind in ("old", "new"))
    for word, pieces, train, _ in table:
        assert pieces.replace("@@ ", "") == word
        assert word not in old
        assert new.count(word) == int(train)


def test_perplexities_are_of_the_same_words(experiment: Path) -> None:
    none, avg = curve(experiment / "runs/none.seed1"), curve(experiment / "runs/avg.seed1")
    words = (experiment / "data/corpus/valid").read_text()
    new = [line.split("\t")[0] for line in (experiment / "data/words.txt").read_text().splitlines()]
    counts = (len(words.split()) + 20, sum(words.split().count(word) for word in new))
    for points in (none, avg):
        assert list(points) == ["0", "2", "4"]
        assert {(point["words"], point["new"]) for point in points.values()} == {counts}
    logged = [
        json.loads(line.split(" | valid | ")[1]) for line in (experiment / "lm/train.log").open() if "valid |" in line
    ]
    # before adaptation "none" is the language model as it was trained
    assert none["0"]["word_nll"] == pytest.approx(float(logged[-1]["valid_word_nll"]), abs=1e-5)
    assert avg["0"]["new_nll"] < none["0"]["new_nll"]  # one symbol instead of several of a model that learned nothing
    assert avg["4"]["word_nll"] < avg["0"]["word_nll"]
    result = json.loads((experiment / "runs/avg.seed1/result.json").read_text())["scores"]["kl"]
    assert 0 < result["max"] <= result["bound"]


def test_results_are_written_and_nothing_is_done_twice(experiment: Path, text: Path) -> None:
    table = (experiment / "results.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("|")]
    assert rows == ["method", "---", "none", "avg"] * 3 + ["method", "---", "avg"]
    assert (experiment / "curves.png").read_bytes().startswith(b"\x89PNG")
    logs = {path: path.stat().st_mtime_ns for path in experiment.rglob("*.log") if "logs" not in path.parts}
    arguments = ["--output", experiment, "--methods", "none", "avg", "--seeds", 1, "--jobs", 1, *SMALL, *TINY]
    bash("run.sh", *arguments, "--", "--batch-tokens", 200, DATA=text)
    assert {path: path.stat().st_mtime_ns for path in logs} == logs


def test_a_continued_run_is_the_same_as_one_without_a_pause(experiment: Path, tmp_path: Path) -> None:
    run = experiment / "runs/avg.seed1"
    before = curve(run)
    adapt(experiment, run, "avg", "--updates", 6)
    continued = curve(run)
    assert {place: continued[place] for place in before} == before
    assert json.loads((run / "result.json").read_text())["time"]["sessions"] == 2
    adapt(experiment, tmp_path / "run", "avg", "--updates", 6)
    assert curve(tmp_path / "run") == continued


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["zeros"], "has no bin or no zeros"), (["none"], "other options"), (["avg", "--lr", "0.1"], "other options")],
)
def test_other_options_are_refused(experiment: Path, arguments: list[str], message: str) -> None:
    run = experiment / "runs/avg.seed1"
    before = (run / "result.json").read_bytes()
    refused = adapt(experiment, run, *arguments, check=False)
    assert refused.returncode != 0
    assert message in refused.stderr
    assert "Traceback" not in refused.stderr
    assert (run / "result.json").read_bytes() == before


def test_other_words_need_another_folder(experiment: Path, text: Path, tmp_path: Path) -> None:
    refused = bash("prepare.sh", "--output", experiment / "data", *SMALL[2:], DATA=text, check=False)
    assert refused.returncode != 0
    assert "made with other options" in refused.stderr
    few = bash("prepare.sh", "--output", tmp_path, "--bpe-size", 60, "--words", 99, DATA=text, check=False)
    assert few.returncode != 0
    assert re.search(r"error: only \d\d words of the training text are split", few.stderr)
    assert not (tmp_path / "words.tsv").exists()


def test_mistakes_are_named(text: Path, tmp_path: Path) -> None:
    for arguments, data, message in (
        ([], "", "DATA is not set"),
        ([], tmp_path / "nothing", "no such folder"),
        ([], tmp_path, "has neither train.txt nor wiki.train.tokens"),
    ):
        refused = bash("prepare.sh", "--output", tmp_path / "out", *arguments, DATA=data, check=False)
        assert refused.returncode == 1
        assert message in refused.stderr
    refused = bash("run.sh", "--output", tmp_path / "out", "--methods", "none", DATA=text, check=False)
    assert "there is nothing to compare" in refused.stderr
    refused = bash("expand.sh", "--data", tmp_path, "--lm", tmp_path, "--output", tmp_path / "out", check=False)
    assert "run prepare.sh" in refused.stderr
