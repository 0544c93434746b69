"""Choose new words, and segment text by BPE of subword-nmt with the new words whole.

    python -m expansion.words choose --codes CODES --train TEXT --valid TEXT --old TEXT --count N
                                                                    a table: word, pieces, counts
    python -m expansion.words cut --codes CODES [--words LIST] TEXT          the text in pieces

New words are the most frequent words of the training text that BPE splits, if the validation text has them and the old
model has their pieces. Both print to standard output.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from embinit_fairseq.vocab.segmentation import read_codes
from embinit_fairseq.vocab.tokens import CONTINUES

UNKNOWN = "<unk>"  # fairseq's symbol, which WikiText has in place of rare words


class Cutter:
    """Segments words by BPE, and remembers them: a text has far fewer types than running words."""

    def __init__(self, codes: Path, whole: Collection[str] = ()):
        """codes: file of `subword-nmt learn-bpe`. whole: words that are not segmented."""
        self._bpe = read_codes(str(codes), "--codes")
        self._known = {word: [word] for word in (UNKNOWN, *whole)}

    def __call__(self, word: str) -> list[str]:
        pieces = self._known.get(word)
        if pieces is None:
            pieces = self._known[word] = self._bpe.segment_tokens([word])
        return pieces


def read_words(path: Path) -> list[str]:
    """Return the first column of a list of new words, as `embinit expand-vocab --words` reads it."""
    with open(path, encoding="utf-8") as lines:
        return [line.split("\t")[0].strip() for line in lines if line.strip()]


def cut_line(line: str, cut: Callable[[str], list[str]]) -> str:
    """Return a line of words as a line of pieces."""
    return " ".join(piece for word in line.split() for piece in cut(word))


@dataclass(frozen=True)
class Word:
    """A new word. train, valid: how often it occurs."""

    text: str
    pieces: list[str]
    train: int
    valid: int


def count_words(path: Path) -> Counter[str]:
    """Count the words of a text, separated by spaces."""
    counts: Counter[str] = Counter()
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            counts.update(line.split())
    return counts


def choose(
    train: Counter[str], valid: Counter[str], cut: Callable[[str], list[str]], count: int, old: Collection[str]
) -> list[Word]:
    """Return at most `count` words, the most frequent first; equally frequent ones in alphabetical order.

    old: the words of the old model's text. Left out: words that are a piece already (the end of another word), since a
    dictionary has a symbol only once, words that look like pieces, and those with a piece that the old model lacks.
    """
    known = {piece for word in old for piece in cut(word)}
    pieces = known | {piece for word in train for piece in cut(word)}
    chosen: list[Word] = []
    for word, times in sorted(train.items(), key=lambda item: (-item[1], item[0])):
        if len(chosen) == count:
            break
        fits = len(cut(word)) > 1 and word not in pieces and known.issuperset(cut(word))
        if valid[word] and fits and not word.endswith(CONTINUES):
            chosen.append(Word(word, cut(word), times, valid[word]))
    return chosen


def print_table(args: argparse.Namespace) -> None:
    """Print the new words; SystemExit, before anything is printed, if there are too few."""
    train, valid, old = map(count_words, (args.train, args.valid, args.old))
    chosen = choose(train, valid, Cutter(args.codes), args.count, old)
    if len(chosen) < args.count:
        raise SystemExit(
            f"error: only {len(chosen)} words of the training text are split and occur in the validation text, "
            f"{args.count} are wanted: set WORDS to fewer, VALID_LINES to more, or BPE_SIZE to less"
        )
    print("word\tpieces\ttrain\tvalid")
    for word in chosen:
        print(f"{word.text}\t{' '.join(word.pieces)}\t{word.train}\t{word.valid}")


def print_pieces(args: argparse.Namespace) -> None:
    cut = Cutter(args.codes, read_words(args.words) if args.words else ())
    with open(args.text, encoding="utf-8", newline="\n") as lines:
        sys.stdout.writelines(f"{cut_line(line, cut)}\n" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    codes = argparse.ArgumentParser(add_help=False)
    codes.add_argument("--codes", type=Path, required=True, help="BPE codes of subword-nmt")
    commands = parser.add_subparsers(required=True)
    choosing = commands.add_parser("choose", parents=[codes])
    choosing.add_argument("--train", type=Path, required=True, help="training text, in words")
    choosing.add_argument("--valid", type=Path, required=True, help="validation text, in words")
    choosing.add_argument("--old", type=Path, required=True, help="training text of the old model, in words")
    choosing.add_argument("--count", type=int, required=True, help="how many words")
    choosing.set_defaults(run=print_table)
    cutting = commands.add_parser("cut", parents=[codes])
    cutting.add_argument("--words", type=Path, help="words that remain whole, one per line, in the first column")
    cutting.add_argument("text", type=Path, help="text in words")
    cutting.set_defaults(run=print_pieces)
    args = parser.parse_args()
    sys.stdout.reconfigure(encoding="utf-8")
    args.run(args)


if __name__ == "__main__":
    main()
