"""Scanning files of records `word, separator, payload of fixed size`, the shape of word2vec's and fastText's binaries.

The file is read once, in blocks; only the records of wanted words leave the scanner.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable, Iterator, Sequence
from io import BufferedReader
from itertools import accumulate, compress
from pathlib import Path

import numpy as np

from embinit_fairseq.errors import VectorFileError, counted
from embinit_fairseq.vectors.compressed import check_exists, readable
from embinit_fairseq.vectors.table import Wanted
from embinit_fairseq.vectors.text_lines import dimension_error
from embinit_fairseq.vocab.matching import fold

# ----------------------------------------------------------------------------------------------------------------------
# Rows of a matrix that lies in a file, without reading the rest of it and without keeping it in memory.

_HELD = 32 << 20  # bytes of the file that may be mapped at a time
_NEIGHBOURHOOD = 1 << 16  # bytes that the kernel maps around each page that is touched


def mapped_rows(file: str | Path, offset: int, width: int, rows: np.ndarray) -> np.ndarray:
    """(len(rows), width) uint8: the rows of `width` bytes that begin at byte `offset`; best in ascending order.

    The caller has checked that the rows lie inside the file. (Reading each row by itself costs three times as much.)
    """
    copied = np.empty((len(rows), width), dtype=np.uint8)
    if not len(rows):
        return copied
    with open(file, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        count = (len(mapped) - offset) // width
        # As bytes: NumPy copies a whole array first if its numbers do not begin at a multiple of their size.
        matrix = np.frombuffer(mapped, dtype=np.uint8, count=count * width, offset=offset).reshape(count, width)
        step = max(1, _HELD // (width + _NEIGHBOURHOOD))
        for begin in range(0, len(rows), step):
            part = slice(begin, begin + step)
            np.take(matrix, rows[part], axis=0, out=copied[part], mode="clip")
            if hasattr(mmap, "MADV_DONTNEED"):
                mapped.madvise(mmap.MADV_DONTNEED)
        del matrix  # the map can be closed only when nothing refers to it
    return copied


# ---- Checks that the readers of binary formats share ----------------------------------------------------------------
# Letters: V rows, D columns.


def existing_file(path: str) -> Path:
    """The path of a file that exists, can be read and is not empty; VectorFileError otherwise."""
    check_exists(path)
    file = Path(path)
    if file.is_dir():
        raise VectorFileError(f"{path}: a directory, but this format is one file. Name the file itself.")
    with readable(path), open(file, "rb") as stream:
        if not stream.read(1):
            raise VectorFileError(f"{path}: the file is empty. Download or export it again.")
    return file


def check_dimension(path: str, own_dim: int, dim: int | None) -> None:
    """Raise DimensionError unless the source's dimension is the one that was asked for (None: any)."""
    if dim is not None and own_dim != dim:
        raise dimension_error(path, own_dim, dim)


def check_finite(path: str, names: Sequence[str], matrix: np.ndarray) -> None:
    """Raise VectorFileError if a row of `matrix` (V, D), called by its name, holds NaN or infinity."""
    # The sum of a row is not finite if an element is not; where only the sum overflows, look at the elements.
    with np.errstate(over="ignore", invalid="ignore"):
        suspects = np.flatnonzero(~np.isfinite(matrix.sum(axis=1)))
    broken = [row for row in suspects if not np.isfinite(matrix[row]).all()]
    if broken:
        raise VectorFileError(
            f"{path}: the vector of {names[int(broken[0])][:60]!r} (one of {len(broken)}) holds NaN or infinity. "
            "Export the vectors again or take another file."
        )


# ----------------------------------------------------------------------------------------------------------------------

#: Bytes of a word; more than that without a separator is no word.
LONGEST_WORD = 1 << 16


class RecordScan:
    """The records of wanted words (None: of all words), in the file's order.

    stream: stands at the first record. count: records that the file's head announces. separator: the byte that ends a
    word. payload: bytes behind the separator. strict: a word that is not UTF-8 is an error instead of being counted.

    After the iteration: `broken` counts words that are not UTF-8 (or empty), `consumed` the bytes of all records.
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
        block: int = 1 << 18,
    ) -> None:
        self.path = path
        self.count = count
        self.broken = 0
        self.consumed = 0
        self.rest = b""  # read, but not consumed
        self._stream = stream
        self._separator = separator
        self._step = 1 + payload  # bytes of a record behind its word
        self._wanted = wanted
        self._strict = strict
        self._block = block
        # word2vec ends its vectors with a newline, others do not: it counts as the beginning of the next word. What
        # is no whole record at the end of a block is matched by the second half, as an empty word.
        sign = re.escape(separator)
        self._pattern = re.compile(b"([^%b]*)%b.{%d}|.+" % (sign, sign, payload), re.DOTALL)
        self._keys = frozenset() if wanted is None else _keys(wanted)

    def __iter__(self) -> Iterator[tuple[int, str, bytes]]:
        """(number of the record from 0, word, payload)."""
        number, step = 0, self._step
        while number < self.count:
            buffer, words = self._next_block(number)
            # Where each word's payload begins: behind all words so far and the payloads before it.
            lengths = list(accumulate(map(len, words)))
            for index in self._candidates(words):
                word = self._select(words[index], number + index)
                if word is not None:
                    begin = lengths[index] + index * step + 1
                    yield number + index, word, buffer[begin : begin + step - 1]
            number += len(words)
            end = lengths[-1] + len(words) * step
            self.consumed += end
            self.rest = buffer[end:]

    def _next_block(self, number: int) -> tuple[bytes, list[bytes]]:
        """A buffer that begins with whole records, and their words: at least one, at most what is left of `count`."""
        buffer = self.rest
        while True:
            block = self._stream.read(self._block)
            buffer += block
            words = self._pattern.findall(buffer)
            if words and not words[-1]:  # an empty word, or the beginning of a record that goes on
                begin = sum(map(len, words)) + (len(words) - 1) * self._step
                if buffer[begin : begin + 1] != self._separator or begin + self._step > len(buffer):
                    words.pop()
            if words:
                return buffer, words[: self.count - number]
            gap = buffer.find(self._separator)
            if gap < 0 and len(buffer) > LONGEST_WORD:
                raise VectorFileError(
                    f"{self.path}: row {number + 1} has no word: the file is damaged or of another format. Download it "
                    "again or name its format with --embed-init-format."
                )
            if not block:
                self._raise_truncated(number, None if gap < 0 else gap + self._step - len(buffer))

    def _candidates(self, words: list[bytes]) -> Iterable[int]:
        """Indices of words that may be wanted or are no text: the inner loop, without a line of Python per word."""
        if self._wanted is None:
            return range(len(words))
        try:
            text = self._separator.join(words).decode("utf-8")  # valid exactly if every word is
        except UnicodeDecodeError:
            return range(len(words))
        # No letter is composed with a separator, so folding may be done before splitting.
        keys = fold(text).split(self._separator.decode()) if self._wanted.folded else words
        return compress(range(len(words)), map(self._keys.__contains__, keys))

    def _raise_truncated(self, number: int, missing: int | None) -> None:
        lacks = f"row {number + 1} lacks {counted(missing, 'byte')}" if missing else f"row {number + 1} is missing"
        raise VectorFileError(
            f"{self.path}: cut short: {lacks}, its head announces {counted(self.count, 'row')}. Download or export "
            "it again."
        )

    def _select(self, raw: bytes, number: int) -> str | None:
        """The word if it is wanted. Counts words that are no text; VectorFileError for them if strict."""
        try:
            word = raw.lstrip(b"\n").decode("utf-8")
        except UnicodeDecodeError:
            word = ""
        if word:
            return word if self._wanted is None or word in self._wanted else None
        if self._strict:
            raise VectorFileError(
                f"{self.path}: the word of row {number + 1}, {raw[:20]!r}, is not UTF-8 text. Export the file again, "
                "or leave out --embed-init-strict."
            )
        self.broken += 1
        return None


def _keys(wanted: Wanted) -> frozenset[bytes] | frozenset[str]:
    """What a word that may be wanted looks like in the file (case-folded text if any words are wanted folded).

    The newline that may precede a word belongs to it; the empty word is included, as something to be reported.
    """
    if not wanted.folded:
        words = [word.encode("utf-8", "surrogatepass") for word in wanted.exact]
        return frozenset([b"", b"\n", *words, *(b"\n" + word for word in words)])
    folded = [*map(fold, wanted.exact), *wanted.folded]
    return frozenset(["", "\n", *folded, *("\n" + word for word in folded)])
