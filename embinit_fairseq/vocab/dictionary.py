"""The words of a model's table: fairseq's `dict.txt` read without fairseq.

Row order is fairseq's: `<s>`, `<pad>`, `</s>`, `<unk>`, then one row a line of the file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from embinit_fairseq.errors import DataError

#: Rows that fairseq's Dictionary puts in front, with the role of each.
SPECIAL_SYMBOLS = {"<s>": "bos", "<pad>": "pad", "</s>": "eos", "<unk>": "unk"}
_FILLER = re.compile(r"madeupword\d{4,}$")
_LARGEST = 2**63 - 1  # of the numbers that `counts` holds


@dataclass
class Vocabulary:
    """One symbol a row. counts: (N,) occurrences in the training text. roles: row -> role of special rows.

    Fillers (`madeupword0000`, added by fairseq to round the size up) stand for nothing and are in no coverage.
    """

    symbols: Sequence[str]
    counts: np.ndarray
    roles: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.counts = np.asarray(self.counts, dtype=np.int64)
        self.special = np.zeros(len(self.symbols), dtype=bool)
        self.special[list(self.roles)] = True
        self.filler = np.array([bool(_FILLER.match(symbol)) for symbol in self.symbols], dtype=bool)
        #: rows that stand for text: neither special nor filler
        self.regular = ~(self.special | self.filler)

    def __len__(self) -> int:
        return len(self.symbols)

    @property
    def pad_row(self) -> int | None:
        """The row of `<pad>`, which stays zero; None if there is none."""
        return next((row for row, role in self.roles.items() if role == "pad"), None)


def read_dictionary(path: str | Path, flag: str = "--dict") -> Vocabulary:
    """Read a fairseq `dict.txt` (`symbol count` a line, optional `#fairseq:overwrite`). flag: for messages.

    Raises DataError naming file and line for anything else.
    """
    symbols, counts = list(SPECIAL_SYMBOLS), [1] * len(SPECIAL_SYMBOLS)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise DataError(f"{flag} {path}: no such file; check the path") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{flag} {path}: cannot be read as a fairseq dictionary ({error})") from error
    rows: dict[str, int] = {symbol: row for row, symbol in enumerate(symbols)}
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line and number == len(lines):
            break  # behind the last newline
        symbol, count, overwrite = _parse_line(line, path, number)
        if symbol in rows and not overwrite:
            raise DataError(f"{path}:{number}: the symbol {symbol!r} stands here twice; remove one of the lines")
        rows[symbol] = len(symbols)
        symbols.append(symbol)
        counts.append(count)
    if len(symbols) == len(SPECIAL_SYMBOLS):
        raise DataError(f"{path}: no symbol in it; is this the dict.txt that fairseq-preprocess wrote?")
    return Vocabulary(symbols, np.array(counts), {row: role for row, role in enumerate(SPECIAL_SYMBOLS.values())})


def _parse_line(line: str, path: str | Path, number: int) -> tuple[str, int, bool]:
    """Split `symbol count [#fairseq:overwrite]` from the right, since a symbol may hold anything."""
    if not line.strip():
        raise DataError(f"{path}:{number}: an empty line, which fairseq refuses in a dictionary; remove it")
    body, _, last = line.rpartition(" ")
    overwrite = last == "#fairseq:overwrite"
    if overwrite:
        body, _, last = body.rpartition(" ")
    try:
        count = int(last)
    except ValueError:
        count = -1
    if not body or count < 0:
        raise DataError(f"{path}:{number}: expected 'symbol count', found {line[:60]!r}; is this a fairseq dict.txt?")
    if count > _LARGEST:
        raise DataError(f"{path}:{number}: {last[:20]}... is no count of words (above 2^63); write the real one, or 1")
    return body, count, overwrite
