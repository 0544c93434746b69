"""Stock translation models in CTranslate2: fairseq-train with --embed-init, its converter, the same translations."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
import torch
from programs import PYTHON
from trainings import REPOSITORY, train

from embinit_fairseq.checkpoints.reading import load_checkpoint

pytest.importorskip("ctranslate2", reason="pip install ctranslate2")
pytestmark = pytest.mark.end_to_end


def test_translations_are_those_of_fairseq(toy_translation, vectors, tmp_path):
    """The vectors are not needed any more."""
    copies = [(slot, shutil.copy(path, tmp_path / slot)) for slot, path in (text.split("=") for text in vectors)]
    paths = [f"{slot}={path}" for slot, path in copies]
    init = ["--embed-init", "pretrained_xavier", "--embed-init-path", *paths]
    train(toy_translation, tmp_path / "run", *init, "--max-update", "1")
    for _, path in copies:
        path.unlink()
    state = load_checkpoint(tmp_path / "run" / "checkpoint_last.pt")
    model, norm = state["model"], "decoder.layers.0.final_layer_norm"
    output = model["decoder.output_projection.weight"]
    output *= 20  # so that no choice of a word depends on rounding
    model[f"{norm}.weight"][0], model[f"{norm}.bias"][0] = 0, 1  # a constant, which speaks for the end of a sentence
    output[:, 0], output[2, 0] = 0, 10
    torch.save(state, tmp_path / "sure.pt")
    command = [PYTHON, REPOSITORY / "benchmarks/ct2.py", "--data", toy_translation, "--repeats", "1"]
    options = ["--subset", "valid", "--longest", "30", "--checkpoint", tmp_path / "sure.pt"]
    done = subprocess.run([*command, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["sentences"] > 10
    assert found["distinct"] > 2, "by the weights about ten"
    assert found["equal"] == found["sentences"]
