"""Find and parse the lines of wanted words in a text file of vectors.

`inspect_head` finds out what the first lines say, `LineScan` finds the wanted lines without looking at the numbers,
`RowCollector` parses them in batches.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from embinit_fairseq.errors import VectorFileError, counted
from embinit_fairseq.vectors.numbers import RowParser, parse_number
from embinit_fairseq.vectors.table import Wanted, check_dimension
from embinit_fairseq.vocab.matching import fold

BOM = b"\xef\xbb\xbf"
_BLANKS = b" \t\r\n"
#: lines that show header, dimension and separator, although a few are broken or have words with spaces
HEAD_LINES = 32

# ---- The first lines: header, dimension, separator ------------------------------------------------------------------


@dataclass(frozen=True)
class TextHead:
    """rows: V as the header announces it, None without header. dim: D. separator: byte after the word."""

    rows: int | None
    dim: int
    separator: bytes


def fields(line: bytes) -> list[bytes]:
    """Split a line at runs of spaces and tabs; other white space belongs to the words."""
    return [field for field in line.strip(_BLANKS).replace(b"\t", b" ").split(b" ") if field]


def header_of(line: bytes) -> tuple[int, int] | None:
    """Return (V, D) if the line is a word2vec header, else None."""
    numbers = fields(line)
    if len(numbers) == 2 and all(field.isdigit() and len(field) < 19 for field in numbers):
        return int(numbers[0]), int(numbers[1])
    return None


def numeric_tail(line: bytes) -> int:
    """Count the numbers at the line's end, without the first field, which belongs to the word in any case."""
    return sum(1 for _ in itertools.takewhile(lambda field: parse_number(field) is not None, fields(line)[:0:-1]))


def inspect_head(path: str, lines: list[bytes], header: bool | None, dim: int | None) -> TextHead:
    """Find out header, dimension and separator from a file's first lines, without its byte-order mark.

    Args:
        path: the file, for messages.
        lines: its first HEAD_LINES lines.
        header: whether there is a header, None to find out.
        dim: the expected D, None for any.

    Raises:
        VectorFileError: if the lines are not vectors.
        DimensionError: if D is not the expected one.
    """
    if not any(line.strip(_BLANKS) for line in lines):
        raise VectorFileError(f"{path}: the file is empty; download it again, or check the path")
    announced = header_of(lines[0]) if header is not False else None
    if header and announced is None:
        raise VectorFileError(
            f"{path}:1: no header 'ROWS DIM' as word2vec text has; choose the format glove for a file without"
        )
    body = lines[1:] if announced else lines
    widths = Counter(width for width in map(numeric_tail, body) if width)
    if not widths:
        found = "no vectors follow the header" if announced else "the first lines are not vectors (word, then numbers)"
        raise VectorFileError(f"{path}: {found}; check the file, or name its format")
    width = _decide(path, widths, announced, dim)
    return TextHead(announced[0] if announced else None, width, _separator(body, width))


def _decide(path: str, widths: Counter[int], announced: tuple[int, int] | None, dim: int | None) -> int:
    """Return D: announced, expected, or else the most frequent width; the smaller of two as frequent widths."""
    most = max(widths.values())
    usual = min(width for width, count in widths.items() if count == most)
    if announced and announced[1] != usual and not widths[announced[1]]:
        raise VectorFileError(
            f"{path}:1: the header announces {counted(announced[1], 'number')} a line, but line 2 ff. have {usual}; "
            "the file is damaged: download it again, or correct its header"
        )
    dimension = announced[1] if announced else usual
    if dim is not None and not announced and dim < usual and dim == min(widths):
        return dim  # words that contain numbers, such as "1 000"
    check_dimension(path, dimension, dim)
    return dimension


def _separator(body: list[bytes], dim: int) -> bytes:
    """Return a tab if most words end with one, else a space."""
    tabs = spaces = 0
    for line in body:
        text = line.strip(_BLANKS)
        word, *values = text.replace(b"\t", b" ").rsplit(b" ", dim)
        if len(values) == dim:
            tabs += text[len(word) : len(word) + 1] == b"\t"
            spaces += text[len(word) : len(word) + 1] == b" "
    return b"\t" if tabs > spaces else b" "


# ---- The lines of wanted words --------------------------------------------------------------------------------------

_SPACE = re.compile("[ \t]")


def _first_parts(words: Iterable[str]) -> frozenset[bytes]:
    """Return what the lines of these words begin with, up to the first space."""
    parts = {_SPACE.split(word, maxsplit=1)[0].encode("utf-8", "surrogatepass") for word in words}
    return frozenset(parts | {b""})  # lines that begin with a space are looked at closely


def _fold(part: bytes) -> bytes | str | None:
    """Return the key of the part (`vocab.matching.fold`), as bytes if it is ASCII; None if the part is not UTF-8."""
    if part.isascii():
        return part.lower()
    try:
        return _key(fold(part.decode()))
    except UnicodeDecodeError:
        return None


def _key(folded: str) -> bytes | str:
    return folded.encode() if folded.isascii() else folded


class LineScan:
    """One pass over the lines.

    lines (without blank ones), last and last_number (the last line that is not blank) are valid after the pass.
    """

    def __init__(self, wanted: Wanted | None, head: TextHead, check_all: bool) -> None:
        self.lines = 0
        self.last = b""
        self.last_number = 0
        self._all = wanted is None or check_all
        self._exact = _first_parts(wanted.exact) if wanted else frozenset()
        folded = wanted.folded if wanted else ()
        keys = (_key(_SPACE.split(word, maxsplit=1)[0]) for word in folded)
        self._folded: frozenset[bytes | str | None] = frozenset([None, *keys] if folded else ())  # None: not UTF-8
        self._separator = head.separator
        self._shortest = 2 * head.dim + 1  # one byte of word, then separator and digit D times

    def candidates(self, lines: Iterable[bytes], first: int) -> Iterator[tuple[int, bytes]]:
        """Yield (line number, line) of lines that may hold a wanted word, and of those too short for D numbers.

        This is the hot loop: one search, one slice and one set look-up per line. first: number of the first line.
        """
        separator, exact, folded, shortest, everything = (
            self._separator, self._exact, self._folded, self._shortest, self._all,
        )  # fmt: skip
        look_closer = everything or bool(folded)
        blank, number, last, last_number = 0, first - 1, b"", 0
        for number, line in enumerate(lines, first):
            if (
                line[: line.find(separator)] in exact
                or len(line) < shortest
                or (look_closer and (everything or _fold(line[: line.find(separator)]) in folded))
            ):
                if not line.strip(_BLANKS):
                    blank += 1
                    continue
                yield number, line
            last, last_number = line, number
        self.lines = number - first + 1 - blank
        self.last, self.last_number = last, last_number


# ---- Rows of numbers ------------------------------------------------------------------------------------------------

_FIELD = re.compile(rb"[^ \t]+")
#: numbers parsed at a time: the scratch space of one batch stays in a second-level cache
_BATCH = 30_000
#: broken lines that a message names
_NAMED = 5


class RowCollector:
    """Parse lines in batches and keep the first row of each wanted word, in the file's order.

    broken: number of lines that are not a word with D numbers. first_broken: (line number, reason) of the first ones.
    duplicates: later rows of kept words. capacity: rows of the first matrix, which grows as needed.
    """

    def __init__(self, path: str, head: TextHead, wanted: Wanted | None, strict: bool, capacity: int) -> None:
        self.broken = 0
        self.first_broken: list[tuple[int, str]] = []
        self.duplicates = 0
        self._path = path
        self._dim = head.dim
        self._separator = head.separator
        self._wanted = wanted
        self._strict = strict
        self._words: dict[str, None] = {}
        self._matrix = np.empty((capacity, head.dim), np.float32)
        self._parser = RowParser(head.dim)
        self._batch: list[tuple[int, bytes]] = []
        self._limit = max(1, _BATCH // head.dim)

    def add(self, number: int, line: bytes) -> None:
        """Add a line that is not blank, with its 1-based number."""
        self._batch.append((number, line if line.endswith(b"\n") else line + b"\n"))
        if len(self._batch) >= self._limit:
            self._flush()

    def check_last(self, number: int, line: bytes) -> None:
        """Raise VectorFileError if the last line that is not blank shows that the file was cut short."""
        values = fields(line)
        if len(values) <= self._dim or (not line.endswith(b"\n") and parse_number(values[-1]) is None):
            raise VectorFileError(
                f"{self._path}:{number}: the last line has no {self._dim} numbers: the file is cut short; download it "
                "again"
            )

    def finish(self) -> tuple[list[str], np.ndarray]:
        """Return the words and their rows (V, D) float32."""
        self._flush()
        return list(self._words), self._matrix[: len(self._words)]

    def _flush(self) -> None:
        batch, self._batch = self._batch, []
        if not batch:
            return
        gaps = [line.find(self._separator) for _, line in batch]
        numbers = [line[gap + 1 : -1].rstrip(_BLANKS) for (_, line), gap in zip(batch, gaps)]
        if self._separator == b"\t":
            numbers = [row.replace(b"\t", b" ") for row in numbers]
        values, regular = self._parser.parse(numbers)
        kept = []
        finite = np.isfinite(values).all(axis=1)
        for index, (number, line), gap, plain, good in zip(itertools.count(), batch, gaps, regular.tolist(), finite):
            word: bytes | None = line[:gap]
            if not plain or gap < 1:
                word = self._read_slowly(number, line, values[index])
                good = np.isfinite(values[index]).all()
            if word is not None and self._keep(number, word, bool(good)):
                kept.append(index)
        self._append(values if len(kept) == len(values) else values[kept])

    def _append(self, values: np.ndarray) -> None:
        end = len(self._words)
        if end > len(self._matrix):
            # realloc moves pages instead of copying them; nothing else refers to the array yet
            self._matrix.resize((max(end, 3 * len(self._matrix) // 2), self._dim), refcheck=False)
        self._matrix[end - len(values) : end] = values

    def _read_slowly(self, number: int, line: bytes, out: np.ndarray) -> bytes | None:
        """Return the line's word, its numbers in `out` (D,), in any spelling; None if the line is broken."""
        text = line.strip(_BLANKS)
        starts = [match.start() for match in _FIELD.finditer(text)]
        if len(starts) <= self._dim:
            self._note(number, f"{counted(len(starts), 'field')} instead of {self._dim + 1}")
            return None
        start = starts[-self._dim]
        for column, token in enumerate(fields(text[start:])):
            value = parse_number(token)
            if value is None:
                self._note(number, f"{token[:20]!r} is not a number")
                return None
            with np.errstate(over="ignore"):
                out[column] = np.float32(value)
        return text[:start].rstrip(_BLANKS)

    def _note(self, number: int, reason: str) -> None:
        if self._strict:
            raise VectorFileError(f"{self._path}:{number}: {reason}; repair or delete the line, or do without strict")
        self.broken += 1
        if self.broken <= _NAMED:
            self.first_broken.append((number, reason))

    def named_broken(self) -> str:
        """Return the first broken lines, for messages."""
        named = ", ".join(f"{number} ({reason})" for number, reason in self.first_broken)
        return named + (", ..." if self.broken > _NAMED else "")

    def _keep(self, number: int, word: bytes, finite: bool) -> bool:
        """Return True, and note the word, if the row is the first of a wanted word.

        Raises:
            VectorFileError: if it has NaN or infinity.
        """
        try:
            name = word.decode("utf-8")
        except UnicodeDecodeError:
            self._note(number, f"the word {word[:20]!r} is not UTF-8")
            return False
        wanted = self._wanted is None or name in self._wanted
        if (wanted or self._strict) and not finite:
            raise VectorFileError(
                f"{self._path}:{number}: the vector of {name[:60]!r} holds NaN, infinity or a number beyond float32; "
                "delete the line or take another file"
            )
        if not wanted:
            return False
        if name in self._words:
            self.duplicates += 1
            return False
        self._words[name] = None
        return True
