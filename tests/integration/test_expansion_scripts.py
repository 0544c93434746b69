"""scripts/expansion on made-up sentences, through bash and the real fairseq and embinit commands."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from programs import VENV

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from expansion.table import read_curve

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts" / "expansion"
SMALL = {"BPE_SIZE": 60, "WORDS": 5, "VALID_LINES": 20}
TINY = {"LM_UPDATES": 20, "LAYERS": 1, "DIM": 8, "HEADS": 2, "FFN": 8, "UPDATES": 4, "EVERY": 2, "JOBS": 1}

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(not (VENV / "bin" / "fairseq-train").is_file(), reason="fairseq is not installed beside pytest"),
]


def bash(script: str, *arguments: object, check: bool = True, **variables: object) -> subprocess.CompletedProcess:
    environment = {**os.environ, "VENV": str(VENV), "OMP_NUM_THREADS": "1", **{k: str(v) for k, v in variables.items()}}
    command = ["bash", str(SCRIPTS / script), *map(str, arguments)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
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
    bash("run.sh", "--max-tokens", 200, DATA=text, OUTPUT=output, METHODS="avg", **SMALL, **TINY)
    return output


def curves(experiment: Path) -> dict[str, dict[str, dict[str, float]]]:
    record = json.loads((experiment / "results.json").read_text())
    return {method: found["curves"][f"{method}.seed1"] for method, found in record.items()}


def test_prepared_text(experiment: Path, text: Path) -> None:
    data = experiment / "data"
    lines = gzip.decompress((text / "valid.txt.gz").read_bytes()).decode().splitlines()
    words = [line.split() for line in lines if line.split()][:20]
    assert [line.split() for line in (data / "corpus/valid").read_text().splitlines()] == words
    for kind in ("old", "new"):
        cut = [f"{line} ".replace("@@ ", "").split() for line in (data / f"text/{kind}/valid").read_text().splitlines()]
        assert cut == words
    table = [line.split("\t") for line in (data / "words.tsv").read_text().splitlines()[1:]]
    assert len(table) == 5
    running, old, new = (
        (data / name).read_text().split() for name in ("corpus/train", "text/old/train", "text/new/train")
    )
    for word, pieces, train, _ in table:
        assert pieces.replace("@@ ", "") == word
        assert int(train) == running.count(word) == new.count(word)
        assert word not in old


def test_perplexities_are_of_the_same_words(experiment: Path) -> None:
    found = curves(experiment)
    assert list(found) == ["none", "avg"]
    words = (experiment / "data/corpus/valid").read_text()
    new = [line.split("\t")[0] for line in (experiment / "data/words.txt").read_text().splitlines()]
    counts = (len(words.split()) + 20, sum(words.split().count(word) for word in new))
    for points in found.values():
        assert list(points) == ["0", "2", "4"]
        assert {(point["words"], point["new"]) for point in points.values()} == {counts}
    log = (experiment / "lm/train.log").read_text().splitlines()
    logged = [json.loads(line.split(" | valid | ")[1]) for line in log if "valid |" in line]
    # before adaptation "none" is the language model as it was trained
    assert found["none"]["0"]["word_nll"] == pytest.approx(float(logged[-1]["valid_word_nll"]), abs=1e-5)
    # one symbol instead of several of a model that learned nothing
    assert found["avg"]["0"]["new_nll"] < found["none"]["0"]["new_nll"]
    assert found["avg"]["4"]["word_nll"] < found["avg"]["0"]["word_nll"]
    kl = json.loads((experiment / "results.json").read_text())["avg"]["kl"]["avg.seed1"]
    assert 0 < kl["max"] <= kl["bound"]


def test_the_tables_are_written_and_a_run_goes_on_where_it_was(experiment: Path) -> None:
    lines = (experiment / "results.md").read_text(encoding="utf-8").splitlines()
    rows = [line.split("|")[1].strip() for line in lines if line.startswith("|")]
    assert rows == ["method", "---", "none", "avg"] * 3 + ["method", "---", "avg"]
    assert (experiment / "curves.png").read_bytes().startswith(b"\x89PNG")
    run = experiment / "runs" / "avg.seed1"
    before = read_curve(run)
    adapt = {"DATA": experiment / "data", "MODEL": experiment / "models" / "avg.seed1", "RUN": run, "EVERY": 2}
    other = bash("adapt.sh", "--seed", 1, "--max-tokens", 200, "--lr", 0.1, check=False, UPDATES=6, **adapt)
    assert other.returncode != 0
    assert "--lr" in other.stderr
    bash("adapt.sh", "--seed", 1, "--max-tokens", 200, UPDATES=6, **adapt)
    after = read_curve(run)
    assert {place: after[place] for place in before} == before
    assert list(after) == ["0", "2", "4", "6"]


def test_mistakes_are_named(experiment: Path, text: Path, tmp_path: Path) -> None:
    prepare, models = {"OUTPUT": tmp_path / "out"}, {"OUTPUT": tmp_path / "models"}
    data = experiment / "data"
    for script, variables, words in (
        ("prepare.sh", {**prepare, "DATA": tmp_path / "nothing"}, ["no such folder", "train.txt"]),
        ("prepare.sh", {**prepare, "DATA": tmp_path}, ["neither train.txt", "wiki.{train,valid}.tokens"]),
        ("prepare.sh", {**SMALL, "DATA": text, "OUTPUT": data, "WORDS": 4}, ["words=5", "name another folder"]),
        ("prepare.sh", {**prepare, **SMALL, "DATA": text, "WORDS": 99}, ["words of the training text", "BPE_SIZE"]),
        ("expand.sh", {**prepare, "DATA": tmp_path, "LM": tmp_path}, ["OUTPUT of prepare.sh"]),
        ("expand.sh", {**models, "DATA": data, "LM": experiment / "lm", "METHODS": "best"}, ["--method", "best"]),
        ("adapt.sh", {"DATA": data, "MODEL": tmp_path, "RUN": tmp_path / "run"}, ["MODEL=", "run expand.sh"]),
    ):
        refused = bash(script, check=False, **variables)
        assert refused.returncode != 0
        assert all(word in refused.stderr for word in words), refused.stderr
    assert not (tmp_path / "out" / "words.tsv").exists()
