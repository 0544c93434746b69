"""A folder of output: complete under its name, or not there at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from embinit_fairseq.errors import CheckpointError

#: what torch says, as RuntimeError, when the file it writes to fails
_TORCHS_WRITER = ("PytorchStreamWriter", "unexpected pos", "inline_container")


def check_replaceable(folder: Path, ours: Collection[str], inputs: Collection[str], force: bool) -> None:
    """CheckpointError unless `folder` is free: absent, empty, or with `force` only full of files named in `ours`.

    inputs: files that are read and must not stand in it. Links in `folder` are to be resolved before.
    """
    for path in inputs:
        if folder in Path(os.path.realpath(path)).parents:
            raise CheckpointError(f"{folder}: the input {path} lies in this folder; choose another --output")
    if not folder.exists():
        return
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: there is a file of this name; choose another --output")
    files = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    if not force and next(files, None) is not None:
        raise CheckpointError(
            f"{folder}: this folder is not empty; choose another --output, or add --force to replace an earlier one"
        )
    for path in files:
        if path.relative_to(folder).as_posix() not in ours:
            raise CheckpointError(
                f"{folder}: --force would delete {path.relative_to(folder)}, which this command did not write; move it "
                "or choose another --output"
            )


@contextlib.contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """A folder to write to that becomes `folder` when the block ends well and vanishes when it does not.

    An earlier one stays until the new one is complete. CheckpointError if the disk or the place does not allow it;
    other errors of the block are not touched.
    """
    temporary = folder.parent / f".{folder.name}.{os.getpid()}.tmp"
    try:
        temporary.mkdir(parents=True)
        yield temporary
        _move(temporary, folder)
    except (OSError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not any(word in str(error) for word in _TORCHS_WRITER):
            raise
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise CheckpointError(
            f"{folder}: cannot be written ({reason}); free some space or choose another --output"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _move(temporary: Path, folder: Path) -> None:
    if not folder.exists():
        temporary.rename(folder)
        return
    old = temporary.with_suffix(".old")
    folder.rename(old)
    try:
        temporary.rename(folder)
    except OSError:
        old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)
