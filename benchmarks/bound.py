"""Compare the bound of `embinit expand-vocab` with simpler ones and with the measured KL(old || new), by new words.

    python benchmarks/bound.py --checkpoint C.pt --dict dict.txt --words new.txt --vectors FILE --text valid.txt \
        --output bound.png

new.txt has a word and its subwords per line (word<TAB>subword subword); the first k of them are added. --vectors has
old and new words. --text is segmented for dict.txt (translation: SOURCE TARGET). Prints one JSON object per expansion,
and draws a panel for each method. Every expansion is a call of the command with --verify.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from embinit_fairseq import figures
from embinit_fairseq.arguments import ArgumentParser
from embinit_fairseq.cli.main import main as embinit

METHODS = ("avg", "subword", "focus")
#: value of a record -> (label, colour, style)
LINES = {
    "separate": ("words one by one", "0.6", ":"),
    "uniform": ("uniform p", "0.4", "--"),
    "limit": ("the bound", "tab:red", "-"),
    "max": ("largest measured", "tab:blue", "o-"),
    "mean": ("mean measured", "tab:blue", "o:"),
}


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


def draw(rows: list[dict[str, Any]], path: str) -> None:
    """Draw a panel for each method: KL in nats by the number of new words, both logarithmic."""
    figure, panels = figures.new_figure(len(METHODS), 1)
    for axes, method in zip(panels, METHODS):
        chosen = [row for row in rows if row["method"] == method]
        for name, (label, colour, style) in LINES.items():
            values = [row[name] for row in chosen]
            axes.plot([row["k"] for row in chosen], values, style, color=colour, label=label, linewidth=1, markersize=3)
        axes.set(xscale="log", yscale="log", xlabel="new words", title=method)
        axes.set_ylim(0.5 * min(row["mean"] for row in rows), 2 * max(row["separate"] for row in rows))
    panels[0].set_ylabel("KL(old || new) in nats")
    panels[0].legend(fontsize=7, frameon=False)
    figures.save(figure, path)


def main() -> None:
    """Measure, print and draw."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("checkpoint", "dict", "words", "vectors", "output"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--text", nargs="+", required=True)
    parser.add_argument("--counts", nargs="+", type=int, default=[1, 3, 10, 30, 100], help="numbers of new words")
    args = parser.parse_args()
    figures.check_output(args.output)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for row in expansions(args, Path(folder)):
            print(json.dumps(row), flush=True)
            rows.append(row)
    draw(rows, args.output)


if __name__ == "__main__":
    main()
