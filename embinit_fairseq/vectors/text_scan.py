"""Finding the lines of wanted words in a text file of vectors, without looking at the numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from embinit_fairseq.vectors.table import Wanted
from embinit_fairseq.vectors.text_head import TextHead

_BLANKS = b" \t\r\n"
_BLANK = re.compile("[ \t]")


def _first_pieces(words: Iterable[str]) -> frozenset[bytes]:
    """What a line of these words starts with, up to the first blank. Lone surrogates occur in no UTF-8 file."""
    pieces = {_BLANK.split(word, maxsplit=1)[0].encode("utf-8", "surrogatepass") for word in words}
    return frozenset(pieces | {b""})  # lines that begin with a blank are looked at closely


def _fold(piece: bytes) -> bytes | None:
    """The piece case-folded; None if it is not UTF-8."""
    if piece.isascii():
        return piece.lower()
    try:
        return piece.decode("utf-8").casefold().encode("utf-8")
    except UnicodeDecodeError:
        return None


class LineScan:
    """One pass over the lines; `lines` (blank ones left out), `last` and `last_number` are valid when it is over."""

    def __init__(self, wanted: Wanted | None, head: TextHead, check_all: bool) -> None:
        self.lines = 0
        self.last = b""
        self.last_number = 0
        self._all = wanted is None or check_all
        self._exact = _first_pieces(wanted.exact) if wanted else frozenset()
        self._folded = _first_pieces(wanted.folded) if wanted and wanted.folded else frozenset()
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
                    continue
                yield number, line
            last, last_number = line, number
        self.lines = number - first + 1 - blank
        self.last, self.last_number = last, last_number
