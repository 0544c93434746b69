"""scripts/sst2 on a few hundred made-up phrases and a Hugging Face folder with a small vocabulary."""

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
TINY = ["--batch", "16", "--lr", "5e-3", "--", "--encoder-layers", "1", "--encoder-ffn-embed-dim", "16"]

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(not (VENV / "bin" / "fairseq-train").is_file(), reason="fairseq is not installed beside pytest"),
]


def bash(script: Path, *arguments: object, check: bool = True, **environment: str) -> subprocess.CompletedProcess:
    variables = {**os.environ, "VENV": str(VENV), "OMP_NUM_THREADS": "1", "DATA": "", **environment}
    result = subprocess.run(["bash", str(script), *map(str, arguments)], env=variables, capture_output=True, text=True)
    if check and result.returncode != 0:
        pytest.fail(f"{script} {arguments}: exit code {result.returncode}\n{result.stdout}\n{result.stderr}")
    return result


@pytest.fixture(scope="module")
def phrases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GLUE's layout: 96 training phrases (more positive ones) of several lengths, 24 to validate."""
    judgements = [("good", 1), ("fine", 1), ("lovely", 1), ("bad", 0), ("dull", 0)]
    parts = itertools.product(["the", "this", "a very"], ["film", "story"], judgements, ["", "indeed", "to my mind"])
    rows = [(f"{a} {noun} is {word} {end}".strip() + " ", label) for a, noun, (word, label), end in parts]
    rows = [rows[(index * 37) % len(rows)] for index in range(120)]
    folder = tmp_path_factory.mktemp("sst 2")
    heading = "sentence\tlabel\n"
    train, dev = ("".join(f"{text}\t{label}\n" for text, label in part) for part in (rows[:96], rows[96:]))
    (folder / "train.tsv.gz").write_bytes(gzip.compress((heading + train).encode()))
    (folder / "dev.tsv").write_text(heading + dev, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT folder; "indeed" is cut into pieces."""
    words = (
        "[PAD] [UNK] [CLS] [SEP] the this a very film story is good fine lovely bad dull in ##deed to my mind".split()
    )
    folder = tmp_path_factory.mktemp("a hf folder")
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    (folder / "config.json").write_text(
        json.dumps({"model_type": "bert", "hidden_size": DIM, "vocab_size": len(words)})
    )
    matrix = np.random.default_rng(1).standard_normal((len(words), DIM)).astype(np.float32)
    save_file({"embeddings.word_embeddings.weight": matrix}, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def prepared(phrases: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pre pared") / "data"
    bash(SCRIPTS / "prepare.sh", "--hf", model, "--output", folder, DATA=str(phrases))
    return folder


def test_every_phrase_keeps_its_label_and_classes_are_in_order(prepared: Path, phrases: Path) -> None:
    lines = gzip.decompress((phrases / "train.tsv.gz").read_bytes()).decode().splitlines()[1:]
    expected = sorted(line.replace("indeed", "in ##deed").replace(" \t", "\t") for line in lines)
    text = (prepared / "by_length/train.input0").read_text(encoding="utf-8").splitlines()
    labels = (prepared / "by_length/train.label").read_text(encoding="utf-8").splitlines()
    assert sorted(map("\t".join, zip(text, labels))) == expected
    lengths = [len(line.split()) for line in text]
    assert lengths == sorted(lengths)
    assert (prepared / "bin/label/dict.txt").read_text(encoding="utf-8").split()[::2][:2] == ["0", "1"]
    assert "dim=16" in (prepared / "settings").read_text(encoding="utf-8")


def test_training_reports_the_best_accuracy(prepared: Path, tmp_path: Path) -> None:
    options = ["--data", prepared, "--output", tmp_path, "--init", "pretrained", "--epochs", 4]
    bash(SCRIPTS / "train.sh", *options, *TINY)
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    accuracy = {int(epoch): values["valid_accuracy"] for epoch, values in result["epochs"].items()}
    assert set(accuracy) == {1, 2, 3, 4}
    assert result["best"]["valid_accuracy"] == max(accuracy.values()) == accuracy[result["best"]["epoch"]]
    assert result["best"]["valid_accuracy"] > 80  # one word decides; 62.5 % is the share of the larger class
    assert result["init"]["slots"]["encoder"]["coverage_tokens"] == 1.0
    assert (tmp_path / "checkpoints/checkpoint_best.pt").is_file()


def test_grid_makes_a_table(phrases: Path, model: Path, tmp_path: Path) -> None:
    grid = ["--output", tmp_path, "--hf", model, "--inits", "shuffled", "xavier", "--seeds", "1", "--epochs", "1"]
    bash(SCRIPTS / "run.sh", *grid, "--jobs", "2", "--", *TINY, DATA=str(phrases))
    lines = [line.split("|") for line in (tmp_path / "results.md").read_text().splitlines() if line.startswith("|")]
    assert [line[1].strip() for line in lines] == ["", "---", "xavier", "shuffled"]
    assert "best val. accuracy" in lines[0][3]
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    trained = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/*.json")}
    bash(SCRIPTS / "run.sh", *grid, "--jobs", "2", "--", *TINY, DATA=str(phrases))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/*.json")} == trained
    refused = bash(SCRIPTS / "run.sh", *grid, "--jobs", "2", "--", *TINY, "--lr", "0.5", DATA=str(phrases), check=False)
    assert "2 runs failed" in refused.stderr


def test_missing_and_malformed_data_are_named(phrases: Path, tmp_path: Path) -> None:
    result = bash(SCRIPTS / "prepare.sh", "--output", tmp_path / "out", check=False)
    assert result.returncode != 0
    assert "DATA" in result.stderr
    copy = tmp_path / "copy"
    copy.mkdir()
    result = bash(SCRIPTS / "prepare.sh", "--output", tmp_path / "out", check=False, DATA=str(copy))
    assert result.returncode != 0
    assert "neither train.tsv nor train.tsv.gz" in result.stderr
    (copy / "train.tsv").write_text("sentence\tlabel\nfine\t1\nno label here\n")
    result = bash(SCRIPTS / "prepare.sh", "--output", tmp_path / "out", check=False, DATA=str(copy))
    assert result.returncode != 0
    assert "train.tsv, line 3" in result.stderr
    assert not (tmp_path / "out/corpus/train.input0").exists()


def test_strategies_with_vectors_need_some(phrases: Path, tmp_path: Path) -> None:
    bash(SCRIPTS / "prepare.sh", "--output", tmp_path / "words", DATA=str(phrases))
    options = ["--data", tmp_path / "words", "--output", tmp_path / "run", "--init", "pretrained"]
    result = bash(SCRIPTS / "train.sh", *options, check=False)
    assert result.returncode != 0
    assert "--vectors" in result.stderr
