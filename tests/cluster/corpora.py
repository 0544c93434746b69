"""A small text, and scripts/wikibooks/prepare.sh of it by an engine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
SMALL = {"BPE_MERGES": "150", "VOCABULARY": "160", "VALID_EVERY": "7", "SHARD_MB": "0.04", "DUPLICATES": "none"}


def write_text(path: Path) -> Path:
    """Write a text of three shards."""
    command = [sys.executable, "-m", "wikibooks.synthetic", "--megabytes", "0.1"]
    path.write_text(subprocess.run(command, cwd=SCRIPTS, check=True, capture_output=True, text=True).stdout)
    return path


def prepare(text: Path, output: Path, environment: Mapping[str, str] = os.environ, **variables: object):
    """Prepare a text and return the process that has ended."""
    given = {"OUTPUT": output, "VENV": sys.prefix, **variables}
    return subprocess.run(
        ["bash", SCRIPTS / "wikibooks" / "prepare.sh", text],
        env={**environment, **SMALL, **{name: str(value) for name, value in given.items()}},
        capture_output=True,
        text=True,
        timeout=600,
    )


def assert_same(first: Path, second: Path) -> None:
    """Compare the data for fairseq-train byte for byte."""
    files = {path.name: path.read_bytes() for path in (first / "bin").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (second / "bin").iterdir()}
    assert "train.bin" in files
