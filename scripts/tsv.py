"""Read tables of tab-separated values, as data sets of text classification are published."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from embinit_fairseq.errors import DataError


def read_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (1-based line number, fields) of a UTF-8 file without quoting; a byte-order mark is dropped.

    Args:
        path: the file, plain or gzip; if it is missing, `path` with .gz.

    Raises:
        DataError: the file is missing or damaged.
    """
    file = path if path.is_file() else path.with_name(path.name + ".gz")
    if not file.is_file():
        raise DataError(f"neither {path} nor {file.name} is there; correct the path")
    number = 0
    try:
        with open(file, "rb") as stream:
            is_gzip = stream.read(2) == b"\x1f\x8b"
        with gzip.open(file, "rb") if is_gzip else open(file, "rb") as stream:
            for number, line in enumerate(stream, 1):  # bytes: only a line feed ends a line
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n").split("\t")
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{file}, near line {number}: damaged or not UTF-8 ({error}); get the file again") from error
