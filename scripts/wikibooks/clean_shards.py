"""Clean shards: a tokenised sentence per line, a blank line after each document, and counts of the words.

work/raw/*/00000.txt -> work/clean/00000/{train.txt,valid.txt,words.txt,stats.json}

The steps of `embinit_fairseq/vocab/preparation_steps.py` clean a line; they also prepare the text that a trained model
is given.
"""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from shards.counts import write_counts
from shards.tasks import SPLITS, Task
from wikibooks.duplicates import read_documents, repeated
from wikibooks.near import near_duplicates
from wikibooks.split import MAX_CHARS, PASSAGE_LINES, check_passages, passages_of, shard_records

from embinit_fairseq.errors import OptionError
from embinit_fairseq.io import whole_folder
from embinit_fairseq.vocab.cleaning import SYMBOLS, UNKNOWN
from embinit_fairseq.vocab.preparation_options import parse_steps
from embinit_fairseq.vocab.preparation_steps import STEPS, Preparation

MIN_CHARS = 20
Sentences = list[list[str]]


def clean_tasks(work: Path, unit: str, valid_every: int) -> list[Task]:
    """Return a task per shard. unit: what duplicates are, lines, documents, near or none."""
    records, tasks = shard_records(work), []
    check_passages(records, valid_every)
    for shard, record in enumerate(records):
        output = work / "clean" / f"{shard:05}"
        arguments = (work, shard, Path(record["text"]), output, record["first_passage"], valid_every, unit)
        tasks.append(Task(output, clean_shard, arguments, record["bytes"]))
    return tasks


#: kind of duplicates -> function (work, number of a shard) -> numbers of the lines or documents to leave out
DUPLICATES = {"lines": repeated, "documents": repeated, "near": near_duplicates, "none": lambda work, shard: set()}


def cleaner() -> Preparation:
    """Return the preparation of a line, without its subwords; spaCy remembers every word that it has seen."""
    return Preparation(parse_steps("wikibooks"))


def check_libraries(unit: str) -> None:
    """Raise OptionError if a library of the cleaner, or of near duplicates, is missing.

    They are not imported: that takes seconds, and with Slurm or Ray other processes use them.
    """
    needed = {name: name for step in parse_steps("wikibooks") for name in STEPS[step["step"]].needs}
    needed |= {"datatrove": "'embinit-fairseq[corpus]'"} if unit == "near" else {}
    for name, package in needed.items():
        if importlib.util.find_spec(name) is None:
            raise OptionError(f"{name} is missing, which cleans the text: pip install {package}")


def clean_shard(
    work: Path, shard: int, text: Path, output: Path, passage: int, valid_every: int, duplicates: str
) -> None:
    """Write the folder of one shard.

    Args:
        work: folder of the steps.
        shard: number of the shard.
        text: raw documents.
        output: folder to write.
        passage: number of the first passage.
        valid_every: every N-th passage is for validation.
        duplicates: a key of DUPLICATES.
    """
    prepare = cleaner()
    repeated, unit = DUPLICATES[duplicates](work, shard), "documents" if duplicates == "near" else duplicates
    with whole_folder(output, option="") as folder:
        writer = ShardWriter(folder)
        writer.stats[f"duplicate_{unit}"] += len(repeated)
        raw = read_documents(text)
        for size, lines in without_duplicates(raw, repeated, unit):
            for split, group in parts(lines, passage, valid_every):
                texts = [line.decode("utf-8", "ignore") for line in group]
                writer.stats["lines_not_utf8"] += sum(len(t.encode()) != len(g) for t, g in zip(texts, group))
                writer.add(split, [sentence for text in texts for sentence in prepare.sentences(text)])
            passage += passages_of(size)
        writer.close()


def without_duplicates(
    documents: Iterator[list[bytes]], repeated: set[int], unit: str
) -> Iterator[tuple[int, list[tuple[int, bytes]]]]:
    """Yield (number of lines of the document, [(number in the document, line)] without duplicates)."""
    number = 0
    for document in documents:
        lines = list(enumerate(document))
        if unit == "documents":
            yield len(lines), [] if number in repeated else lines
            number += 1
        else:
            yield len(lines), [line for line in lines if number + line[0] not in repeated]
            number += len(lines)


def parts(lines: list[tuple[int, bytes]], passage: int, valid_every: int) -> Iterator[tuple[str, list[bytes]]]:
    """Yield (split, neighbouring lines of that split) of a document. passage: number of its first passage."""

    def split_of(line: tuple[int, bytes]) -> str:
        return "valid" if (passage + line[0] // PASSAGE_LINES) % valid_every == valid_every - 1 else "train"

    for split, group in groupby(lines, split_of):
        yield split, [line for _, line in group]


class ShardWriter:
    """Write the documents of one shard and count their words."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.files = {split: (folder / f"{split}.txt").open("w", encoding="utf-8") for split in SPLITS}
        self.words: Counter[str] = Counter()  # of the training text only: the validation text teaches nothing
        self.stats: Counter[str] = Counter()

    def add(self, split: str, sentences: Sentences) -> None:
        """Write a document, unless it is too short or too long."""
        length = sum(len(token) + 1 for sentence in sentences for token in sentence)
        if not MIN_CHARS <= length <= MAX_CHARS:
            self.stats["documents_out_of_length"] += length > 0
            return
        self.files[split].write("\n".join(map(" ".join, sentences)) + "\n\n")
        words = Counter(token for sentence in sentences for token in sentence)
        counts = {"documents": 1, "sentences": len(sentences), "words": sum(words.values())}
        self.stats.update({f"{split}_{name}": number for name, number in counts.items()})
        for symbol in (*SYMBOLS, UNKNOWN):
            self.stats[symbol] += words.pop(symbol, 0)
        if split == "train":
            self.words.update(words)

    def close(self) -> None:
        """Close the texts; write words.txt and stats.json."""
        for file in self.files.values():
            file.close()
        write_counts(self.words, self.folder / "words.txt")
        (self.folder / "stats.json").write_text(json.dumps(self.stats) + "\n")
