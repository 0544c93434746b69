"""Read records `word, separator, numbers` of word2vec's and fastText's binaries, and rows of a matrix by offset."""

from __future__ import annotations

import mmap
import re
import sys
from collections.abc import Generator, Iterable, Iterator
from io import BufferedReader
from itertools import accumulate, compress
from pathlib import Path

import numpy as np

from embinit_fairseq.errors import VectorFileError, counted
from embinit_fairseq.vectors.table import Wanted
from embinit_fairseq.vocab.matching import fold

# ---- Rows of a matrix in a file, without reading the rest of it and without keeping it in memory --------------------

#: bytes of the file that may be mapped at a time
_MAPPED = 32 << 20
#: bytes that the kernel maps around each page that is touched
_NEIGHBOURHOOD = 1 << 16


def mapped_rows(file: str | Path, offset: int, width: int, rows: np.ndarray) -> np.ndarray:
    """Return the rows of `width` bytes of a matrix that begins at byte `offset`: (len(rows), width) uint8.

    The rows must be inside the file, best in ascending order. (Reading each row by itself takes three times as long.)
    """
    copied = np.empty((len(rows), width), dtype=np.uint8)
    if not len(rows):
        return copied
    with open(file, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        count = (len(mapped) - offset) // width
        # As bytes: NumPy copies a whole array first if its numbers do not begin at a multiple of their size.
        matrix = np.frombuffer(mapped, dtype=np.uint8, count=count * width, offset=offset).reshape(count, width)
        step = max(1, _MAPPED // (width + _NEIGHBOURHOOD))
        for begin in range(0, len(rows), step):
            part = slice(begin, begin + step)
            np.take(matrix, rows[part], axis=0, out=copied[part], mode="clip")
            if hasattr(mmap, "MADV_DONTNEED"):
                mapped.madvise(mmap.MADV_DONTNEED)
        del matrix  # the map can be closed only when nothing refers to it
    return copied


# ---- Records --------------------------------------------------------------------------------------------------------

#: bytes read at a time
BLOCK = 1 << 18
#: bytes of a word; if there is no separator within them, the file has another format
LONGEST_WORD = 1 << 16
_SPACE = ord(" ")
#: bytes of a word after its first space
_LONGEST_REST = 1 << 10
#: A row that is read from a wrong byte has random exponents, or a number below 2^-61 that ends with a space: among
#: this many different numbers some are not of the size of weights.
_DIFFERENT = 16
#: absolute values of weights, if they are not zero
_SMALLEST, _LARGEST = 1e-18, 1e18
#: UTF-8 without \0
_TEXT = re.compile(
    rb"(?:[^\0\x80-\xff]|[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}){0,%d}"
    % _LONGEST_REST
)
#: without trying shorter runs again, which takes time for every record; Python 3.10 cannot say so
_RUN = b"*+" if sys.version_info >= (3, 11) else b"*"
#: what looks like the rest of a word and a space: ASCII up to a space, or up to a character of two to four bytes
_REST = rb"[^\0 \x80-\xff]%b(?:\x20|[\xc2-\xf4][\x80-\xbf][^\0 \xf5-\xff]*\x20)" % _RUN
#: eight numbers of both signs and of absolute values from 1e-5 to 30, which are hardly ever read from a wrong byte
_CERTAIN_BYTES = 8 * 4
_CERTAIN = b"(?!(?:...[\0-\x7f]){8})(?!(?:...[\x80-\xff]){8})(?:...[\x37-\x41\xb7-\xc1]){8}"


class RecordScan:
    """Iterate over the records of wanted words, in the file's order: (0-based number, word, payload).

    Args:
        path: the file, for messages.
        stream: stream that is at the first record.
        count: number of records.
        separator: byte that ends a word.
        payload: bytes after the separator.
        wanted: the words, None for all.
        strict: a word that is not UTF-8 is an error instead of being counted.

    After the iteration, `broken` is the number of words that are empty or not UTF-8, `rest` the bytes that were read
    after the records.
    """

    def __init__(
        self,
        path: str,
        stream: BufferedReader,
        count: int,
        separator: bytes,
        payload: int,
        wanted: Wanted | None,
        strict: bool,
    ) -> None:
        self.path = path
        self.count = count
        self.broken = 0
        self.rest = b""
        self._stream = stream
        self._separator = separator
        self._step = 1 + payload  # bytes of a record after its word
        self._wanted = wanted
        self._strict = strict
        self._keys = frozenset() if wanted is None else _keys(wanted)
        # A record that is incomplete, or whose word may continue after its first space, is matched by the last part,
        # as an empty word.
        sign, check = re.escape(separator), b""
        if separator == b" ":
            certain = _CERTAIN if payload >= _CERTAIN_BYTES else b"(?!)"
            check = b"(?!(?=%b)(?!%b))" % (_REST, certain)
        self._pattern = re.compile(b"([^%b]*)%b%b.{%d}|.+" % (sign, sign, check, payload), re.DOTALL)

    def __iter__(self) -> Iterator[tuple[int, str, bytes]]:
        buffer, begin, number, is_end = b"", 0, 0, False
        while number < self.count:
            words = self._split(buffer, begin, self.count - number)
            if words:
                begin = yield from self._records(buffer, begin, words, number)
                number += len(words)
                continue
            gap = buffer.find(self._separator, begin)
            if gap >= 0 and len(buffer) >= gap + self._step + (0 if is_end else _LONGEST_REST):
                gap = self._end_of_word(buffer, gap, number)
                if (word := self._select(buffer[begin:gap], number)) is not None:
                    yield number, word, buffer[gap + 1 : gap + self._step]
                begin = gap + self._step
                number += 1
                continue
            self._check_incomplete(buffer[begin:], number, is_end)
            block = self._stream.read(BLOCK)
            buffer, begin, is_end = buffer[begin:] + block, 0, not block
        self.rest = buffer[begin:]

    def _records(
        self, buffer: bytes, begin: int, words: list[bytes], number: int
    ) -> Generator[tuple[int, str, bytes], None, int]:
        """Yield the wanted records from byte `begin` on; return the byte after the records."""
        # A word's payload begins after all words so far and the payloads before it.
        lengths = list(accumulate(map(len, words)))
        for index in self._candidates(words):
            word = self._select(words[index], number + index)
            if word is not None:
                start = begin + lengths[index] + index * self._step + 1
                yield number + index, word, buffer[start : start + self._step - 1]
        return begin + lengths[-1] + len(words) * self._step

    def _end_of_word(self, buffer: bytes, gap: int, number: int) -> int:
        """Return the place of the space that ends a word whose first space is at `gap` (`new york`, `. .`).

        word2vec's format has no words with spaces, but other programs write them.

        Raises:
            VectorFileError: if the numbers do not show where they begin.
        """
        text = _TEXT.match(buffer, gap + 1)
        spaces = [gap, *(at for at in range(gap + 1, text.end() if text else 0) if buffer[at] == _SPACE)]
        ends = [end for end in spaces if end + self._step <= len(buffer)]
        if len(ends) == 1:
            return gap
        rows = {end: np.abs(np.frombuffer(buffer, "<f4", self._step // 4, end + 1)) for end in ends}
        fitting = [end for end, row in rows.items() if _are_weights(row)]
        if len(fitting) == 1:
            row = rows[fitting[0]]
            if len(np.unique(row)) >= _DIFFERENT or not row.any():
                return fitting[0]
        raise VectorFileError(
            f"{self.path}: row {number + 1}: a word with spaces, or numbers that look like one, from "
            f"{buffer[max(0, gap - 20) : gap + 10]!r}: the numbers do not show where the word ends; save it as text "
            "(binary=False)"
        )

    def _split(self, buffer: bytes, begin: int, most: int) -> list[bytes]:
        """Return the words of the records at byte `begin` that are complete and certain: the hot loop, in C."""
        words = self._pattern.findall(buffer, begin)
        if words and not words[-1]:  # an empty word, or a record that is incomplete or not certain
            last = self._pattern.match(buffer, begin + sum(map(len, words)) + (len(words) - 1) * self._step)
            if last is None or last.lastindex is None:
                words.pop()
        return words[:most]

    def _check_incomplete(self, buffer: bytes, number: int, is_end: bool) -> None:
        """Raise VectorFileError if the record that `buffer` begins with will never be complete."""
        gap = buffer.find(self._separator)
        if gap < 0 and len(buffer) > LONGEST_WORD:
            raise VectorFileError(
                f"{self.path}: row {number + 1} has no word: the file is damaged or has another format; name its "
                "format or download it again"
            )
        if is_end:
            lacks = "is missing" if gap < 0 else f"lacks {counted(gap + self._step - len(buffer), 'byte')}"
            raise VectorFileError(
                f"{self.path}: cut short: row {number + 1} {lacks}, the head announces {counted(self.count, 'row')}; "
                "download or export it again"
            )

    def _candidates(self, words: list[bytes]) -> Iterable[int]:
        """Return indices of words that may be wanted or are not text, without Python code per word."""
        if self._wanted is None:
            return range(len(words))
        try:
            text = self._separator.join(words).decode("utf-8")  # valid exactly if every word is
        except UnicodeDecodeError:
            return range(len(words))
        keys: Iterable[bytes | str] = words
        if self._wanted.folded and self._wanted.spelling.label:
            keys = [self._wanted.key(word.lstrip("\n")) for word in text.split(self._separator.decode())]
        elif self._wanted.folded:  # no letter is composed with a separator, so folding may be done before splitting
            keys = fold(text).split(self._separator.decode())
        return compress(range(len(words)), map(self._keys.__contains__, keys))

    def _select(self, raw: bytes, number: int) -> str | None:
        """Return the word if it is wanted; count words that are not text, or raise VectorFileError if strict."""
        try:
            word = raw.lstrip(b"\n").decode("utf-8")
        except UnicodeDecodeError:
            word = ""
        if word:
            return word if self._wanted is None or word in self._wanted else None
        if self._strict:
            raise VectorFileError(
                f"{self.path}: the word of row {number + 1}, {raw[:20]!r}, is not UTF-8 text; export the file again, "
                "or do without strict"
            )
        self.broken += 1
        return None


def _are_weights(values: np.ndarray) -> bool:
    """Return True if all absolute values are in the range of weights."""
    return bool(((values == 0) | ((values > _SMALLEST) & (values < _LARGEST))).all())


def _keys(wanted: Wanted) -> frozenset[bytes] | frozenset[str]:
    """Return words that may be wanted as the file spells them, and the empty word, which is counted.

    word2vec ends its vectors with a newline, other programs do not: it is read as the beginning of the next word.
    """
    if wanted.folded:
        return frozenset(newline + key for key in ("", *wanted.folded) for newline in ("", "\n"))
    words = [word.encode("utf-8", "surrogatepass") for word in ("", *wanted.exact)]
    return frozenset(newline + word for word in words for newline in (b"", b"\n"))
