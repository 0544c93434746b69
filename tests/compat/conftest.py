"""A tiny model trained once for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from fairseq_commands import EVAL_BLEU, run, script, training


@pytest.fixture(scope="session")
def trained(toy_translation: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoints of one epoch, trained by the console script with ``--eval-bleu``. Read-only."""
    folder = tmp_path_factory.mktemp("trained")
    run([*script("fairseq-train"), *training(toy_translation, folder, "--max-epoch", "1", *EVAL_BLEU)])
    return folder
