"""scripts/sst2 on made-up phrases (SST-2) and pairs (MNLI), with a Hugging Face folder of a small vocabulary."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from programs import VENV

save_file = pytest.importorskip("safetensors.numpy").save_file
pytest.importorskip("tokenizers")

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts" / "sst2"
DIM = 16
TINY = "--batch-size 16 --lr 5e-3 --encoder-layers 1 --encoder-ffn-embed-dim 16".split()
#: the last word of the second sentence decides
ENDS = {"bad": "contradiction", "dull": "contradiction", "fine": "neutral", "good": "entailment"}

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(not (VENV / "bin" / "fairseq-train").is_file(), reason="fairseq is not installed beside pytest"),
]


def bash(script: str, *arguments: object, check: bool = True, **environment: object) -> subprocess.CompletedProcess:
    variables = {**os.environ, "VENV": str(VENV), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    variables.update((name, str(value)) for name, value in environment.items())
    command = ["bash", SCRIPTS / script, *map(str, arguments)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert not check or done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done


@pytest.fixture(scope="module")
def phrases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GLUE's layout: 96 training phrases (more positive ones) of several lengths, 24 to validate."""
    judgements = [("good", 1), ("fine", 1), ("lovely", 1), ("bad", 0), ("dull", 0)]
    parts = itertools.product(["the", "this", "a very"], ["film", "story"], judgements, ["", "indeed", "to my mind"])
    rows = [(f"{a} {noun} is {word} {end}".strip() + " ", label) for a, noun, (word, label), end in parts]
    rows = [rows[(index * 37) % len(rows)] for index in range(120)]
    folder = tmp_path_factory.mktemp("sst 2")
    train, dev = ("".join(f"{text}\t{label}\n" for text, label in part) for part in (rows[:96], rows[96:]))
    (folder / "train.tsv.gz").write_bytes(gzip.compress(f"sentence\tlabel\n{train}".encode()))
    (folder / "dev.tsv").write_text(f"sentence\tlabel\n{dev}", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GLUE's folder MNLI: 64 pairs to train on, 16 in each other set; the labels of the mismatched set are rotated."""
    chosen = itertools.product(
        ["The film", "This"], ["story", "very story"], ["A film", "It", "This film", "My mind"], ENDS
    )
    rows = [(f"{a} {b} is fine.", f"{c} is {'very ' * (len(c) % 4)}{end}.", ENDS[end]) for a, b, c, end in chosen]
    other = {"contradiction": "neutral", "neutral": "entailment", "entailment": "contradiction"}
    folder, text = tmp_path_factory.mktemp("m n l i"), "index\tsentence1\tsentence2\tlabel1\tgold_label\n"
    sets = {"train": rows, "dev_matched": rows[::4], "dev_mismatched": [(a, b, other[c]) for a, b, c in rows[1::4]]}
    for name, examples in sets.items():
        lines = [f"{at}\t{a}\t{b}\tneutral\t{label}\n" for at, (a, b, label) in enumerate(examples)]
        (folder / f"{name}.tsv").write_text(text + "".join(lines))
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT folder; "indeed" is cut into pieces."""
    words = "[PAD] [UNK] [CLS] [SEP] the this a very film story is it . good fine lovely bad dull in ##deed to my mind"
    folder = tmp_path_factory.mktemp("a hf folder")
    (folder / "vocab.txt").write_text(words.replace(" ", "\n") + "\n", encoding="utf-8")
    config = {"model_type": "bert", "hidden_size": DIM, "vocab_size": len(words.split())}
    (folder / "config.json").write_text(json.dumps(config))
    matrix = np.random.default_rng(1).standard_normal((len(words.split()), DIM)).astype(np.float32)
    save_file({"embeddings.word_embeddings.weight": matrix}, folder / "model.safetensors")
    return folder


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_a_grid_with_the_embeddings_of_a_language_model(phrases: Path, model: Path, tmp_path: Path) -> None:
    """Every phrase keeps its label, in the order of lengths; the best accuracy is reported; a second call is idle."""
    output = tmp_path / "out put"
    grid = {"DATA": phrases, "OUTPUT": output, "HF": model, "INITS": "shuffled", "SEEDS": 1, "JOBS": 1}
    bash("run.sh", *TINY, "--max-epoch", 4, **grid)
    text, labels = lines(output / "data/text/train.input0"), lines(output / "data/text/train.label")
    expected = gzip.decompress((phrases / "train.tsv.gz").read_bytes()).decode().replace("indeed", "in ##deed")
    assert sorted(map("\t".join, zip(text, labels))) == sorted(expected.replace(" \t", "\t").splitlines()[1:])
    lengths = [len(line.split()) for line in text]
    assert lengths == sorted(lengths)
    assert [line.split()[0] for line in lines(output / "data/bin/label/dict.txt")][:2] == ["0", "1"]
    result = json.loads((output / "runs/shuffled.seed1/result.json").read_text())
    accuracy = {int(epoch): values["valid_accuracy"] for epoch, values in result["epochs"].items()}
    assert set(accuracy) == {1, 2, 3, 4}
    assert result["best"]["valid_accuracy"] == max(accuracy.values()) == accuracy[result["best"]["epoch"]]
    assert result["best"]["valid_accuracy"] > 80  # one word decides; 62.5 % is the share of the larger class
    assert result["init"]["slots"]["encoder"]["coverage_tokens"] == 1.0
    rows = [line.split("|")[1].strip() for line in lines(output / "results.md") if line.startswith("|")]
    assert rows[2:] == ["shuffled"]
    before = {path: path.stat().st_mtime_ns for path in output.glob("runs/*/*.json")}
    bash("run.sh", *TINY, "--max-epoch", 4, **grid)
    assert {path: path.stat().st_mtime_ns for path in output.glob("runs/*/*.json")} == before


def test_mnli_reports_both_accuracies(pairs: Path, model: Path, tmp_path: Path) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    bash("prepare.sh", DATA=pairs, OUTPUT=data, TASK="MNLI", HF=model, MIN_COUNT=1)
    columns = [lines(data / f"text/train.{name}") for name in ("input0", "input1", "label")]
    triples = {
        tuple(line.lower().replace(".", " .").split("\t")[at] for at in (1, 2, 4))
        for line in lines(pairs / "train.tsv")[1:]
    }
    assert set(zip(*columns)) == triples
    lengths = [len(f"{first} {second}".split()) for first, second in zip(*columns[:2])]
    assert lengths == sorted(lengths)
    assert len(set(lengths)) > 2
    assert lines(data / "bin/input1/dict.txt") == lines(data / "bin/input0/dict.txt")
    bash("train.sh", *TINY, "--max-epoch", 2, DATA=data, RUN=run, LABELS="experiment=mnli.bert")
    result = json.loads((run / "result.json").read_text())
    records = [json.loads(line.split("| valid1 | ")[1]) for line in lines(run / "train.log") if "| valid1 | " in line]
    other = {record["epoch"]: float(record["valid1_accuracy"]) for record in records}
    scores = result["scores"]["mismatched"]
    assert scores["accuracy"] == other[result["best"]["epoch"]]
    assert scores["highest"] == max(other.values()) == other[scores["epoch"]]
    assert (result["labels"]["task"], result["labels"]["experiment"]) == ("MNLI", "mnli.bert")
    bash("train.sh", *TINY, "--max-epoch", 2, DATA=data, RUN=run)
    assert json.loads((run / "result.json").read_text()) == result


def test_what_is_missing_or_malformed_is_named(pairs: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "train.tsv").write_text("sentence\tlabel\nfine\t1\nno label here\n")
    cases = [
        ("prepare.sh", {}, "DATA"),
        ("prepare.sh", {"DATA": tmp_path}, "neither"),
        ("prepare.sh", {"DATA": damaged}, "train.tsv, line 3"),
        ("prepare.sh", {"DATA": pairs, "HF": "/nowhere"}, "HF=/nowhere"),
        ("run.sh", {"DATA": pairs}, "VECTORS"),
        ("train.sh", {"DATA": pairs, "RUN": tmp_path / "run"}, "run prepare.sh"),
    ]
    for script, variables, named in cases:
        refused = bash(script, check=False, OUTPUT=tmp_path / "out", **variables)
        assert refused.returncode != 0
        assert named in refused.stderr, refused.stderr
    assert not (tmp_path / "out").exists()
