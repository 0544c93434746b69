"""scripts/sst2 on made-up pairs (MNLI), with a Hugging Face folder of a small vocabulary."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from recipes import TRAINS, lines, refused, rows, succeed

save_file = pytest.importorskip("safetensors.numpy").save_file
pytest.importorskip("tokenizers")
pytestmark = TRAINS
TINY = "--batch-size 16 --lr 5e-3 --encoder-layers 1 --encoder-ffn-embed-dim 16".split()
#: the last word of the second sentence decides
ENDS = {"bad": "contradiction", "dull": "contradiction", "fine": "neutral", "good": "entailment"}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GLUE's folder MNLI: 64 pairs to train on, 16 in each other set; the labels of the mismatched set are rotated."""
    chosen = itertools.product(
        ["The film", "This"], ["story", "very story"], ["A film", "It", "This film", "My mind"], ENDS
    )
    train = [(f"{a} {b} is fine.", f"{c} is {'very ' * (len(c) % 4)}{end}.", ENDS[end]) for a, b, c, end in chosen]
    other = {"contradiction": "neutral", "neutral": "entailment", "entailment": "contradiction"}
    sets = {"train": train, "dev_matched": train[::4], "dev_mismatched": [(a, b, other[c]) for a, b, c in train[1::4]]}
    folder, titles = tmp_path_factory.mktemp("m n l i"), "index\tsentence1\tsentence2\tlabel1\tgold_label\n"
    for name, examples in sets.items():
        found = [f"{at}\t{a}\t{b}\tneutral\t{label}\n" for at, (a, b, label) in enumerate(examples)]
        (folder / f"{name}.tsv").write_text(titles + "".join(found))
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT folder; "story" is cut into pieces."""
    words = "[PAD] [UNK] [CLS] [SEP] the this a very film st ##ory is it . good fine bad dull my mind".split()
    folder = tmp_path_factory.mktemp("a hf folder")
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "hidden_size": 16, "vocab_size": len(words)}))
    matrix = np.random.default_rng(1).standard_normal((len(words), 16)).astype(np.float32)
    save_file({"embeddings.word_embeddings.weight": matrix}, folder / "model.safetensors")
    return folder


def test_a_grid_with_the_embeddings_of_a_language_model(pairs: Path, model: Path, tmp_path: Path) -> None:
    """Every pair keeps its label, in the order of lengths; the best accuracy is reported, and that of the other set."""
    output = tmp_path / "out put"
    grid = {"DATA": pairs, "OUTPUT": output, "TASK": "MNLI", "HF": model, "INITS": "shuffled", "SEEDS": 1, "JOBS": 1}
    succeed("sst2/run.sh", *TINY, "--max-epoch", 4, **grid, MIN_COUNT=1, LABELS="experiment=mnli.bert")
    data, run = output / "data", output / "runs/shuffled.seed1"
    columns = [lines(data / f"text/train.{name}") for name in ("input0", "input1", "label")]
    expected = (pairs / "train.tsv").read_text().lower().replace(".", " .").replace("story", "st ##ory")
    examples = (line.split("\t") for line in expected.splitlines()[1:])
    assert set(zip(*columns)) == {(first, second, label) for _, first, second, _, label in examples}
    lengths = [len(f"{first} {second}".split()) for first, second in zip(*columns[:2])]
    assert lengths == sorted(lengths)
    assert lines(data / "bin/input1/dict.txt") == lines(data / "bin/input0/dict.txt")
    assert [line.split()[0] for line in lines(data / "bin/label/dict.txt")][:2] == ["contradiction", "neutral"]
    result = json.loads((run / "result.json").read_text())
    accuracy = {int(epoch): values["valid_accuracy"] for epoch, values in result["epochs"].items()}
    assert set(accuracy) == {1, 2, 3, 4}
    assert result["best"]["valid_accuracy"] == max(accuracy.values()) == accuracy[result["best"]["epoch"]]
    assert result["best"]["valid_accuracy"] > 70  # one word decides; 50 % is the share of the largest class
    assert result["init"]["slots"]["encoder"]["coverage_tokens"] == 1.0
    records = [json.loads(line.split("| valid1 | ")[1]) for line in lines(run / "train.log") if "| valid1 | " in line]
    other = {record["epoch"]: float(record["valid1_accuracy"]) for record in records}
    scores = result["scores"]["mismatched"]
    assert scores["accuracy"] == other[result["best"]["epoch"]]
    assert scores["highest"] == max(other.values()) == other[scores["epoch"]]
    assert (result["labels"]["task"], result["labels"]["experiment"]) == ("MNLI", "mnli.bert")
    assert rows(output / "results.md") == ["shuffled"]


def test_what_is_missing_or_malformed_is_named(pairs: Path, tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("sentence\tlabel\nfine\t1\nno label here\n")
    for script, variables, named in (
        ("prepare.sh", {"DATA": tmp_path}, "train.tsv, line 3"),
        ("prepare.sh", {"DATA": pairs, "HF": "/nowhere"}, "HF=/nowhere"),
        ("run.sh", {"DATA": pairs}, "VECTORS"),
        ("train.sh", {"DATA": pairs, "RUN": tmp_path / "run"}, "run prepare.sh"),
    ):
        assert named in refused(f"sst2/{script}", OUTPUT=tmp_path / "out", **variables)
    assert not (tmp_path / "out").exists()
