"""Files and folders that are either complete or absent, whenever the program is stopped."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

SUFFIX = ".part"


def _temporary(path: Path) -> Path:
    # With the process number: a process left over from a killed run cannot write into the files of the next one.
    return path.with_name(f"{path.name}.{os.getpid()}{SUFFIX}")


@contextlib.contextmanager
def complete_file(path: Path) -> Iterator[Path]:
    """Yields a temporary name; what was written there becomes `path` if nothing went wrong."""
    temporary = _temporary(path)
    yield temporary
    os.replace(temporary, path)


@contextlib.contextmanager
def complete_folder(path: Path) -> Iterator[Path]:
    """Yields an empty folder, which becomes `path` if nothing went wrong."""
    temporary = _temporary(path)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    yield temporary
    try:
        temporary.rename(path)
    except OSError:
        if not path.is_dir():
            raise
        shutil.rmtree(temporary)  # another process was faster: the same input gives the same folder


def finished_shards(folder: Path) -> list[Path]:
    """The shards' folders, in the order of the input."""
    return sorted(path for path in folder.glob("[0-9]*") if path.suffix != SUFFIX)


def remove_leftovers(folder: Path) -> None:
    """Make `folder` if there is none, and remove from it what a killed process has left."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob(f"*{SUFFIX}"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
