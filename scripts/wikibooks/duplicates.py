"""Find lines (or documents) that occurred before, exactly and in bounded memory.

1. Per shard: the 128-bit digest of every line, sorted (work/digests/00000.npy: two halves of the digest, line number).
2. The range of digests is divided into buckets of about BUCKET lines. Per bucket, the digests of all shards in it are
   sorted; of equal ones all but the first in the order of the input are duplicates (work/duplicates/000.npy: shard,
   line number).

Spaces and the case of ASCII letters do not count. Two different lines are taken for the same with a probability of
about n^2 / 2^129: 1e-22 for a hundred million lines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from wikibooks.pool import run_tasks
from wikibooks.split import text_of

from embinit_fairseq.io import read_json, whole_file

#: lines whose digests are sorted at once
BUCKET = 2_000_000


def find(work: Path, unit: str, jobs: int) -> None:
    """Write work/duplicates. unit: what is compared, lines or documents; none: nothing."""
    digest_folder, output = work / "digests", work / "duplicates"
    for folder in (digest_folder, output):
        folder.mkdir(exist_ok=True)
    if unit == "none":
        return
    records = read_json(work / "raw" / "shards.json")
    tasks = [
        (record["bytes"], (shard, work / "raw", digest_folder, unit))
        for shard, record in enumerate(records)
        if not (digest_folder / f"{shard:05}.npy").exists()
    ]
    run_tasks("digests", write_digests, tasks, jobs)
    buckets = -(-sum(record["lines"] for record in records) // BUCKET)
    size = sum(path.stat().st_size for path in digest_folder.glob("*.npy")) // buckets
    tasks = [
        (size, (bucket, buckets, digest_folder, output))
        for bucket in range(buckets)
        if not (output / f"{bucket:03}.npy").exists()
    ]
    run_tasks("duplicates", write_bucket, tasks, jobs)


def read_documents(path: Path) -> Iterator[list[bytes]]:
    """Yield the documents of a raw shard as lists of lines."""
    document: list[bytes] = []
    with open(path, "rb") as text:
        for raw in text:
            if line := raw.rstrip(b"\n"):
                document.append(line)
            elif document:
                yield document
                document = []


def digests(documents: Iterator[list[bytes]], unit: str) -> np.ndarray:
    """Return (3, n) uint64, sorted: first and second half of the digest, number of the line or document."""
    found = bytearray()
    for document in documents:
        keys = [b" ".join(line.lower().split()) for line in document]
        for key in keys if unit == "lines" else [b"\n".join(keys)]:
            found += hashlib.blake2b(key, digest_size=16).digest()
    first, second = np.frombuffer(bytes(found), dtype="<u8").reshape(-1, 2).T
    order = np.lexsort((second, first))  # stable: equal digests stay in the order of the text
    return np.stack([first[order], second[order], order.astype(np.uint64)])


def write_digests(shard: int, raw: Path, output: Path, unit: str) -> None:
    """Write the digests of one shard."""
    with whole_file(output / f"{shard:05}.npy") as file:
        np.save(file, digests(read_documents(text_of(raw, shard)), unit))


def duplicates(sorted_digests: Iterator[np.ndarray]) -> np.ndarray:
    """Return (2, m) uint64, sorted: shard and number of all but the first of equal digests.

    Args:
        sorted_digests: one (3, n) array per shard.
    """
    parts = [(np.full(part.shape[1], shard, dtype=np.uint64), *part) for shard, part in enumerate(sorted_digests)]
    shard, first, second, number = (np.concatenate(column) for column in zip(*parts))
    order = np.lexsort((second, first))  # stable: equal digests stay in the order of the input
    first, second = first[order], second[order]
    repeated = order[1:][(first[1:] == first[:-1]) & (second[1:] == second[:-1])]
    shard, number = shard[repeated], number[repeated]
    order = np.lexsort((number, shard))
    return np.stack([shard[order], number[order]])


def write_bucket(bucket: int, buckets: int, digest_folder: Path, output: Path) -> None:
    """Write the duplicates among the digests of one bucket."""
    low, high = ((2**64 * edge) // buckets for edge in (bucket, bucket + 1))

    def parts() -> Iterator[np.ndarray]:
        for path in sorted(digest_folder.glob("*.npy")):
            whole = np.load(path, mmap_mode="r")
            # Python integers would be compared as floats, and 2**64 does not fit.
            begin = np.searchsorted(whole[0], np.uint64(low))
            end = whole.shape[1] if high == 2**64 else np.searchsorted(whole[0], np.uint64(high))
            yield np.array(whole[:, begin:end])

    with whole_file(output / f"{bucket:03}.npy") as file:
        np.save(file, duplicates(parts()))


def repeated_units(folder: Path, shard: int) -> set[int]:
    """Return the numbers of the lines or documents of one shard that are duplicates."""
    numbers: set[int] = set()
    for path in sorted(folder.glob("*.npy")):
        shards, units = np.load(path, mmap_mode="r")
        begin, end = np.searchsorted(shards, np.array([shard, shard + 1], dtype=np.uint64))
        numbers.update(units[begin:end].tolist())
    return numbers
