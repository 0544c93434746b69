"""Sum up counts of words exactly in bounded memory, and choose the most frequent ones.

A file of counts has lines "word count", sorted by word. The files of all shards are merged as they are read, in two
levels: a task merges as many files as the square root of their number. The most frequent words are chosen by a
histogram of the counts, which is small. Of words with the same count the first in order of spelling are chosen.
"""

from __future__ import annotations

import hashlib
import heapq
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np
from shards.exchange import group_of
from shards.tasks import Step, Task

from embinit_fairseq.io import whole_file, whole_folder, write_json


def merge_step(title: str, sources: Callable[[], list[Path]], folder: Path) -> Step:
    """Return the step that merges neighbouring files of `sources()`; `merged` reads the results."""
    return Step(title, partial(_merge_tasks, sources, folder))


def _merge_tasks(sources: Callable[[], list[Path]], folder: Path) -> list[Task]:
    paths = sources()
    size = group_of(len(paths))
    groups = [paths[first : first + size] for first in range(0, len(paths), size)]
    return [
        Task(output, merge_files, (group, output), sum(path.stat().st_size for path in group))
        for number, group in enumerate(groups)
        for output in [folder / f"{number:05}.txt"]
    ]


def learn_words(folder: Path, words: Path, share: float, bpe_words: int, merges: int, codes: Path) -> None:
    """Sum up the files of a `merge_step`, choose words (folder `words`), and learn merges from them (file `codes`)."""
    counts = folder / "all"
    merge_files(sorted(folder.glob("[0-9]*.txt")), counts)
    if not words.exists():
        choose(counts, words, share, bpe_words)
    learn_merges(words / "bpe.txt", merges, codes)


def add_up(paths: Iterable[Path]) -> dict[str, int]:
    """Return the sums of files of counts of subwords: they fit in memory, unlike words."""
    total: Counter[str] = Counter()
    for path in paths:
        for symbol, count in read_counts(path):
            total[symbol] += count
    return total


def choose(counts: Path, folder: Path, share: float, bpe_words: int) -> None:
    """Write a folder with the most frequent words.

    frequent.npy: digests of the share of the word types that is kept; bpe.txt: words and counts to learn merges from;
    stats.json: numbers of word types, words and frequent types.

    Args:
        counts: all words with their counts.
        folder: folder to write.
        share: share of the word types that is kept, the most frequent ones.
        bpe_words: most frequent words for bpe.txt.
    """
    histogram = Counter(number for _, number in read_counts(counts))
    types, words = sum(histogram.values()), sum(count * number for count, number in histogram.items())
    frequent = int(types * share)
    frequent_words, learned = MostFrequent(histogram, frequent), MostFrequent(histogram, min(bpe_words, frequent))
    digests = array("Q")
    with whole_folder(folder, option="") as output:
        with open(output / "bpe.txt", "w", encoding="utf-8") as file:
            for word, number in read_counts(counts):
                if frequent_words.takes(number):
                    digests.append(_digest(word))
                if learned.takes(number):
                    file.write(f"{word} {number}\n")
        np.save(output / "frequent.npy", np.sort(np.frombuffer(digests, dtype=np.uint64)))
        write_json(output / "stats.json", {"word_types": types, "words": words, "frequent_types": frequent})


def learn_merges(counts: Path, size: int, codes: Path) -> None:
    """Learn `size` merges of BPE from lines "word count"."""
    from subword_nmt.learn_bpe import learn_bpe

    with open(counts, encoding="utf-8") as words, whole_file(codes, "w") as file:
        learn_bpe(words, file, size, is_dict=True)


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


def merge_files(paths: list[Path], output: Path) -> None:
    """Write the sums of several files of counts."""
    with whole_file(output, "w") as file:
        file.writelines(f"{word} {number}\n" for word, number in _summed(list(map(read_counts, paths))))


def _summed(counts: list[Iterable[tuple[str, int]]]) -> Iterator[tuple[str, int]]:
    for word, group in groupby(heapq.merge(*counts, key=itemgetter(0)), itemgetter(0)):
        yield word, sum(count for _, count in group)


class MostFrequent:
    """Pick the `wanted` most frequent words out of all words in order of spelling."""

    def __init__(self, histogram: Counter[int], wanted: int):
        self.limit, self.equal = 0, 0
        for count in sorted(histogram, reverse=True):
            if histogram[count] >= wanted:
                self.limit, self.equal = count, wanted
                break
            wanted -= histogram[count]

    def takes(self, count: int) -> bool:
        """Return True if the next word, which has this count, is one of the most frequent."""
        if count == self.limit and self.equal > 0:
            self.equal -= 1
            return True
        return count > self.limit


class WordSet:
    """Hold a set of words as sorted 64-bit digests on disk: millions of words in megabytes, shared by all processes.

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
