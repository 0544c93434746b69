"""Compare trainings in tables: mean, sigma and paired differences over seeds of validation values and test scores,
paired tests of the translations, curves. With --ref: paired tests of translations, plain text or output of
fairseq-generate."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embinit_fairseq.cli.plot_curves import add_run_options
from embinit_fairseq.cli.print_records import print_json, request_of, show
from embinit_fairseq.cli.progress import progress
from embinit_fairseq.cli.score import add_text_options
from embinit_fairseq.errors import DataError, OptionError, OutputError
from embinit_fairseq.io import check_file, check_place, make_folder, read_json, write_json, write_text
from embinit_fairseq.runs.comparison import csv_text, markdown, table_record
from embinit_fairseq.runs.curves import draw, try_to_draw
from embinit_fairseq.runs.result_table import Table, compare, read_finished

#: files in --output; the last one shows that an earlier comparison wrote the others
_FILES = ("results.md", "curves.png", "results.json")
#: metrics with a separate panel in curves.png, if the runs log them
_PANELS = ("valid_bleu",)
#: options of tables, and options of translations (with --ref)
_OF_TABLES = ("output", "csv", "metric", "by", "x", "unfinished")
_OF_TRANSLATIONS = ("metrics", "detokenize", "lang", "lowercase", "tokenize")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_run_options(parser)
    add = parser.add_argument
    add("--output", metavar="DIR", help="write results.md, results.json and curves.png; default: print only")
    add("--csv", metavar="FILE", help="write the tables as CSV: a line per table, row and column")
    add("--baseline", metavar="NAME", help="row to compare the others with; default: the first of each table")
    group = parser.add_argument_group("translations")
    group.add_argument(
        "--ref",
        nargs="+",
        action="extend",
        metavar="FILE",
        help="references: test translations instead of runs; each RUN is plain text, output of fairseq-generate, or a "
        "run's folder. As for embinit score:",
    )
    add_text_options(group)


def run(args: argparse.Namespace) -> int:
    """Read, test, write, print."""
    unused, why = (_OF_TABLES, "leave it out") if args.ref else (_OF_TRANSLATIONS, "add --ref FILE")
    for name in unused:
        if getattr(args, name) not in (None, False, ()):
            raise OptionError(f"--{name}: {'for tables of runs' if args.ref else 'for translations'}; {why}")
    if args.ref:
        return _compare_outputs(args)
    for place in args.runs:
        if Path(place).is_file():
            raise OptionError(f"{place}: a file; to compare translations add --ref FILE, or name the folder of a run")
    if args.csv is not None:
        check_file(args.csv, force=True, option="--csv")
    if args.output is not None:
        check_place(args.output)
        _check_output(Path(args.output))
    runs, unfinished = read_finished(args.runs, args.unfinished)
    tables = compare(runs, args.by, args.metric)
    if args.baseline is not None and not any(table.row(args.baseline) for table in tables):
        names = ", ".join(dict.fromkeys(f"'{row.name}'" for table in tables for row in table.rows))
        raise OptionError(f"--baseline {args.baseline}: no row has this name; there are: {names}")
    records = [table_record(table, args.baseline, args.x) for table in progress(tables, "paired tests", "table")]
    text = markdown(tables, records, unfinished)
    if args.csv:
        write_text(args.csv, csv_text(records), option="--csv")
    record: dict[str, Any] = {"tables": records, "unfinished": unfinished, "files": []}
    if args.output is not None:
        record["files"] = _write(args, tables, text, record)
    if args.json:
        print_json(record)
    else:
        print(text, end="")
    return 0


def _compare_outputs(args: argparse.Namespace) -> int:
    from embinit_fairseq.runs.outputs import compare_outputs, outputs_markdown
    from embinit_fairseq.runs.scoring import ScoreRequest

    request = request_of(ScoreRequest, args, place="", refs=args.ref)
    show(compare_outputs(args.runs, args.baseline, request), outputs_markdown, args.json)
    return 0


def _check_output(folder: Path) -> None:
    """Raise OutputError for a folder that has another file under one of the names of _FILES."""
    present = [name for name in _FILES if (folder / name).exists()]
    record = None
    with contextlib.suppress(DataError):
        record = read_json(folder / _FILES[-1])
    if present and not (isinstance(record, dict) and {"tables", "unfinished", "files"} <= record.keys()):
        raise OutputError(
            f"--output {folder}: {present[0]} in it is not of an earlier comparison; move it, or choose "
            "another --output"
        )


def _write(args: argparse.Namespace, tables: Sequence[Table], text: str, record: dict[str, Any]) -> list[str]:
    """Write the files, curves.png only if there are curves and matplotlib; return their paths."""
    output = make_folder(args.output)
    figure = output / "curves.png"
    has_curves = any(table.curves(table.metric, args.x) for table in tables)
    drawn = has_curves and try_to_draw(draw, tables, figure, args.unit, args.x, () if args.metric else _PANELS)
    files = [str(output / name) for name in ("results.md", "results.json")] + ([str(figure)] if drawn else [])
    if not drawn:
        figure.unlink(missing_ok=True)  # the figure of an earlier comparison
    write_text(output / "results.md", text)
    write_json(output / "results.json", {**record, "files": files})
    return files
