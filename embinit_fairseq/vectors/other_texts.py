"""Describe a text whose lines are not vectors in a format of `open.FORMATS`, and how to convert or correct it."""

from __future__ import annotations

import csv
import itertools
import re

from embinit_fairseq.vectors.conversion import npz_line, with_paths
from embinit_fairseq.vectors.numbers import parse_number
from embinit_fairseq.vectors.text_lines import fields, numeric_tail

#: with fewer numbers in a line, several words before them are no phrase
_FEW = 10
_DECIMAL = re.compile(rb"[+-]?\d*\.\d+(e[+-]?\d+)?|[+-]?\d+(\.\d*)?e[+-]?\d+", re.IGNORECASE)
_INTEGER = re.compile(rb"-?\d+")


def text_of_other_tool(lines: list[bytes]) -> str | None:
    """Describe lines of words and numbers that are not vectors, with the remedy; return None if they may be vectors.

    lines: the first lines of a file, without a header `ROWS DIM`.
    """
    lines = [line for line in lines if line.strip()]
    widths = [numeric_tail(line) for line in lines]
    first, *body = map(fields, lines)
    if max(widths) == 1 and all(numeric_tail(line.replace(b",", b" ")) > 1 for line in lines):
        return r"commas after the numbers; write spaces instead: sed 's/\([0-9]\),/\1 /g' FILE > NEW"
    if max(widths) == 1:
        return (
            "one number per word: a list of words (a fairseq dictionary, counts, a sentencepiece .vocab), a lexicon or "
            "labels; give word vectors, or name the format if they have one dimension"
        )
    if all(map(_INTEGER.fullmatch, itertools.chain(first, *body))):
        return "numbers of symbols or of labels, and no words; give word vectors"
    starts = [line[0] for line in (first, *body)]
    decimals = sum(map(bool, map(_DECIMAL.fullmatch, starts)))
    if (
        body
        and 2 * decimals > len(starts)
        and all(_DECIMAL.fullmatch(start) or _INTEGER.fullmatch(start) for start in starts)
    ):
        return (
            "numbers without words, as TensorFlow's projector and numpy.savetxt write; give the words, too: "
            "paste WORDS FILE > NEW"
        )
    columns = [b"%d" % column for column in range(max(widths) + 1)]
    if first[1:] in (columns[:-1], columns[1:]) and body and all(b"." in b"".join(line) for line in body):
        return "line 1 numbers the columns of a table; remove it: tail -n +2 FILE > NEW"
    spaces = [len(fields(line)) - width for line, width in zip(lines, widths) if width]
    if max(widths) < _FEW and sum(count > 2 for count in spaces) > len(lines) / 2:
        return "several words before the numbers of most lines: a text or a table of results; give word vectors"
    return None


#: between the columns of a table, with a comma for the decimal point but in the last
_SEPARATORS = (";", "\t", " ", ",")


def table_of_other_tool(path: str, lines: list[bytes]) -> str | None:
    """Describe how a table of words and numbers differs from text of vectors, with the remedy; None for other text.

    lines: the first lines of a file; the first one may be the names of the columns.
    """
    texts = [line.decode(errors="replace") for line in lines[:2]]
    for (above, text), separator in itertools.product(enumerate(texts), _SEPARATORS):
        if _is_row(text, separator):
            code = (
                f"t = csv.reader(open({{path!r}}, encoding='utf-8-sig', newline=''), delimiter={separator!r}); "
                "w, m = zip(*((r[0], numpy.array([x.replace(',', '.') for x in r[1:]], 'f4')) for r in "
                f"itertools.islice(t, {above}, None) if r))"
            )
            line = with_paths(npz_line(code, "w", "m", "csv, itertools"), path)
            return f":{above + 1}: a table with {separator!r} between the columns ({text[:60]!r}); {line}"
    return None


def _is_row(text: str, separator: str) -> bool:
    """Return True for a line of a table that is a word and numbers, unless they only number the columns."""
    try:
        word, *values = next(csv.reader([text], delimiter=separator), [""])
    except csv.Error:  # bytes that are no text
        return False
    numbers = [value.strip().replace(",", ".") for value in values]
    columns = list(map(str, range(len(numbers) + 1)))
    are_numbers = len(numbers) > 1 and all(parse_number(number.encode()) is not None for number in numbers)
    return are_numbers and not numeric_tail(word.encode()) and numbers not in (columns[:-1], columns[1:])
