"""Trainings side by side: mean and sigma over seeds of validation figures and test scores, a paired bootstrap of the
translations, curves, and what makes the figures comparable or not."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embinit_fairseq.bounded import read_json
from embinit_fairseq.cli.plot_curves import add_run_options
from embinit_fairseq.cli.progress import progress
from embinit_fairseq.cli.records import print_json
from embinit_fairseq.errors import DataError, OptionError, OutputError
from embinit_fairseq.files import check_is_file, check_place, made_folder, write_json, write_text
from embinit_fairseq.plots.curves import draw, try_to_draw
from embinit_fairseq.runs.bootstrap import (
    SeedTest,
    Texts,
    check_bootstrap,
    paired_tests,
    read_texts,
    recounted,
    scores_of,
)
from embinit_fairseq.runs.compare import Table, baseline_row, check_baseline, curves_record, read_tables
from embinit_fairseq.runs.markdown import markdown
from embinit_fairseq.runs.metrics import PANELS
from embinit_fairseq.runs.warnings import warnings

#: in --output; the last one says that the others are ours
_FILES = ("results.md", "curves.png", "results.json")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_run_options(parser)
    add = parser.add_argument
    add("--output", metavar="DIR", help="write results.md, results.json and curves.png; default: print only")
    add("--baseline", metavar="NAME", help="row that the others are tested against; default: the first of each table")
    add("--samples", type=int, default=1000, metavar="N", help="of the bootstrap; default: %(default)s")
    add("--seed", type=int, default=12345, metavar="N", help="of the bootstrap; default: %(default)s, sacrebleu's")
    add("--reference", metavar="FILE", help="reference of the test set, for runs that keep no copy of it")


def run(args: argparse.Namespace) -> int:
    """Read, test, write, print."""
    check_bootstrap(args.samples, args.seed)
    if args.output is not None:
        check_place(args.output)
        _check_output(Path(args.output))
    if args.reference is not None:
        check_is_file(args.reference, "--reference", missing="check the path")
    tables, unfinished = read_tables(args.runs, args.by, args.metric, args.unfinished)
    check_baseline(tables, args.baseline)
    _check_reference(tables, args.reference)
    tests, notes = zip(*(_tests(table, args) for table in tables))
    text = markdown(tables, tests, notes, args.baseline, unfinished)
    record = {
        "tables": [_record(*each, args) for each in zip(tables, tests, notes)],
        "unfinished": unfinished,
        "files": [],
    }
    if args.output is not None:
        record["files"] = _write(args, tables, text, record)
    if args.json:
        print_json(record)
    else:
        print(text, end="")
    return 0


def _check_reference(tables: Sequence[Table], reference: str | None) -> None:
    """OptionError for one that no run needs: it would be taken for what the scores are against."""
    if reference is None:
        return
    texts = [run.texts() for table in tables for run in table.runs]
    if not any(path is not None and kept is None for path, kept in texts):
        keeps = any(path is not None for path, _ in texts)
        why = "all translations have their own beside them" if keeps else "no run here has translations"
        raise OptionError(f"--reference {reference}: not used, {why}; leave it out")


def _tests(table: Table, args: argparse.Namespace) -> tuple[list[SeedTest], list[str]]:
    """The paired bootstrap of a table, and what is to be said about it. Scores that runs lack are added to them."""
    texts, notes = _texts(table, args.reference and Path(args.reference))
    base = baseline_row(table, args.baseline)
    if not texts or base is None:
        return [], [*notes, *([f"no paired bootstrap: no row is called {args.baseline}"] if texts else [])]
    for run in table.runs:
        if run.name in texts:
            run.record["counted"] = recounted(run, texts[run.name])
            run.record["scores"] = {**scores_of(run, texts[run.name]), **run.record.get("scores", {})}
    others = [row for row in table.rows if row is not base]
    by_seed = paired_tests(base, others, texts, args.samples, args.seed)
    bar = progress(by_seed, "paired bootstrap", "seed", len(base.runs))
    tests = [test for of_seed in bar for test in of_seed]
    missing = [row.name for row in others if not any(test.row == row.name for test in tests)]
    if tests:
        notes.append(
            f"paired bootstrap over the sentences of the test set, {args.samples:,} samples, each seed by itself; p is "
            f"two-sided; signature `{tests[0].scores[0].signature}`"
        )
    if missing:
        notes.append(f"no paired bootstrap of {', '.join(missing)}: no seed with translations of both rows")
    return tests, notes


def _texts(table: Table, reference: Path | None) -> tuple[dict[str, Texts], list[str]]:
    """Translations by the names of the runs; a run without a reference is a note, damaged files are an error."""
    by_run, without = {}, []
    for run in table.runs:
        path, kept = run.texts()
        if path is not None and kept is None and reference is None:
            without.append(run.name)
        elif (texts := read_texts(run, reference)) is not None:
            by_run[run.name] = texts
    notes = []
    if without:
        notes.append(
            f"no paired bootstrap and no new scores for {', '.join(without)}: no test.reference.text beside the "
            "translations; name the reference with --reference"
        )
    return by_run, notes


def _record(table: Table, tests: Sequence[SeedTest], notes: Sequence[str], args: argparse.Namespace) -> dict[str, Any]:
    """A table as data."""
    columns, curves = table.columns(), curves_record(table, args.x)
    rows = []
    for row, curve in zip(table.rows, curves["rows"]):
        results = row.results(table.metric)
        runs = [{"run": run.name, "seed": run.seed, "best": run.best(table.metric)} for run in row.runs]
        summary = {column.title: column.summary(results) for column in columns}
        described = {"name": row.name, "labels": row.labels, "runs": runs, "summary": summary}
        rows.append({**described, "mean": curve["means"], "training": curve["training"]})
    base = baseline_row(table, args.baseline)
    return {
        "title": table.title,
        "metric": table.metric,
        "higher_is_better": table.higher,
        "labels": table.common,
        "place": curves["place"],
        "warnings": warnings(table),
        "notes": list(notes),
        "rows": rows,
        "baseline": base.name if base else None,
        "bootstrap": [_test_record(test) for test in tests],
    }


def _test_record(test: SeedTest) -> dict[str, Any]:
    scores = {score.metric: {**vars(score), "difference": score.difference} for score in test.scores}
    return {"row": test.row, "seed": test.seed, **scores}


def _check_output(folder: Path) -> None:
    """OutputError for a file of somebody else's under a name of ours; those of an earlier comparison are replaced."""
    present = [name for name in _FILES if os.path.lexists(folder / name)]
    record = None
    with contextlib.suppress(DataError):
        record = read_json(folder / "results.json", DataError) if (folder / "results.json").is_file() else None
    if present and not (isinstance(record, dict) and {"tables", "unfinished", "files"} <= record.keys()):
        raise OutputError(
            f"--output {folder}: {present[0]} in it is of no earlier comparison; move it, or choose another --output"
        )


def _write(args: argparse.Namespace, tables: Sequence[Table], text: str, record: dict[str, Any]) -> list[str]:
    """The three files; curves.png only if there are curves and matplotlib. OutputError if the folder cannot be made."""
    output = Path(args.output)
    picture = output / "curves.png"
    with made_folder(output):
        write_json(output / "results.json", record)  # first: it says whose the other files are
        has_curves = any(table.curves() for table in tables)
        further = () if args.metric else PANELS
        drawn = has_curves and try_to_draw(draw, tables, picture, args.unit, args.x, further)
        files = [str(output / name) for name in ("results.md", "results.json")] + ([str(picture)] if drawn else [])
        if not drawn:
            picture.unlink(missing_ok=True)  # of an earlier comparison
        write_text(output / "results.md", text)
        write_json(output / "results.json", {**record, "files": files})
    return files
