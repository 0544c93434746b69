"""scripts/glue and scripts/sst2 on a few made-up examples, with embeddings and with a whole model from elsewhere."""

from __future__ import annotations

import gzip
import json
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from fairseq.data.data_utils import load_indexed_dataset
from programs import PYTHON
from recipes import TRAINS, lines, refused, rows, stamps, succeed

from embinit_fairseq.vocab.preparation_record import read_preparation, record_preparation

save_file = pytest.importorskip("safetensors.numpy").save_file
pytest.importorskip("tokenizers")

WORDS = "the this a very film story is it . good fine lovely bad dull in to my mind".split()
SMALL = "--encoder-layers 1 --encoder-embed-dim 8 --encoder-ffn-embed-dim 8 --encoder-attention-heads 2"
LABELS = ["contradiction", "neutral", "entailment"]

pytestmark = TRAINS


def sentence(generator: np.random.Generator, size: int) -> str:
    return " ".join(WORDS[at] for at in generator.integers(len(WORDS), size=size))


@pytest.fixture(scope="module")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GLUE's folders with 40 examples to train on and 14 in each development set; of SST-2 "indeed" is the label."""
    folder, generator = tmp_path_factory.mktemp("a copy of glue"), np.random.default_rng(0)
    columns = {"SST-2": "sentence\tlabel\n", "STS-B": "sentence1\tsentence2\tscore\n"}
    columns |= {"MNLI": "sentence1\tsentence2\tgold_label\n"}
    for task, heading in columns.items():
        (folder / task).mkdir()
        for file in ("train", "dev_matched", "dev_mismatched") if task == "MNLI" else ("train", "dev"):
            rows = []
            for index in range(40 if file == "train" else 14):
                first, second = (sentence(generator, size) for size in generator.integers(2, 7, size=2))
                pair = f"{first}\t{second}\t{index % 26 / 5 if task == 'STS-B' else LABELS[index % 3]}\n"
                rows.append(f"{first}{' indeed' * (index % 2)} \t{index % 2}\n" if task == "SST-2" else pair)
            (folder / task / f"{file}.tsv").write_text(heading + "".join(rows))
    train = folder / "SST-2/train.tsv"
    train.with_name("train.tsv.gz").write_bytes(gzip.compress(train.read_bytes()))
    train.unlink()
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT folder; "indeed" is cut into pieces."""
    words, folder = [*"[PAD] [UNK] [CLS] [SEP] ##deed".split(), *WORDS], tmp_path_factory.mktemp("a hf folder")
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "hidden_size": 16, "vocab_size": len(words)}))
    matrix = np.random.default_rng(1).standard_normal((len(words), 16)).astype(np.float32)
    save_file({"embeddings.word_embeddings.weight": matrix}, folder / "model.safetensors")
    return folder


def test_a_grid_with_the_embeddings_of_a_language_model(glue: Path, bert: Path, tmp_path: Path) -> None:
    """Every phrase keeps its label, in the order of lengths; the best accuracy is reported."""
    output, flags = tmp_path / "out put", "--batch-size 8 --lr 5e-3 --encoder-layers 1 --max-epoch 2".split()
    grid = {"DATA": glue / "SST-2", "OUTPUT": output, "HF": bert, "INITS": "shuffled", "SEEDS": 1, "JOBS": 1}
    succeed("sst2/run.sh", *flags, **grid)
    text, labels = lines(output / "data/text/train.input0"), lines(output / "data/text/train.label")
    expected = gzip.decompress((glue / "SST-2/train.tsv.gz").read_bytes()).decode().replace("indeed", "in ##deed")
    assert sorted(map("\t".join, zip(text, labels))) == sorted(expected.replace(" \t", "\t").splitlines()[1:])
    lengths = [len(line.split()) for line in text]
    assert lengths == sorted(lengths)
    for column, expected in (("input0", text), ("label", labels)):
        symbols = Dictionary.load(str(output / f"data/bin/{column}/dict.txt"))
        binary = load_indexed_dataset(str(output / f"data/bin/{column}/train"), symbols)
        assert [symbols.string(ids) for ids in binary] == expected
    assert symbols.symbols[symbols.nspecial :][:2] == ["0", "1"]
    result = json.loads((output / "runs/shuffled.seed1/result.json").read_text())
    accuracy = {int(epoch): values["valid_accuracy"] for epoch, values in result["epochs"].items()}
    assert result["best"]["valid_accuracy"] == max(accuracy.values()) == accuracy[result["best"]["epoch"]]
    assert result["init"]["slots"]["encoder"]["coverage_tokens"] == 1.0
    assert rows(output / "results.md") == ["shuffled"]


def test_pairs_of_mnli_with_the_embeddings_of_a_language_model(glue: Path, bert: Path, tmp_path: Path) -> None:
    succeed("sst2/prepare.sh", DATA=glue / "MNLI", OUTPUT=tmp_path, TASK="MNLI", HF=bert, MIN_COUNT=1)
    columns = [lines(tmp_path / f"text/train.{name}") for name in ("input0", "input1", "label")]
    assert sorted(map("\t".join, zip(*columns))) == sorted(lines(glue / "MNLI/train.tsv")[1:])
    assert lines(tmp_path / "bin/input1/dict.txt") == lines(tmp_path / "bin/input0/dict.txt")
    succeed("sst2/train.sh", "--encoder-layers", 1, "--max-epoch", 1, DATA=tmp_path, RUN=tmp_path / "run")
    assert "accuracy" in json.loads((tmp_path / "run/result.json").read_text())["scores"]["mismatched"]


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data/dict.txt and a RoBERTa of two updates, checkpoint_last.pt."""
    folder, generator = tmp_path_factory.mktemp("pre trained"), np.random.default_rng(1)
    (folder / "text").write_text("".join(f"{sentence(generator, 8)}\n" for _ in range(60)))
    preprocess = f"--only-source --trainpref '{folder}/text' --validpref '{folder}/text' --destdir '{folder}/data'"
    train = f"""'{folder}/data' --task masked_lm --criterion masked_lm --arch roberta --max-update 2 --lr 1e-3 --cpu
        --tokens-per-sample 24 --batch-size 8 --optimizer adam --pooler-dropout 0.2 --no-epoch-checkpoints
        --num-workers 0 --save-dir '{folder}' {SMALL}"""
    for program, words in (("preprocess", preprocess), ("train", train)):
        command = [PYTHON, "-m", f"fairseq_cli.{program}", *shlex.split(words)]
        subprocess.run(command, check=True, capture_output=True)
    return folder


def test_a_grid_goes_on_with_a_further_model(glue: Path, pretrained: Path, tmp_path: Path) -> None:
    output, checkpoint = tmp_path / "out put", pretrained / "checkpoint_last.pt"
    variables = {"DATA": glue, "OUTPUT": output, "DICT": pretrained / "data/dict.txt", "JOBS": 1}
    variables |= {"TASKS": "MNLI", "RATES": "1e-3", "SEEDS": "1"}
    succeed("glue/run.sh", f"roberta={checkpoint}", "--max-epoch", 2, **variables)
    first = output / "runs/MNLI.roberta.1e-3.1/result.json"
    before = stamps([first])
    succeed("glue/run.sh", f"roberta={checkpoint}", f"random=scratch:{checkpoint}", "--max-epoch", 2, **variables)
    assert stamps([first]) == before
    result = json.loads(first.read_text())
    random = json.loads((output / "runs/MNLI.random.1e-3.1/result.json").read_text())
    command = shlex.split(result["command"])
    assert command[command.index("--finetune-from-model") + 1] == str(checkpoint)
    assert {"--pooler-dropout=0.2", "--max-positions=24"} <= set(command)
    assert "--finetune-from-model" not in random["command"]
    assert [result["labels"][key] for key in ("task", "model", "lr", "updates")] == ["MNLI", "roberta", "1e-3", "2"]
    assert random["labels"]["updates"] == "0"
    assert not list(output.rglob("*.pt"))  # of finished runs
    records = [line.split("| valid1 | ")[1] for line in lines(first.parent / "train.log") if "| valid1 | " in line]
    other = {epoch: float(json.loads(record)["valid1_accuracy"]) for epoch, record in enumerate(records, 1)}
    scores, best = result["scores"]["mismatched"], result["best"]
    assert scores["accuracy"] == other[best["epoch"]]
    assert scores["highest"] == max(other.values()) == other[scores["epoch"]]
    table = (output / "results.md").read_text()
    assert f"| {best['valid_accuracy']:.1f} / {scores['accuracy']:.1f} (1e-3) |" in table

    train = {"DATA": output / "data/MNLI", "RUN": first.parent, "CHECKPOINT": checkpoint}
    other = refused("glue/train.sh", "--lr", "1e-4", "--seed", 1, "--max-epoch", 2, **train)
    assert "--lr was 1e-3, is 1e-4" in other
    state = torch.load(checkpoint, weights_only=False)
    state["optimizer_history"][-1]["num_updates"] = 3  # pre-trained for longer, under the same name
    torch.save(state, tmp_path / "c.pt")
    assert "updates=2" in refused("glue/train.sh", **{**train, "CHECKPOINT": tmp_path / "c.pt"})


def test_a_dictionary_of_its_own_is_for_models_from_scratch(glue: Path, pretrained: Path, tmp_path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    succeed("glue/prepare.sh", MIN_COUNT=100, DATA=glue, TASK="STS-B", OUTPUT=data)
    assert lines(data / "bin/label/valid.label")[:3] == ["0", "0.04", "0.08"]
    assert lines(data / "bin/label/scale") == ["0.2"]  # for export-hf
    assert read_preparation(data / "bin/input1/dict.txt").steps == ()
    train = {"DATA": data, "RUN": out, "CHECKPOINT": pretrained / "checkpoint_last.pt"}
    assert "prepare.sh" in refused("glue/train.sh", **train)
    assert not out.exists()


def test_text_is_prepared_as_the_record_next_to_the_dictionary_says(glue: Path, pretrained: Path, tmp_path) -> None:
    """Not as its symbols look: here only THE is a word."""
    (tmp_path / "old").mkdir()
    dictionary, task = tmp_path / "old/dict.txt", tmp_path / "glue/SST-2"
    dictionary.write_text("THE 3\nfilm 2\n, 1\n")
    steps = [{"step": "lowercase"}, {"step": "moses", "lang": "en"}]
    record_preparation(dictionary.parent, {"dict.txt": steps})
    task.mkdir(parents=True)
    for name in ("train", "dev"):
        (task / f"{name}.tsv").write_text("sentence\tlabel\nTHE Film, dull\t0\nTHE film\t1\n")
    out = tmp_path / "out"
    succeed("glue/prepare.sh", DATA=task.parent, TASK="SST-2", OUTPUT=out, DICT=dictionary)
    assert lines(out / "text/train.input0") == ["the film , dull", "the film"]
    assert list(read_preparation(out / "bin/input0/dict.txt").steps) == steps
    call = {"DATA": task.parent, "TASK": "SST-2", "OUTPUT": tmp_path / "again", "DICT": dictionary}
    assert "leave it out" in refused("glue/prepare.sh", **call, PREPARATION="moses")
    (dictionary.parent / "preparation.json").unlink()  # the same steps, stated
    assert "--preparation bpe" in refused("glue/prepare.sh", **call, PREPARATION="bpe")
    succeed("glue/prepare.sh", **{**call, "OUTPUT": tmp_path / "stated"}, PREPARATION="lowercase,moses")
    assert lines(tmp_path / "stated/text/train.input0") == lines(out / "text/train.input0")
    assert list(read_preparation(tmp_path / "stated/bin/input0/dict.txt").steps) == steps
