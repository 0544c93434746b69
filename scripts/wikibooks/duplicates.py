"""Find lines (or documents) that occurred before, exactly and in bounded memory.

1. Per shard: the 128-bit digest of every line, sorted (work/digests/00000.npy: two halves of the digest, line number).
2. The range of digests is cut into buckets of about BUCKET lines. Per bucket: the digests of all shards that fall into
   it are sorted; of equal ones all but the first in the order of the input are duplicates (work/duplicates/000.npy:
   shard, line number).

Lines are compared without regard to blanks and to the case of ASCII letters. Two different lines are taken for the same
with a probability of about n^2 / 2^129: 1e-22 for a hundred million lines.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from wikibooks.pool import run_tasks
from wikibooks.split import read_records, text_of

from embinit_fairseq.errors import one_line
from embinit_fairseq.files import whole_file
from embinit_fairseq.machine import cores

UNITS = ("lines", "documents", "none")
BUCKET = 2_000_000


def read_documents(path: Path) -> Iterator[list[bytes]]:
    """The documents of a raw shard as lists of lines."""
    document: list[bytes] = []
    with open(path, "rb") as text:
        for raw in text:
            line = raw.rstrip(b"\n")
            if line:
                document.append(line)
            elif document:
                yield document
                document = []


def _key(line: bytes) -> bytes:
    return b" ".join(line.lower().split())


def digests(documents: Iterator[list[bytes]], unit: str) -> np.ndarray:
    """(3, n) uint64, sorted: first and second half of the digest, number of the line or document."""
    found = bytearray()
    for document in documents:
        keys = map(_key, document)
        for key in keys if unit == "lines" else [b"\n".join(keys)]:
            found += hashlib.blake2b(key, digest_size=16).digest()
    halves = np.frombuffer(bytes(found), dtype="<u8").reshape(-1, 2).T
    number = np.arange(halves.shape[1], dtype=np.uint64)
    order = np.lexsort((halves[1], halves[0]))  # stable: equal digests stay in the order of the text
    return np.stack([halves[0][order], halves[1][order], number[order]])


def _write_digests(shard: int, raw: Path, output: Path, unit: str) -> None:
    _save(output / f"{shard:05}.npy", digests(read_documents(text_of(raw, shard)), unit))


def _save(path: Path, array: np.ndarray) -> None:
    with whole_file(path) as file:
        np.save(file, array)


def duplicates(sorted_digests: Iterator[np.ndarray]) -> np.ndarray:
    """(2, m) uint64, sorted: shard and number of all but the first of equal digests. One (3, n) array per shard."""
    parts = [(np.full(part.shape[1], shard, dtype=np.uint64), *part) for shard, part in enumerate(sorted_digests)]
    shard, first, second, number = (np.concatenate(column) for column in zip(*parts))
    order = np.lexsort((second, first))  # stable: equal digests stay in the order of the input
    shard, first, second, number = shard[order], first[order], second[order], number[order]
    repeated = np.zeros(len(order), dtype=bool)
    repeated[1:] = (first[1:] == first[:-1]) & (second[1:] == second[:-1])
    shard, number = shard[repeated], number[repeated]
    order = np.lexsort((number, shard))
    return np.stack([shard[order], number[order]])


def _write_bucket(bucket: int, buckets: int, digest_folder: Path, output: Path) -> None:
    low, high = ((2**64 * edge) // buckets for edge in (bucket, bucket + 1))

    def parts() -> Iterator[np.ndarray]:
        for path in sorted(digest_folder.glob("*.npy")):
            whole = np.load(path, mmap_mode="r")
            # Python integers would be compared as floats, and 2**64 does not fit.
            begin = np.searchsorted(whole[0], np.uint64(low))
            end = whole.shape[1] if high == 2**64 else np.searchsorted(whole[0], np.uint64(high))
            yield np.array(whole[:, begin:end])

    _save(output / f"{bucket:03}.npy", duplicates(parts()))


def repeated_units(folder: Path, shard: int) -> set[int]:
    """Numbers of the lines or documents of one shard that are duplicates."""
    found: set[int] = set()
    for path in sorted(folder.glob("*.npy")):
        shards, numbers = np.load(path, mmap_mode="r")
        begin, end = np.searchsorted(shards, np.array([shard, shard + 1], dtype=np.uint64))
        found.update(numbers[begin:end].tolist())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder with raw/; gets digests/ and duplicates/")
    parser.add_argument("--unit", choices=UNITS, default="lines", help="what is compared (default %(default)s)")
    parser.add_argument("--jobs", type=int, default=cores(), help="processes (default: one per core)")
    args = parser.parse_args()
    raw, digest_folder, output = (args.work / name for name in ("raw", "digests", "duplicates"))
    for folder in (digest_folder, output):
        folder.mkdir(parents=True, exist_ok=True)
    if args.unit == "none":
        print("duplicates: kept", file=sys.stderr)
        return
    records = read_records(raw)
    tasks = [
        (record["bytes"], (shard, raw, digest_folder, args.unit))
        for shard, record in enumerate(records)
        if not (digest_folder / f"{shard:05}.npy").exists()
    ]
    run_tasks("digests", _write_digests, tasks, args.jobs)
    buckets = -(-sum(record["lines"] for record in records) // BUCKET)
    size = sum(path.stat().st_size for path in digest_folder.glob("*.npy")) // buckets
    tasks = [
        (size, (bucket, buckets, digest_folder, output))
        for bucket in range(buckets)
        if not (output / f"{bucket:03}.npy").exists()
    ]
    run_tasks("duplicates", _write_bucket, tasks, args.jobs)


if __name__ == "__main__":
    with one_line():
        main()
