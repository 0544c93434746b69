"""Cuts texts into sub-words, line by line; words of a list stay whole."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from expansion.pieces import Cutter, read_words


def segment(line: str, cut: Callable[[str], list[str]]) -> str:
    """A line of words -> the same line of pieces."""
    return " ".join(piece for word in line.split() for piece in cut(word))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--codes", type=Path, required=True, help="BPE codes of subword-nmt")
    parser.add_argument("--words", type=Path, help="words that are not cut, one a line; behind a tab anything")
    parser.add_argument("--input", type=Path, nargs="+", required=True, help="texts, in words")
    parser.add_argument("--output", type=Path, nargs="+", required=True, help="as many files")
    args = parser.parse_args()
    if len(args.input) != len(args.output):
        parser.error(f"files to read: {len(args.input)}, to write: {len(args.output)}; give one --output for each")
    cut = Cutter(args.codes, read_words(args.words) if args.words else ())
    for source, target in zip(args.input, args.output):
        with open(source, encoding="utf-8") as reading, open(target, "w", encoding="utf-8") as writing:
            writing.writelines(f"{segment(line, cut)}\n" for line in reading)


if __name__ == "__main__":
    main()
