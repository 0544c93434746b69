"""A converted checkpoint of TUPE's code between real fairseq commands: preprocess, train."""

from __future__ import annotations

import pytest
import torch
import tupe_code
from trainings import binarise, run_to_end, train_command

from embinit_fairseq.cli.main import main
from embinit_fairseq.interop.tupe_checkpoints import flags

CLASSES = "--task sentence_prediction --criterion sentence_prediction --num-classes 3 --init-token 0".split()
pytestmark = pytest.mark.end_to_end


def test_fine_tuning(tmp_path):
    """On data binarised with the converted dictionary, at a rate of 0: what was loaded is what is saved."""
    weights = tupe_code.make_weights(17)
    files = {"checkpoint": tupe_code.save(tmp_path / "ref.pt", weights, tupe_code.make_args(weights), fp16=True)}
    files["dict"] = tupe_code.write_dictionary(tmp_path / "theirs.txt", tupe_code.words_of_dictionary())
    files["output"] = str(tmp_path / "out")
    assert main(["convert-tupe", *(f"--{name}={path}" for name, path in files.items())]) == 0
    converted = torch.load(tmp_path / "out/model.pt", weights_only=True)
    columns = {"input0": ["w1 w2", "w3 w0 w6", "w5"] * 4, "label": ["a", "b", "c"] * 4}
    for (column, texts), options in zip(columns.items(), (["--srcdict", str(tmp_path / "out/dict.txt")], [])):
        for split in ("train", "valid"):
            (tmp_path / f"{split}.{column}").write_text("\n".join(texts) + "\n")
        binarise(tmp_path, tmp_path / "bin" / column, column, *options)
    options = [*flags(converted["cfg"]["model"]).split(), "--finetune-from-model", tmp_path / "out/model.pt", *CLASSES]
    options += "--optimizer adam --lr 0 --max-update 2 --batch-size 4 --cpu --num-workers 0".split()
    run_to_end(train_command(tmp_path / "bin", *options, "--save-dir", tmp_path / "run"))
    trained = torch.load(tmp_path / "run" / "checkpoint_last.pt", weights_only=True)
    assert trained["optimizer_history"][-1]["num_updates"] == 2
    for name, value in converted["model"].items():  # fine-tuning needs no language-model head
        assert name.startswith("encoder.lm_head.") or torch.equal(trained["model"][name], value), name
