"""Choose new words, and segment text by BPE of subword-nmt with the new words whole.

    python -m expansion.words choose --codes CODES --train TEXT --valid TEXT --old TEXT --count N
                                                                    a table: word, subwords, counts
    python -m expansion.words cut --codes CODES [--words LIST] TEXT          the text in subwords

New words are the most frequent words of the training text that BPE segments, if the old model has their subwords. The
validation text is only counted. Both print to standard output.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from embinit_fairseq.arguments import ArgumentParser
from embinit_fairseq.vocab.subword_nmt import read_codes
from embinit_fairseq.vocab.subword_styles import CONTINUES

UNKNOWN = "<unk>"  # fairseq's symbol, which WikiText has in place of rare words
#: word -> its subwords
Segment = Callable[[str], list[str]]


def segmenter(codes: Path, whole: Collection[str] = ()) -> Segment:
    """Return BPE with a memory, since a text has far fewer types than running words.

    Args:
        codes: file of `subword-nmt learn-bpe`.
        whole: words that are not segmented.
    """
    bpe, subwords = read_codes(str(codes), "--codes"), {word: [word] for word in (UNKNOWN, *whole)}

    def segment(word: str) -> list[str]:
        if word not in subwords:
            subwords[word] = bpe.segment_tokens([word])
        return subwords[word]

    return segment


def segment_line(line: str, segment: Segment) -> str:
    """Return a line of words as a line of subwords."""
    return " ".join(subword for word in line.split() for subword in segment(word))


class Word(NamedTuple):
    """Hold a new word. train, valid: its numbers of occurrences."""

    text: str
    subwords: list[str]
    train: int
    valid: int


def choose(train: Counter[str], valid: Counter[str], segment: Segment, count: int, old: Collection[str]) -> list[Word]:
    """Return at most `count` words, the most frequent first; equally frequent ones in alphabetical order.

    old: the words of the old model's text. Left out: words that are a subword already (the end of another word), since
    a dictionary has a symbol only once, words that look like subwords, and words with a subword that the old model
    lacks.
    """
    of_old_model = {subword for word in old for subword in segment(word)}
    taken = of_old_model | {subword for word in train for subword in segment(word)}
    chosen: list[Word] = []
    for word, times in sorted(train.items(), key=lambda item: (-item[1], item[0])):
        if len(chosen) == count:
            break
        fits = len(segment(word)) > 1 and word not in taken and of_old_model.issuperset(segment(word))
        if fits and not word.endswith(CONTINUES):
            chosen.append(Word(word, segment(word), times, valid[word]))
    return chosen


def print_table(args: argparse.Namespace) -> None:
    """Print the new words; SystemExit, before anything is printed, if there are too few."""
    train, valid, old = (Counter(path.read_text("utf-8").split()) for path in (args.train, args.valid, args.old))
    chosen = choose(train, valid, segmenter(args.codes), args.count, old)
    if len(chosen) < args.count:
        raise SystemExit(
            f"error: only {len(chosen)} words of the training text are split into subwords that the old model has, "
            f"{args.count} are wanted: set WORDS to fewer, or BPE_SIZE to less"
        )
    print("word\tpieces\ttrain\tvalid")
    for word in chosen:
        print(f"{word.text}\t{' '.join(word.subwords)}\t{word.train}\t{word.valid}")


def print_subwords(args: argparse.Namespace) -> None:
    """Print a text in subwords."""
    lines = args.words.read_text("utf-8").splitlines() if args.words else []
    segment = segmenter(args.codes, [line.split("\t")[0].strip() for line in lines])
    with open(args.text, encoding="utf-8", newline="\n") as text:
        sys.stdout.writelines(f"{segment_line(line, segment)}\n" for line in text)


def main() -> None:
    """Run one of the two commands."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    choosing = commands.add_parser("choose")
    choosing.add_argument("--train", type=Path, required=True, help="training text, in words")
    choosing.add_argument("--valid", type=Path, required=True, help="validation text, in words")
    choosing.add_argument("--old", type=Path, required=True, help="training text of the old model, in words")
    choosing.add_argument("--count", type=int, required=True, help="how many words")
    choosing.set_defaults(run=print_table)
    cutting = commands.add_parser("cut")
    cutting.add_argument("--words", type=Path, help="words that remain whole, one per line, in the first column")
    cutting.add_argument("text", type=Path, help="text in words")
    cutting.set_defaults(run=print_subwords)
    for command in (choosing, cutting):
        command.add_argument("--codes", type=Path, required=True, help="BPE codes of subword-nmt")
    args = parser.parse_args()
    sys.stdout.reconfigure(encoding="utf-8")
    args.run(args)


if __name__ == "__main__":
    main()
