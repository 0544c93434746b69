"""A tiny model trained once for all tests of this folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fairseq_commands import EVAL_BLEU, Trained, run, training


@pytest.fixture(scope="session")
def trained(toy_translation: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Two epochs of four updates by the script in a new process, with ``--eval-bleu`` and numbered checkpoints."""
    folder = tmp_path_factory.mktemp("trained")
    options = ["--max-epoch", "2", "--save-interval-updates", "2", *EVAL_BLEU]
    script = Path(sys.executable).with_name("fairseq-train")
    done = run([script, *training(toy_translation, folder, *options)])
    return Trained(folder, done.stdout, done.stderr)
