"""scripts/multi30k and scripts/reproduce on a few hundred made-up sentences, by the real commands: Table 1 is a grid of
one training, which the other tests look at."""

from __future__ import annotations

import gzip
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from recipes import TRAINS, lines, refused, rows, sentence_pairs, succeed
from sacrebleu.metrics import BLEU

from embinit_fairseq.runs.detokenizers import detokenizer

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


def record(experiment: Path) -> dict:
    return json.loads((experiment / "runs" / NAME / "result.json").read_text(encoding="utf-8"))


def test_runs_are_scored_and_compared(corpus: Path, table1: dict, experiment: Path) -> None:
    """Words are unescaped, and the dictionary holds those that occur twice."""
    text = gzip.decompress((corpus / "tok/train.lc.norm.tok.en.gz").read_bytes()).decode().replace("&apos;", "'")
    counts = [line.rsplit(" ", 1) for line in lines(experiment / "data/de-en/bin/dict.en.txt")]
    known = {word: int(count) for word, count in counts if not word.startswith("madeupword")}
    assert known == {word: count for word, count in Counter(text.split()).items() if count >= 2}
    assert "'s" in known
    result, labels = record(experiment), {"direction": "de-en", "arch": "transformer", "init": "shuffled", "seed": "1"}
    assert result["labels"] == {**labels, "experiment": "multi30k.words"}
    assert result["init"]["slots"]["decoder"]["source"]["name"] == "vectors.en.16.txt"
    raw = gzip.decompress((corpus / "raw/test_2016_flickr.en.gz").read_bytes()).decode().splitlines()
    tokens = [moses(line).replace("&apos;", "'") for line in raw]
    for name, metric, kind, references in (
        ("bleu", BLEU(lowercase=True), "text", raw),
        ("bleu_tokenized", BLEU(tokenize="none", force=True), "tokens", tokens),
    ):
        hypotheses = lines(experiment / f"runs/{NAME}/test.hypothesis.{kind}")
        assert result["scores"][name]["score"] == pytest.approx(metric.corpus_score(hypotheses, [references]).score)
        assert len(hypotheses) == 30
    for folder in (table1["OUTPUT"], experiment):
        assert rows(folder / "results.md") == ["shuffled"]
        assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "MIN_COUNT=2" in refused("reproduce/table1.sh", *SMALL, **table1, MIN_COUNT=3)


def test_another_dictionary_and_statistics_of_the_same_words(table1: dict, experiment: Path, tmp_path: Path) -> None:
    """The second: Tables 2 and 4."""
    shutil.copytree(experiment / "data/de-en", tmp_path / "data")
    path = tmp_path / "data/bin/dict.en.txt"
    path.write_bytes(b"".join(reversed(path.read_bytes().splitlines(keepends=True))))  # of the same length
    other = {"DATA": tmp_path / "data", "RUN": experiment / "runs" / NAME}
    assert "another dictionary" in refused("multi30k/generate.sh", **other)
    succeed("reproduce/table2.sh", **table1)
    found, slot = json.loads((experiment / "stats.json").read_text()), record(experiment)["init"]["slots"]["encoder"]
    assert (found["found"], found["coverage_tokens"]) == (slot["found"], pytest.approx(slot["coverage_tokens"]))
    assert "## multi30k.words" in (table1["OUTPUT"] / "table2.md").read_text()
    vectors, questions = tmp_path / "en.txt", tmp_path / "questions.txt"
    words = "a the man woman house ball book park beach".split()
    vectors.write_text("".join(f"{word} {at} {at % 3} {at % 5} 0.5\n" for at, word in enumerate(words)))
    questions.write_text(": things\nman woman house ball\npark beach man book\n")
    files = {"OUTPUT": tmp_path, "MULTI30K": table1["MULTI30K"], "VECTORS_EN": vectors, "QUESTIONS": questions}
    succeed("reproduce/table4.sh", "--repeats", 1, **files)
    result = json.loads((tmp_path / "table4.json").read_text())
    assert (result["rows"], result["results"][0]["questions"]) == (len(words), 2)


@pytest.mark.parametrize(
    ("kind", "how", "seen"), [("spacy", "spacy", " ."), ("subword_nmt", "bpe moses", "@@"), ("sentencepiece", "", "▁")]
)
def test_tokens_are_put_back_together(kind, how, seen, experiment: Path, tmp_path: Path) -> None:
    """Without binarised data: prepare.sh is stopped there by a folder that is in the way."""
    pytest.importorskip(kind)
    shutil.copytree(experiment / "data/de-en/corpus", tmp_path / "corpus")
    (tmp_path / "bin").mkdir()
    succeed("multi30k/prepare.sh", OUTPUT=tmp_path, TOKENS=kind, BPE_SIZE=60)
    undo = how.split() or [f"sentencepiece={tmp_path}/spm.model"]
    for lang in ("de", "en"):
        tokens = lines(tmp_path / f"text/test.{lang}")
        expected = [line.lower() for line in lines(tmp_path / f"corpus/raw/test.{lang}")]
        assert list(map(detokenizer(undo, lang), tokens)) == expected
        assert any(seen in line for line in tokens)
