"""Exact counts of words in bounded memory, and the most frequent ones.

Every shard has a file "word count" sorted by word; the files are merged as they are read. The most frequent words are
chosen by a histogram of the counts, which is small. Of words with the same count the first by spelling are taken.

work/clean/*/words.txt -> work/words/{all.txt,bpe.txt,frequent.npy,stats.json}
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np
from tqdm import tqdm

from embinit_fairseq.errors import one_line
from embinit_fairseq.files import whole_folder

MERGED_AT_ONCE = 200  # open files are limited, often to 1024

WordCounts = Iterable[tuple[str, int]]


def write_counts(counts: dict[str, int], path: Path) -> None:
    """Lines "word count", sorted by word."""
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{word} {counts[word]}\n" for word in sorted(counts))


def read_counts(path: Path) -> Iterator[tuple[str, int]]:
    with open(path, encoding="utf-8", newline="\n") as file:
        for line in file:
            word, count = line.split(" ")
            yield word, int(count)


def summed(counts: list[WordCounts]) -> Iterator[tuple[str, int]]:
    """Sorted counts merged into one, the counts of equal words added."""
    for word, group in groupby(heapq.merge(*counts, key=itemgetter(0)), itemgetter(0)):
        yield word, sum(count for _, count in group)


def merge_files(paths: list[Path], output: Path) -> Counter[int]:
    """Merge any number of files into one; returns how many words have which count."""
    while len(paths) > MERGED_AT_ONCE:
        groups = [paths[begin : begin + MERGED_AT_ONCE] for begin in range(0, len(paths), MERGED_AT_ONCE)]
        level = [output.with_name(f"{output.name}.{len(paths)}.{number}") for number in range(len(groups))]
        for group, path in zip(groups, level):
            merge_files(group, path)
        paths = level
    histogram: Counter[int] = Counter()
    with open(output, "w", encoding="utf-8") as file:
        for word, count in tqdm(summed(list(map(read_counts, paths))), unit=" words", unit_scale=True, desc="words"):
            histogram[count] += 1
            file.write(f"{word} {count}\n")
    return histogram


class MostFrequent:
    """Picks the `wanted` most frequent words out of all words in order of spelling."""

    def __init__(self, histogram: Counter[int], wanted: int):
        self.limit, self.equal = 0, 0
        for count in sorted(histogram, reverse=True):
            if histogram[count] >= wanted:
                self.limit, self.equal = count, wanted
                break
            wanted -= histogram[count]

    def takes(self, count: int) -> bool:
        if count == self.limit and self.equal > 0:
            self.equal -= 1
            return True
        return count > self.limit


def _digest(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


class WordSet:
    """A set of words as sorted 64-bit digests on disk: millions of words for megabytes, shared by all processes.

    A word that is not in a set of n words is taken for one with a probability of n / 2^64.
    """

    def __init__(self, path: Path):
        self.digests = np.load(path, mmap_mode="r")

    def __contains__(self, word: str) -> bool:
        digest = np.uint64(_digest(word))
        place = int(np.searchsorted(self.digests, digest))
        return place < len(self.digests) and self.digests[place] == digest


def choose(counts: WordCounts, histogram: Counter[int], frequent: int, bpe: int, folder: Path) -> None:
    """Write frequent.npy, the digests of the most frequent words, and bpe.txt, which of them BPE is learned from."""
    kept, learned = MostFrequent(histogram, frequent), MostFrequent(histogram, min(bpe, frequent))
    digests = np.empty(frequent, dtype=np.uint64)
    size = 0
    with open(folder / "bpe.txt", "w", encoding="utf-8") as file:
        for word, count in counts:
            if kept.takes(count):
                digests[size] = _digest(word)
                size += 1
            if learned.takes(count):
                file.write(f"{word} {count}\n")
    with open(folder / "frequent.npy", "wb") as file:
        np.save(file, np.sort(digests[:size]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder with clean/; gets words/")
    parser.add_argument("--frequent", type=float, default=0.21, help="share of the word types that are kept")
    parser.add_argument(
        "--bpe-words", type=int, default=300_000, help="words to learn BPE from, the most frequent ones"
    )
    args = parser.parse_args()
    output = args.work / "words"
    if output.is_dir():
        print("words: there already", file=sys.stderr)
        return
    with whole_folder(output, option="") as folder:
        histogram = merge_files(sorted(args.work.glob("clean/*/words.txt")), folder / "all.txt")
        types, words = sum(histogram.values()), sum(count * number for count, number in histogram.items())
        frequent = int(types * args.frequent)
        choose(read_counts(folder / "all.txt"), histogram, frequent, args.bpe_words, folder)
        for path in folder.glob("all.txt.*"):
            path.unlink()
        stats = {"word_types": types, "words": words, "frequent_types": frequent}
        (folder / "stats.json").write_text(json.dumps(stats) + "\n")
    print(f"words: {words:,} of {types:,} types, {frequent:,} of them frequent", file=sys.stderr)


if __name__ == "__main__":
    with one_line():
        main()
