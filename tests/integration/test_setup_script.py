"""``scripts/setup.sh`` refuses what it cannot work with, with a message that says what to do."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "setup.sh"


def setup(*arguments: object, **environment: object) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["bash", str(SCRIPT), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **{name: str(value) for name, value in environment.items()}},
        timeout=600,
    )


def test_usage() -> None:
    result = setup("--help")
    assert result.returncode == 0
    for name in ("VENV", "PYTHON", "TORCH_SPEC", "EXTRAS", "EDITABLE"):
        assert name in result.stdout
    assert setup("--no-such-option").returncode == 2
    assert setup("one", "two").returncode == 2


@pytest.mark.parametrize("version", ["3.8.18", "3.15.0"])
def test_python_of_the_wrong_age_is_refused(version: str, tmp_path: Path) -> None:
    """A stand-in answers for an interpreter that is not there: its version, and a failure of the check."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo Python {version}; else exit 1; fi\n')
    python.chmod(0o755)
    result = setup(tmp_path / "venv", PYTHON=python)
    assert result.returncode == 1
    assert version in result.stderr
    assert "3.10 - 3.14" in result.stderr
    assert not (tmp_path / "venv").exists()
    result = setup(tmp_path / "venv", PYTHON="no-such-python")
    assert result.returncode == 1
    assert "no-such-python" in result.stderr


def test_folder_that_is_no_environment_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    result = setup(tmp_path)
    assert result.returncode == 1
    assert str(tmp_path) in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
