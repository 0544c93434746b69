"""scripts/expansion on made-up sentences, through bash and the real fairseq and embinit commands."""

from __future__ import annotations

import gzip
import json
import random
import sys
from pathlib import Path

import pytest
import recipes

sys.path.insert(0, str(recipes.SCRIPTS))

from expansion.expansion_table import read_curve

from embinit_fairseq.vocab.dictionary import read_dictionary
from embinit_fairseq.vocab.preparation_record import read_preparation

SMALL = {"BPE_SIZE": 60, "WORDS": 5, "VALID_LINES": 20}
TINY = {"LM_UPDATES": 4, "LAYERS": 1, "DIM": 8, "HEADS": 2, "FFN": 8, "UPDATES": 2, "EVERY": 1, "JOBS": 1}
MODEL = ["--max-tokens", 200]
pytestmark = recipes.TRAINS


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
    folder = tmp_path_factory.mktemp("experiment")
    said = recipes.refused("expansion/run.sh", DATA=text, OUTPUT=folder, METHODS="avg averag", **SMALL)
    assert "METHODS: averag" in said  # before the language model is trained
    assert not list(folder.iterdir())
    recipes.succeed("expansion/run.sh", *MODEL, DATA=text, OUTPUT=folder, METHODS="avg", **SMALL, **TINY)
    return folder


def new_words(data: Path) -> list[list[str]]:
    """Word, pieces, counts."""
    return [line.split("\t") for line in (data / "words.tsv").read_text().splitlines()[1:]]


def test_an_experiment_goes_on_where_it_was(text: Path, experiment: Path) -> None:
    """The same text in both segmentations; perplexities of the same words; more updates after those that there are.

    What the perplexities are is in tests/unit/test_expansion_words.py.
    """
    data = experiment / "data"
    lines = gzip.decompress((text / "valid.txt.gz").read_bytes()).decode().splitlines()
    words = [line.split() for line in lines if line.split()][:20]
    for name in ("corpus", "text/old", "text/new"):
        cut = (data / name / "valid").read_text().splitlines()
        assert [f"{line} ".replace("@@ ", "").split() for line in cut] == words
    names = ("corpus/train", "text/old/train", "text/new/train")
    running, old, new = ((data / name).read_text().split() for name in names)
    table = new_words(data)
    assert len(table) == 5
    for word, pieces, train, _ in table:
        assert (pieces.replace("@@ ", ""), word in old) == (word, False)
        assert int(train) == running.count(word) == new.count(word)

    for folder in (data / "bin", experiment / "models/avg.seed1", experiment / "models/bin"):
        recorded = read_preparation(folder / "dict.txt")
        prepare, name = (
            recorded.preparation(read_dictionary(folder / "dict.txt").symbols),
            "old" if folder == data / "bin" else "new",
        )
        lines = [
            " ".join(prepare(line)) for line in (data / "corpus/valid").read_text().splitlines() if "<" not in line
        ]
        assert lines == [line for line in (data / "text" / name / "valid").read_text().splitlines() if "<" not in line]

    record = json.loads((experiment / "results.json").read_text())
    found = {method: each["curves"][f"{method}.seed1"] for method, each in record.items()}
    assert list(found) == ["none", "avg"]
    running = (data / "corpus/valid").read_text().split()
    counts = (len(running) + 20, sum(running.count(word) for word, *_ in table))
    for points in found.values():
        assert list(points) == ["0", "1", "2"]
        assert {(point["words"], point["new"]) for point in points.values()} == {counts}
    log = (experiment / "lm/train.log").read_text().splitlines()
    logged = [json.loads(line.split(" | valid | ")[1]) for line in log if "valid |" in line]
    # before adaptation "none" is the language model as it was trained
    assert found["none"]["0"]["word_nll"] == pytest.approx(float(logged[-1]["valid_word_nll"]), abs=1e-5)
    for method in ("none", "avg"):
        assert found[method]["2"]["word_nll"] != found[method]["0"]["word_nll"]
    kl = record["avg"]["kl"]["avg.seed1"]
    assert 0 < kl["max"] <= kl["bound"]
    assert (experiment / "results.md").read_text(encoding="utf-8").count("| avg |") == 4
    assert (experiment / "curves.png").read_bytes().startswith(b"\x89PNG")

    run, before = experiment / "runs" / "avg.seed1", found["avg"]
    adapt = {"DATA": data, "LM": experiment / "lm", "RUN": run, "EVERY": 1, "UPDATES": 3}
    adapt["MODEL"] = experiment / "models/avg.seed1"
    assert "--lr" in recipes.refused("expansion/adapt.sh", "--seed", 1, *MODEL, "--lr", 0.1, **adapt)
    recipes.succeed("expansion/adapt.sh", "--seed", 1, *MODEL, **adapt)
    after = read_curve(run)
    assert ({place: after[place] for place in before}, list(after)) == (before, ["0", "1", "2", "3"])
    said = recipes.refused("expansion/prepare.sh", **{**SMALL, "DATA": text, "OUTPUT": data, "WORDS": 4})
    assert all(part in said for part in ("words=5", "name another folder")), said


def test_a_new_domain(text: Path, experiment: Path, tmp_path: Path) -> None:
    """BPE, dictionary and language model of the one text, words of the other."""
    data, domain, other = experiment / "data", tmp_path / "domain", tmp_path / "books"
    table = new_words(data)
    other.mkdir()
    sentences = [f"{table[0][0]} {table[1][0]} bade", "kilo mupe", f"{table[0][0]} wax"] * 7
    for name in ("train.txt", "valid.txt"):
        (other / name).write_text("\n".join(sentences) + "\n")
    recipes.succeed("expansion/prepare.sh", **{**SMALL, "LM_DATA": text, "DATA": other, "OUTPUT": domain, "WORDS": 2})
    for name in ("bpe.codes", "bin/dict.txt"):
        assert (domain / name).read_bytes() == (data / name).read_bytes()
    assert (domain / "words.txt").read_text().split("\n")[0].split()[0] == table[0][0]
    assert (domain / "bin.old/dict.txt").read_bytes() == (domain / "bin/dict.txt").read_bytes()
    assert (domain / "bin.old/train.idx").stat().st_size < (domain / "bin/train.idx").stat().st_size
    models = {"DATA": domain, "LM": experiment / "lm", "OUTPUT": domain / "models", "METHODS": "normal=0.5 distill"}
    recipes.succeed("expansion/expand.sh", **models)
    record = json.loads((domain / "models/normal=0.5.seed1/expansion.json").read_text())
    assert (record["method"], record["noise_scale"], record["k"]) == ("normal", 0.5, 2)
    record = json.loads((domain / "models/distill.seed1/expansion.json").read_text())
    assert (record["distill"]["sentences"], record["distill"]["kl"]["mean"] > 0) == (14, True)
    adapt = {"DATA": domain, "LM": experiment / "lm", "RUN": tmp_path / "run", "EVERY": 1, "UPDATES": 1}
    recipes.succeed("expansion/adapt.sh", *MODEL, **adapt)
    assert f"fairseq-train {domain}/bin.old " in json.loads((tmp_path / "run/result.json").read_text())["command"]
