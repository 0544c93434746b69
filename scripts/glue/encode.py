"""Segment text into subwords as in the pre-training data of scripts/wikibooks: the same cleaning, words and codes.

A line remains a line. `<mask>` remains, and so does a line that is in subwords already. Rare words are segmented like
all others: only the pre-training text has <unk> for them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs from a checkout, installed or not

from embinit_fairseq.errors import one_line
from embinit_fairseq.vocab.codes import codes_text
from embinit_fairseq.vocab.preparation import Preparation, Segmenter


def encode_file(source: Path, target: Path, encode: Callable[[str], list[str]]) -> None:
    """Write one line of subwords for each line of text."""
    with open(source, encoding="utf-8", newline="\n") as reading, open(target, "w", encoding="utf-8") as writing:
        for line in tqdm(reading, desc=source.name, unit=" lines", unit_scale=True, disable=None):  # on a terminal
            writing.write(" ".join(encode(line)) + "\n")


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
    codes = codes_text(str(args.codes), "--codes")
    try:
        encode = Segmenter((), Preparation("wikibooks", lowercase=True), codes)
    except ImportError as error:
        raise SystemExit(f"error: {error}") from None
    for source, target in zip(args.input, args.output):
        encode_file(source, target, encode)


if __name__ == "__main__":
    with one_line():
        main()
