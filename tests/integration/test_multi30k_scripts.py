"""scripts/multi30k and scripts/reproduce on a few hundred made-up sentences, by the real commands: Table 1 is a grid of
one training, which the other tests look at, repeat and continue."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from programs import VENV
from sacrebleu.metrics import BLEU

REPO = Path(__file__).resolve().parents[2]
SCRIPTS, TABLES = REPO / "scripts" / "multi30k", REPO / "scripts" / "reproduce"
SMALL = "--encoder-layers 1 --decoder-layers 1 --encoder-ffn-embed-dim 16 --decoder-ffn-embed-dim 16 --lr 5e-3".split()
GRID = {
    "EXPERIMENTS": "multi30k.words",
    "INITS": "shuffled",
    "SEEDS": "1",
    "DIM": "16",
    "HEADS": "2",
    "JOBS": "2",
}
NAME = "de-en.transformer.shuffled.seed1"

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(not (VENV / "bin" / "fairseq-train").is_file(), reason="fairseq is not installed beside pytest"),
]


def bash(script: Path, *arguments: object, check: bool = True, **variables: object) -> subprocess.CompletedProcess:
    environment = {**os.environ, "VENV": str(VENV), "OMP_NUM_THREADS": "1", **{k: str(v) for k, v in variables.items()}}
    command = ["bash", str(script), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        logs = "".join(path.read_text()[-2000:] for path in Path(variables.get("OUTPUT", "/none")).rglob("logs/*.log"))
        pytest.fail(f"{script} {arguments}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}\n{logs}")
    return done


def moses(text: str) -> str:
    return text.lower().replace(".", " .").replace("'s", " &apos;s")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of Multi30k's layout: 200 training, 26 validation and 30 test sentences."""
    folder = tmp_path_factory.mktemp("multi 30k")
    subjects = [("Ein Mann", "A man"), ("Die Frau", "The woman"), ("Peters Hund", "Peter's dog"), ("Er", "He")]
    verbs = [("sieht", "sees"), ("malt", "paints"), ("trägt", "carries"), ("findet", "finds")]
    objects = [("ein Haus", "a house"), ("den Ball", "the ball"), ("ein Buch", "a book"), ("das Rad", "the wheel")]
    places = [("im Park", "in the park"), ("am Strand", "at the beach"), ("heute", "today"), ("dort", "there")]
    parts = list(itertools.product(subjects, verbs, objects, places))
    pairs = [tuple(" ".join(words) + "." for words in zip(*parts[at * 101 % len(parts)])) for at in range(len(parts))]
    pairs[0] = (pairs[0][0] + " Einmal.", pairs[0][1] + " Once.")
    for name, part in {"train": pairs[:200], "val": pairs[200:226], "test_2016_flickr": pairs[226:]}.items():
        for lang, lines in zip(("de", "en"), zip(*part)):
            for path, text in (
                (f"raw/{name}.{lang}.gz", lines),
                (f"tok/{name}.lc.norm.tok.{lang}.gz", map(moses, lines)),
            ):
                (folder / path).parent.mkdir(exist_ok=True)
                (folder / path).write_bytes(gzip.compress("".join(f"{line}\n" for line in text).encode()))
    return folder


@pytest.fixture(scope="module")
def output(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """OUTPUT of table1.sh; in multi30k.words: data/de-en, runs, the table of run.sh."""
    folder = tmp_path_factory.mktemp("out put")
    done = bash(TABLES / "table1.sh", *SMALL, OUTPUT=folder, MULTI30K=corpus, EPOCHS=1, **GRID)
    assert "done before" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def data(output: Path) -> Path:
    return output / "multi30k.words" / "data" / "de-en"


def test_words_are_unescaped_and_the_dictionary_holds_those_seen_twice(data: Path, corpus: Path) -> None:
    text = gzip.decompress((corpus / "tok/train.lc.norm.tok.en.gz").read_bytes()).decode().replace("&apos;", "'")
    expected = {word: count for word, count in Counter(text.split()).items() if count >= 2}
    lines = [line.rsplit(" ", 1) for line in (data / "bin/dict.en.txt").read_text(encoding="utf-8").splitlines()]
    assert {word: int(count) for word, count in lines if not word.startswith("madeupword")} == expected
    assert "'s" in expected
    assert "once" not in expected


def test_runs_are_scored_and_compared(output: Path, corpus: Path) -> None:
    run = output / "multi30k.words" / "runs" / NAME
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    labels = {"direction": "de-en", "arch": "transformer", "init": "shuffled", "seed": "1"}
    assert result["labels"] == {**labels, "experiment": "multi30k.words"}
    assert result["init"]["slots"]["decoder"]["source"]["name"] == "vectors.en.16.txt"
    raw = gzip.decompress((corpus / "raw/test_2016_flickr.en.gz").read_bytes()).decode().splitlines()
    for name, metric, kind, references in (
        ("bleu", BLEU(lowercase=True), "text", raw),
        (
            "bleu_tokenized",
            BLEU(tokenize="none", force=True),
            "tokens",
            [moses(line).replace("&apos;", "'") for line in raw],
        ),
    ):
        hypotheses = (run / f"test.hypothesis.{kind}").read_text(encoding="utf-8").splitlines()
        expected = metric.corpus_score(hypotheses, [references]).score
        assert result["scores"][name]["score"] == pytest.approx(expected)
        assert len(hypotheses) == 30
    for folder in (output, output / "multi30k.words"):
        rows = [
            line.split("|")[1].strip() for line in (folder / "results.md").read_text().splitlines() if line[:1] == "|"
        ]
        assert rows == ["", "---", "shuffled"]
        assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_call_does_nothing_twice_and_other_settings_are_refused(output: Path, corpus: Path) -> None:
    made = {
        path: path.stat().st_mtime_ns for path in output.rglob("*") if path.suffix in (".pt", ".bin", ".txt", ".log")
    }
    again = bash(TABLES / "table1.sh", *SMALL, OUTPUT=output, MULTI30K=corpus, EPOCHS=1, **GRID)
    assert again.stderr.count("done before") == 1
    assert {path: path.stat().st_mtime_ns for path in made} == made
    other = {**GRID, "OUTPUT": output, "MULTI30K": corpus, "EPOCHS": 1}
    refused = bash(TABLES / "table1.sh", *SMALL, check=False, MIN_COUNT=3, **other)
    assert "MIN_COUNT=2" in refused.stderr
    assert "name another folder" in refused.stderr
    refused = bash(TABLES / "table1.sh", *SMALL, "--lr", "0.5", check=False, **other)
    assert refused.returncode != 0
    log = output / "multi30k.words" / "logs" / f"{NAME}.log"
    assert f"see {log}" in refused.stderr
    assert "--lr was 5e-3, is 0.5" in log.read_text()


def test_a_training_goes_on_and_its_scores_are_forgotten(output: Path, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "a run"
    shutil.copytree(output / "multi30k.words" / "runs" / NAME, run)
    first = json.loads((run / "result.json").read_text())
    options = first["command"].split(" --num-workers 0 ")[1].split(" --save-dir")[0]
    bash_line = f'DIM=16 HEADS=2 exec bash "{SCRIPTS}/train.sh" {options.split("--cpu ")[-1]} --max-epoch 2'
    environment = {**os.environ, "VENV": str(VENV), "DATA": str(data), "RUN": str(run)}
    subprocess.run(["bash", "-c", bash_line], env=environment, check=True, capture_output=True)
    second = json.loads((run / "result.json").read_text())
    assert set(second["epochs"]) == {"1", "2"}
    assert second["epochs"]["1"] == first["epochs"]["1"]
    assert (second["time"]["sessions"], second["scores"]) == (2, {})


def test_only_the_data_of_the_training_are_translated(output: Path, data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "other")
    shutil.copytree(output / "multi30k.words" / "runs" / NAME, tmp_path / "run")
    path = tmp_path / "other/bin/dict.en.txt"
    path.write_bytes(b"".join(reversed(path.read_bytes().splitlines(keepends=True))))  # of the same length
    before = (tmp_path / "run/result.json").read_bytes()
    refused = bash(SCRIPTS / "generate.sh", check=False, DATA=tmp_path / "other", RUN=tmp_path / "run")
    assert refused.returncode != 0
    assert "another dictionary" in refused.stderr
    assert "--tgtdict" in refused.stderr
    assert (tmp_path / "run/result.json").read_bytes() == before


def test_statistics_and_analogies_of_the_same_words(output: Path, corpus: Path, tmp_path: Path) -> None:
    """Tables 2 and 4."""
    bash(TABLES / "table2.sh", OUTPUT=output, MULTI30K=corpus, **GRID)
    found = json.loads((output / "multi30k.words" / "stats.json").read_text())
    run = output / "multi30k.words" / "runs" / NAME / "result.json"
    slot = json.loads(run.read_text())["init"]["slots"]["encoder"]
    assert (found["found"], found["coverage_tokens"]) == (slot["found"], pytest.approx(slot["coverage_tokens"]))
    assert "## multi30k.words" in (output / "table2.md").read_text()
    generator, vectors, questions = np.random.default_rng(0), tmp_path / "en.txt", tmp_path / "questions.txt"
    words = "a the man woman house ball book park beach".split()
    vectors.write_text("".join(f"{w} {' '.join(f'{x:.4f}' for x in generator.normal(0, 0.4, 8))}\n" for w in words))
    questions.write_text(": things\nman woman house ball\npark beach man book\n")
    shutil.copytree(output / "multi30k.words" / "data" / "de-en", tmp_path / "out" / "data")
    files = {"OUTPUT": tmp_path / "out", "MULTI30K": corpus, "VECTORS_EN": vectors, "QUESTIONS": questions}
    bash(TABLES / "table4.sh", "--repeats", 1, **files)
    record = json.loads((tmp_path / "out" / "table4.json").read_text())
    assert (record["rows"], record["results"][0]["questions"], len(record["results"]) >= 7) == (len(words), 2, True)


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("tok/val.lc.norm.tok.de.gz", None, "has no tok/val.lc.norm.tok.de"),
        ("raw/train.de.gz", lambda packed: packed[: len(packed) // 2], "raw/train.de.gz cannot be unpacked"),
        ("raw/val.en.gz", lambda packed: packed + gzip.compress(b"more\n"), "val has 26 27 lines"),
    ],
)
def test_copies_that_are_incomplete_or_damaged(corpus: Path, tmp_path: Path, name: str, change, expected: str) -> None:
    copy, out = tmp_path / "copy", tmp_path / "out"
    shutil.copytree(corpus, copy)
    right = (copy / name).read_bytes()
    if change is None:
        (copy / name).unlink()
    else:
        (copy / name).write_bytes(change(right))
    refused = bash(SCRIPTS / "prepare.sh", check=False, OUTPUT=out, DATA=copy)
    assert refused.returncode != 0
    assert expected in refused.stderr
    assert not (out / "corpus").exists()
    assert not (out / "settings").exists()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"TOKENS": "letters"}, "TOKENS=letters: choose moses"),
        ({"TOKENS": "huggingface"}, "HF: set it"),
        ({"DIRECTION": "en-en"}, "DIRECTION=en-en: choose"),
    ],
)
def test_what_prepare_refuses(corpus: Path, tmp_path: Path, variables: dict[str, str], message: str) -> None:
    refused = bash(SCRIPTS / "prepare.sh", check=False, OUTPUT=tmp_path / "out", DATA=corpus, **variables)
    assert refused.returncode != 0
    assert message in refused.stderr
    assert not (tmp_path / "out").exists()


def test_table1_names_what_an_experiment_lacks(tmp_path: Path) -> None:
    for name, message in (("mnli.t5", "mnli.t5 needs MNLI T5"), ("mnli", "mnli is none of")):
        refused = bash(TABLES / "table1.sh", check=False, OUTPUT=tmp_path / "out", EXPERIMENTS=name)
        assert refused.returncode != 0
        assert message in refused.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["spacy", "subword_nmt", "sentencepiece"])
def test_tokens_are_put_back_together(kind: str, data: Path, tmp_path: Path) -> None:
    """Without binarised data: prepare.sh is stopped there by a folder that is in the way."""
    if kind == "spacy":
        pytest.importorskip("spacy")
    from embinit_fairseq.runs.tokens import detokenizer

    shutil.copytree(data / "corpus", tmp_path / "corpus")
    (tmp_path / "bin").mkdir()
    bash(SCRIPTS / "prepare.sh", OUTPUT=tmp_path, TOKENS=kind, BPE_SIZE=60)
    steps = {
        "spacy": ["spacy"],
        "subword_nmt": ["bpe", "moses"],
        "sentencepiece": [f"sentencepiece={tmp_path}/spm.model"],
    }
    for lang in ("de", "en"):
        raw = (tmp_path / f"corpus/raw/test.{lang}").read_text(encoding="utf-8").splitlines()
        tokens = (tmp_path / f"text/test.{lang}").read_text(encoding="utf-8").splitlines()
        assert list(map(detokenizer(steps[kind], lang), tokens)) == [line.lower() for line in raw]
    assert any({"spacy": " .", "subword_nmt": "@@", "sentencepiece": "▁"}[kind] in line for line in tokens)
