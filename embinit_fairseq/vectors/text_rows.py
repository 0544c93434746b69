"""Turning lines of a text file of vectors into rows of a table."""

from __future__ import annotations

import itertools
import re

import numpy as np

from embinit_fairseq.errors import VectorFileError, counted
from embinit_fairseq.vectors.parse import RowParser, parse_number
from embinit_fairseq.vectors.table import Wanted
from embinit_fairseq.vectors.text_head import TextHead, fields

_BLANKS = b" \t\r\n"
_FIELD = re.compile(rb"[^ \t]+")
#: Numbers parsed at a time: the scratch space of one batch stays in a second-level cache.
_BATCH = 30_000


class RowCollector:
    """Parses lines in batches and keeps the first row of each wanted word, in the file's order.

    broken: (line number, reason) of lines that are no word with D numbers. duplicates: later rows of kept words.
    """

    def __init__(self, path: str, head: TextHead, wanted: Wanted | None, strict: bool, capacity: int) -> None:
        self.broken: list[tuple[int, str]] = []
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
        """Take a non-blank line (with its number, from 1) into account."""
        self._batch.append((number, line if line.endswith(b"\n") else line + b"\n"))
        if len(self._batch) >= self._limit:
            self._flush()

    def check_last(self, number: int, line: bytes) -> None:
        """Raise VectorFileError if the file's last non-blank line shows that the file was cut short."""
        found = fields(line)
        cut = len(found) <= self._dim or (not line.endswith(b"\n") and parse_number(found[-1]) is None)
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
        """The line's word, its numbers in `out` (D,); None if it is broken. Knows all spellings and separators."""
        text = line.strip(_BLANKS)
        starts = [match.start() for match in _FIELD.finditer(text)]
        if len(starts) <= self._dim:
            return self._note(number, f"{counted(len(starts), 'field')} instead of {self._dim + 1}")
        start = starts[-self._dim]
        for column, token in enumerate(fields(text[start:])):
            value = parse_number(token)
            if value is None:
                return self._note(number, f"{token[:20]!r} is no number")
            with np.errstate(over="ignore"):
                out[column] = np.float32(value)
        return text[:start].rstrip(_BLANKS)

    def _note(self, number: int, reason: str) -> None:
        if self._strict:
            raise VectorFileError(
                f"{self._path}:{number}: {reason}. Repair or delete the line, or leave out --embed-init-strict."
            )
        self.broken.append((number, reason))

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
                f"{self._path}:{number}: the vector of {name!r} holds NaN, infinity or a number beyond float32. "
                "Delete the line or take another file."
            )
        if not wanted:
            return False
        if name in self._words:
            self.duplicates += 1
            return False
        self._words[name] = None
        return True
