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

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs from a checkout, installed or not

from embinit_fairseq.errors import one_line
from embinit_fairseq.io import write_text


def read(path: Path) -> list[str]:
    """Return the lines; SystemExit if the file is missing."""
    if not path.is_file():
        sys.exit(f"error: {path}: no such file; --repository must be a copy of Text GCN's repository that has it")
    return path.read_text(encoding="latin-1").rstrip("\n").split("\n")


def rows(listing: Path, corpus: Path) -> list[str]:
    """Return the lines of the TSV file, without its heading."""
    entries, texts = read(listing), read(corpus)
    if len(entries) != len(texts):
        sys.exit(f"error: {listing} has {len(entries)} lines, {corpus} {len(texts)}: they belong line to line")
    found = []
    for number, (entry, text) in enumerate(zip(entries, texts), start=1):
        fields = entry.strip().split("\t")
        split = next((name for name in ("train", "test") if len(fields) == 3 and name in fields[1]), None)
        if split is None:
            sys.exit(f"error: {listing}, line {number}: expected document, split (with train or test in it) and label")
        found.append("\t".join([split, "_".join(fields[2].split()), " ".join(text.split())]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repository", type=Path, required=True)
    parser.add_argument("--dataset", required=True, help="20ng, R8, R52, ohsumed, mr")
    parser.add_argument("--text", choices=("raw", "clean"), default="raw", help="default: %(default)s")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    name = f"{args.dataset}.clean.txt" if args.text == "clean" else f"{args.dataset}.txt"
    data = args.repository / "data"
    lines = ["split\tlabel\ttext", *rows(data / f"{args.dataset}.txt", data / "corpus" / name)]
    write_text(args.output, "\n".join(lines) + "\n", "--output")


if __name__ == "__main__":
    with one_line():
        main()
