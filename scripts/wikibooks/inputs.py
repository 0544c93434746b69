"""Plain or compressed text files as a stream of documents: never more than one document in memory."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

#: A longer document is cut at the end of a line; a longer line is left out.
MAX_CHARS = 1_000_000
_MAX_LINE_BYTES = 4 * MAX_CHARS  # UTF-8 takes up to four bytes a character
_OPENERS = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}


@contextlib.contextmanager
def open_input(path: Path) -> Iterator[BinaryIO]:
    """Open a plain, gz, bz2 or xz file, recognised by its content. Raises SystemExit if it is missing or damaged."""
    try:
        with open(path, "rb") as file:
            head = file.read(6)
    except OSError as error:
        raise SystemExit(f"error: --input {path}: cannot be read ({error.strerror}): correct the path") from None
    opener = next((opener for magic, opener in _OPENERS.items() if head.startswith(magic)), open)
    try:
        with opener(path, "rb") as stream:
            yield stream
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if getattr(error, "errno", None) is not None:  # not of the decompressor: for instance a full disk
            raise
        raise SystemExit(f"error: --input {path}: damaged or incomplete ({error}): get it again") from None


def _lines(stream: BinaryIO) -> Iterator[tuple[bytes | None, int]]:
    """(line without blanks at its ends, or None if it is too long; its bytes). A long line is not held in memory."""
    while raw := stream.readline(_MAX_LINE_BYTES):
        size, complete = len(raw), raw.endswith(b"\n")
        while not complete and (rest := stream.readline(_MAX_LINE_BYTES)):
            raw, size, complete = b"", size + len(rest), rest.endswith(b"\n")
        line = raw.strip()
        too_long = size > _MAX_LINE_BYTES or characters(line) > MAX_CHARS
        yield (None if too_long else line), size


def characters(line: bytes) -> int:
    return len(line) if line.isascii() else len(line.decode("utf-8", "ignore"))


def documents(stream: BinaryIO, offset: int = 0) -> Iterator[tuple[list[bytes], int, int]]:
    """Documents behind `offset`: (lines that are not blank, lines left out as too long, offset behind the document).

    A document ends at a blank line, at the end of the file, and before it would have more than MAX_CHARS characters.
    """
    stream.seek(offset)
    document: list[bytes] = []
    length = too_long = 0
    for line, size in _lines(stream):
        chars = characters(line) if line else 0
        if document and (line == b"" or length + chars > MAX_CHARS):
            yield document, too_long, offset
            document, length, too_long = [], 0, 0
        if line:
            document.append(line)
            length += chars + 1
        too_long += line is None
        offset += size
    if document or too_long:
        yield document, too_long, offset
