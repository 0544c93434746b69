"""Read raw text as people have it: a sentence per line in one or two languages, or tables with named columns.

The name of a file says its split (`train`; `valid`, `val`, `dev`; `test`) and, as its suffix, its language or kind.
Every source is one column of one file: a list of lines. All are read as they are needed, also from .gz.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.io import check_is_file

#: name of a split in names of files -> fairseq's
SPLITS = {"train": "train", "valid": "valid", "val": "valid", "dev": "valid", "validation": "valid", "test": "test"}
#: suffixes of files with a text per line whose name has no language
PLAIN = ("", "txt", "text", "raw")
#: what `str.splitlines` and fairseq's readers take for the end of a line; here only LF is one, and these are spaces
OTHER_ENDS = re.compile("[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_MARK = b"\xef\xbb\xbf"
#: line numbers in a message
SHOWN = 5


@dataclass(frozen=True)
class Source:
    """A column of text.

    Args:
        path: the file.
        split: `train`, `valid`, `valid1`, `test` ...
        column: its name in the data: a language, `input0`, `label`, or `` for text in one language.
        field: name of the column in the file; None if the file has one text per line.
    """

    path: Path
    split: str
    column: str
    field: str | None = None

    def raw_lines(self) -> Iterator[str]:
        """Yield the texts as they are in the file."""
        kind = kind_of(self.path)
        if self.field is None:
            return (line for _, line in _decoded(self.path))
        return (row[self.field] for row in _READERS[kind](self.path, self.field))

    def lines(self) -> Iterator[str]:
        """Yield the texts, each without an end of a line inside."""
        return (OTHER_ENDS.sub(" ", line) for line in self.raw_lines())

    def __str__(self) -> str:
        return f"{self.path}" if self.field is None else f"{self.path} ({self.field})"


def kind_of(path: Path) -> str:
    """Return the suffix of a file in lower case, without .gz."""
    return path.with_suffix("").suffix[1:].lower() if path.suffix == ".gz" else path.suffix[1:].lower()


@dataclass(frozen=True)
class Columns:
    """What the user says of the columns; see `embinit prepare --help`."""

    source_lang: str | None = None
    target_lang: str | None = None
    text_columns: Sequence[str] = ()
    label_column: str | None = None


def find_sources(texts: Sequence[str], columns: Columns) -> list[Source]:
    """Return the sources of the files, those of one split after each other.

    Args:
        texts: files, each as FILE or SPLIT=FILE.
        columns: of tables, and languages.

    Raises:
        OptionError, DataError: a split or a column is not known, is missing or there twice.
    """
    files = [_split_of(text) for text in texts]
    for _, path in files:
        check_is_file(path)
    tables = [path for _, path in files if kind_of(path) in _READERS]
    if tables and len(tables) < len(files):
        raise OptionError(f"{tables[0]} is a table, and other files are plain text; give files of one kind")
    sources = _of_tables(files, columns) if tables else _of_lines(files, columns)
    seen: dict[tuple[str, str], Source] = {}
    for source in sources:
        if (other := seen.setdefault((source.split, source.column), source)) is not source:
            raise OptionError(
                f"{other.path} and {source.path}: both are the split {source.split}; name another, such as "
                f"{source.split}1={source.path}, or put them into one file"
            )
    return sorted(sources, key=lambda source: ("train valid test".find(source.split[:4]), source.split))


def _split_of(text: str) -> tuple[str, Path]:
    """Return (split, path) of an argument FILE or SPLIT=FILE."""
    if named := re.fullmatch(r"(train|valid\d*|test\d*)=(.+)", text):
        return named[1], Path(named[2])
    path = Path(text)
    found = {SPLITS[part] for part in re.split(r"[._-]", path.name.lower()) if part in SPLITS}
    if len(found) != 1:
        raise OptionError(f"{text}: its name must say which split it is; name it so: train={text}, valid=..., test=...")
    return found.pop(), path


def _of_lines(files: list[tuple[str, Path]], columns: Columns) -> list[Source]:
    if columns.text_columns or columns.label_column is not None:
        raise OptionError(
            f"--text-columns, --label-column: {files[0][1]} is not .tsv, .csv or .jsonl; rename it, or leave them out"
        )
    suffixes = list(dict.fromkeys(kind_of(path) for _, path in files))
    if len(suffixes) == 1:
        return [Source(path, split, "") for split, path in files]
    source = columns.source_lang or next(suffix for suffix in suffixes if suffix != columns.target_lang)
    target = columns.target_lang or next(suffix for suffix in suffixes if suffix != source)
    if {source, target} != set(suffixes) or set(suffixes) & set(PLAIN):
        endings = ", ".join(f".{suffix}" for suffix in suffixes)
        raise OptionError(
            f"TEXT: the files end in {endings}; expected two languages, as train.de train.en, or the same ending "
            "(--source-lang and --target-lang name the two)"
        )
    sources = [Source(path, split, kind_of(path)) for split, path in files]
    for split in dict.fromkeys(split for split, _ in files):
        found = {one.column for one in sources if one.split == split}
        if missing := set(suffixes) - found:
            raise OptionError(f"TEXT: the split {split} has no file in {min(missing)}; give both languages")
    return sorted(sources, key=lambda one: one.column != source)


def _of_tables(files: list[tuple[str, Path]], columns: Columns) -> list[Source]:
    texts, label = list(columns.text_columns), columns.label_column
    if not 1 <= len(texts) <= 2:
        raise OptionError("--text-columns: name the column of the text, or two of pairs of texts")
    if label is not None:
        names = [f"input{at}" for at in range(len(texts))]
    else:
        names = [columns.source_lang or texts[0], columns.target_lang or texts[1]] if texts[1:] else [""]
    fields = dict(zip(names, texts)) | ({} if label is None else {"label": label})
    return [Source(path, split, name, field) for split, path in files for name, field in fields.items()]


# ---- Files ----------------------------------------------------------------------------------------------------------


def has_mark(path: Path) -> bool:
    """Return True if a file begins with a byte-order mark."""
    with _opened(path) as file:
        return file.read(3) == _MARK


def _opened(path: Path) -> Any:
    return gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")


def _decoded(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (1-based number, text) of each line without its end; only LF, or CR LF, ends one.

    Raises:
        DataError: lines are not UTF-8, with their numbers; or the file is damaged.
    """
    number = 0
    try:
        with _opened(path) as file:
            for number, raw in enumerate(file, 1):
                try:
                    text = (raw.removeprefix(_MARK) if number == 1 else raw).decode()
                except UnicodeDecodeError:
                    numbers = [number, *(at for at, line in enumerate(file, number + 1) if not _is_utf8(line))]
                    raise DataError(
                        f"{path}: not UTF-8 in {shown_lines(numbers)}; if it is Latin-1, convert it: "
                        "iconv -f latin1 -t utf-8 FILE > NEW"
                    ) from None
                yield number, text.removesuffix("\n").removesuffix("\r")
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read after line {number} ({error}); get the file again") from error


def _is_utf8(line: bytes) -> bool:
    try:
        return bool(line.decode()) or True
    except UnicodeDecodeError:
        return False


def shown_lines(numbers: Sequence[int], count: int | None = None) -> str:
    """Return line numbers for a message: `line 3`, `lines 3, 7, 9 ... (200)`. count: of all, if not all are given."""
    total = len(numbers) if count is None else count
    first = ", ".join(map(str, numbers[:SHOWN]))
    return f"line{'s' if total > 1 else ''} {first}{f' ... ({total:,})' if total > SHOWN else ''}"


def _separated(path: Path, field: str, separator: str, quoting: bool) -> Iterator[dict[str, str]]:
    """Yield the rows of a table whose first line names the columns."""
    lines = (f"{line}\n" for _, line in _decoded(path))
    how: dict[str, Any] = {"delimiter": separator, "quoting": csv.QUOTE_MINIMAL if quoting else csv.QUOTE_NONE}
    rows = csv.reader(lines, strict=True, **how)
    limit = csv.field_size_limit(1 << 30)
    try:
        heading = next(rows, [])
        _check_column(path, field, heading)
        for row in rows:
            if len(row) != len(heading):
                raise DataError(
                    f"{path}:{rows.line_num}: {len(row)} fields, but {len(heading)} columns in line 1; correct the line"
                )
            yield dict(zip(heading, row))
    except csv.Error as error:
        raise DataError(f"{path}:{rows.line_num}: not a table ({error}); correct the line") from error
    finally:
        csv.field_size_limit(limit)


def _tsv(path: Path, field: str) -> Iterator[dict[str, str]]:
    return _separated(path, field, "\t", quoting=False)  # as GLUE's: a quotation mark is a character like others


def _csv(path: Path, field: str) -> Iterator[dict[str, str]]:
    return _separated(path, field, ",", quoting=True)


def _jsonl(path: Path, field: str) -> Iterator[dict[str, str]]:
    """Yield the objects of a file with one per line."""
    for number, line in _decoded(path):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"{path}:{number}: not JSON ({error}); expected an object per line") from error
        if not isinstance(row, dict):
            raise DataError(f"{path}:{number}: expected an object with the columns, found {line[:60]}")
        _check_column(f"{path}:{number}", field, row)
        if not isinstance(row[field], (str, int, float)):
            raise DataError(f"{path}:{number}: {field} must be text or a number, found {json.dumps(row[field])[:60]}")
        yield {field: str(row[field])}


def _check_column(where: object, field: str, columns: Any) -> None:
    if field not in columns:
        raise DataError(f"{where}: no column {field}; it has {', '.join(columns) or 'none'}: name one of them")


#: suffix of a table -> what reads its rows
_READERS = {"tsv": _tsv, "csv": _csv, "jsonl": _jsonl}
