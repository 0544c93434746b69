"""Small data, and a tiny model trained once for all tests of this folder."""

from __future__ import annotations

import random
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from fairseq_commands import EVAL_BLEU, module, run, script, translation


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Binarised sentences, de to en, with one English word per German word in reversed order; the text is beside it."""
    folder, numbers = tmp_path_factory.mktemp("pairs"), random.Random(1)
    for split, sentences in (("train", 200), ("valid", 20), ("test", 20)):
        rows = [[numbers.randrange(60) for _ in range(numbers.randint(3, 8))] for _ in range(sentences)]
        for side, step in (("de", 1), ("en", -1)):
            text = "".join(" ".join(f"{side[0]}{word}" for word in row[::step]) + "\n" for row in rows)
            (folder / f"{split}.{side}").write_text(text)
    prefixes = [f"--{split}pref={folder / split}" for split in ("train", "valid", "test")]
    run([*module("fairseq_cli.preprocess"), "-s", "de", "-t", "en", *prefixes, f"--destdir={folder / 'data-bin'}"])
    return folder / "data-bin"


@pytest.fixture(scope="session")
def text(pairs: Path) -> Path:
    """The German side by itself, binarised."""
    prefixes = [f"--{split}pref={pairs.parent / split}.de" for split in ("train", "valid")]
    folder = pairs.parent / "text"
    run([*module("fairseq_cli.preprocess"), "--only-source", *prefixes, f"--destdir={folder}"])
    return folder


@pytest.fixture(scope="session")
def trained(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CompletedProcess]:
    """Two epochs of four updates by the script; its folder, which is read-only, and its streams."""
    folder = tmp_path_factory.mktemp("trained")
    options = ["--max-epoch", "2", "--save-interval-updates", "2", *EVAL_BLEU]
    return folder, run([*script("fairseq-train"), *translation(pairs, folder, *options)])
