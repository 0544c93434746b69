"""Divide the input into shards of whole documents.

The input is read as a stream: at most one document, or one JSON value, is in memory. A passage is a document, or
PASSAGE_LINES lines of a longer one; every N-th passage is for validation. Passages are numbered over the whole input,
so that the choice depends neither on the shards nor on the number of processes.

work/raw/00000/{00000.txt,...,shards.json}: neighbouring files of the input, about as large as a shard, or one larger
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from shards.tasks import Task, finished_shards
from wikibooks.inputs import SAMPLE, SAMPLE_LINES, check_markup, check_text, read_lines
from wikibooks.open_inputs import open_input

from embinit_fairseq.errors import OptionError
from embinit_fairseq.io import read_json, whole_folder, write_json

PASSAGE_LINES = 100
#: A longer document is divided at the end of a line; a longer line is left out.
MAX_CHARS = 1_000_000
_MAX_LINE_BYTES = 4 * MAX_CHARS  # UTF-8 takes up to four bytes per character


def documents(stream: BinaryIO) -> Iterator[tuple[list[bytes], int]]:
    """Yield (lines that are not blank, number of lines left out as too long) for each document.

    A document ends by the rules of its layout, at the end of the file, and before it would have more than MAX_CHARS
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


def split_tasks(inputs: list[Path], folder: Path, shard_bytes: int) -> list[Task]:
    """Return a task per group of neighbouring files."""
    groups: list[list[Path]] = []
    size = shard_bytes
    for path in inputs:
        if size >= shard_bytes:
            groups.append([])
            size = 0
        groups[-1].append(path)
        size += path.stat().st_size
    outputs = [folder / f"{number:05}" for number in range(len(groups))]
    return [
        Task(output, split, (group, output, shard_bytes), sum(path.stat().st_size for path in group))
        for group, output in zip(groups, outputs)
    ]


def split(inputs: list[Path], folder: Path, shard_bytes: int) -> None:
    """Write the shards of some files, and shards.json with a record for each."""
    records: list[dict[str, Any]] = []
    with whole_folder(folder, option="") as output:
        stream = _all_documents(inputs)
        for first in stream:
            record = {"text": f"{len(records):05}.txt", "bytes": 0, "lines": 0, "too_long": 0, "passages": 0}
            with open(output / record["text"], "wb") as text:
                for lines, too_long in itertools.chain([first], stream):
                    record["bytes"] += text.write(b"\n".join(lines) + b"\n\n") if lines else 0
                    record["lines"] += len(lines)
                    record["too_long"] += too_long
                    record["passages"] += passages_of(len(lines))
                    if record["bytes"] >= shard_bytes:
                        break
            records.append(record)
        write_json(output / "shards.json", records)


def shard_records(work: Path) -> list[dict[str, Any]]:
    """Return text (a path), bytes, lines, too_long, passages and first_passage of all shards, in their order."""
    records: list[dict[str, Any]] = []
    passage = 0
    for group in finished_shards(work / "raw"):
        for record in read_json(group / "shards.json"):
            records.append({**record, "text": str(group / record["text"]), "first_passage": passage})
            passage += record["passages"]
    return records


def check_passages(records: list[dict[str, Any]], valid_every: int) -> None:
    """Raise OptionError if the input has fewer passages than `valid_every`."""
    passages = sum(record["passages"] for record in records)
    if passages < valid_every:
        raise OptionError(
            f"the input has only {passages} passages (documents, or {PASSAGE_LINES} lines of longer ones): none would "
            f"be for validation. Give more text, or a smaller VALID_EVERY than {valid_every}"
        )


def _all_documents(inputs: list[Path]) -> Iterator[tuple[list[bytes], int]]:
    for path in inputs:
        with open_input(path) as stream:
            yield from documents(stream)
