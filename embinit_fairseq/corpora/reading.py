"""Read raw text: files with a text per line, and columns of tables, each text with the number of its line.

All files are UTF-8, also compressed by gzip, bzip2 or xz; only LF, or CR LF, ends a line. Lines are read when needed.
"""

from __future__ import annotations

import contextlib
import csv
import importlib
import itertools
import json
import lzma
import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from embinit_fairseq.errors import DataError, counted, listed
from embinit_fairseq.io import not_utf8

#: largest number of line numbers in a message
SHOWN = 5
_MARK = b"\xef\xbb\xbf"
#: first bytes of a compressed file -> module that opens it
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ\0": "lzma"}
_COMPRESSED = (".gz", ".bz2", ".xz")
#: first bytes of another file -> its description, remedy
_OTHERS = {
    b"PK\x03\x04": ("an archive or a spreadsheet", "unzip it, or save the table as .csv"),
    b"\x28\xb5\x2f\xfd": ("compressed by zstd", "zstd -d FILE -o NEW"),
    b"version https://git-lfs.github.com/": ("a Git LFS pointer", "fetch the file itself: git lfs pull"),
    b"PAR1": (
        "a Parquet table",
        "python -c \"import pandas; pandas.read_parquet('FILE').to_json('train.jsonl', orient='records', lines=True)\"",
    ),
}
_DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError)
#: first line of a list of objects, or of an object that has one
_LIST = re.compile(r"\s*(?:\[\s*(?:\{|$)|\{\s*$|\{\s*\"[^\"]*\"\s*:\s*\[\s*\{)")
#: command that makes lines of a list of objects, or of the list in an object
_ARRAY = (
    "make lines of it: python -c \"import json; d = json.load(open('{}', encoding='utf-8-sig')); [print(json.dumps(r)) "
    'for r in (d if isinstance(d, list) else next(v for v in d.values() if isinstance(v, list)))]" > NEW.jsonl'
)
#: characters that people write between columns
_SEPARATORS = {"\t": "tabs", ",": "commas", ";": "semicolons", "|": "|"}


def suffix_of(path: Path) -> str:
    """Return the suffix of a file's name before the suffix of a compression."""
    return (path.with_suffix("") if path.suffix.lower() in _COMPRESSED else path).suffix[1:]


def is_table(path: Path) -> bool:
    """Return True if the name of a file says that it is a table."""
    return suffix_of(path).lower() in _READERS


def is_of_tabs(path: Path) -> bool:
    """Return True if a file is a table with tabs, in which a quotation mark is a character like others."""
    return suffix_of(path).lower() == "tsv"


def shown_lines(numbers: Sequence[int], count: int | None = None) -> str:
    """Return line numbers for a message: `line 3`, `lines 3, 7 and 200 more`. count: number of all lines, if more."""
    total = len(numbers) if count is None else count
    return f"line{'s' if total > 1 else ''} {listed(numbers, SHOWN, total)}"


# ---- Lines ----------------------------------------------------------------------------------------------------------


def has_mark(path: Path) -> bool:
    """Return True if a file begins with a byte-order mark; `read_text` reports an unreadable file."""
    with contextlib.suppress(*_DAMAGE), _opened(path) as file:
        return bool(file.read(3) == _MARK)
    return False


def read_text(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (1-based number, text) of each line, without its end and the file's byte-order mark.

    Raises:
        DataError: lines are not UTF-8 (with their numbers) or end in CR, or the file is damaged.
    """
    number, has_utf8 = 0, False
    try:
        with _opened(path) as file:
            for number, raw in enumerate(file, 1):
                if number == 1:
                    raw = _checked_first(path, raw)
                try:
                    text = raw.decode()
                except UnicodeDecodeError as error:
                    wrong = not_utf8(raw, number, error.start)
                    raise _lines_not_utf8(path, wrong, number, file, has_utf8) from None
                has_utf8 = has_utf8 or not text.isascii()
                yield number, text.removesuffix("\n").removesuffix("\r")
    except _DAMAGE as error:
        raise DataError(f"{path}: cannot be read after line {number} ({error}); get the file again") from error


def _lines_not_utf8(path: Path, wrong: str, number: int, rest: Iterable[bytes], has_utf8: bool) -> DataError:
    """Return the error about lines that are not UTF-8, with all line numbers.

    Args:
        path: path of the text.
        wrong: description of the first such line, and the remedy.
        number: number of the first such line.
        rest: the lines after it.
        has_utf8: a line before it is UTF-8 and not ASCII.
    """
    numbers = [number]
    for at, line in enumerate(rest, number + 1):
        if not _is_utf8(line):
            numbers.append(at)
        else:
            has_utf8 = has_utf8 or not line.isascii()
    if has_utf8 and wrong.startswith("not UTF-8"):
        wrong = (
            "not UTF-8, and other lines are; correct these lines alone in an editor (iconv would damage the others), "
            "or get the file again"
        )
    return DataError(f"{path}: {shown_lines(numbers)}: {wrong}")


def _opened(path: Path) -> Any:
    """Open a plain or compressed file, recognised by its first bytes, for reading bytes."""
    with open(path, "rb") as file:
        head = file.read(8)
    module = next((module for magic, module in _COMPRESSIONS.items() if head.startswith(magic)), None)
    return importlib.import_module(module).open(path) if module else open(path, "rb")


def _checked_first(path: Path, raw: bytes) -> bytes:
    """Return the first line without byte-order mark; DataError if it shows that the file is not a text."""
    for description, remedy in (said for magic, said in _OTHERS.items() if raw.startswith(magic)):
        raise DataError(f"{path}: {description}, expected text; {remedy}")
    if 4 * raw.count(b"\0") > len(raw) > 3:  # UTF-16 of Latin letters without a mark is UTF-8, too
        raise DataError(f"{path}: {not_utf8(raw, 1)}")
    if b"\r" in raw and not raw.endswith(b"\n"):
        raise DataError(f"{path}: its lines end in CR; expected LF, convert them: tr '\\r' '\\n' < FILE > NEW")
    return raw.removeprefix(_MARK)


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


# ---- Tables ---------------------------------------------------------------------------------------------------------


def read_column(path: Path, field: str, is_label: bool) -> Iterator[tuple[int, str]]:
    """Yield (1-based number of its first line, text) for each row of a table.

    Args:
        path: .tsv, .csv or .jsonl, also .gz.
        field: name of the column.
        is_label: True if a value of JSON may be a number.

    Raises:
        DataError: the file is no such table, or does not have the column once; with the number of the line.
    """
    return _READERS[suffix_of(path).lower()](path, field, is_label)


def _tsv(path: Path, field: str, is_label: bool) -> Iterator[tuple[int, str]]:
    """Read fields between tabs, as in GLUE's files: a quotation mark is a character like others."""
    return _column(path, field, is_label, ((number, line.split("\t")) for number, line in read_text(path)))


def _csv(path: Path, field: str, is_label: bool) -> Iterator[tuple[int, str]]:
    return _column(path, field, is_label, _csv_rows(path))


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    # a CR would end a row; another end of a line is counted and becomes a space, as a CR in other files
    lines = (line.replace("\r", "\v") + "\n" for _, line in read_text(path))
    heading = next(lines, "")
    delimiter = ";" if ";" in heading and "," not in heading else ","  # ";" in spreadsheets of half of Europe
    rows = csv.reader(itertools.chain([heading], lines), delimiter=delimiter, strict=True)
    limit, number = csv.field_size_limit(1 << 30), 1
    try:
        for row in rows:
            yield number, row
            number = rows.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}:{number}: not a row of a table ({error}); correct it") from error
    finally:
        csv.field_size_limit(limit)


def _column(path: Path, field: str, is_label: bool, rows: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, str]]:
    """Yield the fields of a column; the first row names the columns."""
    _, heading = next(rows, (1, []))
    if not any(heading):
        raise DataError(f"{path}:1: an empty line; expected the names of the columns")
    if len(heading) == 1 and heading != [field] and (other := re.search("[,;|\t]", heading[0])):
        raise DataError(
            f"{path}:1: found {_SEPARATORS[other[0]]} between the columns; expected commas or semicolons in .csv, tabs "
            "in .tsv: rename the file, or save it so"
        )
    remedy = "name one of them; if this line is text, write the names above it"
    if is_label:
        remedy += "; texts without labels are for predict of the trained classifier: leave this file out"
    _check_column(f"{path}:1, which names the columns", field, heading, remedy)
    at = heading.index(field)
    for number, row in rows:
        if len(row) != len(heading):
            raise DataError(
                f"{path}:{number}: {counted(len(row), 'field')}, but {counted(len(heading), 'column')} in line 1; "
                f"{'save the table as .csv if texts have ends of lines, or ' * is_of_tabs(path)}correct the line"
            )
        yield number, row[at]


def _jsonl(path: Path, field: str, is_label: bool) -> Iterator[tuple[int, str]]:
    """Read a file with an object per line; the columns of an object in it are `translation.de`."""
    for number, line in read_text(path):
        where = f"{path}:{number}"
        if number == 1 and _LIST.match(line):
            raise DataError(f"{where}: found a list in JSON, expected an object per line; {_ARRAY.format(path)}")
        try:
            pairs = json.loads(line, object_pairs_hook=_Pairs, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: expected an object of JSON, found {line[:60]!r} ({error})") from error
        if not isinstance(pairs, _Pairs):
            raise DataError(f"{where}: expected an object with the columns, found {line[:60]!r}")
        columns = _flat(pairs)
        _check_column(where, field, [name for name, _ in columns])
        yield number, _text_of(where, field, dict(columns)[field], is_label)


class _Pairs(list[Any]):
    """Hold the keys and values of a JSON object, in which a key may be repeated."""


def _flat(pairs: _Pairs) -> list[tuple[str, Any]]:
    """Return the columns of an object and of the objects in it."""
    columns = []
    for name, value in pairs:
        inside = _flat(value) if isinstance(value, _Pairs) else [("", value)]
        columns += [(f"{name}.{other}" if other else name, value) for other, value in inside]
    return columns


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def _text_of(where: str, field: str, value: Any, is_label: bool) -> str:
    """Return a value of JSON as text."""
    if is_label and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        expected = "text or a number" if is_label else "text"
        shown = json.dumps(value)[:60]
        raise DataError(f"{where}: {field} must be {expected}, found {shown}; write it as text, or remove the row")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        half = value[error.start].encode("ascii", "backslashreplace").decode()
        raise DataError(f"{where}: {field} has half a character ({half}), as of a cut text; remove it") from None
    return value


def _check_column(where: str, field: str, columns: Collection[str], remedy: str = "name one of them") -> None:
    """Raise DataError unless exactly one column has this name."""
    count = list(columns).count(field)
    if count > 1:
        raise DataError(f"{where}: {count} columns have the name {field}; rename all but one")
    if not count:
        names = ", ".join(name if name and name == name.strip() else repr(name) for name in columns) or "none"
        raise DataError(f"{where}: no column {field}; its columns are {names}: {remedy}")


#: suffix of a table -> function that reads a column
_READERS = {"tsv": _tsv, "csv": _csv, "jsonl": _jsonl, "json": _jsonl, "ndjson": _jsonl}
