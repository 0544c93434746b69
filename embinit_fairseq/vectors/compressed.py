"""Opening vector files as bytes, whatever they are packed in, with errors that name the file and the remedy."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, Any

from embinit_fairseq import bounded
from embinit_fairseq.bounded import CHUNK, LineGuard, LongLine, line_number, similar_names
from embinit_fairseq.errors import VectorFileError

#: Bytes of a zip archive's table of contents, at most: 150,000 members. Python reads it whole, and torch does.
LARGEST_CONTENTS = 1 << 24

_ZIP_MAGIC = (b"PK\x03\x04", b"PK\x05\x06")
_XZ = b"\xfd7zXZ\x00"
#: Bytes of memory that unpacking may take: `xz -9` needs 65 MB, but a file may ask for 4 GB. The others need little.
UNPACKING = 1 << 28
#: What zipfile raises, besides BadZipFile, for damaged, encrypted and unknown archives.
_ZIP_DAMAGE = (RuntimeError, IndexError, ValueError, OverflowError, struct.error)
_DAMAGE = (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, gzip.BadGzipFile)


def split_member(path: str) -> tuple[str, str | None]:
    """`archive.zip:member` -> (archive, member); any other path -> (path, None)."""
    archive, colon, member = path.partition(".zip:")
    if colon and member and not os.path.exists(path):
        return archive + ".zip", member
    return path, None


def check_exists(path: str) -> None:
    """Raise VectorFileError, with names that look alike, if there is no file or directory at `path`."""
    if os.path.isfile(path) or os.path.isdir(path):
        return
    if os.path.exists(path):  # reading starts at the beginning more than once, which a pipe cannot do
        raise VectorFileError(
            f"{path}: a pipe or device, not a file. Save what comes out of it (compressed files are read as they are) "
            "and give that file to --embed-init-path."
        )
    raise VectorFileError(f"{path}: no such file{similar_names(path)}. Correct --embed-init-path.")


@contextlib.contextmanager
def readable(path: str) -> Iterator[None]:
    """Turn what goes wrong while reading `path` into VectorFileError."""
    try:
        yield
    except _DAMAGE as error:
        raise VectorFileError(
            f"{path}: the compressed file is damaged or incomplete ({error}). Copy or download it again."
        ) from error
    except OSError as error:
        reason = getattr(error, "strerror", None) or error
        raise VectorFileError(
            f"{path}: cannot be read ({reason}). Check --embed-init-path, the file and its permissions."
        ) from error


def is_zip(path: str) -> bool:
    """Whether the file begins as a zip archive does."""
    with readable(path), open(path, "rb") as file:
        return file.read(4) in _ZIP_MAGIC


class _Archive(io.BufferedReader):
    """A zip archive that is not read in one go, as its table of contents is, however large it says that it is."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > LARGEST_CONTENTS:
            raise VectorFileError(
                f"{self.name}: the zip archive is damaged (its table of contents has {size:,} bytes). "
                "Download it again."
            )
        return super().read(size)


@contextlib.contextmanager
def open_zip(path: str) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive. Raises VectorFileError for a damaged or unknown one."""
    with _Archive(io.FileIO(path)) as file:
        try:
            archive = zipfile.ZipFile(file)
        except _ZIP_DAMAGE as error:
            raise VectorFileError(
                f"{path}: the zip archive is damaged or unknown ({error}). Download it again."
            ) from error
        with archive:
            yield archive


def open_member(path: str, archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    """Open a file in an archive; close it. path: for messages."""
    try:
        if archive.getinfo(name).compress_type == zipfile.ZIP_LZMA:
            raise NotImplementedError("packed by LZMA, which may take any amount of memory")
        return archive.open(name)
    except KeyError:
        members = ", ".join(archive.namelist()[:10])
        raise VectorFileError(f"{path}: no such member. The archive holds {members}.") from None
    except _ZIP_DAMAGE as error:  # also: encrypted, or a packing method that Python does not know
        raise VectorFileError(
            f"{path}: {name} cannot be read ({error}). Unpack the archive or fetch it again."
        ) from error


def zip_members(path: str) -> list[str]:
    """Names of the files in a zip archive, without folders and macOS' resource forks."""
    with readable(path), open_zip(path) as archive:
        names = archive.namelist()
    return [name for name in names if name and not name.endswith("/") and not name.startswith("__MACOSX/")]


def _only_member(path: str) -> str:
    members = zip_members(path)
    if len(members) == 1:
        return members[0]
    if not members:
        raise VectorFileError(f"{path}: the zip archive is empty. Download it again.")
    listed = ", ".join(members[:10]) + (", ..." if len(members) > 10 else "")
    raise VectorFileError(
        f"{path}: the zip archive holds {len(members)} files ({listed}). Name one: {path}:{members[0]}"
    )


@contextlib.contextmanager
def open_bytes(path: str, chunk: int = CHUNK) -> Iterator[io.BufferedReader[Any]]:
    """Open a plain, gz, bz2 or xz file, the only member of a zip archive, or `archive.zip:member`, for reading bytes.

    The packing is recognised from content. Raises VectorFileError if there is no such file or member, if it cannot be
    read, and, from any read inside the `with` block, if it is damaged or cut short.
    """
    with _unpacked(path) as raw, io.BufferedReader(raw, chunk) as stream:
        yield _without_tar(path, stream)


def _without_tar(path: str, stream: io.BufferedReader[Any]) -> io.BufferedReader[Any]:
    if stream.peek(262)[257:262] == b"ustar":
        raise VectorFileError(f"{path}: a tar archive. Unpack it (tar -xf FILE) and give the file of vectors in it.")
    return stream


@contextlib.contextmanager
def open_lines(path: str, chunk: int = CHUNK) -> Iterator[io.BufferedReader[Any]]:
    """As `open_bytes`, to be read by lines: VectorFileError, too, from a read that meets a line without end."""
    try:
        with _unpacked(path) as raw, io.BufferedReader(LineGuard(raw), chunk) as stream:
            yield _without_tar(path, stream)
    except LongLine as cause:
        with open_bytes(path) as stream:
            number = line_number(stream, cause.offset)
        raise VectorFileError(
            f"{path}:{number}: longer than {bounded.LONGEST_LINE:,} bytes, which no line of vectors is: the file is "
            "damaged or no text of vectors, or --embed-init-format is wrong for it. Download it again."
        ) from cause


class _Xz(io.RawIOBase):
    """What an .xz file holds, as `lzma.LZMAFile` reads it, but with at most UNPACKING bytes of memory."""

    def __init__(self, path: str) -> None:
        self._file = io.FileIO(path)
        self._unpacker: lzma.LZMADecompressor | None = _xz_stream()  # None: at the end

    def readable(self) -> bool:
        """Yes: the interface of io.RawIOBase asks."""
        return True

    def close(self) -> None:
        """With the file."""
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        """As that of any raw stream."""
        data = b""
        while not data and self._unpacker is not None:
            data = self._more(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _more(self, size: int) -> bytes:
        """At most `size` bytes; none does not mean the end."""
        assert self._unpacker is not None  # `readinto` has looked
        packed = self._unpacker.unused_data if self._unpacker.eof else b""
        if self._unpacker.eof:  # a file may be several streams, with zeros between them
            packed = packed.lstrip(b"\0")
            while not packed and (block := self._file.read(CHUNK)):
                packed = block.lstrip(b"\0")
            self._unpacker = _xz_stream() if packed and _XZ.startswith(packed[: len(_XZ)]) else None
            if self._unpacker is None:
                return b""
        elif self._unpacker.needs_input:
            packed = self._file.read(CHUNK)
            if not packed:
                raise EOFError("it ends before its last stream does")
        try:
            return self._unpacker.decompress(packed, size)
        except lzma.LZMAError as error:
            if "Memory usage" in str(error):
                raise lzma.LZMAError(f"it asks for more than {UNPACKING:,} bytes of memory; unpack it first") from error
            raise


def _xz_stream() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=UNPACKING)


_OPENERS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, _XZ: _Xz}


@contextlib.contextmanager
def _unpacked(path: str) -> Iterator[Any]:
    """The raw stream of what is in the file."""
    archive_path, member = split_member(path)
    check_exists(archive_path)
    with readable(path), contextlib.ExitStack() as stack:
        if member is not None or is_zip(archive_path):
            archive = stack.enter_context(open_zip(archive_path))
            name = member or _only_member(archive_path)
            if name not in archive.namelist():
                raise VectorFileError(
                    f"{path}: no such member. The archive holds {', '.join(archive.namelist()[:10])}."
                )
            yield stack.enter_context(open_member(path, archive, name))
            return
        with open(archive_path, "rb") as file:
            head = file.read(6)
        opener = next((opener for magic, opener in _OPENERS.items() if head.startswith(magic)), io.FileIO)
        yield stack.enter_context(opener(archive_path))
