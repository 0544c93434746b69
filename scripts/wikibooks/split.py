"""Cut the input into shards of whole documents (work/raw), the first step of prepare.sh.

A passage is a document, or PASSAGE_LINES lines of a longer one; every N-th passage is for validation. Passages are
numbered here, over all of the input, so that the choice depends neither on the shards nor on the number of processes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm
from wikibooks.inputs import documents, open_input

from embinit_fairseq.errors import one_line
from embinit_fairseq.files import whole_file, write_json

PASSAGE_LINES = 100


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
            f"none would be for validation. Give more text, or a smaller --valid-every than {args.valid_every}"
        )
    (args.output / "complete").touch()


if __name__ == "__main__":
    with one_line():
        main()
