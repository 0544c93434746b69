"""Open plain and compressed files as bytes: gz, bz2, xz, zst (Python 3.14), and members of zip archives."""

from __future__ import annotations

import contextlib
import gzip
import importlib
import io
import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any

from embinit_fairseq.errors import VectorFileError, listed

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
_DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, zipfile.BadZipFile)
#: errors of zipfile for archives that are damaged, encrypted or of an unknown kind
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
    with readable(path), _open_zip(path, path) as archive:
        names = archive.namelist()
    return [name for name in names if name and not name.endswith("/") and not name.startswith("__MACOSX/")]


@contextlib.contextmanager
def open_bytes(path: str) -> Iterator[io.BufferedReader[Any]]:
    """Open a plain or compressed file, the only member of a zip archive, or `archive.zip:member`, for reading bytes.

    The compression is recognised from content.

    Raises:
        VectorFileError: if the file cannot be read or, from a read inside the `with` block, is damaged or cut short.
    """
    with readable(path), _open(path) as raw, io.BufferedReader(raw, CHUNK) as stream:
        if stream.peek(262)[257:262] == b"ustar":
            raise VectorFileError(f"{path}: a tar archive; unpack it (tar -xf FILE) and give the file of vectors in it")
        yield stream


def _open(path: str) -> Any:
    archive, member = split_member(path)
    if member is not None or is_zip(archive):
        return _open_zip(path, archive, _member(path, zip_members(archive), member))
    with open(path, "rb") as file:
        head = file.read(6)
    module = next((module for magic, module in _COMPRESSIONS.items() if head.startswith(magic)), None)
    try:
        return importlib.import_module(module).open(path) if module else io.FileIO(path)
    except ImportError as cause:
        raise VectorFileError(
            f"{path}: compressed by zstd, which Python reads from 3.14; unpack it (zstd -d)"
        ) from cause


def _member(path: str, names: list[str], member: str | None) -> str:
    """Return the named member of a zip archive, or its only one."""
    held = listed(names)
    if member is None and len(names) != 1:
        vectors = [name for name in names if name.endswith((".txt", ".vec", ".bin", ".tsv"))]
        remedy = "unpack it and give the file or folder of vectors in it" if names else "download it again"
        remedy = f"name one: {path}:{vectors[0]}" if vectors else remedy
        raise VectorFileError(f"{path}: the zip archive holds {len(names)} files ({held or 'it is empty'}); {remedy}")
    if member is not None and member not in names:
        raise VectorFileError(f"{path}: no such member; the archive holds {held}: name one of them")
    return member or names[0]


def _open_zip(path: str, archive: str, member: str | None = None) -> Any:
    """Open a zip archive, or a member of it. path: the file for messages."""
    try:
        opened = zipfile.ZipFile(archive)
        return opened.open(member) if member else opened
    except _ZIP_DAMAGE as error:
        raise VectorFileError(
            f"{path}: the zip archive is damaged or of an unknown kind ({error}); unpack it, or download it again"
        ) from error
