"""Data of the tests of `--embed-init`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from programs import PYTHON
from trainings import command, model_of

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
    """Pairs of sentences whose label is whether the first holds `good`; binarised as sentence_prediction expects."""
    folder, generator = tmp_path_factory.mktemp("sentiment"), np.random.default_rng(0)
    words = ["good", "bad", *(f"w{i}" for i in range(12))]
    for split, size in (("train", 240), ("valid", 60)):
        columns = {"input0": [], "input1": [], "label": []}
        for _ in range(size):
            first = [words[i] for i in generator.integers(1, len(words), size=6)]
            label = int(generator.integers(2))
            if label:
                first[generator.integers(6)] = "good"
            columns["input0"].append(" ".join(first))
            columns["input1"].append(" ".join(words[i] for i in generator.integers(1, len(words), size=3)))
            columns["label"].append(str(label))
        for column, lines in columns.items():
            (folder / f"{split}.{column}").write_text("\n".join(lines) + "\n")
    for column in ("input0", "input1", "label"):
        command = [
            PYTHON,
            "-m",
            "fairseq_cli.preprocess",
            "--only-source",
            "--destdir",
            str(folder / "bin" / column),
        ]
        command += ["--trainpref", str(folder / f"train.{column}"), "--validpref", str(folder / f"valid.{column}")]
        if column == "input1":
            command += ["--srcdict", str(folder / "bin" / "input0" / "dict.txt")]
        subprocess.run(command, check=True, capture_output=True)
    return folder


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
def in_process(toy_translation, monkeypatch):
    """fairseq-train inside this process: run, flags -> final model."""
    import fairseq_cli.train

    def train_here(run, *flags, data=toy_translation):
        monkeypatch.setattr(sys, "argv", command(data, run, *flags)[2:])
        fairseq_cli.train.cli_main()
        return model_of(run / "checkpoint_last.pt")

    return train_here
