"""Vectors as text: GloVe (no header) and word2vec / fastText `.vec` (header), plain or compressed.

A line is a word and D numbers. The lines are scanned for wanted words only; the numbers of the wanted lines are
parsed in batches. Lines end with LF (CRLF is read too), fields are separated by blanks or tabs; every other character,
U+00A0, U+0085 and U+2028 too, belongs to the word. The word is all that precedes the last D fields.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from embinit_fairseq.errors import OptionError, VectorFileError, counted
from embinit_fairseq.vectors.compressed import CHUNK, open_lines
from embinit_fairseq.vectors.table import Origin, VectorTable, Wanted
from embinit_fairseq.vectors.text_lines import BOM, HEAD_LINES, LineScan, RowCollector, TextHead, inspect_head
from embinit_fairseq.vocab.tokens import CONTINUES, PREFIX, detect_style

# ---- Cutting words into the sub-words of a text file of vectors (BPEmb and the like) --------------------------------
# Such a file says how its pieces are marked but not by which merges words were cut, so words are cut greedily: the
# longest piece first, from left to right, as BERT does. This comes close to byte-pair encoding but is not always equal.

#: markers of pieces that words can be cut into
CUTTABLE = ("sentencepiece", "wordpiece", "subword_nmt")


def cut(surface: str, pieces: Collection[str], markers: str, longest: int) -> list[str]:
    """The pieces of a whole word, the longest possible first; characters that no piece begins with are skipped.

    longest: the length of the longest piece.
    """
    begins = PREFIX["sentencepiece"]
    text = begins + surface if markers == "sentencepiece" else surface
    cut_off: list[str] = []
    begin = 0
    while begin < len(text):
        ends = range(min(len(text), begin + longest), begin, -1)
        named = ((_name(text, begin, end, markers), end) for end in ends)
        piece, begin = next(((name, end) for name, end in named if name in pieces), ("", begin + 1))
        if piece:
            cut_off.append(piece)
    return [piece for piece in cut_off if piece != begins]  # no part of the word itself


def _name(text: str, begin: int, end: int, markers: str) -> str:
    """How the file spells the part of the word."""
    part = text[begin:end]
    if markers == "wordpiece" and begin:
        return PREFIX[markers] + part
    if markers == "subword_nmt" and end < len(text):
        return part + CONTINUES
    return part


def cut_all(surfaces: Iterable[str], pieces: Collection[str], markers: str) -> dict[str, list[str]]:
    """Surface -> its pieces; surfaces without any known piece are left out."""
    longest = max(map(len, pieces), default=0)
    pieces_of = {surface: cut(surface, pieces, markers, longest) for surface in surfaces}
    return {surface: parts for surface, parts in pieces_of.items() if parts}


# ----------------------------------------------------------------------------------------------------------------------

logger = logging.getLogger(__name__)

#: Public files have a few broken lines. More than this share of all lines, or in small files more than a few: the file
#: is damaged, something else, or read wrongly.
TOLERATED_SHARE, FEW_LINES, FEW_SHARE = 0.01, 10, 0.05
_FIRST_NUMBERS = 1 << 24  # of a table whose size nobody knows
_SHORT_NAME = 64  # bytes; words up to this length tell how a file marks pieces


class TextVectors:
    """Reader of one text file.

    dim: the expected D (None: as the file says). strict: a broken line is an error, and all lines are checked, not only
    those of wanted words. header: whether line 1 is `ROWS DIM` (None: find out). chunk: bytes read at a time.
    """

    def __init__(
        self,
        path: str,
        dim: int | None = None,
        strict: bool = False,
        *,
        header: bool | None = None,
        chunk: int = CHUNK,
    ) -> None:
        self.path = str(path)
        self.strict = strict
        self._chunk = chunk
        self._head = self._inspect(header, dim)
        self.dim = self._head.dim
        self.format = "glove" if self._head.rows is None else "word2vec"

    def _inspect(self, header: bool | None, dim: int | None) -> TextHead:
        with open_lines(self.path, self._chunk) as stream:
            lines = [stream.readline() for _ in range(HEAD_LINES)]
        lines[0] = lines[0].removeprefix(BOM)
        return inspect_head(self.path, lines, header, dim)

    def read(self, wanted: Wanted | None = None) -> VectorTable:
        """Parse the wanted rows (None: all). Memory grows with the result, plus one batch.

        Raises VectorFileError if the file is cut short, has a wanted row with NaN or infinity, has fewer rows than its
        header says, or has more than a few broken lines (strict: any).
        """
        scan = LineScan(self.path, wanted, self._head, check_all=self.strict)
        rows = RowCollector(self.path, self._head, wanted, self.strict, self._capacity(wanted))
        with open_lines(self.path, self._chunk) as stream:
            first = stream.readline().removeprefix(BOM)
            skipped = self._head.rows is not None
            lines = stream if skipped else itertools.chain([first], stream)
            for number, line in scan.candidates(lines, 1 + skipped):
                rows.add(number, line)
        rows.check_last(scan.last_number, scan.last)
        words, matrix = rows.finish()
        self._check(scan, rows)
        origin = Origin(
            path=self.path,
            format=self.format,
            rows=scan.lines - rows.broken,
            dim=self.dim,
            duplicates=rows.duplicates,
            broken_lines=rows.broken,
        )
        return VectorTable(words=words, matrix=matrix, origin=origin)

    def _capacity(self, wanted: Wanted | None) -> int:
        expected = len(wanted.exact or wanted.folded) if wanted is not None else self._head.rows
        # a header may lie, in its columns too; the table grows as needed
        return min(max(1, expected or 1), max(1, _FIRST_NUMBERS // self.dim))

    def _check(self, scan: LineScan, rows: RowCollector) -> None:
        """Raise if the rows are not as many as announced or too many are broken; log the broken ones."""
        announced = self._head.rows
        if announced is not None and scan.lines < announced:
            raise VectorFileError(
                f"{self.path}: the header announces {counted(announced, 'row')}, but the file has {scan.lines:,}. "
                "It is cut short: download it again."
            )
        if announced is not None and scan.lines > announced:
            logger.warning("%s: the header announces %s, read %d", self.path, counted(announced, "row"), scan.lines)
        if not rows.broken:
            return
        count = rows.broken
        named = rows.named_broken()
        lines, are, them = ("line", "is", "it") if count == 1 else ("lines", "are", "them")
        few = count <= FEW_LINES and count <= FEW_SHARE * scan.lines
        if count > TOLERATED_SHARE * scan.lines and not few:
            raise VectorFileError(
                f"{self.path}:{rows.first_broken[0][0]}: {count} of {counted(scan.lines, 'line')} {are} no word with "
                f"{self.dim} numbers: {lines} {named}. Repair or delete {them}; or the file is damaged or no vector "
                "file, or --embed-init-format is wrong for it."
            )
        logger.warning("%s: %s ignored: %s %s", self.path, counted(count, "broken line"), lines, named)

    def compose(self, surfaces: Sequence[str]) -> dict[str, np.ndarray]:
        """Mean of the rows of a word's pieces, cut greedily: surface -> (D,) float32.

        Raises OptionError unless the file's words are marked as pieces (`▁the`, `##ing`, `in@@`).
        """
        # a longer word is no piece of these; a character of UTF-8 has four bytes at most
        names = self._names(max([_SHORT_NAME, *(4 * len(surface) + 3 for surface in surfaces)]))
        markers = detect_style(names)
        if markers not in CUTTABLE:
            raise OptionError(
                f"{self.path}: this text file of vectors has no sub-words, so --embed-init-oov subword cannot work. "
                "Choose another --embed-init-oov, or the fastText .bin of the same vectors."
            )
        pieces = cut_all(surfaces, names, markers)
        table = self.read(Wanted.words(piece for parts in pieces.values() for piece in parts))
        row = {word: index for index, word in enumerate(table.words)}
        known = {surface: [row[piece] for piece in parts if piece in row] for surface, parts in pieces.items()}
        return {surface: table.matrix[rows].mean(axis=0) for surface, rows in known.items() if rows}

    def _names(self, longest: int) -> frozenset[str]:
        """What the lines begin with, if it has at most `longest` bytes; lines that are not UTF-8 are left out."""
        separator = self._head.separator
        with open_lines(self.path, self._chunk) as stream:
            if self._head.rows is not None:
                stream.readline()
            ends = ((line, line.find(separator, 0, longest + 1)) for line in stream)
            names = {line[:end].removeprefix(BOM) for line, end in ends if end > 0}
        decoded = (name.decode("utf-8", "replace") for name in names)
        return frozenset(name for name in decoded if name and "\ufffd" not in name)
