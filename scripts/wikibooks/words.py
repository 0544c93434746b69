"""Count words exactly in bounded memory, and choose the most frequent ones.

Every shard has a file "word count" sorted by word; the files are merged as they are read. The most frequent words are
chosen by a histogram of the counts, which is small. Of words with the same count the first in order of spelling are
taken.

work/clean/*/words.txt -> work/words/{all.txt,bpe.txt,frequent.npy,stats.json}
"""

from __future__ import annotations

import hashlib
import heapq
import json
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np

from embinit_fairseq.io import whole_folder

#: files merged at once: the number of open files is limited, often to 1024
MERGED_AT_ONCE = 200


def count(work: Path, share: float, bpe_words: int) -> None:
    """Write work/words.

    Args:
        work: folder with clean/.
        share: of the word types, the most frequent ones, whose digests are written to frequent.npy.
        bpe_words: most frequent words that are written to bpe.txt.
    """
    if (work / "words").is_dir():
        return
    with whole_folder(work / "words", option="") as folder:
        histogram = merge_files(sorted(work.glob("clean/*/words.txt")), folder / "all.txt")
        types, words = sum(histogram.values()), sum(count * number for count, number in histogram.items())
        frequent = int(types * share)
        kept, learned = MostFrequent(histogram, frequent), MostFrequent(histogram, min(bpe_words, frequent))
        digests = array("Q")
        with open(folder / "bpe.txt", "w", encoding="utf-8") as file:
            for word, number in read_counts(folder / "all.txt"):
                if kept.takes(number):
                    digests.append(_digest(word))
                if learned.takes(number):
                    file.write(f"{word} {number}\n")
        np.save(folder / "frequent.npy", np.sort(np.frombuffer(digests, dtype=np.uint64)))
        stats = {"word_types": types, "words": words, "frequent_types": frequent}
        (folder / "stats.json").write_text(json.dumps(stats) + "\n")


def write_counts(counts: dict[str, int], path: Path) -> None:
    """Write lines "word count", sorted by word."""
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{word} {counts[word]}\n" for word in sorted(counts))


def read_counts(path: Path) -> Iterator[tuple[str, int]]:
    """Yield (word, count)."""
    with open(path, encoding="utf-8", newline="\n") as file:
        for line in file:
            word, count = line.split(" ")
            yield word, int(count)


def merge_files(paths: list[Path], output: Path) -> Counter[int]:
    """Merge files of counts into `output`; return {count: number of words with it}."""
    while len(paths) > MERGED_AT_ONCE:
        merged = output.with_name(f"{output.name}.{len(paths)}")
        merge_files(paths[:MERGED_AT_ONCE], merged)
        paths = [*paths[MERGED_AT_ONCE:], merged]
    histogram: Counter[int] = Counter()
    with open(output, "w", encoding="utf-8") as file:
        for word, number in _summed(list(map(read_counts, paths))):
            histogram[number] += 1
            file.write(f"{word} {number}\n")
    for path in output.parent.glob(f"{output.name}.*"):
        path.unlink()
    return histogram


def _summed(counts: list[Iterable[tuple[str, int]]]) -> Iterator[tuple[str, int]]:
    for word, group in groupby(heapq.merge(*counts, key=itemgetter(0)), itemgetter(0)):
        yield word, sum(count for _, count in group)


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
        """Return True if the next word, which has this count, is one of them."""
        if count == self.limit and self.equal > 0:
            self.equal -= 1
            return True
        return count > self.limit


class WordSet:
    """A set of words as sorted 64-bit digests on disk: millions of words in megabytes, shared by all processes.

    A word that is not in a set of n words is taken for one with a probability of n / 2^64.
    """

    def __init__(self, path: Path):
        self.digests = np.load(path, mmap_mode="r")

    def __contains__(self, word: str) -> bool:
        digest = np.uint64(_digest(word))
        place = int(np.searchsorted(self.digests, digest))
        return place < len(self.digests) and self.digests[place] == digest


def _digest(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")
