"""Compare the bound of `embinit expand-vocab` with simpler ones and with the measured KL(old || new), by new words.

    python benchmarks/bound.py --checkpoint C.pt --dict dict.txt --words new.txt --vectors FILE --text valid.txt \
        >docs/results/records/bound.csv

new.txt has a word and its subwords per line (word<TAB>subword subword); the first k of them are added. --vectors has
old and new words. --text is segmented for dict.txt (translation: SOURCE TARGET). Prints a CSV row per expansion,
which `scripts/findings.py` draws. Every expansion is a call of the command with --verify.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from embinit_fairseq.arguments import ArgumentParser
from embinit_fairseq.cli.main import main as embinit

METHODS = ("avg", "subword", "focus")


def expansions(args: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield method, k, the limits and the measured divergence of each expansion."""
    lines = [line for line in Path(args.words).read_text("utf-8").splitlines() if line.strip()]
    counts = [k for k in args.counts if k < len(lines)] + [len(lines)]
    for method in METHODS:
        for k in counts:
            (folder / "words").write_text("\n".join(lines[:k]), "utf-8")
            call = [
                "expand-vocab",
                "--checkpoint",
                args.checkpoint,
                "--dict",
                args.dict,
                "--words",
                str(folder / "words"),
            ]
            call += ["--method", method, "--output", str(folder / "out"), "--force", "--reset-optimizer", "--json"]
            call += ["--vectors", args.vectors] if method == "focus" else []
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                status = embinit([*call, "--verify", *args.text])
            record = json.loads(printed.getvalue())
            measured = record["verify"]["methods"][method]
            numbers = {name: measured[name] for name in ("mean", "max", "holds", "rounding")}
            yield {"method": method, "k": k, "n": record["n"], "status": status, **record["bounds"], **numbers}


def main() -> None:
    """Measure and print."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("checkpoint", "dict", "words", "vectors"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--text", nargs="+", required=True)
    parser.add_argument("--counts", nargs="+", type=int, default=[1, 3, 10, 30, 100], help="numbers of new words")
    args = parser.parse_args()
    writer = None
    with tempfile.TemporaryDirectory() as folder:
        for row in expansions(args, Path(folder)):
            if writer is None:
                writer = csv.DictWriter(sys.stdout, list(row), lineterminator="\n")
                writer.writeheader()
            writer.writerow(row)
            sys.stdout.flush()


if __name__ == "__main__":
    main()
