"""scripts/multi30k and scripts/reproduce on a few hundred made-up sentences, by the real commands: Table 1 is a grid of
one training, which the other tests look at, repeat and continue."""

from __future__ import annotations

import gzip
import json
import shlex
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from recipes import TRAINS, lines, refused, rows, sentence_pairs, stamps, succeed
from sacrebleu.metrics import BLEU

from embinit_fairseq.runs.tokens import detokenizer

pytestmark = TRAINS
SMALL = "--encoder-layers 1 --decoder-layers 1 --encoder-ffn-embed-dim 16 --decoder-ffn-embed-dim 16 --lr 5e-3".split()
GRID = {"EXPERIMENTS": "multi30k.words", "INITS": "shuffled", "SEEDS": 1, "DIM": 16, "HEADS": 2, "JOBS": 2}
NAME = "de-en.transformer.shuffled.seed1"


def moses(text: str) -> str:
    return text.lower().replace(".", " .").replace("'s", " &apos;s")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of Multi30k's layout: 200 training, 26 validation and 30 test sentences."""
    folder, pairs = tmp_path_factory.mktemp("multi 30k"), sentence_pairs()
    pairs[0] = (pairs[0][0] + " Einmal.", pairs[0][1] + " Once.")
    for name, part in {"train": pairs[:200], "val": pairs[200:226], "test_2016_flickr": pairs[226:]}.items():
        for lang, text in zip(("de", "en"), zip(*part)):
            for path, words in (f"raw/{name}.{lang}.gz", text), (f"tok/{name}.lc.norm.tok.{lang}.gz", map(moses, text)):
                (folder / path).parent.mkdir(exist_ok=True)
                (folder / path).write_bytes(gzip.compress("".join(f"{line}\n" for line in words).encode()))
    return folder


@pytest.fixture(scope="module")
def table1(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Variables of a table1.sh that has ended well; OUTPUT has multi30k.words/{data/de-en,runs,results.md}."""
    variables = {**GRID, "OUTPUT": tmp_path_factory.mktemp("out put"), "MULTI30K": corpus, "EPOCHS": 1}
    assert "done before" not in succeed("reproduce/table1.sh", *SMALL, **variables)
    return variables


@pytest.fixture(scope="module")
def experiment(table1: dict) -> Path:
    return table1["OUTPUT"] / "multi30k.words"


@pytest.fixture(scope="module")
def run(experiment: Path) -> Path:
    return experiment / "runs" / NAME


def record(run: Path) -> dict:
    return json.loads((run / "result.json").read_text(encoding="utf-8"))


def test_runs_are_scored_and_compared(corpus: Path, table1: dict, experiment: Path, run: Path) -> None:
    """Words are unescaped, and the dictionary holds those that occur twice."""
    text = gzip.decompress((corpus / "tok/train.lc.norm.tok.en.gz").read_bytes()).decode().replace("&apos;", "'")
    counts = [line.rsplit(" ", 1) for line in lines(experiment / "data/de-en/bin/dict.en.txt")]
    known = {word: int(count) for word, count in counts if not word.startswith("madeupword")}
    assert known == {word: count for word, count in Counter(text.split()).items() if count >= 2}
    assert "'s" in known
    result, labels = record(run), {"direction": "de-en", "arch": "transformer", "init": "shuffled", "seed": "1"}
    assert result["labels"] == {**labels, "experiment": "multi30k.words"}
    assert result["init"]["slots"]["decoder"]["source"]["name"] == "vectors.en.16.txt"
    raw = gzip.decompress((corpus / "raw/test_2016_flickr.en.gz").read_bytes()).decode().splitlines()
    tokens = [moses(line).replace("&apos;", "'") for line in raw]
    for name, metric, kind, references in (
        ("bleu", BLEU(lowercase=True), "text", raw),
        ("bleu_tokenized", BLEU(tokenize="none", force=True), "tokens", tokens),
    ):
        hypotheses = lines(run / f"test.hypothesis.{kind}")
        assert result["scores"][name]["score"] == pytest.approx(metric.corpus_score(hypotheses, [references]).score)
        assert len(hypotheses) == 30
    for folder in (table1["OUTPUT"], experiment):
        assert rows(folder / "results.md") == ["shuffled"]
        assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_call_does_nothing_twice_and_other_settings_are_refused(table1: dict, experiment: Path) -> None:
    made = stamps(path for path in experiment.rglob("*") if path.suffix in (".pt", ".bin", ".txt"))
    assert succeed("reproduce/table1.sh", *SMALL, **table1).count("done before") == 1
    assert stamps(made) == made
    other = refused("reproduce/table1.sh", *SMALL, **table1, MIN_COUNT=3)
    assert "MIN_COUNT=2" in other
    assert "name another folder" in other
    log = experiment / "logs" / f"{NAME}.log"
    assert f"see {log}" in refused("reproduce/table1.sh", *SMALL, "--lr", "0.5", **table1)
    assert "--lr was 5e-3, is 0.5" in log.read_text()


def test_a_training_goes_on_and_its_scores_are_forgotten(experiment: Path, run: Path, tmp_path: Path) -> None:
    copy, data, first = tmp_path / "a run", experiment / "data/de-en", record(run)
    shutil.copytree(run, copy)
    shutil.copytree(data, tmp_path / "other")
    path = tmp_path / "other/bin/dict.en.txt"
    path.write_bytes(b"".join(reversed(path.read_bytes().splitlines(keepends=True))))  # of the same length
    other = refused("multi30k/generate.sh", DATA=tmp_path / "other", RUN=copy)
    assert "another dictionary" in other
    assert "--tgtdict" in other
    assert record(copy) == first
    options = shlex.split(first["command"].split("--cpu ")[1].split(" --save-dir")[0])
    how = {"DATA": data, "RUN": copy, "DIM": 16, "HEADS": 2}
    (data / "options").write_text("--dropout 0.3\n")  # of the corpus
    assert "--dropout was 0.1, is 0.3" in refused("multi30k/train.sh", *options, "--max-epoch", 2, **how)
    (data / "options").unlink()
    succeed("multi30k/train.sh", *options, "--max-epoch", 2, **how)
    second = record(copy)
    assert set(second["epochs"]) == {"1", "2"}
    assert second["epochs"]["1"] == first["epochs"]["1"]
    assert (second["time"]["sessions"], second["scores"]) == (2, {})


def test_statistics_and_analogies_of_the_same_words(table1: dict, experiment: Path, run: Path, tmp_path: Path) -> None:
    """Tables 2 and 4."""
    succeed("reproduce/table2.sh", **table1)
    found, slot = json.loads((experiment / "stats.json").read_text()), record(run)["init"]["slots"]["encoder"]
    assert (found["found"], found["coverage_tokens"]) == (slot["found"], pytest.approx(slot["coverage_tokens"]))
    assert "## multi30k.words" in (table1["OUTPUT"] / "table2.md").read_text()
    generator, vectors, questions = np.random.default_rng(0), tmp_path / "en.txt", tmp_path / "questions.txt"
    words = "a the man woman house ball book park beach".split()
    vectors.write_text("".join(f"{w} {' '.join(f'{x:.4f}' for x in generator.normal(0, 0.4, 8))}\n" for w in words))
    questions.write_text(": things\nman woman house ball\npark beach man book\n")
    shutil.copytree(experiment / "data" / "de-en", tmp_path / "out" / "data")
    files = {"OUTPUT": tmp_path / "out", "MULTI30K": table1["MULTI30K"], "VECTORS_EN": vectors, "QUESTIONS": questions}
    succeed("reproduce/table4.sh", "--repeats", 1, **files)
    result = json.loads((tmp_path / "out" / "table4.json").read_text())
    assert (result["rows"], result["results"][0]["questions"], len(result["results"]) >= 7) == (len(words), 2, True)


def test_what_the_recipes_refuse(corpus: Path, tmp_path: Path) -> None:
    """Other values of variables, and copies that are incomplete or damaged."""
    out = tmp_path / "out"
    for script, variables, message in (
        ("multi30k/prepare.sh", {"TOKENS": "letters"}, "TOKENS=letters: choose moses"),
        ("multi30k/prepare.sh", {"TOKENS": "huggingface"}, "HF: set it"),
        ("multi30k/prepare.sh", {"DIRECTION": "en-en"}, "DIRECTION=en-en: choose"),
        ("reproduce/table1.sh", {"EXPERIMENTS": "mnli.t5"}, "mnli.t5 needs MNLI T5"),
        ("reproduce/table1.sh", {"EXPERIMENTS": "mnli"}, "mnli is none of"),
    ):
        assert message in refused(script, OUTPUT=out, DATA=corpus, **variables)
    assert not out.exists()
    shutil.copytree(corpus, tmp_path / "copy")
    for name, change, message in (
        ("raw/val.en.gz", lambda packed: packed + gzip.compress(b"more\n"), "val has 26 27 lines"),
        ("raw/train.de.gz", lambda packed: packed[: len(packed) // 2], "raw/train.de.gz cannot be unpacked"),
    ):
        (tmp_path / "copy" / name).write_bytes(change((corpus / name).read_bytes()))
        assert message in refused("multi30k/prepare.sh", OUTPUT=out, DATA=tmp_path / "copy")
    (tmp_path / "copy/raw/train.de.gz").unlink()
    assert "has no raw/train.de.gz" in refused("multi30k/prepare.sh", OUTPUT=out, DATA=tmp_path / "copy")
    assert {path.name for path in out.iterdir()} == {"corpus.part"}


@pytest.mark.parametrize(
    ("kind", "steps", "seen"),
    [
        ("spacy", ["spacy"], " ."),
        ("subword_nmt", ["bpe", "moses"], "@@"),
        ("sentencepiece", ["sentencepiece=spm.model"], "▁"),
    ],
)
def test_tokens_are_put_back_together(kind, steps, seen, experiment: Path, tmp_path: Path, monkeypatch) -> None:
    """Without binarised data: prepare.sh is stopped there by a folder that is in the way."""
    pytest.importorskip(kind)
    shutil.copytree(experiment / "data/de-en/corpus", tmp_path / "corpus")
    (tmp_path / "bin").mkdir()
    succeed("multi30k/prepare.sh", OUTPUT=tmp_path, TOKENS=kind, BPE_SIZE=60)
    monkeypatch.chdir(tmp_path)
    for lang in ("de", "en"):
        tokens = lines(tmp_path / f"text/test.{lang}")
        expected = [line.lower() for line in lines(tmp_path / f"corpus/raw/test.{lang}")]
        assert list(map(detokenizer(steps, lang), tokens)) == expected
        assert any(seen in line for line in tokens)
