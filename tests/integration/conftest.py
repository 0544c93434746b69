"""Data of the tests of `--embed-init`."""

from __future__ import annotations

import fcntl
import functools
import importlib
import os
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pre_training
import pytest
from trainings import run_to_end

D = 8


@pytest.fixture(scope="session")
def monolingual(toy_translation, tmp_path_factory):
    """A data folder for language models: the German side of the toy corpus."""
    folder = tmp_path_factory.mktemp("monolingual")
    shutil.copy(toy_translation / "dict.de.txt", folder / "dict.txt")
    for file in toy_translation.glob("*.de-en.de.*"):
        shutil.copy(file, folder / file.name.replace(".de-en.de", ""))
    return folder


def write_vectors(path: Path, dictionary: Path, generator) -> str:
    """GloVe text for 3 of 4 words of a dictionary."""
    words = [line.rsplit(" ", 1)[0] for line in dictionary.read_text().splitlines()]
    chosen = [word for word in words if int(word[1:]) % 4]
    rows = [f"{w} " + " ".join(f"{x:.5f}" for x in generator.normal(0.05, 0.4, D)) for w in chosen]
    path.write_text("\n".join(rows) + "\n")
    return str(path)


class Trained(NamedTuple):
    """A training of pre_training.ARCHITECTURES: its checkpoints, its log, and the folder of its data."""

    folder: Path
    log: str
    data: Path


def made_once(tmp_path_factory, name, make):
    """A folder that `make` fills, shared with the other processes of pytest-xdist: who comes first makes it."""
    root = tmp_path_factory.getbasetemp()
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / f"shared_{name}"
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            folder.mkdir()
            make(folder)
            (folder / "complete").touch()
    assert (folder / "complete").exists(), f"{name} failed in another process"
    return folder


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Name of an architecture -> its training, which is made at the first call. Read-only."""

    @functools.cache
    def train(name):
        architecture = pre_training.ARCHITECTURES[name]
        data = made_once(tmp_path_factory, architecture.data.__name__, architecture.data)

        def make(folder):
            flags = ["--save-interval", 3, "--validate-interval", 3, "--max-epoch", 3]
            log = run_to_end(architecture.command(data, *flags, "--save-dir", folder))
            (folder / "train.log").write_text(log)

        folder = made_once(tmp_path_factory, name, make)
        return Trained(folder, (folder / "train.log").read_text(), data)

    return train


@pytest.fixture(scope="session")
def vectors(toy_translation, tmp_path_factory):
    """SLOT=PATH for both slots."""
    folder, generator = tmp_path_factory.mktemp("vectors"), np.random.default_rng(0)
    files = {slot: toy_translation / f"dict.{name}.txt" for slot, name in (("encoder", "de"), ("decoder", "en"))}
    return [f"{slot}={write_vectors(folder / f'{slot}.txt', file, generator)}" for slot, file in files.items()]


@pytest.fixture
def here(monkeypatch):
    """Runs the command line of a fairseq module inside this process."""

    def run(command_line):
        monkeypatch.setattr(sys, "argv", command_line[2:])
        importlib.import_module(command_line[2]).cli_main()

    return run
