"""What `embinit compare` says about tables: warnings, a paired test of the translations, Markdown."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from embinit_fairseq.errors import DataError, counted
from embinit_fairseq.io import read_lines
from embinit_fairseq.runs.metrics import SAMPLES, SCORES, TEXT_SCORES, paired_bootstrap, recorded_metrics
from embinit_fairseq.runs.record import Run
from embinit_fairseq.runs.table import Result, Row, Table, curves_record


def table_record(table: Table, baseline: str | None, x: str | None) -> dict[str, Any]:
    """Return a table as data, with its paired tests.

    Args:
        table: the table.
        baseline: name of the row that the others are tested against; None: the first row.
        x: quantity on the horizontal axis of the curves.
    """
    base = table.row(baseline)
    tests, notes = paired_tests(table, base)
    if base is None:
        notes.append(f"no paired bootstrap: no row is called {baseline}")
    columns, curves = table.columns(), curves_record(table, x)
    rows = [
        {
            "name": row.name,
            "labels": row.labels,
            "runs": [{"run": run.name, "seed": run.seed, "best": run.best(table.metric)} for run in row.runs],
            "summary": {column.title: column.summary(row.results(table.metric)) for column in columns},
            "mean": curve["means"],
            "training": curve["training"],
        }
        for row, curve in zip(table.rows, curves["rows"])
    ]
    return {
        "title": table.title,
        "metric": table.metric,
        "higher_is_better": table.higher,
        "labels": table.common,
        "place": curves["place"],
        "warnings": warnings(table),
        "notes": notes,
        "rows": rows,
        "baseline": base.name if base else None,
        "bootstrap": tests,
    }


def csv_text(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the tables as CSV: table, row, labels as KEY=VALUE, number of runs, column, mean, sd."""
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow(["table", "row", "labels", "runs", "column", "mean", "sd"])
    for record in records:
        for row in record["rows"]:
            labels = " ".join(f"{key}={value}" for key, value in row["labels"].items())
            for column, summary in row["summary"].items():
                if summary is not None:
                    values = (column, summary["mean"], summary["sd"])
                    writer.writerow([record["title"], row["name"], labels, len(row["runs"]), *values])
    return output.getvalue()


# ---- Warnings -------------------------------------------------------------------------------------------------------


def warnings(table: Table) -> list[str]:
    """Return the reasons not to compare rows: a seed twice, different seeds, options, criteria, signatures."""
    notes = []
    for row in table.rows:
        seeds = Counter(run.seed for run in row.runs)
        for seed, number in seeds.items():
            if number > 1:
                names = ", ".join(run.name for run in row.runs if run.seed == seed)
                notes.append(f"{row.name}: {number} runs with seed {seed} ({names})")
        settings = [run.settings for run in row.runs if run.settings]
        flags = sorted({flag for options in settings for flag in options})
        if differing := [flag for flag in flags if len({options.get(flag) for options in settings}) > 1]:
            notes.append(
                f"{row.name}: runs with different options are averaged ({', '.join(differing)}); a --label for each, "
                "or NAME=PATH, separates them"
            )
    seeds_of = {row.name: ", ".join(dict.fromkeys(run.seed for run in row.runs)) for row in table.rows}
    if len(set(seeds_of.values())) > 1:
        listed = "; ".join(f"{name}: {seeds}" for name, seeds in seeds_of.items())
        notes.append(f"the rows are means over different seeds ({listed})")
    losses = {_loss(run) for run in table.runs if run.settings}
    if len(losses) > 1:
        notes.append(f"the losses are of different criteria and cannot be compared ({'; '.join(sorted(losses))})")
    for name, score in SCORES.items():
        if len({_signature(run.record, name) for run in table.runs} - {None}) > 1:
            notes.append(f"{score.title} of different signatures cannot be compared")
    return notes


def _loss(run: Run) -> str:
    """Return the criterion with its label smoothing; fused ones and those with metrics compute the same loss."""
    criterion = run.settings.get("--criterion", "cross_entropy").removeprefix("fused_").removesuffix("_metrics")
    return f"{criterion} {run.settings.get('--label-smoothing', '')}".rstrip()


# ---- The paired bootstrap -------------------------------------------------------------------------------------------


def paired_tests(table: Table, base: Row | None) -> tuple[list[dict[str, Any]], list[str]]:
    """Test every row against the row `base`, for each seed by itself: p knows nothing about seeds.

    Returns:
        A test for each row and seed, and notes for the reader.

    Raises:
        DataError: translations and reference do not belong together.
    """
    texts, notes = _read_texts(table)
    if not texts or base is None:
        return [], notes
    others = [row for row in table.rows if row is not base]
    tests: list[dict[str, Any]] = []
    for seed, run in _one_per_seed(base, texts).items():
        systems = {row.name: other for row in others if (other := _one_per_seed(row, texts).get(seed)) is not None}
        for other in systems.values():
            if texts[other.name][1] != texts[run.name][1]:
                raise DataError(
                    f"{run.name} and {other.name} have different references; compare translations of one test set only"
                )
        # the scores that all of them have recorded
        runs = [run, *systems.values()]
        names = [name for name in TEXT_SCORES if all(_signature(tested.record, name) for tested in runs)]
        if systems:
            of_seed = paired_bootstrap(
                *texts[run.name],
                [texts[other.name][0] for other in systems.values()],
                recorded_metrics(run.record["scores"], names),
            )
            tests += [{"row": name, "seed": seed, **test} for name, test in zip(systems, of_seed)]
    if tests:
        notes.append(
            f"paired bootstrap over the sentences of the test set, {SAMPLES:,} samples, each seed by itself; p is "
            f"two-sided; signature `{tests[0]['bleu']['signature']}`"
        )
    missing = [row.name for row in others if not any(test["row"] == row.name for test in tests)]
    if missing:
        notes.append(f"no paired bootstrap of {', '.join(missing)}: no seed with translations of both rows")
    return tests, notes


def _read_texts(table: Table) -> tuple[dict[str, tuple[list[str], list[str]]], list[str]]:
    """Return name of a run -> its translations and their reference, and a note on runs without reference or BLEU."""
    texts: dict[str, tuple[list[str], list[str]]] = {}
    without = []
    for run in table.runs:
        path, reference = run.texts()
        if path is None:
            continue
        if reference is None or _signature(run.record, "bleu") is None:
            without.append(run.name)
            continue
        lines, expected = ([line for _, line in read_lines(file)] for file in (path, reference))
        if len(lines) != len(expected):
            raise DataError(
                f"{path} has {counted(len(lines), 'line')}, but the reference {reference} {len(expected):,}; translate "
                "the test set again, or score again (embinit score)"
            )
        texts[run.name] = lines, expected
    if without:
        return texts, [
            f"no paired bootstrap for {', '.join(without)}: no reference next to the translations, or no BLEU in the "
            "record; score again (embinit score)"
        ]
    return texts, []


def _one_per_seed(row: Row, texts: Mapping[str, Any]) -> dict[str, Run]:
    """Return seed -> the row's run with translations; a seed with several runs is left out, and a warning says so."""
    seeds = Counter(run.seed for run in row.runs)
    return {run.seed: run for run in row.runs if seeds[run.seed] == 1 and run.name in texts}


def _signature(result: Result, score: str) -> str | None:
    recorded = (result.get("scores") or {}).get(score)
    return recorded.get("signature") if isinstance(recorded, dict) else None


# ---- Markdown -------------------------------------------------------------------------------------------------------


def header(titles: Sequence[str], texts: int = 1) -> list[str]:
    """Return the first two lines of a Markdown table; all but the first `texts` columns are flush right."""
    return [f"| {' | '.join(map(_in_cell, titles))} |", "|" + " --- |" * texts + " ---: |" * (len(titles) - texts)]


def _in_cell(text: str) -> str:
    return text.replace("|", "\\|")


def distinct(title: str, results: Sequence[Result], value: Callable[[Result], object]) -> list[str]:
    """Return a line with the values that the results have; no line if they have none."""
    values = sorted({str(item) for item in map(value, results) if item is not None})
    return [f"* {title}: " + "; ".join(f"`{text}`" for text in values)] if values else []


def environment(
    results: Sequence[Result],
    data: Callable[[Result], str | None] = lambda result: (result.get("data") or {}).get("all"),
) -> list[str]:
    """Return the lines on data, hardware and versions. data: returns the text about the data of a result."""

    def versions(result: Result) -> str | None:
        return ", ".join(f"{name} {text}" for name, text in (result.get("versions") or {}).items() if text) or None

    def hardware(result: Result) -> str | None:
        machine = result.get("hardware") or {}
        cpu, cores, threads, gpus = (machine.get(key) for key in ("cpu", "cores", "threads", "gpus"))
        parts = [cpu, cores and counted(cores, "core"), threads and f"{counted(threads, 'thread')} a run"]
        return "; ".join(filter(None, [", ".join(filter(None, parts)), ", ".join(gpus or ())])) or None

    return [
        *distinct("data (SHA-256)", results, data),
        *distinct("hardware", results, hardware),
        *distinct("versions", results, versions),
    ]


def still_missing(unfinished: Sequence[str]) -> list[str]:
    """Return the line on runs that are not in the table, and an empty one."""
    return [f"{counted(len(unfinished), 'run')} not finished: {', '.join(unfinished)}.", ""] if unfinished else []


def markdown(tables: Sequence[Table], records: Sequence[Mapping[str, Any]], unfinished: Sequence[str]) -> str:
    """Return the page of `embinit compare`. records: of each table, see `table_record`."""
    lines = []
    if len(tables) > 1:
        lines += [f"**{len(tables)} tables: task, data or metric differ; do not compare figures across them.**", ""]
    for table, record in zip(tables, records):
        lines += [f"## {table.title}", ""]
        lines += [line for text in record["warnings"] for line in (f"**Attention: {text}.**", "")]
        columns = table.columns()
        lines += header(["", "runs", *(column.title for column in columns)])
        for row in table.rows:
            cells = [column.cell(row.results(table.metric)) for column in columns]
            lines.append(f"| {_in_cell(row.name)} | {len(row.runs)} | {' | '.join(cells)} |")
        lines += ["", *_tests(table, record), *(f"* {text}" for text in record["notes"]), *_in_common(table), ""]
    return "\n".join(" ".join(line.splitlines()) for line in [*lines, *still_missing(unfinished)])


def _tests(table: Table, record: Mapping[str, Any]) -> list[str]:
    if not record["bootstrap"]:
        return []
    tests = sorted(record["bootstrap"], key=lambda test: [row.name for row in table.rows].index(test["row"]))
    names = [name for name in SCORES if any(name in test for test in tests)]
    titles = [f"{SCORES[name].title} {what}" for name in names for what in ("difference", "p")]
    lines = header([f"against {record['baseline']}", "seed", *titles])
    for test in tests:
        cells = [f"{test[n]['difference']:+.1f} | {test[n]['p']:.3f}" if n in test else "- | -" for n in names]
        lines.append(f"| {_in_cell(test['row'])} | {_in_cell(test['seed'])} | {' | '.join(cells)} |")
    return [*lines, ""]


def _in_common(table: Table) -> list[str]:
    """Return the facts that all runs share; several values where they differ."""
    results = [run.record for run in table.runs]
    parameters = distinct("parameters", results, lambda result: f"{n:,}" if (n := _parameters(result)) else None)
    signatures = [
        line
        for name, score in SCORES.items()
        for line in distinct(f"{score.title}, signature", results, partial(_signature, score=name))
    ]
    slots = [item for result in results for item in ((result.get("init") or {}).get("slots") or {}).items()]
    fillings = {  # without the seed: one line for all runs of an initialisation
        (slot, re.sub("[|]seed:[0-9]+", "", report["signature"])) for slot, report in slots if report.get("signature")
    }
    return [
        "* mean ± sample standard deviation (sigma) over seeds; one run has none. Best: of the validations, by "
        f"`{table.metric}` ({'highest' if table.higher else 'lowest'}), the last of equal ones; training loss: mean "
        "over the epoch of the best validation, with dropout",
        *distinct("seeds", results, lambda result: result["labels"].get("seed")),
        *(f"* {label}: `{value}`" for label, value in table.common.items() if label != "seed"),
        *distinct("epochs trained", results, lambda result: max(map(int, result.get("epochs") or {}), default=None)),
        *distinct("beam", results, lambda result: (result.get("scores") or {}).get("beam")),
        *(parameters if len({_parameters(result) for result in results} - {None}) < 2 else []),
        *signatures,
        *environment(results),
        *(f"* {slot}: `{text}`" for slot, text in sorted(fillings)),
    ]


def _parameters(result: Result) -> int | None:
    return (result.get("parameters") or {}).get("all")
