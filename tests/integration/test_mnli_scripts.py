"""scripts/mnli on made-up pairs of sentences in GLUE's layout; the mismatched set has its labels exchanged."""

from __future__ import annotations

import gzip
import itertools
import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from programs import PYTHON, VENV
from test_sst2_scripts import TINY, bash, model  # noqa: F401

from embinit_fairseq.checkpoints.reading import load_checkpoint

pytest.importorskip("spacy")

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts" / "mnli"
LABELS = ("contradiction", "neutral", "entailment")
COLUMNS = "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse"
#: the last word of the second sentence decides
ENDS = {"bad": "contradiction", "dull": "contradiction", "long": "neutral", "good": "entailment", "fine": "entailment"}
LONG = "This film. " * 300  # more tokens than the model has positions

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(not (VENV / "bin" / "fairseq-train").is_file(), reason="fairseq is not installed beside pytest"),
]

Pair = tuple[str, str, str]  # two sentences and their label


def made_up() -> dict[str, list[Pair]]:
    """GLUE's name of a set -> its pairs: 150 to train on, 25 in each other set."""
    subjects = ["The film", "This story", "A very good story", "To my mind this", "The man's story"]
    chosen = itertools.product(["", "Indeed, "], subjects, ["The man is", "This is", "The story is", "It is"], ENDS)
    pairs = [(f"{a}{b} is fine.", f"{c} {end}.", ENDS[end]) for a, b, c, end in chosen]
    pairs = [pairs[(index * 37) % len(pairs)] for index in range(len(pairs))]
    train, matched, mismatched = pairs[:150], pairs[150:175], pairs[175:]
    train[3], mismatched[3] = (LONG.strip(), *train[3][1:]), (LONG.strip(), *mismatched[3][1:])
    other = dict(zip(LABELS, LABELS[1:] + LABELS[:1]))
    return {
        "train": train,
        "dev_matched": matched,
        "dev_mismatched": [(first, second, other[label]) for first, second, label in mismatched],
    }


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GLUE's folder MNLI: parses that nobody reads before the sentences, single judgements before the label."""
    folder = tmp_path_factory.mktemp("m n l i")
    for name, rows in made_up().items():
        judgements = ["label1"] if name == "train" else [f"label{number}" for number in range(1, 6)]
        lines = ["\t".join([*COLUMNS.split(), "sentence1", "sentence2", *judgements, "gold_label"])]
        for index, (first, second, label) in enumerate(rows):
            parses = ["( a ( parse ) )"] * 4
            row = [str(index), "1n", "1n", "fiction", *parses, first, second, *["neutral"] * len(judgements), label]
            lines.append("\t".join(row))
        text = "".join(f"{line}\n" for line in lines).encode()
        if name == "train":
            (folder / "train.tsv.gz").write_bytes(gzip.compress(text))
        else:
            (folder / f"{name}.tsv").write_bytes(text)
    return folder


@pytest.fixture(scope="module")
def prepared(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pre pared") / "data"
    bash(SCRIPTS / "prepare.sh", "--output", folder, DATA=str(pairs))
    return folder


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def words(text: str) -> str:
    """What spaCy makes of these sentences."""
    return " ".join(text.lower().replace(".", " .").replace(",", " ,").replace("'s", " 's").split())


def test_pairs_stay_together_and_share_a_dictionary(prepared: Path) -> None:
    sets = {"train": "train", "valid": "dev_matched", "valid1": "dev_mismatched"}
    found = {
        split: list(zip(*(lines(prepared / "by_length" / f"{split}.{name}") for name in ("input0", "input1", "label"))))
        for split in sets
    }
    expected = {name: [(words(a), words(b), label) for a, b, label in rows] for name, rows in made_up().items()}
    assert sorted(found["train"]) == sorted(expected["train"])
    lengths = [len(first.split()) + len(second.split()) for first, second, _ in found["train"]]
    assert lengths == sorted(lengths)
    assert found["valid"] == expected["dev_matched"]
    assert found["valid1"] == expected["dev_mismatched"]
    symbols = [line.split()[0] for line in lines(prepared / "bin/input0/dict.txt")]
    counts = Counter(word for first, second, _ in expected["train"] for word in f"{first} {second}".split())
    assert {each for each in symbols if not each.startswith("madeupword")} == {w for w, n in counts.items() if n > 1}
    assert "dull" in symbols  # a word of the second sentences only
    assert lines(prepared / "bin/input1/dict.txt") == lines(prepared / "bin/input0/dict.txt")
    assert [line.split()[0] for line in lines(prepared / "bin/label/dict.txt")][:3] == list(LABELS)


def test_a_grid_reports_both_accuracies(pairs: Path, prepared: Path, tmp_path: Path) -> None:
    vectors, generator = tmp_path / "vectors.txt", np.random.default_rng(0)
    rows = ({word: generator.normal(0, 1, 16) for word in "bad dull long good fine this is the".split()}).items()
    vectors.write_text("".join(f"{word} {' '.join(f'{x:.4f}' for x in row)}\n" for word, row in rows))
    shutil.copytree(prepared, tmp_path / "out/data")
    grid = ["--output", tmp_path / "out", "--vectors", vectors, "--inits", "pretrained", "--seeds", 1, "--epochs", 5]
    bash(SCRIPTS / "run.sh", *grid, "--jobs", 1, "--", "--dim", 16, *TINY, DATA=str(pairs))
    run = tmp_path / "out/runs/pretrained.seed1"
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    accuracy = {int(epoch): values["valid_accuracy"] for epoch, values in result["epochs"].items()}
    best = result["best"]["epoch"]
    assert result["best"]["valid_accuracy"] == max(accuracy.values()) == accuracy[best]
    assert accuracy[best] > 80  # one word decides; 40 % is the share of the largest class
    records = [line.split("| valid1 | ")[1] for line in lines(run / "train.log") if "| valid1 | " in line]
    other = {record["epoch"]: float(record["valid1_accuracy"]) for record in map(json.loads, records)}
    assert set(other) == set(accuracy) == {1, 2, 3, 4, 5}
    scores = result["scores"]["mismatched"]
    assert scores["accuracy"] == other[best] < 20  # the labels are exchanged
    assert scores["highest"] == max(other.values()) == other[scores["epoch"]]
    checkpoint = load_checkpoint(run / "checkpoints/checkpoint_best.pt")
    assert checkpoint["extra_state"]["val_loss"] == accuracy[best]  # not the other set's
    assert checkpoint["cfg"]["task"]["separator_token"] == 2
    assert result["labels"]["task"] == "MNLI"
    shown = [f"{scores['accuracy']:.2f}", f"{scores['highest']:.2f}", f"{scores['epoch']:.1f}"]
    compared = subprocess.run(
        [PYTHON, "-m", "embinit_fairseq.cli.main", "compare", run], capture_output=True, text=True
    )
    for text in (compared.stdout, (tmp_path / "out/results.md").read_text()):
        table = [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if line.startswith("|")]
        start = table[0].index("mismatched (%)")
        assert table[2][start : start + 3] == [f"{each} ± -" for each in shown]


def test_missing_and_malformed_data_are_named(pairs: Path, tmp_path: Path) -> None:
    copy, output = tmp_path / "copy", ["--output", tmp_path / "out"]
    refused = bash(SCRIPTS / "prepare.sh", *output, check=False)
    assert refused.returncode == 1
    assert "DATA is not set: set it to GLUE's folder MNLI" in refused.stderr
    refused = bash(SCRIPTS / "run.sh", *output, "--vectors", pairs, check=False)
    assert refused.returncode == 1
    assert "DATA is not set: set it to GLUE's folder MNLI" in refused.stderr
    shutil.copytree(pairs, copy)
    (copy / "dev_mismatched.tsv").unlink()
    refused = bash(SCRIPTS / "prepare.sh", *output, check=False, DATA=str(copy))
    assert refused.returncode == 1
    assert "has neither dev_mismatched.tsv nor dev_mismatched.tsv.gz: set DATA to GLUE's folder MNLI" in refused.stderr
    (copy / "dev_mismatched.tsv").write_text("sentence1\tsentence2\tgold_label\nIt is.\tIt is not.\tperhaps\n")
    refused = bash(SCRIPTS / "prepare.sh", *output, check=False, DATA=str(copy))
    assert refused.returncode == 1
    assert "dev_mismatched.tsv, line 2: the label 'perhaps'; expected" in refused.stderr
    assert not (tmp_path / "out/text").exists()


def test_words_need_spacy(pairs: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['spacy'] = None\n")
    without = {"DATA": str(pairs), "PYTHONPATH": str(tmp_path), "VENV": sys.prefix}
    refused = bash(SCRIPTS / "prepare.sh", "--output", tmp_path / "out", check=False, **without)
    assert refused.returncode == 1
    assert "the words of MNLI need spaCy: install it" in refused.stderr
    assert not (tmp_path / "out/text/train.input0").exists()


def test_pieces_are_those_of_the_model(pairs: Path, model: Path, tmp_path: Path) -> None:  # noqa: F811
    bash(SCRIPTS / "prepare.sh", "--output", tmp_path, "--hf", model, DATA=str(pairs))
    known = set((model / "vocab.txt").read_text(encoding="utf-8").split())
    for column in (0, 1):
        cut = [
            words(row[column]).replace("indeed", "in ##deed").replace("'s", "' s")
            for row in made_up()["dev_mismatched"]
        ]
        expected = [" ".join(word if word in known else "<unk>" for word in line.split()) for line in cut]
        assert lines(tmp_path / f"text/valid1.input{column}") == expected
    assert "dim=16" in lines(tmp_path / "settings")
