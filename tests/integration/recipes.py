"""Calls of the recipes of scripts/: one that must succeed, one that must be refused, one that is killed on its way."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import VENV

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
#: pytestmark of a file with recipes that train
TRAINS = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(not (VENV / "bin" / "fairseq-train").is_file(), reason="fairseq is not installed beside pytest"),
]


def environment(**variables: object) -> dict[str, str]:
    given = {"VENV": VENV, "OMP_NUM_THREADS": 1, "CUDA_VISIBLE_DEVICES": "", **variables}
    return {**os.environ, **{name: str(value) for name, value in given.items()}}


def call(script: str, *arguments: object, cwd: Path | None = None, **variables: object) -> subprocess.CompletedProcess:
    """script: its path below scripts/; the variables are those of the recipe."""
    command = ["bash", str(SCRIPTS / script), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment(**variables), capture_output=True, text=True, timeout=1800)


def succeed(script: str, *arguments: object, **variables: object) -> str:
    """What it says."""
    done = call(script, *arguments, **variables)
    logs = Path(str(variables.get("OUTPUT", "/none"))).rglob("logs/*.log") if done.returncode else ()
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:] + "".join(log.read_text() for log in logs)
    return done.stdout + done.stderr


def refused(script: str, *arguments: object, **variables: object) -> str:
    """What it says of the reason."""
    done = call(script, *arguments, **variables)
    assert done.returncode != 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def killed(script: str, *arguments: object, once: Callable[[], object], **variables: object) -> None:
    """Killed by signal 9 with all that it has started, as soon as `once` holds."""
    process = subprocess.Popen(
        ["bash", str(SCRIPTS / script), *map(str, arguments)],
        env=environment(**{**variables, "VENV": sys.prefix}),
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    end = time.monotonic() + 900
    while not once() and time.monotonic() < end:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert once()


def stamps(paths: object) -> dict[Path, int]:
    """When each file was written last."""
    return {path: path.stat().st_mtime_ns for path in paths if path.is_file()}


def lines(path: Path) -> list[str]:
    """As wc counts them."""
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def rows(table: Path) -> list[str]:
    """The first cells of a table of `embinit compare`, without its head."""
    return [line.split("|")[1].strip() for line in lines(table) if line.startswith("|")][2:]


def sentence_pairs() -> list[tuple[str, str]]:
    """256 different German sentences and their translations, neighbours unlike each other."""
    subjects = [("Ein Mann", "A man"), ("Die Frau", "The woman"), ("Peters Hund", "Peter's dog"), ("Er", "He")]
    verbs = [("sieht", "sees"), ("malt", "paints"), ("trägt", "carries"), ("findet", "finds")]
    objects = [("ein Haus", "a house"), ("den Ball", "the ball"), ("ein Buch", "a book"), ("das Rad", "the wheel")]
    places = [("im Park", "in the park"), ("am Strand", "at the beach"), ("heute", "today"), ("dort", "there")]
    parts = list(itertools.product(subjects, verbs, objects, places))
    chosen = (zip(*parts[at * 101 % len(parts)]) for at in range(len(parts)))
    return [(f"{' '.join(german)}.", f"{' '.join(english)}.") for german, english in chosen]
