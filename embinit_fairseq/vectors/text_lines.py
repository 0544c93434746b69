"""Turning lines of a text file of vectors into rows of a table."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from embinit_fairseq.bounded import check_blank_lines
from embinit_fairseq.errors import DimensionError, VectorFileError, counted
from embinit_fairseq.vectors.parse import RowParser, parse_number
from embinit_fairseq.vectors.table import WIDEST, Wanted
from embinit_fairseq.vocab.matching import fold

# ---- What the first lines of a text file of vectors say: header, dimension, separator -------------------------------

BOM = b"\xef\xbb\xbf"
_BLANKS = b" \t\r\n"
#: Enough lines to see through a few broken ones or words with blanks; read to the end if the file is smaller.
HEAD_LINES = 32


@dataclass(frozen=True)
class TextHead:
    """rows: V as the header announces it, None without header; dim: D; separator: what follows the word."""

    rows: int | None
    dim: int
    separator: bytes


def fields(line: bytes) -> list[bytes]:
    """The fields of a line; runs of blanks and tabs separate, other white space belongs to the words."""
    return [field for field in line.strip(_BLANKS).replace(b"\t", b" ").split(b" ") if field]


def header_of(line: bytes) -> tuple[int, int] | None:
    """(V, D) if the line is a word2vec header, else None."""
    numbers = fields(line)
    if len(numbers) == 2 and all(field.isdigit() and len(field) < 19 for field in numbers):
        return int(numbers[0]), int(numbers[1])
    return None


def numeric_tail(line: bytes) -> int:
    """How many fields at the line's end are numbers, the first field (part of the word in any case) left out.

    No more than WIDEST + 1 are looked at.
    """
    count = 0
    for field in reversed(fields(line)[1:]):
        if count > WIDEST or parse_number(field) is None:
            break
        count += 1
    return count


def _widths(lines: list[bytes]) -> Counter[int]:
    return Counter(width for width in map(numeric_tail, lines) if width)


def inspect_head(path: str, lines: list[bytes], header: bool | None, dim: int | None) -> TextHead:
    """Find out header, dimension and separator from the file's first lines (BOM removed).

    header: whether there is one, None to find out. dim: the expected D. Raises VectorFileError if the lines are no
    vectors, DimensionError if D is not the expected one.
    """
    if not any(line.strip(_BLANKS) for line in lines):
        raise VectorFileError(f"{path}: the file is empty. Download it again or correct --embed-init-path.")
    announced = header_of(lines[0]) if header is not False else None
    if header and announced is None:
        raise VectorFileError(
            f"{path}:1: no header 'ROWS DIM' as word2vec text has. Use --embed-init-format glove for a file without."
        )
    body = lines[1:] if announced else lines
    widths = _widths(body)
    if not widths:
        what = "no vectors follow the header" if announced else "the first lines are no vectors (word, then numbers)"
        raise VectorFileError(f"{path}: {what}. Check the file, or name its format with --embed-init-format.")
    width = _decide(path, widths, announced, dim)
    return TextHead(announced[0] if announced else None, width, _separator(body, width))


def _decide(path: str, widths: Counter[int], announced: tuple[int, int] | None, dim: int | None) -> int:
    """D: announced, expected, or else the most frequent one; the smaller of two as frequent (words with numbers)."""
    most = max(widths.values())
    usual = min(width for width, count in widths.items() if count == most)
    if usual > WIDEST:
        raise VectorFileError(
            f"{path}: its lines have more than {WIDEST:,} numbers, which no vectors have: the file is damaged or no "
            "vector file. Download it again, or name its format with --embed-init-format."
        )
    if announced and announced[1] != usual and not widths[announced[1]]:
        raise VectorFileError(
            f"{path}:1: the header announces {counted(announced[1], 'number')} a line, but line 2 ff. have {usual}. "
            "The file is damaged: download it again, or correct its header."
        )
    dimension = announced[1] if announced else usual
    if dim is None or dim == dimension or (not announced and dim < usual and dim == min(widths)):
        return dimension if dim is None else dim
    raise dimension_error(path, dimension, dim)


def dimension_error(path: str, dim: int, expected: int) -> DimensionError:
    """The error for vectors of another dimension than the model's table."""
    fact = f"{path}: the vectors have {counted(dim, 'dimension')}, expected {expected}"
    return DimensionError(
        f"{fact}. Vectors are never cut or "
        f"padded: set --encoder-embed-dim {dim} or --decoder-embed-dim {dim} (the slot's; transformer_lm: "
        f"--decoder-input-dim {dim} too; Duo: --encoder-dim-s, --encoder-dim-p and so on), or choose a file with "
        f"{counted(expected, 'dimension')}.",
        fact,
        dim,
    )


def _separator(body: list[bytes], dim: int) -> bytes:
    """A tab if that is what most words end with, else a blank."""
    tabs = blanks = 0
    for line in body:
        text = line.strip(_BLANKS)
        pieces = text.replace(b"\t", b" ").rsplit(b" ", dim)
        if len(pieces) == dim + 1:
            tabs += text[len(pieces[0]) : len(pieces[0]) + 1] == b"\t"
            blanks += text[len(pieces[0]) : len(pieces[0]) + 1] == b" "
    return b"\t" if tabs > blanks else b" "


# ---- Finding the lines of wanted words in a text file of vectors, without looking at the numbers --------------------

_BLANK = re.compile("[ \t]")


def _first_pieces(words: Iterable[str]) -> frozenset[bytes]:
    """What a line of these words starts with, up to the first blank. Lone surrogates occur in no UTF-8 file."""
    pieces = {_BLANK.split(word, maxsplit=1)[0].encode("utf-8", "surrogatepass") for word in words}
    return frozenset(pieces | {b""})  # lines that begin with a blank are looked at closely


def _fold(piece: bytes) -> bytes | str | None:
    """The key of the piece (`vocab.matching.fold`), as bytes if it is ASCII; None if the piece is not UTF-8."""
    if piece.isascii():
        return piece.lower()
    try:
        return _key(fold(piece.decode()))
    except UnicodeDecodeError:
        return None


def _key(folded: str) -> bytes | str:
    return folded.encode() if folded.isascii() else folded


class LineScan:
    """One pass over the lines; `lines` (blank ones left out), `last` and `last_number` are valid when it is over."""

    def __init__(self, path: str, wanted: Wanted | None, head: TextHead, check_all: bool) -> None:
        self._path = path
        self.lines = 0
        self.last = b""
        self.last_number = 0
        self._all = wanted is None or check_all
        self._exact = _first_pieces(wanted.exact) if wanted else frozenset()
        folded = wanted.folded if wanted else ()
        self._folded = frozenset(_key(_BLANK.split(word, maxsplit=1)[0]) for word in folded)
        self._separator = head.separator
        self._shortest = 2 * head.dim + 1  # one byte of word, then separator and digit D times

    def candidates(self, lines: Iterable[bytes], first: int) -> Iterator[tuple[int, bytes]]:
        """(line number, line) of lines that may hold a wanted word, and of those too short for D numbers.

        first: the number of the first line. The hot loop: one search, one slice and one set look-up a line.
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
                    check_blank_lines(self._path, blank, number, VectorFileError)
                    continue
                yield number, line
            last, last_number = line, number
        self.lines = number - first + 1 - blank
        self.last, self.last_number = last, last_number


# ----------------------------------------------------------------------------------------------------------------------

_FIELD = re.compile(rb"[^ \t]+")
#: Numbers parsed at a time: the scratch space of one batch stays in a second-level cache. Bytes: for long words.
_BATCH, _BATCH_BYTES = 30_000, 1 << 21
_NAMED = 5  # broken lines that a message names
#: Broken lines that are read, if most lines so far are broken.
_HOPELESS = 10_000


class RowCollector:
    """Parses lines in batches and keeps the first row of each wanted word, in the file's order.

    broken: number of lines that are no word with D numbers. first_broken: (line number, reason) of the first ones.
    duplicates: later rows of kept words.
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
        self._bytes = 0
        self._limit = max(1, _BATCH // head.dim)

    def add(self, number: int, line: bytes) -> None:
        """Take a non-blank line (with its number, from 1) into account."""
        self._batch.append((number, line if line.endswith(b"\n") else line + b"\n"))
        self._bytes += len(line)
        if len(self._batch) >= self._limit or self._bytes > _BATCH_BYTES:
            self._flush()

    def check_last(self, number: int, line: bytes) -> None:
        """Raise VectorFileError if the file's last non-blank line shows that the file was cut short."""
        values = fields(line)
        cut = len(values) <= self._dim or (not line.endswith(b"\n") and parse_number(values[-1]) is None)
        if cut:
            raise VectorFileError(
                f"{self._path}:{number}: the last line has no {self._dim} numbers: the file is cut short. "
                "Download it again."
            )

    def finish(self) -> tuple[list[str], np.ndarray]:
        """The words and their rows (V, D) float32."""
        self._flush()
        return list(self._words), self._matrix[: len(self._words)]

    def _flush(self) -> None:
        batch, self._batch, self._bytes = self._batch, [], 0
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
        """The line's word, its numbers in `out` (D,); None if it is broken. Knows all spellings and separators."""
        text = line.strip(_BLANKS)
        starts = [match.start() for match in _FIELD.finditer(text)]
        if len(starts) <= self._dim:
            self._note(number, f"{counted(len(starts), 'field')} instead of {self._dim + 1}")
            return None
        start = starts[-self._dim]
        for column, token in enumerate(fields(text[start:])):
            value = parse_number(token)
            if value is None:
                self._note(number, f"{token[:20]!r} is no number")
                return None
            with np.errstate(over="ignore"):
                out[column] = np.float32(value)
        return text[:start].rstrip(_BLANKS)

    def _note(self, number: int, reason: str) -> None:
        if self._strict:
            raise VectorFileError(
                f"{self._path}:{number}: {reason}. Repair or delete the line, or leave out --embed-init-strict."
            )
        self.broken += 1
        if self.broken <= _NAMED:
            self.first_broken.append((number, reason))
        if self.broken > _HOPELESS and 2 * self.broken > number:
            raise VectorFileError(
                f"{self._path}:{number}: {self.broken:,} of the lines so far are no word with {self._dim} numbers: "
                f"lines {self.named_broken()}. The file is damaged or no vector file, or --embed-init-format is wrong "
                "for it."
            )

    def named_broken(self) -> str:
        """The first broken lines, for messages."""
        named = ", ".join(f"{number} ({reason})" for number, reason in self.first_broken)
        return named + (", ..." if self.broken > _NAMED else "")

    def _keep(self, number: int, word: bytes, finite: bool) -> bool:
        """Whether the row is the first of a wanted word (then noted). Raises VectorFileError for NaN or infinity."""
        try:
            name = word.decode("utf-8")
        except UnicodeDecodeError:
            self._note(number, f"the word {word[:20]!r} is not UTF-8")
            return False
        wanted = self._wanted is None or name in self._wanted
        if (wanted or self._strict) and not finite:
            raise VectorFileError(
                f"{self._path}:{number}: the vector of {name[:60]!r} holds NaN, infinity or a number beyond float32. "
                "Delete the line or take another file."
            )
        if not wanted:
            return False
        if name in self._words:
            self.duplicates += 1
            return False
        self._words[name] = None
        return True
