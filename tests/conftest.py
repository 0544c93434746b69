"""Fixtures shared by all tests."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from programs import PYTHON
from warm_start.hydra_caches import cache_hydra

with contextlib.suppress(ImportError):
    from hypothesis import HealthCheck, settings

    # elapsed time says nothing; examples may share a fixture, which tests that use one see to
    checks = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
    settings.register_profile("every machine", deadline=None, suppress_health_check=checks)
    settings.load_profile("every machine")

REPOSITORY = Path(__file__).resolve().parent.parent


def pytest_collection_finish() -> None:
    """A twentieth of the time goes to collections that look at all of torch's and fairseq's objects again."""
    if "fairseq.dataclass.utils" in sys.modules:
        cache_hydra()
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 50, 100)


@pytest.fixture(autouse=True)
def nothing_of_earlier_tests() -> None:
    """fairseq's commands leave a handler for a sys.stdout that has been closed, and values in its global meters."""
    root = logging.getLogger()
    root.handlers = [handler for handler in root.handlers if type(handler) is not logging.StreamHandler]
    if metrics := sys.modules.get("fairseq.logging.metrics"):
        metrics.reset()


@pytest.fixture
def shown(capsys):
    """What a call of `embinit` prints."""

    def call(*arguments: object) -> str:
        from embinit_fairseq.cli.main import main

        assert main([*map(str, arguments)]) == 0
        return capsys.readouterr().out

    return call


@pytest.fixture
def printed(shown):
    """What a call prints with --json; NaN and infinity are no JSON."""
    return lambda *arguments: json.loads(shown(*arguments, "--json"), parse_constant=pytest.fail)


@pytest.fixture
def refused(capsys):
    """The one line of a call that is refused."""

    def call(*arguments: object) -> str:
        from embinit_fairseq.cli.main import main

        capsys.readouterr()
        assert main([*map(str, arguments)]) == 2
        captured = capsys.readouterr()
        assert (captured.out, captured.err.count("\n")) == ("", 1), captured.err
        return captured.err

    return call


@pytest.fixture
def figures(monkeypatch):
    """Those that `embinit plot` would write."""
    drawn: list = []
    monkeypatch.setattr("embinit_fairseq.figures.save", lambda figure, path: drawn.append(figure))
    return drawn


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with the real data sets (environment variable EMBINIT_DATA); skips the test without it."""
    folder = Path(os.environ.get("EMBINIT_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"the real data sets are not at {folder}: set EMBINIT_DATA to their folder")
    return folder


@pytest.fixture(scope="session")
def toy_translation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ``data-bin`` folder; English has one word per German word, in reversed order. The text lies beside it."""
    folder, generator = tmp_path_factory.mktemp("toy_translation"), np.random.default_rng(1)
    for split, sentences in (("train", 200), ("valid", 20), ("test", 20)):
        with (folder / f"{split}.de").open("w") as german, (folder / f"{split}.en").open("w") as english:
            for _ in range(sentences):
                words = generator.integers(0, 60, size=generator.integers(3, 9))
                german.write(" ".join(f"d{word}" for word in words) + "\n")
                english.write(" ".join(f"e{word}" for word in reversed(words)) + "\n")
    prefixes = [f"--{split}pref={folder / split}" for split in ("train", "valid", "test")]
    command = [PYTHON, "-m", "fairseq_cli.preprocess", "-s", "de", "-t", "en", *prefixes]
    subprocess.run([*command, f"--destdir={folder / 'data-bin'}"], check=True, capture_output=True)
    return folder / "data-bin"
