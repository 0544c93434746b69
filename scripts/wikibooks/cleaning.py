"""Shards of raw text -> one tokenised sentence a line, a blank line behind each document, and counts of the words.

work/raw/00000.txt -> work/clean/00000/{train.txt,valid.txt,words.txt,stats.json}

What becomes of a line of text is in `embinit_fairseq/vocab/preparation.py`, which also prepares the text that a trained
model is given.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from wikibooks.duplicates import UNITS, read_documents, repeated_units
from wikibooks.pool import run_tasks
from wikibooks.split import MAX_CHARS, PASSAGE_LINES, passages_of, read_records, text_of
from wikibooks.words import write_counts

from embinit_fairseq.errors import one_line
from embinit_fairseq.files import whole_folder
from embinit_fairseq.machine import cores
from embinit_fairseq.vocab.preparation import SYMBOLS, UNKNOWN, Cleaner

MIN_CHARS = 20
Sentences = list[list[str]]


def without_duplicates(
    documents: Iterator[list[bytes]], repeated: set[int], unit: str
) -> Iterator[tuple[int, list[tuple[int, bytes]]]]:
    """(lines that the document had, [(number in the document, line) of what is left of it])."""
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
    """A document, whose first passage has that number, as neighbouring lines of the same split."""

    def split_of(line: tuple[int, bytes]) -> str:
        return "valid" if (passage + line[0] // PASSAGE_LINES) % valid_every == valid_every - 1 else "train"

    for split, group in groupby(lines, split_of):
        yield split, [line for _, line in group]


def characters(sentences: Sentences) -> int:
    """Length of a document of tokens separated by blanks."""
    return sum(len(token) + 1 for sentence in sentences for token in sentence)


class ShardWriter:
    """Writes the documents of one shard and counts what they hold."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.files = {split: (folder / f"{split}.txt").open("w", encoding="utf-8") for split in ("train", "valid")}
        self.words: Counter[str] = Counter()  # of the training text only: the validation text teaches nothing
        self.stats: Counter[str] = Counter()

    def add(self, split: str, sentences: Sentences) -> None:
        length = characters(sentences)
        if not MIN_CHARS <= length <= MAX_CHARS:
            self.stats["documents_out_of_length"] += length > 0
            return
        self.files[split].write("\n".join(map(" ".join, sentences)) + "\n\n")
        words = Counter(token for sentence in sentences for token in sentence)
        found = {"documents": 1, "sentences": len(sentences), "words": sum(words.values())}
        self.stats.update({f"{split}_{what}": number for what, number in found.items()})
        for symbol in (*SYMBOLS, UNKNOWN):
            self.stats[symbol] += words.pop(symbol, 0)
        if split == "train":
            self.words.update(words)

    def close(self) -> None:
        for file in self.files.values():
            file.close()
        write_counts(self.words, self.folder / "words.txt")
        (self.folder / "stats.json").write_text(json.dumps(self.stats) + "\n")


def clean_shard(shard: int, work: Path, output: Path, passage: int, valid_every: int, unit: str) -> None:
    """passage: the number of the shard's first passage."""
    cleaner = Cleaner()
    repeated = set() if unit == "none" else repeated_units(work / "duplicates", shard)
    with whole_folder(output / f"{shard:05}", option="") as folder:
        writer = ShardWriter(folder)
        writer.stats[f"duplicate_{unit}"] += len(repeated)
        raw = read_documents(text_of(work / "raw", shard))
        for size, lines in without_duplicates(raw, repeated, unit):
            for split, group in parts(lines, passage, valid_every):
                texts = [line.decode("utf-8", "ignore") for line in group]
                writer.stats["lines_not_utf8"] += sum(len(t.encode()) != len(g) for t, g in zip(texts, group))
                writer.add(split, [sentence for text in texts for sentence in cleaner(text)])
            passage += passages_of(size)
        writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder with raw/ and duplicates/; gets clean/")
    parser.add_argument("--unit", choices=UNITS, default="lines", help="what was compared (default %(default)s)")
    parser.add_argument("--valid-every", type=int, default=200, help="every N-th passage is for validation")
    parser.add_argument("--jobs", type=int, default=cores(), help="processes (default: one per core)")
    args = parser.parse_args()
    output = args.work / "clean"
    tasks = [
        (record["bytes"], (shard, args.work, output, record["first_passage"], args.valid_every, args.unit))
        for shard, record in enumerate(read_records(args.work / "raw"))
        if not (output / f"{shard:05}").is_dir()
    ]
    if tasks:
        try:
            Cleaner()  # a missing library is best reported before anything is done
        except ImportError as error:
            raise SystemExit(f"error: {error}") from None
    run_tasks("cleaning", clean_shard, tasks, args.jobs)


if __name__ == "__main__":
    with one_line():
        main()
