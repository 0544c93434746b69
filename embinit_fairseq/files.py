"""Files and folders that are whole under their names, or not there; hashes; what may be read.

Everything is written beside its place as `.NAME.HOST.PROCESS.tmp` and gets its name when it is complete. A folder that
is to be replaced changes names with the new one in a single step (`renameat2`), where the kernel and the file system
have that. Else the old one is `.NAME.HOST.PROCESS.old` between two renames, and gets its name back if the second fails.

Whoever writes to a place first puts right what runs left there that were killed (`kill -9`, a machine that went down):
* an `.old` whose place is empty gets its name back: a run that has not ended well has changed nothing;
* what else belongs to a process of this machine that has ended is removed. What belongs to another machine that
  shares the disk stays: from here nobody can tell whether that process still writes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any, Union

from embinit_fairseq.bounded import similar_names
from embinit_fairseq.errors import CheckpointError, DataError, EmbinitError, OutputError

PathLike = Union[str, "os.PathLike[str]"]

_HOST = platform.node().replace(".", "-") or "unnamed"  # in names below, dots separate
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
#: what torch says, as RuntimeError, when the file it writes to fails; the cause is in the context
_TORCHS_WRITER = ("PytorchStreamWriter", "unexpected pos", "inline_container")
_BLOCK = 1 << 20
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # <fcntl.h>, <linux/fs.h>


# --- files


def write_text(path: PathLike, text: str, option: str = "") -> None:
    """Write UTF-8; see `whole_file`."""
    with whole_file(path, "wb", option) as file:
        file.write(text.encode("utf-8"))


def write_json(path: PathLike, value: Any, option: str = "") -> None:
    """Write JSON for people and programs; see `whole_file`.

    What is no Unicode (of file names in another encoding) is escaped and comes back as it was.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    with whole_file(path, "wb", option) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


@contextlib.contextmanager
def whole_file(path: PathLike, mode: str = "wb", option: str = "") -> Iterator[IO[Any]]:
    """A file to write to that becomes `path` when the block ends well; else `path` stays as it was.

    mode: `wb` or `w` (UTF-8, lines end in \\n). option: the flag that named the path, for messages. Links are followed.
    Raises OutputError, which names the path and the remedy, if the disk or the place does not allow it.
    """
    place = Path(os.path.realpath(path))
    if place.exists() and not place.is_file():
        kind = "a folder" if place.is_dir() else "a device or pipe"
        raise OutputError(f"{_named(option, path)}: there is {kind} of this name; {_another(option)}")
    temporary = _temporary(place)
    text: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    with _explained(place, _named(option, path), _another(option)):
        try:
            with open(temporary, mode, **text) as file:
                yield file
            os.replace(temporary, place)
        finally:
            _clean_up(place)


def check_file(path: PathLike, force: bool = False, inputs: Iterable[PathLike] = (), option: str = "--output") -> None:
    """Before any work: OutputError for a file that is one of those that are read, or that is there without `force`."""
    where = _named(option, path)
    if any(os.path.exists(path) and os.path.exists(each) and os.path.samefile(path, each) for each in inputs):
        raise OutputError(f"{where}: is one of the files that are read; {_another(option)}")
    if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise OutputError(f"{where}: there is no such folder; make it first (mkdir -p)")
    if os.path.isfile(path) and not force:
        raise OutputError(f"{where}: there is a file of this name; {_another(option)}, or add --force to replace it")


# --- folders


def check_folder(
    path: PathLike,
    force: bool = False,
    ours: Collection[str] | None = None,
    inputs: Iterable[PathLike] = (),
    option: str = "--output",
) -> Path:
    """Before any work: OutputError unless `whole_folder` may write `path`. Returns it with its links resolved.

    The folder must be absent or empty; with `force` it may hold files that match `ours` (patterns such as
    `dict.*.txt`, relative to it; None: any), which will be replaced. inputs: files and folders that are read; none
    may be in the folder, nor the folder in one of them.
    """
    folder = Path(os.path.realpath(path))
    where = _named(option, path)
    for each in inputs:
        given = Path(os.path.realpath(each))
        if folder in given.parents or (given.is_dir() and given == folder):
            raise OutputError(f"{where}: the input {each} lies in this folder; {_another(option)}")
        if given in folder.parents and given.is_dir():
            raise OutputError(f"{where}: lies in the folder {each}, which is an input; {_another(option)}")
    if (reason := _unwritable(folder.parent)) is not None:
        raise OutputError(f"{where}: cannot be made ({reason}); {_another(option)}")
    put_right(folder)
    if not folder.exists():
        return folder
    if not folder.is_dir():
        raise OutputError(f"{where}: there is a file of this name; {_another(option)}")
    if not force and _is_filled(folder):
        raise OutputError(
            f"{where}: this folder is not empty; {_another(option)}, or add --force to replace an earlier one"
        )
    stranger = _stranger(folder, ours)
    if stranger is not None:
        raise OutputError(
            f"{where}: --force would delete {stranger}, which this command did not write; move it, or "
            f"{_another(option)}"
        )
    return folder


def check_place(path: PathLike, option: str = "--output") -> None:
    """Before any work: OutputError if the folder `path` cannot be made or, where it is there, be written to."""
    if (reason := _unwritable(Path(os.path.abspath(path)))) is not None:
        raise OutputError(f"{_named(option, path)}: cannot be made ({reason}); {_another(option)}")


def _unwritable(folder: Path) -> str | None:
    """Why nothing can be made in `folder`, or where it is not there in the first folder above it that is."""
    existing = next(each for each in (folder, *folder.parents) if os.path.lexists(each))
    if not existing.is_dir():
        return f"{existing} is no folder"
    return None if os.access(existing, os.W_OK | os.X_OK) else f"{existing} is read-only"


@contextlib.contextmanager
def whole_folder(
    path: PathLike, force: bool = False, ours: Collection[str] | None = None, option: str = "--output"
) -> Iterator[Path]:
    """An empty folder that becomes `path` when the block ends well; else `path` stays as it was. Links are followed.

    force, ours: see `check_folder`; what appeared in the folder while the block ran is not removed. Raises OutputError;
    errors of the block that are not about writing come through as they are.
    """
    folder = check_folder(path, force, ours, option=option)
    temporary = _temporary(folder)
    with _explained(folder, _named(option, path), _another(option)), made_folder(folder.parent, option):
        try:
            temporary.mkdir()
            yield temporary
            _move(temporary, folder, force, ours, option)
        finally:
            _clean_up(folder)


@contextlib.contextmanager
def made_folder(path: PathLike, option: str = "--output") -> Iterator[Path]:
    """Make a folder to write into; if the block fails, what was made is gone again, unless there is a file in it."""
    folder = Path(path)
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        with explained(folder, option):
            folder.mkdir(parents=True, exist_ok=True)
        yield folder
    except BaseException:
        for each in new:
            with contextlib.suppress(OSError):
                each.rmdir()
        raise


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder for what nobody keeps, gone at the end. OutputError, which names TMPDIR, if its disk is full."""
    try:
        where = tempfile.gettempdir()
    except OSError as error:
        raise OutputError(f"{error.strerror}; set TMPDIR to a folder that can be written to") from error
    words = f"temporary files in {where}", "set TMPDIR to another folder"
    with _explained(Path(where), *words):
        made = tempfile.TemporaryDirectory()
    with made as folder, _explained(Path(folder), *words):
        yield Path(folder)


# --- reading


def sha256(path: PathLike) -> str:
    """Hexadecimal SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:  # gigabytes, for vectors and binarised corpora
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def check_is_file(path: str, what: str = "", error: type[EmbinitError] = DataError, missing: str | None = None) -> None:
    """`error` if there is something at `path`, but no file. what: the option, for the message.

    missing: the remedy where there is nothing; None: that is left to the reader.
    """
    if os.path.isfile(path) or (missing is None and not os.path.exists(path)):
        return
    if not os.path.exists(path):
        raise error(f"{_named(what, path)}: no such file{similar_names(path)}; {missing}")
    if os.path.isdir(path):
        raise error(f"{_named(what, path)}: a folder; name a file in it")
    raise error(f"{_named(what, path)}: a pipe or device, not a file; save what comes out of it and name that file")


def check_inputs(files: Mapping[str, str | None]) -> dict[str, str]:
    """Those that are given of option (`bpe_codes` for --bpe-codes) -> path.

    Raises DataError, for a checkpoint CheckpointError, for what is no file; one that is missing is left to its reader.
    """
    given = {name: path for name, path in files.items() if path is not None}
    for name, path in given.items():
        flag = f"--{name.replace('_', '-').replace('dictionary', 'dict')}"
        error = CheckpointError if name == "checkpoint" else DataError
        if not path:  # of a shell's variable that is not set
            raise error(f"{flag}: an empty path; give that of a file")
        check_is_file(path, flag, error)
    return given


# --- what went wrong


@contextlib.contextmanager
def explained(path: PathLike, option: str = "") -> Iterator[None]:
    """OutputError, with the path and the remedy, for whatever says that `path` cannot be written."""
    with _explained(Path(path), _named(option, path), _another(option)):
        yield


def says_full(text: str) -> str | None:
    """The reason, if another program says in `text` that a disk is full."""
    return next((os.strerror(code) for code in _FULL if os.strerror(code) in text), None)


@contextlib.contextmanager
def _explained(place: Path, name: str, remedy: str) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:
        causes = list(_causes(error)) if _is_torchs_writer(error) else [error]
        for cause in causes:
            if isinstance(cause, KeyboardInterrupt):  # torch's writer makes "unexpected pos" of Ctrl-C
                raise cause from None
        cause = next((each for each in causes if isinstance(each, OSError)), error)
        if isinstance(cause, OSError) and not _is_about(cause, place):
            raise
        if not isinstance(cause, OSError) and not _is_torchs_writer(cause):
            raise
        reason = getattr(cause, "strerror", None) or str(cause).splitlines()[0]
        code = getattr(cause, "errno", None)
        if code in _FULL or code in (None, errno.EIO):
            remedy = f"free some space, or {remedy}"
        elif code in _FORBIDDEN:
            remedy = f"change the permissions, or {remedy}"
        raise OutputError(f"{name}: cannot be written ({reason}); {remedy}") from error


def _is_torchs_writer(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _TORCHS_WRITER)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__context__


def _is_about(error: OSError, place: Path) -> bool:
    """Whether writing to `place` failed: the file named is there, beside it or above it, or writing fails so."""
    if not isinstance(error.filename, (str, bytes, os.PathLike)):
        return error.errno in (*_FULL, errno.EIO, errno.EROFS)  # of write and close, which name no file
    named = Path(os.path.abspath(os.fsdecode(error.filename)))
    places = (Path(os.path.abspath(place)), _temporary(Path(os.path.abspath(place))))
    return any(named == each or named in each.parents or each in named.parents for each in places)


def _named(option: str, path: PathLike) -> str:
    """For messages: the option and the path, without the temporary name of a folder that is being written."""
    unfinished = rf"(^|/)\.([^/]+)\.{re.escape(_HOST)}\.{os.getpid()}\.tmp(?=/|$)"
    shown = re.sub(unfinished, r"\1\2", os.fspath(path))
    return f"{option} {shown}".strip()


def _another(option: str) -> str:
    return f"choose another {option or 'place'}"


# --- names


def _temporary(place: Path) -> Path:
    return place.with_name(f".{place.name}.{_HOST}.{os.getpid()}.tmp")


def _remove(path: Path) -> None:
    """A file, or a folder with all that is in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _is_filled(folder: Path) -> bool:
    return next(folder.iterdir(), None) is not None


def _stranger(folder: Path, ours: Collection[str] | None) -> str | None:
    """A file in `folder` that matches none of `ours`."""
    if ours is None:
        return None
    files = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    names = (PurePosixPath(path.relative_to(folder).as_posix()) for path in files)
    patterns = [(PurePosixPath(pattern), len(PurePosixPath(pattern).parts)) for pattern in ours]
    for name in names:
        if not any(len(name.parts) == depth and name.match(str(pattern)) for pattern, depth in patterns):
            return str(name)
    return None


def _move(temporary: Path, folder: Path, force: bool, ours: Collection[str] | None, option: str) -> None:
    """Give the new folder its name. What appeared there is never removed: renaming fails where it is not empty."""
    appeared = (
        f"{_named(option, folder)}: something else was written there while this command ran, which is left as it is; "
        f"{_another(option)}, or run the command again"
    )
    if force and folder.is_dir() and not folder.is_symlink() and _is_filled(folder):
        if _stranger(folder, ours) is not None:
            raise OutputError(appeared)
        if _exchange(temporary, folder):
            return
        _replace(temporary, folder)
        return
    try:
        os.rename(temporary, folder)
    except OSError as error:
        if error.errno in _TAKEN:
            raise OutputError(appeared) from error
        raise


def _exchange(one: Path, other: Path) -> bool:
    """Let two paths change names in one step; False where the kernel, the C library or the file system cannot."""
    try:
        call = ctypes.CDLL(None).renameat2
    except AttributeError:
        return False
    return call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0


def _replace(temporary: Path, folder: Path) -> None:
    """In several steps. Whatever stops this between the first and the second, `put_right` takes the first one back."""
    old = temporary.with_suffix(".old")
    os.rename(folder, old)
    os.rename(temporary, folder)
    os.rename(old, temporary)  # what is half removed must not come back


def _clean_up(place: Path) -> None:
    """As `put_right`, and once more if that is interrupted."""
    try:
        put_right(place)
    except BaseException:
        put_right(place)
        raise


def put_right(place: Path) -> None:
    """What runs that were killed have left for `place`: see the head of this file."""
    ended = [(path, host) for path, host, process in _leftovers(place) if host != _HOST or not _is_running(process)]
    old = [path for path, _ in ended if path.suffix == ".old"]
    if old and not os.path.lexists(place):
        os.rename(max(old, key=lambda path: path.stat().st_ctime_ns), place)
    for path, host in ended:
        if host == _HOST:
            _remove(path)


def _leftovers(place: Path) -> list[tuple[Path, str, int]]:
    """(path, host, process) of every temporary name of `place`."""
    pattern = re.compile(rf"\.{re.escape(place.name)}\.([^.]+)\.([0-9]+)\.(?:tmp|old)")
    try:
        matches = [pattern.fullmatch(name) for name in os.listdir(place.parent)]
    except OSError:  # no such folder yet
        return []
    return [(place.parent / found[0], found[1], int(found[2])) for found in matches if found]


def _is_running(process: int) -> bool:
    """Of this machine. Not this process, which has not begun or is done; in containers earlier ones had its number."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's
        pass
    return True
