"""Calls of the recipes of scripts/: one that must succeed, one that must be refused, one that is killed on its way."""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
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


#: word in a block of a page -> module without which the block cannot run
NEEDS = {"ct2": "ctranslate2", "export-hf": "transformers", "from transformers": "transformers"}


def run_page(page: str, changes: Mapping[str, str], cwd: Path, language: str = "bash", more: str = "") -> str:
    """Run all blocks of a page in a language as one program, and return what it prints.

    Blocks that need an optional module that is missing are left out.

    Args:
        page: its name; `NAME#HEADING`: only the part under a heading that begins so; `NAME#`: only what is before the
            first heading.
        changes: text that must be in it -> text in place of it.
        cwd: the folder.
        language: bash or python.
        more: the end of the program.
    """
    name, hash_, heading = page.partition("#")
    text = (SCRIPTS.parent / "docs" / name).read_text(encoding="utf-8")
    first, *parts = re.split(r"^## ", text, flags=re.MULTILINE)
    if hash_:
        text = next(part for part in parts if part.startswith(heading)) if heading else first
    missing = [word for word, module in NEEDS.items() if importlib.util.find_spec(module) is None]
    blocks = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    program = "".join(block for block in blocks if not any(word in block for word in missing))
    for place, other in changes.items():
        assert place in program, place
        program = program.replace(place, other)
    start = ["bash", "-euo", "pipefail"] if language == "bash" else [str(VENV / "bin/python")]
    env = environment(PATH=f"{VENV}/bin:{os.environ['PATH']}")
    done = subprocess.run([*start, "-c", program + more], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


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
