"""Cut the input into shards of whole documents (work/raw), the first step of prepare.sh.

The input is read as a stream: never more than one document, or one JSON value, is in memory. A passage is a document,
or PASSAGE_LINES lines of a longer one; every N-th passage is for validation. Passages are numbered here, over all of
the input, so that the choice depends neither on the shards nor on the number of processes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tqdm import tqdm
from wikibooks.inputs import SAMPLE, SAMPLE_LINES, check_markup, check_text, open_input, read_lines

from embinit_fairseq.errors import one_line
from embinit_fairseq.files import whole_file, write_json

PASSAGE_LINES = 100
#: A longer document is cut at the end of a line; a longer line is left out.
MAX_CHARS = 1_000_000
_MAX_LINE_BYTES = 4 * MAX_CHARS  # UTF-8 takes up to four bytes a character


def characters(line: bytes) -> int:
    return len(line) if line.isascii() else len(line.decode("utf-8", "ignore"))


def documents(stream: BinaryIO, offset: int = 0) -> Iterator[tuple[list[bytes], int, int]]:
    """Documents behind `offset`: (lines that are not blank, lines left out as too long, offset behind the document).

    A document ends where its layout says so, at the end of the file, and before it would have more than MAX_CHARS
    characters. Within a JSON value the offset remains at its beginning.
    """
    document: list[bytes] = []
    length = too_long = 0
    for line, size in read_lines(stream, offset, _MAX_LINE_BYTES):
        chars = characters(line) if line else 0
        if chars > MAX_CHARS:
            line, chars = None, 0
        if document and (line == b"" or length + chars > MAX_CHARS):
            yield document, too_long, offset
            document, length, too_long = [], 0, 0
        if line:
            document.append(line)
            length += chars + 1
        too_long += line is None
        offset += size
    if document or too_long:
        yield document, too_long, offset


def passages_of(lines: int) -> int:
    """How many passages a document of so many lines has."""
    return -(-lines // PASSAGE_LINES)


def text_of(folder: Path, shard: int) -> Path:
    return folder / f"{shard:05}.txt"


def record_of(folder: Path, shard: int) -> Path:
    return folder / f"{shard:05}.json"


def read_records(folder: Path) -> list[dict]:
    """The records of the finished shards, in order."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("[0-9]*.json"))]


def _from(inputs: list[Path], start: dict) -> Iterator[tuple[list[bytes], int, int, int]]:
    """Documents behind `start`: (lines, lines left out, input, offset behind the document in that input)."""
    for number in range(start["input"], len(inputs)):
        with open_input(inputs[number]) as stream:
            offset = start["offset"] if number == start["input"] else 0
            for lines, too_long, behind in documents(stream, offset):
                yield lines, too_long, number, behind


def split(inputs: list[Path], folder: Path, shard_bytes: int) -> None:
    """Write `folder`/00000.txt, 00000.json, ...; goes on behind the last finished shard, whose record says where."""
    folder.mkdir(parents=True, exist_ok=True)
    records = read_records(folder)
    start = records[-1]["next"] if records else {"input": 0, "offset": 0, "passage": 0}
    with tqdm(unit="B", unit_scale=True, desc="shards", initial=sum(each["bytes"] for each in records)) as bar:
        stream = _from(inputs, start)
        for shard, first in enumerate(stream, len(records)):
            record = _write_shard(itertools.chain([first], stream), folder, shard, start, shard_bytes)
            start = record["next"]
            bar.update(record["bytes"])


def check_input(path: Path) -> None:
    """Raise SystemExit if a file is no text, or has markup; before hours are spent on it."""
    with open_input(path) as stream:
        check_text(stream.read(SAMPLE))
        lines: list[bytes] = []
        for document, _, offset in documents(stream):
            lines += document
            if len(lines) >= SAMPLE_LINES or offset > MAX_CHARS:
                break
        check_markup(path, lines[:SAMPLE_LINES])


def _write_shard(stream: Iterator, folder: Path, shard: int, start: dict, shard_bytes: int) -> dict:
    """One shard and its record."""
    size = count = left_out = 0
    passage, following = start["passage"], start
    with whole_file(text_of(folder, shard)) as text:
        for lines, too_long, number, offset in stream:
            before = max((following["input"], following["offset"]), (number, 0))
            if lines:
                size += text.write(b"\n".join(lines) + b"\n\n")
            count, left_out, passage = count + len(lines), left_out + too_long, passage + passages_of(len(lines))
            following = {"input": number, "offset": offset, "passage": passage}
            if size >= shard_bytes and (number, offset) > before:  # not within a JSON value
                break
    record = {"first_passage": start["passage"], "bytes": size, "lines": count, "too_long": left_out, "next": following}
    write_json(record_of(folder, shard), record)
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", type=Path, nargs="+", required=True, help="files, see prepare.sh")
    parser.add_argument("--output", type=Path, required=True, help="folder for the shards")
    parser.add_argument("--shard-mb", type=float, default=32, help="size of a shard (default %(default)s)")
    parser.add_argument("--valid-every", type=int, default=200, help="only to check that the input has that many")
    args = parser.parse_args()
    if (args.output / "complete").is_file():
        print("shards: there already", file=sys.stderr)
        return
    for path in args.input:
        check_input(path)
    split(args.input, args.output, int(args.shard_mb * 1e6))
    records = read_records(args.output)
    passages = records[-1]["next"]["passage"] if records else 0
    if passages < args.valid_every:
        raise SystemExit(
            f"error: the input has only {passages} passages (documents, or {PASSAGE_LINES} lines of longer ones): "
            f"none would be for validation. Give more text, or a smaller VALID_EVERY than {args.valid_every}"
        )
    (args.output / "complete").touch()


if __name__ == "__main__":
    with one_line():
        main()
