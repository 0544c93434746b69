"""Draw validation curves of runs (Kim et al. 2024, Figure 1): one line per group of seeds, the mean of its runs, in a
band from the lowest to the highest run; a ring marks the best mean."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from embinit_fairseq.errors import counted
from embinit_fairseq.runs.comparison import warnings
from embinit_fairseq.runs.curves import UNITS, draw
from embinit_fairseq.runs.result_table import compare, curves_record, read_finished

HELP = "validation curves of runs, mean and band over seeds"


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `embinit compare` has too."""
    add = parser.add_argument
    add(
        "runs",
        nargs="+",
        metavar="RUN",
        help="the folder of a run of `embinit run`, or a folder that has several; NAME=PATH names it",
    )
    add(
        "--metric",
        metavar="NAME",
        help="logged value, such as valid_loss, valid_bleu; default: the one that chose the checkpoints",
    )
    add("--by", nargs="+", default=(), metavar="LABEL", help="labels that make a row; default: all but the seed")
    add(
        "--x",
        choices=("epochs", "updates", "seconds"),
        help="horizontal axis of curves; default: updates if there are validations within epochs, else epochs",
    )
    add("--unit", choices=UNITS, default="bits", help="unit of losses in figures; default: %(default)s, as logged")
    add("--unfinished", action="store_true", help="also runs that are not finished")
    add("--json", action="store_true", help="print one JSON object instead of a table")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_run_options(parser)
    parser.add_argument("--output", required=True, metavar="FILE.png", help="the figure")


def run(args: argparse.Namespace) -> int:
    """Read, draw, print."""
    from embinit_fairseq.cli.print_records import print_json
    from embinit_fairseq.figures import check_output

    check_output(args.output)
    runs, unfinished = read_finished(args.runs, args.unfinished)
    tables = compare(runs, args.by, args.metric)
    draw(tables, Path(args.output), args.unit, args.x)
    for table in tables:
        for warning in warnings(table):
            print(f"embinit plot curves: {table.title}: {warning}", file=sys.stderr)
    records = [curves_record(table, args.x) for table in tables]
    if args.json:
        print_json({"picture": args.output, "tables": records, "unfinished": unfinished})
    else:
        print("\n".join([*(_line(record, row) for record in records for row in record["rows"]), "", args.output]))
    return 0


def _line(table: dict[str, Any], row: dict[str, Any]) -> str:
    value = "no curve" if row["best"] is None else f"{row['value']:.3f} at {table['place']} {row['best']:,.0f}"
    trained = row["training"].get(row["best"])
    training = "" if trained is None else f" (of the training {trained:.3f})"
    name = f"{table['title']}, {row['name']} ({counted(row['runs'], 'run')})"
    return f"{name}: best mean {table['metric']} {value}{training}"
