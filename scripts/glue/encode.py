"""Text to sub-words exactly as in the pre-training data of scripts/wikibooks: the same cleaning, tokens and codes.

Text is cut into sentences for tokenising, as there, but a line stays a line. Rare words are cut into pieces like all
others: the list of words that became <unk> belongs to the pre-training text. Files to files.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from wikibooks.cleaning import Cleaner
from wikibooks.encode import Encoder

from embinit_fairseq.errors import one_line


def encode_file(source: Path, target: Path, clean: Cleaner, encode: Encoder) -> None:
    """Write one line of sub-words for each line of text."""
    with open(source, encoding="utf-8", newline="\n") as reading, open(target, "w", encoding="utf-8") as writing:
        for line in tqdm(reading, desc=source.name, unit=" lines", unit_scale=True, disable=None):  # on a terminal
            writing.write(" ".join(encode(word) for sentence in clean(line) for word in sentence) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--codes", type=Path, required=True, help="codes of subword-nmt")
    parser.add_argument("--input", type=Path, nargs="+", required=True, help="text, a sentence a line")
    parser.add_argument("--output", type=Path, nargs="+", required=True, help="as many files")
    args = parser.parse_args()
    if len(args.input) != len(args.output):
        parser.error(
            f"--input has {len(args.input)} files, --output {len(args.output)}: give one output for each input"
        )
    clean, encode = Cleaner(), Encoder(args.codes, frequent=None)
    for source, target in zip(args.input, args.output):
        encode_file(source, target, clean, encode)


if __name__ == "__main__":
    with one_line():
        main()
