"""Read vectors from text: GloVe (no header) and word2vec / fastText `.vec` (header), plain or compressed.

A line is a word and D numbers. The lines are scanned for wanted words only; the numbers of the wanted lines are
parsed in batches. Lines end with LF (CRLF is read too), fields are separated by spaces or tabs; every other character,
U+00A0, U+0085 and U+2028 too, belongs to the word. The word is everything before the last D fields.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection, Sequence

import numpy as np

from embinit_fairseq.errors import VectorFileError, counted
from embinit_fairseq.vectors.compressed import open_bytes
from embinit_fairseq.vectors.table import FIRST_ROWS, Origin, VectorReader, VectorTable, Wanted
from embinit_fairseq.vectors.text_lines import BOM, RowCollector, fields, inspect_head
from embinit_fairseq.vocab.dictionary import is_dictionary
from embinit_fairseq.vocab.subword_styles import CONTINUES, PREFIX, detect_style, ignores_spaces

logger = logging.getLogger(__name__)

#: Share of all lines, or in small files number and share, of broken lines that are ignored: public files have a few.
TOLERATED_SHARE, FEW_LINES, FEW_SHARE = 0.01, 10, 0.05


def _are_few(broken: int, lines: int) -> bool:
    """Return True if so many broken lines are ignored."""
    return broken <= TOLERATED_SHARE * lines or (broken <= FEW_LINES and broken <= FEW_SHARE * lines)


class TextVectors(VectorReader):
    """One text file.

    Args:
        path: the file, or a member of a zip archive.
        dim: the expected D (None: as the file says).
        strict: a broken line is an error, and all lines are checked, not only lines of wanted words.
        header: whether line 1 is `ROWS DIM`.
    """

    def __init__(self, path: str, dim: int | None = None, strict: bool = False, *, header: bool) -> None:
        self.path = path
        self.strict = strict
        self.format = "word2vec" if header else "glove"
        with open_bytes(path) as stream:
            lines = [stream.readline() for _ in range(FIRST_ROWS)]
        self._head = inspect_head(path, [lines[0].removeprefix(BOM), *lines[1:]], header, dim)
        self._first_lines = lines[header:]
        self.dim = self._head.dim
        if self.dim == 1 and not header and is_dictionary(path):
            raise VectorFileError(f"{path}: one integer per word: looks like a fairseq dictionary; give word vectors")

    def first_words(self) -> list[str]:
        """Return the words of the first rows."""
        lines = [line.removeprefix(BOM) for line in self._first_lines]
        words = [b" ".join(fields(line)[: -self.dim]) or line.partition(self._head.separator)[0] for line in lines]
        return [word.decode("utf-8", "replace") for word in words]

    def read(self, wanted: Wanted | None = None) -> VectorTable:
        """Parse the wanted rows (None: all). Memory grows with the result, plus one batch.

        Raises:
            VectorFileError: if the file is cut short, has a wanted row with NaN or infinity, or has more than a few
                lines that are broken or missing (strict: any).
        """
        rows = RowCollector(self.path, self._head, wanted, self.strict)
        has_header = self._head.rows is not None
        with open_bytes(self.path) as stream:
            first = stream.readline().removeprefix(BOM)
            words, matrix = rows.read(stream if has_header else itertools.chain([first], stream), 1 + has_header)
        missing = self._check_rows(rows)
        self._check_lines(rows, missing)
        lines, duplicates, broken = rows.lines - rows.broken, rows.duplicates, rows.broken + missing
        origin = Origin(self.path, self.format, lines, self.dim, duplicates=duplicates, broken_lines=broken)
        return VectorTable(words, matrix, origin)

    def _check_rows(self, rows: RowCollector) -> int:
        """Return how many announced rows are missing; raise VectorFileError if the file is cut short.

        Headers of public files are wrong by a few rows (fastText's wiki-news has one row less).
        """
        announced, lines = self._head.rows, rows.lines
        if announced is None or announced == lines:
            return 0
        mismatch = f"the header announces {counted(announced, 'row')}, but the file has {lines:,}"
        if lines < announced and (not rows.ends_line or not _are_few(announced - lines, announced)):
            raise VectorFileError(
                f"{self.path}: {mismatch}; it is cut short: download it again, or correct the header if it is not"
            )
        if self.strict:
            raise VectorFileError(f"{self.path}: {mismatch}; correct the header, or do without strict")
        logger.warning("%s: %s; its rows are used", self.path, mismatch)
        return max(0, announced - lines)

    def _check_lines(self, rows: RowCollector, missing: int) -> None:
        """Raise VectorFileError if too many lines are broken, missing ones included; log the broken ones."""
        lines, broken = rows.lines, rows.broken
        if not broken:
            return
        named = f"line{'s' * (broken > 1)} {rows.named_broken()}"
        if not _are_few(broken + missing, lines):
            raise VectorFileError(
                f"{self.path}:{rows.first_broken[0][0]}: {broken} of {counted(lines, 'line')} are not a word with "
                f"{self.dim} numbers: {named}; repair or delete them (all of a file in cp1252: iconv -f cp1252 -t "
                "utf-8), or name the format if it is another one"
            )
        logger.warning("%s: %s ignored: %s", self.path, counted(broken, "broken line"), named)

    def compose(self, surfaces: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the mean of the rows of a word's subwords, segmented greedily: word -> (D,) float32.

        Raises:
            OptionError: if the file's words are not marked as subwords (`▁the`, `##ing`, `in@@`), as in BPEmb's files.
        """
        names = self._names()
        style = detect_style(names)
        if style not in SEGMENTABLE:
            return super().compose(surfaces)
        longest = max(map(len, names))
        subwords = {surface: _segment(surface, names, style, longest) for surface in surfaces}
        table = self.read(Wanted.words(itertools.chain.from_iterable(subwords.values())))
        row = {word: index for index, word in enumerate(table.words)}
        rows = {surface: [row[name] for name in parts if name in row] for surface, parts in subwords.items()}
        return {surface: table.matrix[chosen].mean(axis=0) for surface, chosen in rows.items() if chosen}

    def _names(self) -> frozenset[str]:
        """Return the beginnings of all lines, up to the separator; words that are not UTF-8 are left out."""
        with open_bytes(self.path) as stream:
            if self._head.rows is not None:
                stream.readline()
            names = {line.removeprefix(BOM).partition(self._head.separator)[0] for line in stream}
        decoded = (name.decode("utf-8", "replace") for name in names)
        return frozenset(name for name in decoded if name and "\ufffd" not in name)


# ---- Segment words into the subwords of a text file of vectors ------------------------------------------------------
# Such a file says how its subwords are marked, but not by which merges words were segmented. So words are segmented
# greedily: the longest subword first, from left to right, as BERT does. This is close to byte-pair encoding, but not
# always equal.

#: subword styles of files that words can be segmented with
SEGMENTABLE = ("sentencepiece", "wordpiece", "subword_nmt")


def _segment(surface: str, names: Collection[str], style: str, longest: int) -> list[str]:
    """Segment a whole word, of scripts without spaces as inside of text; longest: characters of a subword.

    Characters that no subword begins with are skipped.
    """
    marker = PREFIX["sentencepiece"]
    text = marker + surface if style == "sentencepiece" and not ignores_spaces(surface) else surface
    parts: list[str] = []
    begin = 0
    while begin < len(text):
        ends = range(min(len(text), begin + longest), begin, -1)
        spelled = ((_spelled(text, begin, end, style), end) for end in ends)
        name, begin = next(((name, end) for name, end in spelled if name in names), ("", begin + 1))
        if name:
            parts.append(name)
    return [name for name in parts if name != marker]  # the marker alone is not a part of the word


def _spelled(text: str, begin: int, end: int, style: str) -> str:
    """Return the spelling of a part of a word in the file."""
    part = text[begin:end]
    if style == "wordpiece" and begin:
        return PREFIX[style] + part
    if style == "subword_nmt" and end < len(text):
        return part + CONTINUES
    return part
