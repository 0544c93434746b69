"""The words of a model's table: fairseq's `dict.txt` read without fairseq.

Row order is fairseq's: `<s>`, `<pad>`, `</s>`, `<unk>`, then one row a line of the file.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from embinit_fairseq.bounded import read_lines
from embinit_fairseq.errors import DataError, EmbinitError

#: Rows that fairseq's Dictionary puts in front, with the role of each.
SPECIAL_SYMBOLS = {"<s>": "bos", "<pad>": "pad", "</s>": "eos", "<unk>": "unk"}
_FILLER = re.compile(r"madeupword\d{4,}$")
_LARGEST = 2**63 - 1  # of the numbers that `counts` holds


@dataclass
class Vocabulary:
    """One symbol a row. counts: (N,) occurrences in the training text. roles: row -> role of special rows. added: rows
    of words that a tokenizer was given after training, and spells without its markers.

    Fillers (`madeupword0000`, added by fairseq to round the size up) stand for nothing and are in no coverage.
    """

    symbols: Sequence[str]
    counts: np.ndarray
    roles: dict[int, str] = field(default_factory=dict)
    added: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self.counts = np.asarray(self.counts, dtype=np.int64)
        self.special = np.zeros(len(self.symbols), dtype=bool)
        self.special[list(self.roles)] = True
        self.filler = np.array([is_filler(symbol) for symbol in self.symbols], dtype=bool)
        #: rows that stand for text: neither special nor filler
        self.regular = ~(self.special | self.filler)

    def __len__(self) -> int:
        return len(self.symbols)

    @property
    def pad_row(self) -> int | None:
        """The row of `<pad>`, which stays zero; None if there is none."""
        return next((row for row, role in self.roles.items() if role == "pad"), None)


def is_filler(symbol: str) -> bool:
    """Was it added by fairseq to round the size of a dictionary up?"""
    return bool(_FILLER.match(symbol))


def vocabulary_of(dictionary: Any) -> Vocabulary:
    """A fairseq Dictionary as a Vocabulary.

    Special rows: the four of every dictionary, further ones in front of dict.txt, and `<mask>`, which tasks append
    behind it. Other symbols that tasks append (language tags) cannot be told from words and are treated as such.
    """
    roles = {}
    for role in ("bos", "pad", "eos", "unk"):
        row = getattr(dictionary, f"{role}_index", None)
        if row is not None:
            roles[row] = role
    special = getattr(dictionary, "nspecial", 0)
    for row in range(special if special < len(dictionary) else 0):  # units of speech have theirs behind, and count all
        roles.setdefault(row, "extra")
    mask = dictionary.indices.get("<mask>")
    if mask is not None:
        roles[mask] = "mask"
    return Vocabulary(list(dictionary.symbols), dictionary.count, roles)


def read_dictionary(path: str | Path, flag: str = "--dict", error: type[EmbinitError] = DataError) -> Vocabulary:
    """Read a fairseq `dict.txt`. flag: the option that names it, for messages.

    Raises `error`, naming file and line, for what fairseq refuses, and for a file without a symbol.
    """
    symbols, counts = list(SPECIAL_SYMBOLS), [1] * len(SPECIAL_SYMBOLS)
    known = set(symbols)
    for number, symbol, count, overwrite in read_lines_of_dictionary(path, flag, error):
        if symbol in known and not overwrite:
            raise error(f"{path}:{number}: the symbol {symbol[:60]!r} stands here twice; remove one of the lines")
        known.add(symbol)
        symbols.append(symbol)
        counts.append(max(count, 0))
    if len(symbols) == len(SPECIAL_SYMBOLS):
        raise error(f"{path}: no symbol in it; is this the dict.txt that fairseq-preprocess wrote?")
    return Vocabulary(symbols, np.array(counts), {row: role for row, role in enumerate(SPECIAL_SYMBOLS.values())})


def read_lines_of_dictionary(
    path: str | Path, flag: str = "", error: type[EmbinitError] = DataError
) -> Iterator[tuple[int, str, int, bool]]:
    """(line number, symbol, count, overwrite) of each line `symbol count [#fairseq:overwrite]`, as fairseq reads it.

    From the right, since a symbol may hold anything. Blanks at the end do not count, a count is any integer, and a lone
    CR ends a line, too. `overwrite`: the symbol may stand here twice; the last row is the one that counts.
    """
    for number, line in read_lines(path, error, flag, newline=None):
        if not line.strip():
            raise error(f"{path}:{number}: an empty line, which fairseq refuses in a dictionary; remove it")
        found = parse_line(line)
        if found is None:
            raise error(f"{path}:{number}: expected 'symbol count', found {line[:60]!r}; is this a fairseq dict.txt?")
        symbol, count, overwrite = found
        if abs(count) > _LARGEST:
            raise error(
                f"{path}:{number}: {str(count)[:20]}... is no count of words (above 2^63); write the real one, or 1"
            )
        yield number, symbol, count, overwrite


def parse_line(line: str) -> tuple[str, int, bool] | None:
    """(symbol, count, overwrite); None for what is no `symbol count [#fairseq:overwrite]`."""
    symbol, blank, last = line.rstrip().rpartition(" ")
    overwrite = last == "#fairseq:overwrite"
    if overwrite:
        symbol, blank, last = symbol.rpartition(" ")
    try:
        return (symbol, int(last), overwrite) if blank else None
    except ValueError:
        return None


def is_dictionary(path: str | Path, lines: int = 100) -> bool:
    """Is it a `dict.txt`, by its first lines? In a text that looks like one (`the 3`) a symbol would have blanks."""
    try:
        first = [line for _, line in itertools.islice(read_lines(path, DataError, newline=None), lines) if line.strip()]
    except DataError:  # packed, or of another encoding
        return False
    found = [parse_line(line) for line in first]
    return bool(found) and all(each is not None and len(each[0].split()) == 1 for each in found)
