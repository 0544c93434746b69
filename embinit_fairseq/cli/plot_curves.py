"""Validation curves of runs (Kim et al. 2024, Figure 1): a line for each group of seeds, the mean of its runs, in a
band from the lowest to the highest of them; a ring marks where the mean is best."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from embinit_fairseq.errors import counted
from embinit_fairseq.plots.curves import UNITS, draw
from embinit_fairseq.runs.compare import AXES, curves_record, read_tables

HELP = "validation curves of runs, mean and band over seeds"


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """RUN ..., --metric, --by, --x, --unit, --unfinished, --json: also those of `embinit compare`."""
    add = parser.add_argument
    add(
        "runs",
        nargs="+",
        metavar="RUN",
        help="a run folder (result.json), a log or save directory of fairseq-train, or a folder that holds any of "
        "them; NAME=PATH names it",
    )
    add(
        "--metric",
        metavar="NAME",
        help="as logged, such as valid_loss, valid_bleu; default: what chose the checkpoints",
    )
    add("--by", nargs="+", default=[], metavar="LABEL", help="labels that make a row; default: all but the seed")
    add(
        "--x",
        choices=AXES,
        help="what curves are drawn over; seconds: of the processor where all runs know them, else of the clock; "
        "default: updates if there are validations within epochs, else epochs",
    )
    add("--unit", choices=UNITS, default="bits", help="of losses in pictures; default: %(default)s, as logged")
    add("--unfinished", action="store_true", help="also runs that have not come to their end")
    add("--json", action="store_true", help="print one JSON object instead of a table")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_run_options(parser)
    parser.add_argument("--output", required=True, metavar="FILE.png", help="the picture")


def run(args: argparse.Namespace) -> int:
    """Read, draw, print."""
    from embinit_fairseq.cli.records import print_json
    from embinit_fairseq.figures import check_output

    check_output(args.output)
    tables, unfinished = read_tables(args.runs, args.by, args.metric, args.unfinished)
    draw(tables, Path(args.output), args.unit, args.x)
    records = [curves_record(table, args.x) for table in tables]
    if args.json:
        print_json({"picture": args.output, "tables": records, "unfinished": unfinished})
    else:
        print("\n".join([*(_line(record, row) for record in records for row in record["rows"]), "", args.output]))
    return 0


def _line(table: dict[str, Any], row: dict[str, Any]) -> str:
    value = "no curve" if row["best"] is None else f"{row['value']:.3f} at {table['place']} {row['best']:,.0f}"
    trained = row["training"].get(row["best"])
    beside = "" if trained is None else f" (of the training {trained:.3f})"
    name = f"{table['title']}, {row['name']} ({counted(row['runs'], 'run')})"
    return f"{name}: best mean {table['metric']} {value}{beside}"
