"""Find lines (or documents) that occurred before, exactly and in bounded memory.

1. Per shard: the 128-bit digest of every line, its shard and its number.
2. An exchange sends rows to ranges of digests. Of equal digests all but the first in the order of the input are
   duplicates.
3. A second exchange sends (shard, number) of the duplicates back to their shards.

Spaces and the case of ASCII letters do not count. Two different lines are taken for the same with a probability of
about n^2 / 2^129: 1e-22 for a hundred million lines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from shards.exchange import Exchange, rows_for
from shards.tasks import Step, Task, paragraphs
from wikibooks.split import shard_records

from embinit_fairseq.io import whole_file


def number_of_shards(work: Path) -> int:
    """Return the number of shards of the input."""
    return len(shard_records(work))


def by_digest(rows: np.ndarray, destinations: int) -> np.ndarray:
    """Return the range of each digest: rows of `digests`, ranges in the order of the digests."""
    return ((rows[0] >> np.uint64(32)) * np.uint64(destinations) >> np.uint64(32)).astype(np.int64)


def by_shard(rows: np.ndarray, destinations: int) -> np.ndarray:
    """Return the shard of each row of (shard, number)."""
    return rows[0].astype(np.int64)


def digest_files(work: Path) -> list[Path]:
    """Return the file of digests of each shard."""
    return [work / "digests" / f"{shard:05}.npy" for shard in range(number_of_shards(work))]


def found_files(work: Path) -> list[Path]:
    """Return the file of duplicates of each range of digests."""
    return [work / "found" / path.name for path in digest_files(work)]


def exchanges(work: Path) -> tuple[Exchange, Exchange]:
    """Return the exchange of digests and the exchange of duplicates."""
    shards = partial(number_of_shards, work)
    return (
        Exchange(work / "exchange", partial(digest_files, work), shards, by_digest),
        Exchange(work / "duplicates", partial(found_files, work), shards, by_shard),
    )


def steps(work: Path, unit: str) -> list[Step]:
    """Return the steps that find duplicates. unit: lines or documents; none: no steps."""
    if unit == "none":
        return []
    forth, back = exchanges(work)
    return [
        Step("digests", partial(_digest_tasks, work, unit)),
        forth.step("sort digests"),
        Step("duplicates", partial(_found_tasks, work)),
        back.step("return duplicates"),
    ]


def _digest_tasks(work: Path, unit: str) -> list[Task]:
    return [
        Task(output, write_digests, (shard, Path(record["text"]), output, unit), record["bytes"])
        for shard, (record, output) in enumerate(zip(shard_records(work), digest_files(work)))
    ]


def _found_tasks(work: Path) -> list[Task]:
    folders = exchanges(work)[0].inputs()
    return [Task(output, write_found, (part, folders, output)) for part, output in enumerate(found_files(work))]


def read_documents(path: Path) -> Iterator[list[bytes]]:
    """Yield the documents of a raw shard as lists of lines."""
    with open(path, "rb") as text:
        yield from paragraphs(raw.rstrip(b"\n") for raw in text)


def digests(documents: Iterator[list[bytes]], unit: str) -> np.ndarray:
    """Return (3, n) uint64: first and second half of the digest, number of the line or document."""
    digest_bytes = bytearray()
    for document in documents:
        keys = [b" ".join(line.lower().split()) for line in document]
        for key in keys if unit == "lines" else [b"\n".join(keys)]:
            digest_bytes += hashlib.blake2b(key, digest_size=16).digest()
    first, second = np.frombuffer(bytes(digest_bytes), dtype="<u8").reshape(-1, 2).T
    return np.stack([first, second, np.arange(len(first), dtype=np.uint64)])


def write_digests(shard: int, text: Path, output: Path, unit: str) -> None:
    """Write the digests of one shard: rows (first half, second half, number, shard)."""
    rows = digests(read_documents(text), unit)
    with whole_file(output) as file:
        np.save(file, np.concatenate([rows, np.full((1, rows.shape[1]), shard, dtype=np.uint64)]))


def duplicates(rows: np.ndarray) -> np.ndarray:
    """Return (2, m) uint64, sorted: shard and number of all but the first of equal digests.

    Args:
        rows: (4, n) rows of several shards, in the order of the input.
    """
    first, second, number, shard = rows
    order = np.lexsort((second, first))  # stable: equal digests stay in the order of the input
    first, second = first[order], second[order]
    repeated = order[1:][(first[1:] == first[:-1]) & (second[1:] == second[:-1])]
    shard, number = shard[repeated], number[repeated]
    order = np.lexsort((number, shard))
    return np.stack([shard[order], number[order]])


def write_found(part: int, folders: list[Path], output: Path) -> None:
    """Write the duplicates of one range of digests."""
    with whole_file(output) as file:
        np.save(file, duplicates(rows_for(part, folders)))


def repeated(work: Path, shard: int) -> set[int]:
    """Return the numbers of the duplicates of a shard."""
    return set(rows_for(shard, exchanges(work)[1].inputs())[1].tolist())
