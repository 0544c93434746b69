"""Open plain and compressed files as bytes: gz, bz2, xz, zst (Python 3.14), and members of zip archives."""

from __future__ import annotations

import contextlib
import importlib
import io
import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any

from embinit_fairseq.errors import VectorFileError

#: bytes read at a time: few calls, and they fit into a second-level cache
CHUNK = 1 << 18
#: how a compressed file begins -> module of the standard library that reads it
_COMPRESSIONS = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bz2",
    b"\xfd7zXZ\x00": "lzma",
    b"\x28\xb5\x2f\xfd": "compression.zstd",
}
#: errors of the standard library for files that are damaged or incomplete
_DAMAGE = (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)
#: errors of zipfile, next to BadZipFile, for archives that are damaged, encrypted or of an unknown kind
_ZIP_DAMAGE = (zipfile.BadZipFile, RuntimeError, IndexError, ValueError, OverflowError, struct.error)


def split_member(path: str) -> tuple[str, str | None]:
    """Return (archive, member) for `archive.zip:member`, (path, None) for any other path."""
    archive, colon, member = path.partition(".zip:")
    if colon and member and not os.path.exists(path):
        return archive + ".zip", member
    return path, None


@contextlib.contextmanager
def readable(path: str) -> Iterator[None]:
    """Turn errors of reading `path` into VectorFileError."""
    try:
        yield
    except _DAMAGE as error:
        raise VectorFileError(
            f"{path}: the compressed file is damaged or incomplete ({error}); copy or download it again"
        ) from error
    except OSError as error:
        raise VectorFileError(
            f"{path}: cannot be read ({error.strerror or error}); check the path, the file and its permissions"
        ) from error


def is_zip(path: str) -> bool:
    """Return True if the file begins as a zip archive does."""
    with readable(path), open(path, "rb") as file:
        return file.read(4) in (b"PK\x03\x04", b"PK\x05\x06")


def zip_members(path: str) -> list[str]:
    """Return the names of the files in a zip archive, without folders and macOS' resource forks."""
    with readable(path), _open_zip(path) as archive:
        names = archive.namelist()
    return [name for name in names if name and not name.endswith("/") and not name.startswith("__MACOSX/")]


@contextlib.contextmanager
def open_bytes(path: str, chunk: int = CHUNK) -> Iterator[io.BufferedReader[Any]]:
    """Open a plain or compressed file, the only member of a zip archive, or `archive.zip:member`, for reading bytes.

    The compression is recognised from content.

    Raises:
        VectorFileError: if the file cannot be read or, from a read inside the `with` block, is damaged or cut short.
    """
    with readable(path), _raw(path) as raw, io.BufferedReader(raw, chunk) as stream:
        if stream.peek(262)[257:262] == b"ustar":
            raise VectorFileError(f"{path}: a tar archive; unpack it (tar -xf FILE) and give the file of vectors in it")
        yield stream


@contextlib.contextmanager
def _raw(path: str) -> Iterator[Any]:
    archive_path, member = split_member(path)
    if member is not None or is_zip(archive_path):
        with _open_zip(archive_path) as archive, _open_member(archive, path, member) as stream:
            yield stream
        return
    with open(archive_path, "rb") as file:
        head = file.read(6)
    module = next((module for magic, module in _COMPRESSIONS.items() if head.startswith(magic)), "io")
    try:
        opened = importlib.import_module(module)
    except ImportError as cause:
        raise VectorFileError(
            f"{path}: compressed by zstd, which Python reads from 3.14; unpack it (zstd -d)"
        ) from cause
    with io.FileIO(path) if module == "io" else opened.open(path) as stream:
        yield stream


@contextlib.contextmanager
def _open_zip(path: str) -> Iterator[zipfile.ZipFile]:
    try:
        archive = zipfile.ZipFile(path)
    except _ZIP_DAMAGE as error:
        raise VectorFileError(f"{path}: the zip archive is damaged ({error}); copy or download it again") from error
    with archive:
        yield archive


def _open_member(archive: zipfile.ZipFile, path: str, member: str | None) -> Any:
    names = zip_members(str(archive.filename))
    listed = ", ".join(names[:10]) + ", ..." * (len(names) > 10)
    if member is None and len(names) != 1:
        remedy = f"name one: {path}:{names[0]}" if names else "download it again"
        raise VectorFileError(f"{path}: the zip archive holds {len(names)} files ({listed or 'it is empty'}); {remedy}")
    if member is not None and member not in names:
        raise VectorFileError(f"{path}: no such member; the archive holds {listed}: name one of them")
    try:
        return archive.open(member or names[0])
    except _ZIP_DAMAGE as error:  # also: encrypted, or a compression that Python does not know
        raise VectorFileError(f"{path}: cannot be read ({error}); unpack the archive or download it again") from error
