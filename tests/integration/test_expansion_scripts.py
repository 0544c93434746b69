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
TINY = {"LM_UPDATES": 20, "LAYERS": 1, "DIM": 8, "HEADS": 2, "FFN": 8, "UPDATES": 2, "EVERY": 1, "JOBS": 1}
MODEL = ["--max-tokens", 200]

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(not (VENV / "bin" / "fairseq-train").is_file(), reason="fairseq is not installed beside pytest"),
]


def bash(script: str, *arguments: object, **variables: object) -> tuple[int, str]:
    """(exit code, what is said)."""
    given = {"VENV": VENV, "OMP_NUM_THREADS": 1, **variables}
    environment = {**os.environ, **{name: str(value) for name, value in given.items()}}
    command = ["bash", str(SCRIPTS / script), *map(str, arguments)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return result.returncode, result.stdout + result.stderr


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
    code, said = bash("run.sh", *MODEL, DATA=text, OUTPUT=output, METHODS="avg", **SMALL, **TINY)
    assert code == 0, said
    return output


def test_prepared_text(experiment: Path, text: Path) -> None:
    data = experiment / "data"
    lines = gzip.decompress((text / "valid.txt.gz").read_bytes()).decode().splitlines()
    words = [line.split() for line in lines if line.split()][:20]
    for name in ("corpus", "text/old", "text/new"):
        cut = (data / name / "valid").read_text().splitlines()
        assert [f"{line} ".replace("@@ ", "").split() for line in cut] == words
    names = ("corpus/train", "text/old/train", "text/new/train")
    running, old, new = ((data / name).read_text().split() for name in names)
    table = [line.split("\t") for line in (data / "words.tsv").read_text().splitlines()[1:]]
    assert len(table) == 5
    for word, pieces, train, _ in table:
        assert (pieces.replace("@@ ", ""), word in old) == (word, False)
        assert int(train) == running.count(word) == new.count(word)


def test_perplexities_are_of_the_same_words(experiment: Path) -> None:
    record = json.loads((experiment / "results.json").read_text())
    found = {method: each["curves"][f"{method}.seed1"] for method, each in record.items()}
    assert list(found) == ["none", "avg"]
    words = (experiment / "data/corpus/valid").read_text().split()
    new = [line.split("\t")[0] for line in (experiment / "data/words.txt").read_text().splitlines()]
    counts = (len(words) + 20, sum(map(words.count, new)))
    for points in found.values():
        assert list(points) == ["0", "1", "2"]
        assert {(point["words"], point["new"]) for point in points.values()} == {counts}
    log = (experiment / "lm/train.log").read_text().splitlines()
    logged = [json.loads(line.split(" | valid | ")[1]) for line in log if "valid |" in line]
    # before adaptation "none" is the language model as it was trained
    assert found["none"]["0"]["word_nll"] == pytest.approx(float(logged[-1]["valid_word_nll"]), abs=1e-5)
    # one symbol instead of several of a model that learned nothing
    assert found["avg"]["0"]["new_nll"] < found["none"]["0"]["new_nll"]
    assert found["avg"]["2"]["word_nll"] < found["avg"]["0"]["word_nll"]
    kl = record["avg"]["kl"]["avg.seed1"]
    assert 0 < kl["max"] <= kl["bound"]
    assert (experiment / "results.md").read_text(encoding="utf-8").count("| avg |") == 4
    assert (experiment / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_goes_on_where_it_was(experiment: Path) -> None:
    run = experiment / "runs" / "avg.seed1"
    before = read_curve(run)
    adapt = {"DATA": experiment / "data", "MODEL": experiment / "models" / "avg.seed1", "RUN": run, "EVERY": 1}
    code, said = bash("adapt.sh", "--seed", 1, *MODEL, "--lr", 0.1, UPDATES=3, **adapt)
    assert (code != 0, "--lr" in said) == (True, True)
    code, said = bash("adapt.sh", "--seed", 1, *MODEL, UPDATES=3, **adapt)
    assert code == 0, said
    after = read_curve(run)
    assert {place: after[place] for place in before} == before
    assert list(after) == ["0", "1", "2", "3"]


def test_mistakes_are_named(experiment: Path, text: Path, tmp_path: Path) -> None:
    data, out = experiment / "data", {"OUTPUT": tmp_path / "out"}
    for script, variables, words in (
        ("prepare.sh", {**out, "DATA": tmp_path}, ["neither train.txt", "wiki.{train,valid}.tokens"]),
        ("prepare.sh", {**SMALL, "DATA": text, "OUTPUT": data, "WORDS": 4}, ["words=5", "name another folder"]),
        ("expand.sh", {**out, "DATA": data, "LM": experiment / "lm", "METHODS": "best"}, ["--method", "best"]),
        ("adapt.sh", {"DATA": data, "MODEL": tmp_path, "RUN": tmp_path / "run"}, ["MODEL=", "run expand.sh"]),
    ):
        code, said = bash(script, **variables)
        assert code != 0
        assert all(word in said for word in words), said
