"""Read text and JSON, write files and folders.

A file or folder is written under a temporary name in the same folder and moved by `os.replace` when it is complete, so
that no incomplete file has a final name. A killed process may leave the temporary file, which the next call names.
"""

from __future__ import annotations

import codecs
import contextlib
import difflib
import errno
import glob
import hashlib
import json
import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any, Union

from embinit_fairseq.errors import CheckpointError, DataError, EmbinitError, OutputError

logger = logging.getLogger(__name__)
PathLike = Union[str, "os.PathLike[str]"]

#: first bytes of a text -> its encoding; UTF-32 before UTF-16, whose mark begins it
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
#: first bytes of a compressed file -> the command that unpacks it
_UNPACK = {b"\x1f\x8b": "gzip -dk", b"BZh": "bzip2 -dk", b"\xfd7zXZ": "xz -dk", b"\x28\xb5\x2f\xfd": "zstd -d"}
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
#: parts of the RuntimeError that torch's writer raises when its file cannot be written
_TORCH_WRITER = ("PytorchStreamWriter", "unexpected pos", "inline_container")

# ---- Read -----------------------------------------------------------------------------------------------------------


def read_lines(
    path: PathLike, error: type[EmbinitError] = DataError, flag: str = "", *, errors: str = "strict"
) -> Iterator[tuple[int, str]]:
    """Yield (1-based number, text) of every line of a UTF-8 file, without its end (LF or CR LF) and byte-order mark.

    Args:
        path: the file.
        error: class of the error for a file that is missing or not UTF-8.
        flag: option that names the file, for messages.
        errors: treatment of bytes that are not UTF-8, as for `bytes.decode`.
    """
    where = _named(flag, path)
    try:
        with open(path, "rb") as file:
            for number, raw in enumerate(file, 1):
                if number == 1:
                    raw = raw.removeprefix(b"\xef\xbb\xbf")
                    if raw.startswith(b"version https://git-lfs.github.com/"):
                        raise error(f"{where}: a Git LFS pointer, not the file itself; fetch that: git lfs pull")
                try:
                    line = raw.decode("utf-8", errors)
                except UnicodeDecodeError as cause:
                    raise error(f"{where}:{number}: {not_utf8(raw, number, cause.start)}") from cause
                yield number, line.removesuffix("\n").removesuffix("\r")
    except OSError as cause:
        raise error(f"{where}: {_unreadable(path, cause)}") from cause


def read_json(
    path: PathLike, error: type[EmbinitError] = DataError, flag: str = "", *, remedy: str = "copy it again"
) -> Any:
    """Return the content of a JSON file; raise `error`, with `remedy`, if it is missing or not JSON."""
    where = _named(flag, path)
    try:
        content = Path(path).read_bytes()
    except OSError as cause:
        raise error(f"{where}: {_unreadable(path, cause)}") from cause
    return parse_json(content, where, error, remedy=remedy)


def parse_json(content: str | bytes, where: str, error: type[EmbinitError], *, remedy: str = "copy it again") -> Any:
    """Return the value of a JSON text; raise `error`, which begins with `where` and ends with `remedy`, otherwise."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as cause:  # ValueError: not JSON, not UTF-8, a number of 4,300 digits
        raise error(f"{where}: not JSON ({cause}); {remedy}") from cause


def check_is_file(
    path: PathLike, flag: str = "", error: type[EmbinitError] = DataError, remedy: str = "check the path"
) -> None:
    """Raise `error` unless `path` is a file."""
    if os.path.isfile(path):
        return
    reason = f"no such file{similar_names(path)}; {remedy}"
    if os.path.isdir(path):
        reason = "a folder; name a file in it"
    elif os.path.exists(path):
        reason = "a pipe or device; save what comes out of it and name that file"
    raise error(f"{_named(flag, path)}: {reason}")


def check_inputs(files: Mapping[str, str | None]) -> dict[str, str]:
    """Return option -> path of the files that are given.

    Args:
        files: argparse's name of an option (`bpe_codes`) -> path, or None if it is not given.

    Raises:
        DataError, CheckpointError: for a path that is not a file.
    """
    inputs = {name: path for name, path in files.items() if path is not None}
    for name, path in inputs.items():
        # several files of one option are numbered: `keep_text 2`
        flag = f"--{name.partition(' ')[0].replace('_', '-').replace('dictionary', 'dict')}"
        error = CheckpointError if name == "checkpoint" else DataError
        if not path:  # a variable of the shell that is not set
            raise error(f"{flag}: an empty path; give that of a file")
        check_is_file(path, flag, error)
    return inputs


def similar_names(path: PathLike) -> str:
    """Return, for a message about a missing file, the files of its folder that have a similar name."""
    folder, name = os.path.split(path)
    if not os.path.isdir(folder or "."):
        return f" (the folder {os.fspath(folder)} does not exist either)"
    near = difflib.get_close_matches(os.fspath(name), os.listdir(folder or "."), n=3)
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def _unreadable(path: PathLike, cause: OSError) -> str:
    if isinstance(cause, FileNotFoundError):
        return f"no such file{similar_names(path)}; check the path"
    return f"cannot be read ({cause.strerror}); check the path and its permissions"


def not_utf8(raw: bytes, number: int, at: int = 0) -> str:
    """Describe, for a message, a line that is not UTF-8, with the remedy.

    Args:
        raw: the line.
        number: its 1-based number; the first line may begin with a byte-order mark.
        at: position of the first wrong byte.
    """
    name = next((name for mark, name in _MARKS.items() if number == 1 and raw.startswith(mark)), "")
    unpack = next((command for mark, command in _UNPACK.items() if number == 1 and raw.startswith(mark)), None)
    if unpack is not None:
        return f"a compressed file, expected text; unpack it: {unpack} FILE"
    zeros = [raw[parity::2].count(b"\0") for parity in (0, 1)]
    if not name and 4 * max(zeros) > len(raw) > 3:  # every other byte: Latin letters
        name = "utf-16be" if zeros[0] > zeros[1] else "utf-16le"
    if name:
        return f"text in {name.upper()}, expected UTF-8; convert it: iconv -f {name} -t utf-8 FILE > NEW"
    if b"\0" in raw:
        return "a binary file, not text; check the path"
    return (
        f"not UTF-8 (byte 0x{raw[at]:x}); convert it from its encoding: iconv -f cp1252 -t utf-8 FILE > NEW (or from "
        "gb18030, shift_jis, ...)"
    )


def sha256(path: PathLike) -> str:
    """Return the hexadecimal SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


# ---- Write ----------------------------------------------------------------------------------------------------------


def write_text(path: PathLike, text: str, option: str = "") -> None:
    """Write UTF-8; see `whole_file`."""
    with whole_file(path, option=option) as file:
        file.write(text.encode("utf-8"))


def write_json(path: PathLike, value: Any, option: str = "") -> None:
    """Write indented JSON; see `whole_file`. File names that are not Unicode are escaped and come back as they were."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    with whole_file(path, option=option) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


@contextlib.contextmanager
def whole_file(path: PathLike, mode: str = "wb", option: str = "") -> Iterator[IO[Any]]:
    """Yield a file that becomes `path` when the block ends well; otherwise `path` stays as it was.

    Args:
        path: the place; links are followed.
        mode: `wb`, or `w` for UTF-8 whose lines end in LF.
        option: flag that names the path, for messages.

    Raises:
        OutputError: if the disk or the place does not allow it; names path and remedy.
    """
    place = Path(os.path.realpath(path))
    if place.exists() and not place.is_file():
        raise OutputError(f"{_named(option, path)}: a folder, device or pipe has this name; {_another(option)}")
    text: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    with explained(path, option), _temporary(place) as temporary:
        with open(temporary, mode, **text) as file:
            yield file
        if place.exists():
            shutil.copymode(place, temporary)
        os.replace(temporary, place)


@contextlib.contextmanager
def whole_folder(
    path: PathLike, force: bool = False, ours: Collection[str] | None = None, option: str = "--output"
) -> Iterator[Path]:
    """Yield an empty folder that becomes `path` when the block ends well; otherwise `path` stays as it was.

    Args:
        path: the place; links are followed.
        force, ours: as for `check_folder`.
        option: flag that names the path, for messages.

    Raises:
        OutputError: if the place is taken or cannot be written to.
    """
    folder = check_folder(path, force, ours, option=option)
    _name_left(folder)
    with explained(path, option), _temporary(folder) as temporary:
        temporary.mkdir(parents=True)
        yield temporary
        check_folder(path, force, ours, option=option)  # a user may have put notes there meanwhile
        if folder.exists():
            shutil.copymode(folder, temporary)
        replaced = temporary.with_suffix(".old")
        if force and folder.exists():
            os.replace(folder, replaced)
        os.replace(temporary, folder)
        shutil.rmtree(replaced, ignore_errors=True)


@contextlib.contextmanager
def _temporary(place: Path) -> Iterator[Path]:
    """Yield an unused name in the folder of `place`; at the end, a file or folder of this name is removed."""
    temporary = Path(f"{_prefix(place)}{uuid.uuid4().hex[:8]}.tmp")
    try:
        yield temporary
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)


def _name_left(place: Path) -> None:
    """Name the temporary files of calls that were killed before they could remove them."""
    for left in sorted(place.parent.glob(f"{glob.escape(Path(_prefix(place)).name)}{'[0-9a-f]' * 8}.tmp")):
        logger.warning("%s is of a call that was killed, or still runs; if none runs, remove it: rm -r %s", left, left)


def _prefix(place: Path) -> str:
    """Return how the temporary names of `place` begin."""
    return str(place.with_name(f".{place.name[:100]}."))


def check_file(path: PathLike, force: bool = False, inputs: Iterable[PathLike] = (), option: str = "--output") -> None:
    """Raise OutputError, before any work, if `path` is an input, is in no folder, or exists without `force`."""
    where = _named(option, path)
    if any(os.path.exists(path) and os.path.exists(file) and os.path.samefile(path, file) for file in inputs):
        raise OutputError(f"{where}: is one of the files that are read; {_another(option)}")
    if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise OutputError(f"{where}: there is no such folder; make it first (mkdir -p)")
    if os.path.isfile(path) and not force:
        raise OutputError(f"{where}: there is a file of this name; {_another(option)}, or add --force to replace it")
    _name_left(Path(os.path.realpath(path)))


def check_folder(
    path: PathLike,
    force: bool = False,
    ours: Collection[str] | None = None,
    inputs: Iterable[PathLike] = (),
    option: str = "--output",
) -> Path:
    """Return `path` with its links resolved if `whole_folder` may write it; raise OutputError, before any work, if not.

    Args:
        path: a folder that is absent or empty, or with `force` one that holds only files matching `ours`.
        force: replace the folder's files.
        ours: patterns of the files that this command writes (`dict.*.txt`), relative to the folder; None: any.
        inputs: files and folders that are read; none may be in the folder, nor the folder in one of them.
        option: flag that names the path, for messages.
    """
    folder = Path(os.path.realpath(path))
    where = _named(option, path)
    if not os.fspath(path):  # a variable of the shell that is not set
        raise OutputError(f"{option}: an empty path; give that of a folder")
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{where}: there is a file of this name; {_another(option)}")
    for name in inputs:
        read = Path(os.path.realpath(name))
        if folder in (read, *read.parents):
            raise OutputError(f"{where}: the input {name} is in this folder; {_another(option)}")
        if read in folder.parents:
            raise OutputError(f"{where}: is in the folder {name}, which is an input; {_another(option)}")
    check_place(folder.parent, option, shown=path)
    if not folder.exists() or not any(folder.iterdir()):
        return folder
    if not force:
        raise OutputError(f"{where}: this folder is not empty; {_another(option)}, or add --force to replace it")
    if (stranger := _stranger(folder, ours)) is not None:
        raise OutputError(
            f"{where}: --force would delete {stranger}, which this command did not write; move it, or "
            f"{_another(option)}"
        )
    return folder


def make_folder(path: PathLike, option: str = "--output") -> Path:
    """Make a folder, with those above it, unless it exists; OutputError if it cannot be made."""
    with explained(path, option):
        os.makedirs(path, exist_ok=True)
    return Path(path)


def check_place(folder: PathLike, option: str = "--output", shown: PathLike | None = None) -> None:
    """Raise OutputError, before any work, if `folder` cannot be made or written to. shown: the path for the message."""
    absolute = Path(os.path.abspath(folder))
    existing = next(parent for parent in (absolute, *absolute.parents) if os.path.lexists(parent))
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        return
    reason = f"{existing} is read-only" if existing.is_dir() else f"{existing} is not a folder"
    raise OutputError(f"{_named(option, shown or folder)}: cannot be made ({reason}); {_another(option)}")


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a folder that is removed at the end; OutputError names TMPDIR if its disk is full."""
    with explained(tempfile.gettempdir(), "temporary files in", "set TMPDIR to another folder"):
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)


@contextlib.contextmanager
def explained(path: PathLike, option: str = "", remedy: str = "") -> Iterator[None]:
    """Turn errors of writing (full disk, permissions, torch's writer) into an OutputError with path and remedy."""
    remedy = remedy or _another(option)
    try:
        yield
    except (OSError, RuntimeError) as error:
        cause = _torch_writer_cause(error) if isinstance(error, RuntimeError) else error
        if cause is None or (isinstance(cause, OSError) and not _is_about(cause, Path(os.path.realpath(path)))):
            raise
        code = cause.errno if isinstance(cause, OSError) else None
        if code in _FORBIDDEN:
            remedy = f"change the permissions, or {remedy}"
        elif code in (*_FULL, errno.EIO, None):
            remedy = f"free some space, or {remedy}"
        reason = os.strerror(code) if code else str(cause).splitlines()[0]
        raise OutputError(f"{_named(option, path)}: cannot be written ({reason}); {remedy}") from error


def _torch_writer_cause(error: BaseException) -> BaseException | None:
    """Return why torch's writer failed: the OSError that it hides, else `error`; None if `error` is not torch's."""
    if not any(word in str(error) for word in _TORCH_WRITER):
        return None
    hidden = error.__context__
    if isinstance(hidden, KeyboardInterrupt):
        raise hidden from None
    return hidden if isinstance(hidden, OSError) else error


def _is_about(error: OSError, place: Path) -> bool:
    """Return True if writing to `place` failed: the file named is in it, under its temporary name, or above it."""
    if not isinstance(error.filename, (str, bytes, os.PathLike)):  # of write and close, which name no file
        return error.errno in (*_FULL, errno.EIO, errno.EROFS)
    named = Path(os.path.realpath(os.fsdecode(error.filename)))
    is_temporary = str(named).startswith(_prefix(place))
    return is_temporary or named in place.parents or place in (named, *named.parents)


def _stranger(folder: Path, ours: Collection[str] | None) -> str | None:
    """Return a file in `folder` that matches none of the patterns `ours` (of equal depth), or None."""
    if ours is None:
        return None
    for path in folder.rglob("*"):
        name = PurePosixPath(path.relative_to(folder).as_posix())
        fits = (len(name.parts) == len(PurePosixPath(pattern).parts) and name.match(pattern) for pattern in ours)
        if (path.is_symlink() or not path.is_dir()) and not any(fits):
            return str(name)
    return None


def files_below(folder: Path) -> list[Path]:
    """Return the files (also broken links) at any depth of a folder, sorted, also in the linked folders.

    A folder that is reached twice, as by a link to itself, counts once, without the link. `Path.rglob` leaves linked
    folders out.
    """
    files, visited = [], set()
    for root, folders, names in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(root)) in visited:
            folders.clear()
            continue
        visited.add(real)
        files += [Path(root, name) for name in names]
        links = {name for name in folders if os.path.islink(os.path.join(root, name))}
        folders[:] = [*sorted(set(folders) - links), *sorted(links)]  # in this order they are visited
    return sorted(files)


def _named(option: str, path: PathLike) -> str:
    return f"{option} {os.fspath(path)}".strip()


def _another(option: str) -> str:
    return f"choose another {option or 'place'}"
