"""Reading files that somebody else made: lines, text and JSON within bounds, with errors of one line.

A few megabytes can unpack to gigabytes, and a damaged file may have no line break at all. Nothing here trusts the size
of a file: a line, a run of blank lines and a JSON file have limits far beyond what real files need. Memory is a
constant plus what the caller keeps.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

#: Bytes of a line, at most: a vector of 50,000 numbers in full, all of a long document.
LONGEST_LINE = 1 << 20
#: More blank lines than this, and more of them than others: no text.
MOST_BLANK_LINES = 1_000_000
#: Bytes of a JSON file: records of runs and configurations have kilobytes, the largest indices of shards 16 MB.
LARGEST_JSON = 1 << 25
#: Bytes read at a time: large enough to amortise the call, small enough for a second-level cache.
CHUNK = 1 << 18

_LINE_FEED, _ANY_END = re.compile(b"\n"), re.compile(b"[\r\n]")


class LongLine(Exception):
    """No line break within LONGEST_LINE bytes. offset: of the byte, in the file, behind the last that was read."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"no line break in the {LONGEST_LINE:,} bytes before byte {offset:,}")
        self.offset = offset


class LineGuard(io.RawIOBase):
    """What `raw` holds; a read raises LongLine where a line does not end. To be read through a BufferedReader.

    The lines themselves are found by the BufferedReader, at its full speed: here only whole chunks are looked at, so
    that a line is refused when it is longer than LONGEST_LINE by a chunk or two.
    """

    def __init__(self, raw: Any, ends: re.Pattern[bytes] = _LINE_FEED) -> None:
        self._raw = raw
        self._ends = ends
        self._offset = 0
        self._gap = 0  # bytes since the chunk with the last line break

    def readable(self) -> bool:
        """Yes: the interface of io.RawIOBase asks."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """As that of any raw stream."""
        count = self._raw.readinto(buffer)
        if count:
            self._offset += count
            self._gap = 0 if self._ends.search(buffer, 0, count) else self._gap + count
            if self._gap > LONGEST_LINE:
                raise LongLine(self._offset)
        return count


def similar_names(path: str | Path) -> str:
    """For a message about a file that is missing: what in its folder has a similar name, or that there is no folder."""
    folder, name = os.path.split(path)
    if not os.path.isdir(folder or "."):
        return f" (the folder {folder} does not exist either)"
    near: list[str] = []
    with contextlib.suppress(OSError):
        near = difflib.get_close_matches(name, os.listdir(folder or "."), n=3)
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def line_number(stream: BinaryIO, offset: int) -> int:
    """The number, from 1, of the line that byte `offset` of the stream, which stands at its beginning, belongs to."""
    number = 1
    while offset > 0 and (block := stream.read(min(offset, CHUNK))):
        number += block.count(b"\n")
        offset -= len(block)
    return number


def check_blank_lines(where: str, blank: int, number: int, error: type[Exception]) -> None:
    """Raise if too many of the lines so far are blank; number: of the line that was read last."""
    if blank > MOST_BLANK_LINES and 2 * blank > number:
        raise error(
            f"{where}:{number}: {blank:,} of the lines so far are blank: the file is damaged. Copy or download it "
            "again, or remove them."
        )


def read_lines(
    path: str | Path,
    error: type[Exception],
    flag: str = "",
    *,
    newline: str | None = "\n",
    encoding: str = "utf-8",
    errors: str = "strict",
) -> Iterator[tuple[int, str]]:
    """(number from 1, text without its end) of every line of a UTF-8 file, one at a time.

    error: what is raised, with file and line, for a file that cannot be opened or is no text: a line longer than
    LONGEST_LINE, bytes that are not UTF-8, more blank lines than others. flag: the option that names the file.
    newline: None to end lines at CR LF and CR, too, as Python's text files do. errors: as for `open`.
    """
    where = f"{flag} {path}".strip()
    try:
        raw = io.FileIO(path)
    except OSError as cause:
        missing = isinstance(cause, FileNotFoundError)
        reason = f"no such file{similar_names(path)}" if missing else f"cannot be read ({cause.strerror})"
        raise error(f"{where}: {reason}; check the path") from cause
    strict = errors == "strict"
    with raw:
        guard = LineGuard(raw, _LINE_FEED if newline == "\n" else _ANY_END)
        # bytes that are no UTF-8 become lone surrogates, since a decoder would not know their line
        decoding = "surrogateescape" if strict else errors
        number = blank = 0
        try:
            text = io.TextIOWrapper(io.BufferedReader(guard, CHUNK), encoding, decoding, newline)
            for number, line in enumerate(text, 1):
                if strict and not line.isascii():
                    _check_utf8(line, f"{where}:{number}", error)
                if line.isspace():
                    blank += 1
                    check_blank_lines(where, blank, number, error)
                yield number, line.removesuffix("\n")
        except LongLine as cause:
            raise error(
                f"{where}:{number + 1}: longer than {LONGEST_LINE:,} bytes: the file is damaged or no such text. Copy "
                "or download it again, or break the line."
            ) from cause
        except OSError as cause:
            raise error(f"{where}: cannot be read ({cause.strerror}); check the disk and copy it again") from cause


def _check_utf8(line: str, where: str, error: type[Exception]) -> None:
    try:
        line.encode("utf-8")
    except UnicodeEncodeError as cause:
        byte = ord(line[cause.start]) - 0xDC00  # as `surrogateescape` spells it
        if "\0" in line:  # a checkpoint or an archive in its place
            raise error(f"{where}: this is a binary file, no text; check the path") from cause
        raise error(
            f"{where}: not UTF-8 text (byte 0x{byte:x}). If it is Latin-1, convert it: iconv -f latin1 -t utf-8 FILE > "
            "NEW; if it is damaged, copy it again"
        ) from cause


def read_bytes(
    path: str | Path, error: type[Exception], largest: int, remedy: str = "copy it again", flag: str = ""
) -> bytes:
    """The content of a file of at most `largest` bytes; raises `error` for a larger one and one that cannot be read.

    flag: the option that names the file.
    """
    where = f"{flag} {path}".strip()
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size  # what is read at once is allocated before
            content = file.read(min(size, largest) + 1)
            if size < len(content) <= largest:  # it has grown, or is no file of the disk
                content += file.read(largest + 1 - len(content))
    except OSError as cause:
        raise error(f"{where}: cannot be read ({cause.strerror}); check the path and its permissions") from cause
    if len(content) > largest:
        raise error(f"{where}: longer than {largest:,} bytes, which no such file needs: it is damaged; {remedy}")
    return content


def read_json(
    path: str | Path, error: type[Exception], *, remedy: str = "copy it again", largest: int | None = None
) -> Any:
    """What a JSON file holds; raises `error`, with `remedy`, for another and for one of more than `largest` bytes.

    largest: None for LARGEST_JSON.
    """
    return parse_json(read_bytes(path, error, largest or LARGEST_JSON, remedy), str(path), error, remedy=remedy)


def parse_json(content: str | bytes, where: str, error: type[Exception], *, remedy: str = "copy it again") -> Any:
    """What a JSON text holds; raises `error` for one that is none, is nested without end, or has endless numbers."""
    try:
        return json.loads(content.decode("utf-8") if isinstance(content, bytes) else content)
    except (json.JSONDecodeError, UnicodeDecodeError) as cause:
        raise error(f"{where}: not JSON ({cause}); {remedy}") from cause
    except RecursionError as cause:
        raise error(f"{where}: not JSON that can be read (nested too deeply); {remedy}") from cause
    except ValueError as cause:  # Python reads whole numbers of 4,300 digits and no longer ones
        raise error(f"{where}: not JSON that can be read (a number with thousands of digits); {remedy}") from cause
