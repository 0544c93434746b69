"""``scripts/setup.sh`` refuses what it cannot work with, with a message that says what to do."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "setup.sh"


def setup(*arguments: object, **environment: object) -> subprocess.CompletedProcess:
    known = {**os.environ, **{name: str(value) for name, value in environment.items()}}
    return subprocess.run(["bash", str(SCRIPT), *map(str, arguments)], capture_output=True, text=True, env=known)


def test_usage() -> None:
    usage = setup("--help")
    assert usage.returncode == 0
    assert all(name in usage.stdout for name in ("VENV", "PYTHON", "TORCH_SPEC", "EXTRAS", "EDITABLE"))
    assert (setup("--no-such-option").returncode, setup("one", "two").returncode) == (2, 2)


@pytest.mark.parametrize("version", ["3.8.18", "3.15.0", ""])
def test_python_of_the_wrong_age_is_refused(version: str, tmp_path: Path) -> None:
    """A stand-in answers for an interpreter that is not there: its version, and a failure of the check."""
    python = tmp_path / "python"
    if version:
        python.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo Python {version}; else exit 1; fi\n')
        python.chmod(0o755)
    refused = setup(tmp_path / "venv", PYTHON=python)
    assert refused.returncode == 1
    assert all(part in refused.stderr for part in (str(python), version, "3.10 - 3.14"))
    assert not (tmp_path / "venv").exists()


def test_a_folder_that_is_no_environment_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    refused = setup(tmp_path)
    assert refused.returncode == 1
    assert str(tmp_path) in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
