"""Fixtures shared by all tests."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from programs import PYTHON

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def no_handlers_of_earlier_tests() -> None:
    """fairseq's commands give the root logger a handler for the sys.stdout of that moment, which a test closes again.

    A later message would print an error of logging with its whole stack.
    """
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if type(handler) is logging.StreamHandler]:
        root.removeHandler(handler)


@pytest.fixture(autouse=True)
def no_meters_of_earlier_tests() -> None:
    """What is logged outside of `metrics.aggregate` stays in fairseq's global meters, and a criterion that logs another
    kind of number under the same name fails."""
    metrics = sys.modules.get("fairseq.logging.metrics")
    if metrics is not None:
        metrics.reset()


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with the real data sets (environment variable EMBINIT_DATA); skips the test without it."""
    folder = Path(os.environ.get("EMBINIT_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"the real data sets are not at {folder}: set EMBINIT_DATA to their folder")
    return folder


def write_parallel_text(folder: Path, split: str, sentences: int, generator: np.random.Generator) -> None:
    """Write ``split.de`` and ``split.en``: English has one word per German word, in reversed order."""
    with (folder / f"{split}.de").open("w") as german, (folder / f"{split}.en").open("w") as english:
        for _ in range(sentences):
            words = generator.integers(0, 60, size=generator.integers(3, 9))
            german.write(" ".join(f"d{word}" for word in words) + "\n")
            english.write(" ".join(f"e{word}" for word in reversed(words)) + "\n")


@pytest.fixture(scope="session")
def toy_translation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ``data-bin`` folder, de to en: 200 sentences to train on, 20 to validate, 20 to test; 60 words a side.

    The plain text lies beside it (``../train.de`` and so on). Read-only for tests: it is shared by the session.
    """
    folder = tmp_path_factory.mktemp("toy_translation")
    generator = np.random.default_rng(1)
    for split, sentences in (("train", 200), ("valid", 20), ("test", 20)):
        write_parallel_text(folder, split, sentences, generator)
    prefixes = [f"--{split}pref={folder / split}" for split in ("train", "valid", "test")]
    command = [PYTHON, "-m", "fairseq_cli.preprocess", "-s", "de", "-t", "en", *prefixes]
    subprocess.run([*command, f"--destdir={folder / 'data-bin'}"], check=True, capture_output=True)
    return folder / "data-bin"
