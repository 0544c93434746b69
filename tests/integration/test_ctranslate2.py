"""Stock translation models in CTranslate2: fairseq-train with --embed-init, its converter, the same translations."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from programs import PYTHON
from trainings import REPOSITORY, train

pytest.importorskip("ctranslate2", reason="pip install ctranslate2")
pytestmark = pytest.mark.end_to_end


def test_translations_are_those_of_fairseq(toy_translation, vectors, tmp_path):
    """The vectors are not needed any more. Words that are chosen one by one, by weights that are still drawn."""
    copies = [(slot, shutil.copy(path, tmp_path / slot)) for slot, path in (text.split("=") for text in vectors)]
    paths = [f"{slot}={path}" for slot, path in copies]
    init = ["--embed-init", "pretrained_xavier", "--embed-init-path", *paths]
    train(toy_translation, tmp_path / "run", *init, "--max-update", "1", "--lr", "0")
    for _, path in copies:
        path.unlink()
    command = [PYTHON, REPOSITORY / "benchmarks/ct2.py", "--data", toy_translation, "--repeats", "1", "--beam", "1"]
    options = ["--subset", "valid", "--longest", "8", "--checkpoint", tmp_path / "run" / "checkpoint_last.pt"]
    done = subprocess.run([*command, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["sentences"] > 10
    assert found["distinct"] > 2
    assert found["equal"] == found["sentences"]
