"""Chooses new words: the most frequent words of the training text that BPE splits, if the validation text has them.

Writes two files: a table (word, pieces, how often in the training and in the validation text) and a list of `word <tab>
pieces` for `embinit expand-vocab --words`.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from expansion.pieces import CONTINUES, Cutter


@dataclass(frozen=True)
class Word:
    """A new word. train, valid: how often it occurs."""

    text: str
    pieces: list[str]
    train: int
    valid: int


def count_words(path: Path) -> Counter[str]:
    """Running words of a text, separated by blanks."""
    counts: Counter[str] = Counter()
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            counts.update(line.split())
    return counts


def choose(train: Counter[str], valid: Counter[str], cut: Callable[[str], list[str]], count: int) -> list[Word]:
    """At most `count` words, the most frequent first; equally frequent ones in alphabetical order.

    Left out: words that are a piece already (the end of another word), since a dictionary has a symbol only once, and
    words that look like pieces.
    """
    pieces = {piece for word in train for piece in cut(word)}
    chosen: list[Word] = []
    for word, times in sorted(train.items(), key=lambda item: (-item[1], item[0])):
        if len(chosen) == count:
            break
        if valid[word] and len(cut(word)) > 1 and word not in pieces and not word.endswith(CONTINUES):
            chosen.append(Word(word, cut(word), times, valid[word]))
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--codes", type=Path, required=True, help="BPE codes of subword-nmt")
    parser.add_argument("--train", type=Path, required=True, help="training text, in words")
    parser.add_argument("--valid", type=Path, required=True, help="validation text, in words")
    parser.add_argument("--count", type=int, required=True, help="how many words")
    parser.add_argument("--output", type=Path, nargs=2, required=True, metavar=("TABLE", "LIST"), help="to be written")
    args = parser.parse_args()
    chosen = choose(count_words(args.train), count_words(args.valid), Cutter(args.codes), args.count)
    if len(chosen) < args.count:
        sys.exit(
            f"error: only {len(chosen)} words of the training text are split and occur in the validation text, "
            f"{args.count} are wanted: choose fewer --words, more --valid-lines or a smaller --bpe-size"
        )
    table, words = args.output
    rows = [f"{word.text}\t{' '.join(word.pieces)}\t{word.train}\t{word.valid}" for word in chosen]
    table.write_text("\n".join(["word\tpieces\ttrain\tvalid", *rows]) + "\n", encoding="utf-8")
    words.write_text("".join(f"{word.text}\t{' '.join(word.pieces)}\n" for word in chosen), encoding="utf-8")


if __name__ == "__main__":
    main()
