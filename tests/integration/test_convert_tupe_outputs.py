"""Converted checkpoints of the TUPE authors' code between real fairseq commands: preprocess, validate, train."""

from __future__ import annotations

import math
from pathlib import Path

import authors_tupe as authors
import pytest
import torch
from pre_training import binarise, train_command, validated
from trainings import run_to_end

from embinit_fairseq.cli.main import main
from embinit_fairseq.convert_tupe.options import flags

SYMBOLS = 17
CLASSES = "--task sentence_prediction --criterion sentence_prediction --num-classes 3 --init-token 0".split()
pytestmark = pytest.mark.end_to_end


def convert(folder, weights, **changes) -> Path:
    files = {"checkpoint": authors.save(folder / "ref.pt", weights, authors.make_args(weights, **changes), fp16=True)}
    files["dict"] = authors.write_dictionary(folder / "theirs.txt", authors.words_of_dictionary())
    assert main(["convert-tupe", f"--output={folder}/out", *(f"--{name}={path}" for name, path in files.items())]) == 0
    return folder / "out"


def test_validation_and_training(tmp_path):
    """Of a fine-tuned model, on data binarised with the converted dictionary, against their forward on their ids; of a
    pretrained model that is fine-tuned with a rate of 0, so that what was loaded is what is saved."""
    generator, weights = torch.Generator().manual_seed(0), authors.make_weights(SYMBOLS, classes=3)
    fine_tuned = convert(tmp_path, weights, **authors.fine_tuned())
    rows = [torch.randint(7, (1 + number % 5,), generator=generator).tolist() for number in range(12)]
    labels = torch.randint(3, (12,), generator=generator).tolist()
    lines = {"input0": [" ".join(f"w{word}" for word in row) for row in rows], "label": [f"class{n}" for n in labels]}
    for column, texts in lines.items():
        for split in ("train", "valid"):
            (tmp_path / f"{split}.{column}").write_text("\n".join(texts) + "\n")
        dictionary = str(fine_tuned / column / "dict.txt")
        binarise(tmp_path, tmp_path / "bin" / column, column, "--srcdict", dictionary)
    found = validated(tmp_path / "bin", fine_tuned / "model.pt", *CLASSES, "--max-positions", "16")["loss"]
    w, loss = {name: value.half().double() for name, value in weights.items()}, 0.0
    for row, label in zip(rows, labels):
        tokens = torch.tensor([[0, *(7 + word for word in row), 2]])
        loss -= authors.class_logits(w, authors.features(w, tokens)).log_softmax(-1)[0, label].item()
    assert found == pytest.approx(loss / len(rows) / math.log(2), abs=1e-3)  # in bits, three digits printed

    (tmp_path / "pretrained").mkdir()
    path = convert(tmp_path / "pretrained", authors.make_weights(SYMBOLS)) / "model.pt"
    converted = torch.load(path, weights_only=True)
    options = [*flags(converted["cfg"]["model"]).split(), "--finetune-from-model", path, *CLASSES]
    options += "--optimizer adam --lr 0 --max-update 2 --batch-size 4 --cpu --num-workers 0".split()
    run_to_end(train_command(tmp_path / "bin", *options, "--save-dir", tmp_path / "run"))
    trained = torch.load(tmp_path / "run" / "checkpoint_last.pt", weights_only=True)
    assert trained["optimizer_history"][-1]["num_updates"] == 2
    for name, value in converted["model"].items():  # fine-tuning needs no language-model head
        assert name.startswith("encoder.lm_head.") or torch.equal(trained["model"][name], value), name
