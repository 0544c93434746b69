"""Divide the input into shards of whole documents.

The input is read as a stream: at most one document, or one JSON value, is in memory. A passage is a document, or
PASSAGE_LINES lines of a longer one; every N-th passage is for validation. Passages are numbered over the whole input,
so that the choice depends neither on the shards nor on the number of processes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from tqdm import tqdm
from wikibooks.inputs import SAMPLE, SAMPLE_LINES, check_markup, check_text, open_input, read_lines

from embinit_fairseq.io import whole_folder, write_json

PASSAGE_LINES = 100
#: A longer document is divided at the end of a line; a longer line is left out.
MAX_CHARS = 1_000_000
_MAX_LINE_BYTES = 4 * MAX_CHARS  # UTF-8 takes up to four bytes per character


def documents(stream: BinaryIO) -> Iterator[tuple[list[bytes], int]]:
    """Yield (lines that are not blank, number of lines left out as too long) for each document.

    A document ends where its layout says so, at the end of the file, and before it would have more than MAX_CHARS
    characters.
    """
    document: list[bytes] = []
    length = too_long = 0
    for line in read_lines(stream, _MAX_LINE_BYTES):
        size = _characters(line) if line else 0
        if size > MAX_CHARS:
            line, size = None, 0
        if document and (line == b"" or length + size > MAX_CHARS):
            yield document, too_long
            document, length, too_long = [], 0, 0
        if line:
            document.append(line)
            length += size + 1
        too_long += line is None
    if document or too_long:
        yield document, too_long


def _characters(line: bytes) -> int:
    return len(line) if line.isascii() else len(line.decode("utf-8", "ignore"))


def passages_of(lines: int) -> int:
    """Return the number of passages of a document with `lines` lines."""
    return -(-lines // PASSAGE_LINES)


def text_of(folder: Path, shard: int) -> Path:
    """Return the file of a shard's text."""
    return folder / f"{shard:05}.txt"


def check_input(path: Path) -> None:
    """Raise SystemExit if a file is not text, or has markup, before hours are spent on it."""
    with open_input(path) as stream:
        check_text(stream.read(SAMPLE))
        lines: list[bytes] = []
        for document, _ in documents(stream):
            lines += document
            if len(lines) >= SAMPLE_LINES or sum(map(len, lines)) > MAX_CHARS:
                break
        check_markup(path, lines[:SAMPLE_LINES])


def split(inputs: list[Path], folder: Path, shard_bytes: int, valid_every: int) -> None:
    """Write `folder`: the text of each shard, and shards.json with a record for each.

    Raises:
        SystemExit: an input is not text, or the input has fewer passages than `valid_every`.
    """
    if (folder / "shards.json").is_file():
        return
    for path in inputs:
        check_input(path)
    records: list[dict[str, Any]] = []
    passage = 0
    with whole_folder(folder, force=True) as output, tqdm(unit="B", unit_scale=True, desc="shards") as bar:
        stream = _all_documents(inputs)
        for first in stream:
            record = {"first_passage": passage, "bytes": 0, "lines": 0, "too_long": 0}
            with open(text_of(output, len(records)), "wb") as text:
                for lines, too_long in itertools.chain([first], stream):
                    written = text.write(b"\n".join(lines) + b"\n\n") if lines else 0
                    record["bytes"] += written
                    record["lines"] += len(lines)
                    record["too_long"] += too_long
                    passage += passages_of(len(lines))
                    bar.update(written)
                    if record["bytes"] >= shard_bytes:
                        break
            records.append(record)
        if passage < valid_every:
            raise SystemExit(
                f"error: the input has only {passage} passages (documents, or {PASSAGE_LINES} lines of longer ones): "
                f"none would be for validation. Give more text, or a smaller VALID_EVERY than {valid_every}"
            )
        write_json(output / "shards.json", records)


def _all_documents(inputs: list[Path]) -> Iterator[tuple[list[bytes], int]]:
    for path in inputs:
        with open_input(path) as stream:
            yield from documents(stream)
