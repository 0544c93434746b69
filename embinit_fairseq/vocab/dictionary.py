"""Read the words of an embedding matrix, fairseq's `dict.txt`, without fairseq.

Row order is fairseq's: `<s>`, `<pad>`, `</s>`, `<unk>`, then one row per line of the file.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from embinit_fairseq.errors import DataError, EmbinitError
from embinit_fairseq.io import PathLike, read_lines

#: the first rows of fairseq's Dictionary -> their roles
SPECIAL_SYMBOLS = {"<s>": "bos", "<pad>": "pad", "</s>": "eos", "<unk>": "unk"}
_FILLER = re.compile(r"madeupword\d{4,}$")
#: line of another file -> the command that makes a dictionary of it; first vocabularies of sentencepiece
_OTHER_LINES = {
    r"(<\S*>|[^\t]+)\t(0|-?\d+\.\d+|-\d+)": "cut -f1 FILE | grep -vxE '<pad>|<unk>|</?s>' | sed 's/$/ 1/' > NEW",
    r"[^\t]+\t\d+": r"tr '\t' ' ' < FILE > NEW",
    r"\S+[,;]\d+": r"sed -E 's/[,;]([0-9]+)$/ \1/' FILE > NEW",
    r".* -?\d+\.\d+(e[-+]?\d+)?": "sed -E 's/ [^ ]+$/ 1/' FILE > NEW",
    r"[^\s{]\S*(?<!\d)": "sed 's/$/ 1/' FILE > NEW",
}
#: more symbols are not the ten digits
_DIGITS = 10
#: remedy for a dictionary of ids that meets words
WRITE_SUBWORDS = "write the subword of each id (GPT-2's encoder.json, spm_export_vocab) into its dictionary, in a copy"
#: largest count that an int64 holds
_LARGEST = 2**63 - 1


@dataclass
class Vocabulary:
    """Hold one symbol per row.

    counts: (N,) occurrences in the training text, or other integers (`has_counts`). roles: row -> role of special rows.
    added: rows of words that were added to a tokenizer after training and are spelled without its markers.
    Fillers (`madeupword0000`, added by fairseq to round the size up) mean nothing and do not count for coverage.
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
        #: rows of text: neither special nor filler
        self.regular = ~(self.special | self.filler)

    def __len__(self) -> int:
        return len(self.symbols)

    @property
    def has_counts(self) -> bool:
        """Return True if the counts may come from a text: none is negative, and not all are equal."""
        counts = self.counts[self.regular]
        return len(counts) > 0 and bool(0 <= counts.min() < counts.max() or len(counts) == 1 <= counts[0])

    @property
    def has_ids(self) -> bool:
        """Return True if all symbols are numbers: ids of GPT-2's subwords (RoBERTa, BART) or units of speech."""
        return are_ids([self.symbols[row] for row in np.flatnonzero(self.regular).tolist()])

    @property
    def has_words(self) -> bool:
        """Return True if most symbols that mean text are words, not numbers."""
        return are_words([self.symbols[row] for row in np.flatnonzero(self.regular).tolist()])

    @property
    def pad_row(self) -> int | None:
        """Return the row of `<pad>`, whose numbers are zero; None without `<pad>`."""
        return next((row for row, role in self.roles.items() if role == "pad"), None)


def are_ids(words: Sequence[str]) -> bool:
    """Return True for more than ten numbers: ids of subwords, not the digits of a text."""
    return len(words) > _DIGITS and all(map(is_number, words))


def are_words(words: Sequence[str]) -> bool:
    """Return True if fewer than half are numbers; a few words may have been added to a dictionary of ids."""
    return 2 * sum(map(is_number, words)) < len(words)


def is_number(symbol: str) -> bool:
    """Return True for an integer in decimal digits."""
    return symbol.isascii() and symbol.isdigit()


def symbols_digest(symbols: Sequence[str]) -> str:
    """Return a short hash of a dictionary's symbols in their order."""
    return hashlib.sha256("\n".join(symbols).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def filler(row: int) -> str:
    """Return the name of a row without a symbol."""
    return f"madeupword{row:04d}"


def is_filler(symbol: str) -> bool:
    """Return True for a symbol that fairseq added to round the size of a dictionary up."""
    return bool(_FILLER.match(symbol))


def special_rows(symbols: Sequence[str]) -> dict[int, str]:
    """Return row -> role for symbols of a dict.txt that are not words: its first four, and `special_lines`."""
    return special_lines(symbols) | dict(enumerate(SPECIAL_SYMBOLS.values()))


def special_lines(symbols: Sequence[str]) -> dict[int, str]:
    """Return row -> role for symbols whose names say that they are not words, in any row.

    `<mask>` is appended by tasks, unless dict.txt has it. A name of fairseq's four has "extra": lines may repeat it
    (`<s> 1 #fairseq:overwrite` in CamemBERT's), but fairseq's own symbol keeps the first row.
    """
    roles = {**dict.fromkeys(SPECIAL_SYMBOLS, "extra"), "<mask>": "mask"}
    return {row: roles[symbol] for row, symbol in enumerate(symbols) if symbol in roles}


def vocabulary_of(dictionary: Any) -> Vocabulary:
    """Return a fairseq Dictionary as a Vocabulary.

    Special rows are the rows of `special_rows`, and rows before the lines of dict.txt. Other symbols that tasks
    append (language tags) count as words, since nothing distinguishes them.
    """
    special = getattr(dictionary, "nspecial", 0)
    # units of speech have their special symbols at the end, and count all symbols as special
    roles = dict.fromkeys(range(special if special < len(dictionary) else 0), "extra")
    roles |= special_lines(dictionary.symbols)
    for role in SPECIAL_SYMBOLS.values():
        if (row := getattr(dictionary, f"{role}_index", None)) is not None:
            roles[row] = role
    return Vocabulary(list(dictionary.symbols), dictionary.count, roles)


def read_dictionary(path: PathLike, flag: str = "--dict", error: type[EmbinitError] = DataError) -> Vocabulary:
    """Read a fairseq `dict.txt`; raise `error` for lines that fairseq refuses, and for a file without a symbol.

    flag: option that names the file, for messages.
    """
    symbols, counts = list(SPECIAL_SYMBOLS), [1] * len(SPECIAL_SYMBOLS)
    seen = set(symbols)
    for number, symbol, count, overwrite in read_lines_of_dictionary(path, flag, error):
        if symbol in SPECIAL_SYMBOLS and not overwrite:
            raise error(
                f"{path}:{number}: the symbol {symbol!r} is repeated, since fairseq adds it by itself; remove such "
                "lines: grep -vE '^(<pad>|<unk>|</?s>) ' FILE > NEW"
            )
        if symbol in seen and not overwrite:
            raise error(f"{path}:{number}: the symbol {symbol[:60]!r} is repeated; remove one of the lines")
        seen.add(symbol)
        symbols.append(symbol)
        counts.append(count)
    if len(symbols) == len(SPECIAL_SYMBOLS):
        raise error(f"{path}: no symbol in it; is this the dict.txt that fairseq-preprocess wrote?")
    return Vocabulary(symbols, np.array(counts), special_rows(symbols))


def read_lines_of_dictionary(
    path: PathLike, flag: str = "", error: type[EmbinitError] = DataError
) -> Iterator[tuple[int, str, int, bool]]:
    """Yield (line number, symbol, count, overwrite) of the lines `symbol count [#fairseq:overwrite]`.

    Lines are read as by fairseq: from the right, since a symbol may hold anything. Spaces at the end do not count, a
    count is any integer. `overwrite`: the symbol may be repeated; its last row counts.
    """
    for number, line in _lines(path, error, flag):
        if not line.strip():
            raise error(f"{path}:{number}: an empty line, which fairseq refuses in a dictionary; remove it")
        parsed = parse_line(line)
        if parsed is None:
            raise error(f"{path}:{number}: found {line[:60]!r}, expected 'symbol count'; {_remedy(line)}")
        symbol, count, overwrite = parsed
        if abs(count) > _LARGEST:
            raise error(
                f"{path}:{number}: {str(count)[:20]}... is too large for a count (above 2^63); write the real one, or 1"
            )
        yield number, symbol, count, overwrite


def _remedy(line: str) -> str:
    """Return the remedy for a file with this line, which no dictionary has."""
    for pattern, command in _OTHER_LINES.items():
        if re.fullmatch(pattern, line.rstrip()):
            return f"make it of this file: {command}"
    return "give the dict.txt that fairseq-preprocess wrote"


def _lines(path: PathLike, error: type[EmbinitError], flag: str = "") -> Iterator[tuple[int, str]]:
    """Yield (line number, line); as in fairseq, a CR alone ends a line, too."""
    for number, line in read_lines(path, error, flag):
        for part in line.split("\r"):
            yield number, part


def parse_line(line: str) -> tuple[str, int, bool] | None:
    """Return (symbol, count, overwrite); None if the line is not `symbol count [#fairseq:overwrite]`."""
    symbol, space, last = line.rstrip().rpartition(" ")
    overwrite = last == "#fairseq:overwrite"
    if overwrite:
        symbol, space, last = symbol.rpartition(" ")
    try:
        return (symbol, int(last), overwrite) if space else None
    except ValueError:
        return None


def is_dictionary(path: PathLike, lines: int = 100) -> bool:
    """Return True if the first lines look like a `dict.txt`; symbols of a text (`of the 3`) would have spaces."""
    try:
        first = [line for _, line in itertools.islice(_lines(path, DataError), lines) if line.strip()]
    except DataError:  # compressed, or of another encoding
        return False
    parsed = [parse_line(line) for line in first]
    return bool(parsed) and all(line is not None and len(line[0].split()) == 1 for line in parsed)
