"""Convert a data set in the layout of Text GCN's repository (Yao et al. 2019) to the TSV file that prepare.sh takes.

    python scripts/textcls/from_textgcn.py --repository DIR --dataset 20ng --output 20ng.tsv

DIR/data/NAME.txt has a line "document <tab> split <tab> label" for each text, DIR/data/corpus/NAME.txt the texts,
DIR/data/corpus/NAME.clean.txt the texts without stop words and rare words (--text clean; there are data sets of which
the repository holds only those). Both are Latin-1.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from embinit_fairseq.arguments import ArgumentParser
from embinit_fairseq.errors import one_line
from embinit_fairseq.io import write_text


def rows(entries: list[str], texts: list[str]) -> list[str]:
    """Return the lines of the TSV file; SystemExit for files that do not belong together."""
    if len(entries) != len(texts):
        sys.exit(f"error: {len(entries)} lines with labels, {len(texts)} texts: they belong line to line")
    lines = ["split\tlabel\ttext"]
    for number, (entry, text) in enumerate(zip(entries, texts), start=1):
        fields = entry.strip().split("\t")
        split = next((name for name in ("train", "test") if len(fields) == 3 and name in fields[1]), None)
        if split is None:
            sys.exit(f"error: line {number}: expected document, split (with train or test in it) and label")
        lines.append("\t".join([split, "_".join(fields[2].split()), " ".join(text.split())]))
    return lines


def main() -> None:
    """Write the TSV file."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repository", type=Path, required=True)
    parser.add_argument("--dataset", required=True, help="20ng, R8, R52, ohsumed, mr")
    parser.add_argument("--text", choices=("raw", "clean"), default="raw", help="default: %(default)s")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    name = f"{args.dataset}.clean.txt" if args.text == "clean" else f"{args.dataset}.txt"
    files = (args.repository / "data" / f"{args.dataset}.txt", args.repository / "data" / "corpus" / name)
    entries, texts = (file.read_text(encoding="latin-1").rstrip("\n").split("\n") for file in files)
    write_text(args.output, "\n".join(rows(entries, texts)) + "\n", "--output")


if __name__ == "__main__":
    with one_line():
        main()
