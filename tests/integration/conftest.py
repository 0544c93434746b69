"""Data of the tests of `--embed-init`."""

from __future__ import annotations

import functools
import importlib
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pre_training
import pytest
from trainings import command, model_of, run_to_end

D = 8


@pytest.fixture(scope="session")
def monolingual(toy_translation, tmp_path_factory):
    """A data folder for language models: the German side of the toy corpus."""
    folder = tmp_path_factory.mktemp("monolingual")
    (folder / "dict.txt").write_text((toy_translation / "dict.de.txt").read_text())
    for split in ("train", "valid", "test"):
        for suffix in ("bin", "idx"):
            (folder / f"{split}.{suffix}").write_bytes((toy_translation / f"{split}.de-en.de.{suffix}").read_bytes())
    return folder


def words_of(dictionary: Path) -> list[str]:
    return [line.rsplit(" ", 1)[0] for line in dictionary.read_text().splitlines()]


@pytest.fixture(scope="session")
def glove(toy_translation, tmp_path_factory):
    """GloVe text for 3 of 4 words of each side, and a row that is spelled `<s>`: language -> path."""
    folder, generator = tmp_path_factory.mktemp("vectors"), np.random.default_rng(0)
    for language in ("de", "en"):
        words = [w for w in words_of(toy_translation / f"dict.{language}.txt") if int(w[1:]) % 4]
        lines = [f"{w} " + " ".join(f"{x:.5f}" for x in generator.normal(0.05, 0.4, D)) for w in ["<s>", *words]]
        (folder / f"{language}.txt").write_text("\n".join(lines) + "\n")
    return {language: str(folder / f"{language}.txt") for language in ("de", "en")}


@pytest.fixture(scope="session")
def sentiment(tmp_path_factory):
    """Pairs of sentences, labelled and binarised (`bin`) as sentence_prediction expects: see pre_training.pairs."""
    return pre_training.pairs(tmp_path_factory.mktemp("sentiment"))


class Trained(NamedTuple):
    """A training of pre_training.ARCHITECTURES: its checkpoints, its log, and the folder of its data."""

    folder: Path
    log: str
    data: Path


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Name of an architecture -> its training, which is made at the first call. Read-only."""

    @functools.cache
    def data_of(write):
        return write(tmp_path_factory.mktemp("data"))

    @functools.cache
    def train(name):
        architecture, folder = pre_training.ARCHITECTURES[name], tmp_path_factory.mktemp(name)
        data = data_of(architecture.data)
        flags = "--save-interval 3 --validate-interval 3 --max-epoch".split()
        flags += [architecture.epochs, "--save-dir", folder]
        return Trained(folder, run_to_end(architecture.command(data, *flags)), data)

    return train


@pytest.fixture(scope="module")
def vectors(toy_translation, tmp_path_factory):
    """SLOT=PATH for both slots."""
    folder, generator = tmp_path_factory.mktemp("vectors"), np.random.default_rng(0)
    paths = []
    for slot, language in (("encoder", "de"), ("decoder", "en")):
        words = [line.split(" ")[0] for line in (toy_translation / f"dict.{language}.txt").read_text().splitlines()]
        rows = [f"{w} " + " ".join(f"{x:.4f}" for x in generator.normal(0, 0.4, D)) for w in words if int(w[1:]) % 4]
        (folder / f"{slot}.txt").write_text("\n".join(rows) + "\n")
        paths.append(f"{slot}={folder / f'{slot}.txt'}")
    return paths


@pytest.fixture
def here(monkeypatch):
    """Runs the command line of a fairseq module inside this process."""

    def run(command_line):
        monkeypatch.setattr(sys, "argv", command_line[2:])
        importlib.import_module(command_line[2]).cli_main()

    return run


@pytest.fixture
def in_process(toy_translation, here):
    """fairseq-train of a translation model inside this process: run, flags -> final model."""

    def train_here(run, *flags, data=toy_translation):
        here(command(data, run, *flags))
        return model_of(run / "checkpoint_last.pt")

    return train_here
