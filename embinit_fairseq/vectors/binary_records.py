"""Read records `word, separator, numbers` of word2vec's and fastText's binaries, and rows of a matrix by offset."""

from __future__ import annotations

import mmap
import re
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
#: absolute values that weights have, if they are not zero
_SMALLEST, _LARGEST = 1e-9, 1e3
#: bytes up to a space that can be text: payloads nearly always have a control character before
_TEXT = re.compile(rb"[^\0-\x20]+ ")


class RecordScan:
    """Iterate over the records of wanted words, in the file's order: (0-based number, word, payload).

    Args:
        path: the file, for messages.
        stream: at the first record.
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
        # An incomplete record at the end of a block is matched by the second half, as an empty word.
        sign = re.escape(separator)
        self._pattern = re.compile(b"([^%b]*)%b.{%d}|.+" % (sign, sign, payload), re.DOTALL)

    def __iter__(self) -> Iterator[tuple[int, str, bytes]]:
        number, is_end = 0, False
        while number < self.count:
            buffer = self.rest
            words = self._split(buffer, self.count - number)
            if not words:
                self._check_incomplete(buffer, number, is_end)
            if len(words) < min(2, self.count - number) and not is_end:
                block = self._stream.read(BLOCK)
                self.rest, is_end = buffer + block, not block
                continue
            if len(words) < self.count - number and not is_end:
                words.pop()  # what follows it is not there yet
            number += yield from self._records(buffer, words, number)

    def _records(self, buffer: bytes, words: list[bytes], number: int) -> Generator[tuple[int, str, bytes], None, int]:
        """Yield the wanted records, which `buffer` begins with; return how many records were read.

        They end after a word with spaces, since the records after it begin elsewhere.
        """
        # A word's payload begins after all words so far and the payloads before it.
        lengths = list(accumulate(map(len, words)))
        for index in self._candidates(words):
            begin = lengths[index] + index * self._step + 1
            more = self._rest_of_word(buffer, begin)
            word = self._select(buffer[begin - 1 - len(words[index]) : begin + more - 1], number + index)
            end = begin + more + self._step - 1
            if word is not None:
                yield number + index, word, buffer[begin + more : end]
            if more:
                self.rest = buffer[end:]
                return index + 1
        self.rest = buffer[sum(lengths[-1:]) + len(words) * self._step :]
        return len(words)

    def _rest_of_word(self, buffer: bytes, begin: int) -> int:
        """Return how many bytes after a word's first space belong to the word and the space at its end (`new york`).

        word2vec's format has no words with spaces, but other programs write them. Numbers that are read from the wrong
        byte do not have the size of weights.
        """
        size = self._step - 1
        text = _TEXT.match(buffer, begin, begin + size) if self._separator == b" " else None
        end = text.end() - 1 if text else -1
        while end >= 0 and _is_text(buffer[begin:end]):
            before, after = (_are_weights(buffer[at : at + size], size) for at in (begin, end + 1))
            if after and not before:
                return end + 1 - begin
            end = buffer.find(b" ", end + 1, begin + size)
        return 0

    def _split(self, buffer: bytes, most: int) -> list[bytes]:
        """Return the words of the complete records that `buffer` begins with: the hot loop, in C."""
        words = self._pattern.findall(buffer)
        if words and not words[-1]:  # an empty word, or the beginning of an incomplete record
            begin = sum(map(len, words)) + (len(words) - 1) * self._step
            if buffer[begin : begin + 1] != self._separator or begin + self._step > len(buffer):
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


def _is_text(raw: bytes) -> bool:
    """Return True for text with a letter or a digit."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return text.isprintable() and any(map(str.isalnum, text))


def _are_weights(vector: bytes, size: int) -> bool:
    """Return True for `size` bytes of float32 numbers of the size that weights have."""
    numbers = np.abs(np.frombuffer(vector[: len(vector) // 4 * 4], "<f4"))
    return len(vector) == size and bool(((numbers == 0) | ((numbers > _SMALLEST) & (numbers < _LARGEST))).all())


def _keys(wanted: Wanted) -> frozenset[bytes] | frozenset[str]:
    """Return how words that may be wanted look in the file, and the empty word, which is counted.

    word2vec ends its vectors with a newline, other programs do not: it is read as the beginning of the next word.
    """
    if wanted.folded:
        return frozenset(newline + key for key in ("", *wanted.folded) for newline in ("", "\n"))
    words = [word.encode("utf-8", "surrogatepass") for word in ("", *wanted.exact)]
    return frozenset(newline + word for word in words for newline in (b"", b"\n"))
