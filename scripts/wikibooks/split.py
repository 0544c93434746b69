"""Cut the input into shards of whole documents (work/raw), the first step of prepare.sh.

The input is plain or compressed text, read as a stream: never more than one document is in memory. A passage is a
document, or PASSAGE_LINES lines of a longer one; every N-th passage is for validation. Passages are numbered here, over
all of the input, so that the choice depends neither on the shards nor on the number of processes.
"""

from __future__ import annotations

import argparse
import bz2
import contextlib
import gzip
import itertools
import json
import lzma
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tqdm import tqdm

from embinit_fairseq.errors import one_line
from embinit_fairseq.files import whole_file, write_json

PASSAGE_LINES = 100
#: A longer document is cut at the end of a line; a longer line is left out.
MAX_CHARS = 1_000_000
_MAX_LINE_BYTES = 4 * MAX_CHARS  # UTF-8 takes up to four bytes a character
_OPENERS = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}


@contextlib.contextmanager
def open_input(path: Path) -> Iterator[BinaryIO]:
    """Open a plain, gz, bz2 or xz file, recognised by its content. Raises SystemExit if it is missing or damaged."""
    try:
        with open(path, "rb") as file:
            head = file.read(6)
    except OSError as error:
        raise SystemExit(f"error: {path}: cannot be read ({error.strerror}): correct the path") from None
    opener = next((opener for magic, opener in _OPENERS.items() if head.startswith(magic)), open)
    try:
        with opener(path, "rb") as stream:
            yield stream
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if getattr(error, "errno", None) is not None:  # not of the decompressor: for instance a full disk
            raise
        raise SystemExit(f"error: {path}: damaged or incomplete ({error}): get it again") from None


def _lines(stream: BinaryIO) -> Iterator[tuple[bytes | None, int]]:
    """(line without blanks at its ends, or None if it is too long; its bytes). A long line is not held in memory."""
    while raw := stream.readline(_MAX_LINE_BYTES):
        size, complete = len(raw), raw.endswith(b"\n")
        while not complete and (rest := stream.readline(_MAX_LINE_BYTES)):
            raw, size, complete = b"", size + len(rest), rest.endswith(b"\n")
        line = raw.strip()
        too_long = size > _MAX_LINE_BYTES or characters(line) > MAX_CHARS
        yield (None if too_long else line), size


def characters(line: bytes) -> int:
    return len(line) if line.isascii() else len(line.decode("utf-8", "ignore"))


def documents(stream: BinaryIO, offset: int = 0) -> Iterator[tuple[list[bytes], int, int]]:
    """Documents behind `offset`: (lines that are not blank, lines left out as too long, offset behind the document).

    A document ends at a blank line, at the end of the file, and before it would have more than MAX_CHARS characters.
    """
    stream.seek(offset)
    document: list[bytes] = []
    length = too_long = 0
    for line, size in _lines(stream):
        chars = characters(line) if line else 0
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


def _write_shard(stream: Iterator, folder: Path, shard: int, start: dict, shard_bytes: int) -> dict:
    """One shard and its record."""
    size = count = left_out = 0
    passage, following = start["passage"], start
    with whole_file(text_of(folder, shard)) as text:
        for lines, too_long, number, offset in stream:
            if lines:
                size += text.write(b"\n".join(lines) + b"\n\n")
            count, left_out, passage = count + len(lines), left_out + too_long, passage + passages_of(len(lines))
            following = {"input": number, "offset": offset, "passage": passage}
            if size >= shard_bytes:
                break
    record = {"first_passage": start["passage"], "bytes": size, "lines": count, "too_long": left_out, "next": following}
    write_json(record_of(folder, shard), record)
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", type=Path, nargs="+", required=True, help="text files, plain or compressed")
    parser.add_argument("--output", type=Path, required=True, help="folder for the shards")
    parser.add_argument("--shard-mb", type=float, default=32, help="size of a shard (default %(default)s)")
    parser.add_argument("--valid-every", type=int, default=200, help="only to check that the input has that many")
    args = parser.parse_args()
    if (args.output / "complete").is_file():
        print("shards: there already", file=sys.stderr)
        return
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
