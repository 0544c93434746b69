"""Data for trainings, and fairseq-train inside the process of the tests."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

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


@pytest.fixture(scope="session")
def vectors(toy_translation, tmp_path_factory):
    """SLOT=PATH for both slots."""
    folder, generator = tmp_path_factory.mktemp("vectors"), np.random.default_rng(0)
    files = {slot: toy_translation / f"dict.{name}.txt" for slot, name in (("encoder", "de"), ("decoder", "en"))}
    return [f"{slot}={write_vectors(folder / f'{slot}.txt', file, generator)}" for slot, file in files.items()]


@pytest.fixture
def here(monkeypatch, caplog, capsys):
    """Runs the command line of a fairseq module inside this process; returns what it prints and logs."""

    def run(command_line):
        caplog.clear()
        caplog.set_level("INFO")
        monkeypatch.setattr(sys, "argv", [*map(str, command_line[2:])])
        importlib.import_module(command_line[2]).cli_main()
        return capsys.readouterr().out + caplog.text

    return run
