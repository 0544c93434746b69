"""Find and parse the lines of wanted words in a text file of vectors.

`inspect_head` reads the first lines. `RowCollector` finds the wanted lines without looking at the numbers,
and parses them in batches.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from embinit_fairseq.errors import VectorFileError, counted
from embinit_fairseq.vectors.numbers import RowParser, parse_number
from embinit_fairseq.vectors.table import Wanted, check_dimension
from embinit_fairseq.vocab.matching import fold

BOM = b"\xef\xbb\xbf"
_BLANKS = b" \t\r\n"

# ---- The first lines: header, dimension, separator ------------------------------------------------------------------


class TextHead(NamedTuple):
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


def inspect_head(path: str, lines: list[bytes], header: bool, dim: int | None) -> TextHead:
    """Find out header, dimension and separator from a file's first lines, without its byte-order mark.

    Args:
        path: the file, for messages.
        lines: its first lines; a few may be broken or have words with spaces.
        header: whether there is a header.
        dim: the expected D, None for any.

    Raises:
        VectorFileError: if the lines are not vectors.
        DimensionError: if D is not the expected one.
    """
    if not any(line.strip(_BLANKS) for line in lines):
        raise VectorFileError(f"{path}: the file is empty; download it again, or check the path")
    rows, announced = header_of(lines[0]) or (None, None) if header else (None, None)
    if header and rows is None:
        raise VectorFileError(
            f"{path}:1: no header 'ROWS DIM' as word2vec text has; choose the format glove for a file without"
        )
    body = lines[1:] if header else lines
    widths = Counter(width for width in map(numeric_tail, body) if width)
    if not widths:
        raise VectorFileError(f"{path}: no vectors (a word, then numbers) in it; check the file, or name its format")
    most = max(widths.values())
    usual = min(width for width, count in widths.items() if count == most)
    if announced is not None and not widths[announced]:
        raise VectorFileError(
            f"{path}:1: the header announces {counted(announced, 'number')} a line, but line 2 ff. have {usual}; "
            "the file is damaged: download it again, or correct its header"
        )
    if header or dim != min(widths):  # else words contain numbers, such as "1 000"
        check_dimension(path, announced or usual, dim)
        dim = announced or usual
    return TextHead(rows, dim, _separator(body, dim))


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

#: white space of bytes.split
_SPACE = re.compile("[ \t\n\r\v\f]")
_FIELD = re.compile(rb"[^ \t]+")
#: numbers parsed at a time: the scratch space of one batch stays in a second-level cache
_BATCH = 30_000
#: numbers of the first matrix if the number of rows is unknown
_FIRST_NUMBERS = 1 << 24
#: broken lines that a message names
_NAMED = 5


def _fold(part: bytes) -> bytes | str | None:
    """Return the key of the part (`vocab.matching.fold`), as bytes if it is ASCII; None if the part is not UTF-8."""
    if part.isascii():
        return part.lower()
    try:
        return _key(fold(part.decode()))
    except UnicodeDecodeError:
        return None


def _key_function(wanted: Wanted) -> Callable[[bytes], bytes | str | None]:
    """Return the function that makes the keys of a file's words, which is `_fold` if the words have no labels."""

    def key(part: bytes) -> bytes | str | None:
        try:
            return _key(wanted.key(part.decode()))
        except UnicodeDecodeError:
            return None

    return key if wanted.spelling.label else _fold


def _first_field(word: str) -> str:
    """Return the first field, as bytes.split makes it, of a line that begins with the word."""
    return next(filter(None, _SPACE.split(word)), "")


def _key(folded: str) -> bytes | str:
    return folded.encode() if folded.isascii() else folded


class RowCollector:
    """Keep the first row of each wanted word, in the file's order.

    Valid after `read`: `lines`, their number without empty ones; `broken`, how many of them are not a word with D
    numbers; `first_broken`, (line number, reason) of a few; `duplicates`, later rows of words that have one;
    `ends_line`, whether the last line has its line break.
    """

    def __init__(self, path: str, head: TextHead, wanted: Wanted | None, strict: bool) -> None:
        self.lines = 0
        self.broken = 0
        self.first_broken: list[tuple[int, str]] = []
        self.duplicates = 0
        self.ends_line = False
        self._path = path
        self._dim = head.dim
        self._separator = head.separator
        self._wanted = wanted
        self._strict = strict
        self._words: dict[str, None] = {}
        # a header may announce too much; the matrix grows as needed
        expected = head.rows if wanted is None else len(wanted.exact or wanted.folded)
        self._matrix = np.empty((1 + min(expected or 0, _FIRST_NUMBERS // head.dim), head.dim), np.float32)
        self._parser = RowParser(head.dim)

    def read(self, lines: Iterable[bytes], first: int) -> tuple[list[str], np.ndarray]:
        """Return the wanted words and their rows (V, D) float32. first: number of the first line."""
        everything = self._wanted is None or self._strict
        wanted = Wanted() if self._wanted is None else self._wanted
        # A line is looked at closely if its first field is that of a wanted word, whatever separates it from the next.
        exact = {_first_field(word).encode("utf-8", "surrogatepass") for word in wanted.exact}
        folded = {_key(_first_field(word)) for word in wanted.folded} | {None}  # None: not UTF-8
        look_closer, key = everything or bool(wanted.folded), _key_function(wanted)
        shortest = 2 * self._dim + 1  # a byte of word, then separator and digit D times
        limit, batch = max(1, _BATCH // self._dim), []
        blank, number, last, last_number = 0, first - 1, b"", 0
        for number, line in enumerate(lines, first):  # the hot loop: one split and one look-up in a set per line
            part = line.split(None, 1)
            if (
                len(line) < shortest
                or line < b"!"  # begins with a blank: perhaps a row without a word
                or part[0] in exact
                or (look_closer and (everything or key(part[0]) in folded))
            ):
                if not line.strip(_BLANKS):
                    blank += 1
                    continue
                batch.append((number, line))
                if len(batch) == limit:
                    self._parse(batch)
                    batch = []
            last, last_number = line, number
        self.lines = number - first + 1 - blank
        self._check_last(last_number, last)
        if batch:
            self._parse(batch)
        return list(self._words), self._matrix[: len(self._words)]

    def _check_last(self, number: int, line: bytes) -> None:
        """Raise VectorFileError if the last line that is not empty shows that the file was cut short."""
        values = fields(line)
        self.ends_line = line.endswith(b"\n")
        if len(values) <= self._dim or (not self.ends_line and parse_number(values[-1]) is None):
            shown = line[:40].decode("utf-8", "replace")
            raise VectorFileError(
                f"{self._path}:{number}: the last line ({shown!r}) has no {self._dim} numbers: the file is cut short: "
                "download it again, or remove what does not belong to the vectors"
            )

    def _parse(self, batch: list[tuple[int, bytes]]) -> None:
        gaps = [line.find(self._separator) for _, line in batch]
        numbers = [line[gap + 1 :].rstrip(_BLANKS) for (_, line), gap in zip(batch, gaps)]
        if self._separator == b"\t":
            numbers = [row.replace(b"\t", b" ") for row in numbers]
        values, regular = self._parser.parse(numbers)
        chosen = []
        finite = np.isfinite(values).all(axis=1)
        for index, ((number, line), gap) in enumerate(zip(batch, gaps)):
            part = line[:gap]
            word: bytes | None = part
            if not regular[index] or gap < 1 or part != part.strip(_BLANKS):
                word = self._read_slowly(number, line, values[index])
                finite[index] = np.isfinite(values[index]).all()
            if word is not None and self._keep(number, word, finite[index]):
                chosen.append(index)
        end = len(self._words)
        if end > len(self._matrix):
            # realloc moves pages instead of copying them; nothing else refers to the array yet
            self._matrix.resize((max(end, 3 * len(self._matrix) // 2), self._dim), refcheck=False)
        self._matrix[end - len(chosen) : end] = values if len(chosen) == len(values) else values[chosen]

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
        is_wanted = self._wanted is None or name in self._wanted
        if (is_wanted or self._strict) and not finite:
            raise VectorFileError(
                f"{self._path}:{number}: the vector of {name[:60]!r} holds NaN, infinity or a number beyond float32; "
                "delete the line or take another file"
            )
        is_repeated = name in self._words
        self.duplicates += is_repeated
        if is_wanted:
            self._words[name] = None
        return is_wanted and not is_repeated
