"""Describe tables for `embinit compare`: warnings, paired tests and differences, Markdown."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from embinit_fairseq.errors import DataError, counted
from embinit_fairseq.io import read_lines
from embinit_fairseq.runs.metrics import SCORES, TEXT_SCORES, known_direction, recorded_metrics, wrong_direction
from embinit_fairseq.runs.paired import SEED, TRIALS, randomisation_tests, seed_interval
from embinit_fairseq.runs.record import INPUTS, Run
from embinit_fairseq.runs.result_table import Result, Row, Table, curves_record, differing_options

#: the test, for the reader of a table
TESTED = (
    f"p: two-sided, by paired approximate randomisation over the sentences of the test set ({TRIALS:,} trials, seed "
    f"{SEED})"
)

#: characters at both ends of a long value
_SHOWN = 30


def table_record(table: Table, baseline: str | None, x: str | None) -> dict[str, Any]:
    """Return a table as data, with its paired tests.

    Args:
        table: the table.
        baseline: name of the row that the others are compared with; None: the first row.
        x: quantity on the horizontal axis of the curves.
    """
    base = table.row(baseline)
    tests, notes = paired_tests(table, base)
    if base is None:
        notes.append(f"no differences and no paired tests: no row is called {baseline}")
    differences, missing = seed_differences(table, base)
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
        "notes": [*notes, *missing],
        "rows": rows,
        "baseline": base.name if base else None,
        "differences": differences,
        "tests": tests,
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
    """Return the reasons not to compare rows: a wrong best, a repeated seed, other options, doubtful scores, ..."""
    notes = []
    if reason := wrong_direction(table.metric, table.higher):
        notes.append(reason)
    elif known_direction(table.metric) is None and any(run.metric != table.metric for run in table.runs):
        best = "highest" if table.higher else "lowest"
        notes.append(f"the name of {table.metric} does not say if a higher value is better; the {best} counts as best")
    for row in table.rows:
        seeds = Counter(run.seed for run in row.runs)
        for seed, number in seeds.items():
            if number > 1:
                names = ", ".join(run.name for run in row.runs if run.seed == seed)
                notes.append(f"{row.name}: {number} runs with seed {seed} ({names})")
        if differing := differing_options([row.runs]):
            notes.append(
                f"{row.name}: runs with different options are averaged ({', '.join(differing)}); leave out --by, or "
                "give each a NAME=PATH, to separate them"
            )
    seeds_of = {row.name: ", ".join(dict.fromkeys(run.seed for run in row.runs)) for row in table.rows}
    if len(set(seeds_of.values())) > 1:
        listed = "; ".join(f"{name}: {seeds}" for name, seeds in seeds_of.items())
        notes.append(f"the rows are means over different seeds ({listed})")
    doubts: dict[str, list[str]] = {}
    for run in table.runs:
        for note in (run.record.get("scores") or {}).get("notes", ()):
            doubts.setdefault(note, []).append(run.name)
    notes += [f"scores of {', '.join(names)}: {note}" for note, names in doubts.items()]
    losses = {_loss(run) for run in table.runs if run.settings}
    if len(losses) > 1:
        notes.append(f"the losses are of different criteria and cannot be compared ({'; '.join(sorted(losses))})")
    for name, score in SCORES.items():
        if len({_signature(run.record, name) for run in table.runs} - {None}) > 1:
            notes.append(f"{score.title} of different signatures cannot be compared")
    return notes


def _loss(run: Run) -> str:
    """Return the criterion with its label smoothing; fused criteria and criteria with metrics have the same loss."""
    criterion = run.settings.get("--criterion", "cross_entropy").removeprefix("fused_").removesuffix("_metrics")
    return f"{criterion} {run.settings.get('--label-smoothing', '')}".rstrip()


# ---- Paired tests over sentences, paired differences over seeds ------------------------------------------------------


def paired_tests(table: Table, base: Row | None) -> tuple[list[dict[str, Any]], list[str]]:
    """Test every row against the row `base`, separately for each seed: p does not include the spread of seeds.

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
        # the scores that all runs have recorded
        runs = [run, *systems.values()]
        names = [name for name in TEXT_SCORES if all(_signature(tested.record, name) for tested in runs)]
        if systems:
            of_seed = randomisation_tests(
                *texts[run.name],
                [texts[other.name][0] for other in systems.values()],
                recorded_metrics(run.record["scores"], names),
            )
            tests += [{"row": name, "seed": seed, **test} for name, test in zip(systems, of_seed)]
    if tests:
        notes.append(f"{TESTED}, each seed by itself; signature `{tests[0]['bleu']['signature']}`")
    missing = [row.name for row in others if not any(test["row"] == row.name for test in tests)]
    if missing:
        notes.append(f"no p of {', '.join(missing)}: no seed with translations of both rows")
    return tests, notes


def seed_differences(table: Table, base: Row | None) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the mean difference to the row `base` over two or more shared seeds, with its 95 % t-interval.

    Returns:
        For each row with such seeds: `row`, `columns` (title -> seeds, mean, low, high); and a note without SciPy.
    """
    if base is None:
        return [], []
    columns = [column for column in table.columns() if column.is_result]
    first = _one_per_seed(base)
    rows = []
    for row in table.rows:
        second = _one_per_seed(row)
        seeds = [seed for seed in first if seed in second and seed != "-"]
        if row is base or len(seeds) < 2:
            continue
        pairs = [[{**run.record, "best": run.best(table.metric)} for run in (first[s], second[s])] for s in seeds]
        intervals = {}
        for column in columns:
            values = [(column.value(one), column.value(other)) for one, other in pairs]
            differences = [other - one for one, other in values if one is not None and other is not None]
            try:
                interval = seed_interval(differences)
            except ModuleNotFoundError:
                return [], ["no differences over seeds with intervals: SciPy is not installed (pip install scipy)"]
            if interval is not None:
                intervals[column.title] = interval
        if intervals:
            rows.append({"row": row.name, "columns": intervals})
    return rows, []


def _read_texts(table: Table) -> tuple[dict[str, tuple[list[str], list[list[str]]]], list[str]]:
    """Return name of a run -> its translations and their references, and a note on runs without references or BLEU."""
    texts: dict[str, tuple[list[str], list[list[str]]]] = {}
    without = []
    for run in table.runs:
        path, references = run.texts()
        if path is None:
            continue
        if not references or _signature(run.record, "bleu") is None:
            without.append(run.name)
            continue
        lines, *expected = ([line for _, line in read_lines(file)] for file in (path, *references))
        for file, reference in zip(references, expected):
            if len(lines) != len(reference):
                raise DataError(
                    f"{path} has {counted(len(lines), 'line')}, but the reference {file} {len(reference):,}; translate "
                    "the test set again, or score again (embinit score)"
                )
        texts[run.name] = lines, expected
    if without:
        return texts, [
            f"no p of {', '.join(without)}: no reference next to the translations, or no BLEU in the record; score "
            "again (embinit score)"
        ]
    return texts, []


def _one_per_seed(row: Row, texts: Collection[str] | None = None) -> dict[str, Run]:
    """Return seed -> the row's run, only those in `texts`; seeds with several runs are left out, with a warning."""
    seeds = Counter(run.seed for run in row.runs)
    return {run.seed: run for run in row.runs if seeds[run.seed] == 1 and (texts is None or run.name in texts)}


def _signature(result: Result, score: str) -> str | None:
    recorded = (result.get("scores") or {}).get(score)
    return recorded.get("signature") if isinstance(recorded, dict) else None


# ---- Markdown -------------------------------------------------------------------------------------------------------


def header(titles: Sequence[str], texts: int = 1) -> list[str]:
    """Return the first two lines of a Markdown table; all but the first `texts` columns are flush right."""
    return [f"| {' | '.join(map(in_cell, titles))} |", "|" + " --- |" * texts + " ---: |" * (len(titles) - texts)]


def in_cell(text: str) -> str:
    """Return text for a cell of a Markdown table."""
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
    """Return the page of `embinit compare`. records: one per table, see `table_record`."""
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
            lines.append(f"| {in_cell(row.name)} | {len(row.runs)} | {' | '.join(cells)} |")
        lines += [
            "",
            *_differences(record),
            *_tests(table, record),
            *(f"* {text}" for text in record["notes"]),
            *_in_common(table),
            "",
        ]
    return "\n".join(" ".join(line.splitlines()) for line in [*lines, *still_missing(unfinished)])


def _differences(record: Mapping[str, Any]) -> list[str]:
    """Return the table of differences over seeds: mean (95 % interval)."""
    rows = record["differences"]
    titles = list(dict.fromkeys(title for row in rows for title in row["columns"]))
    if not titles:
        return []
    lines = header([f"difference to {record['baseline']} (95 % interval)", "seeds", *titles])
    for row in rows:
        intervals = row["columns"]
        seeds = max(interval["seeds"] for interval in intervals.values())
        cells = [_interval(intervals.get(title), seeds) for title in titles]
        lines.append(f"| {in_cell(row['row'])} | {seeds} | {' | '.join(cells)} |")
    return [*lines, ""]


def _interval(interval: Mapping[str, Any] | None, seeds: int) -> str:
    if interval is None:
        return "-"
    of = f" (of {interval['seeds']})" if interval["seeds"] < seeds else ""
    return f"{interval['mean']:+.3f} ({interval['low']:+.3f} to {interval['high']:+.3f}){of}"


def _tests(table: Table, record: Mapping[str, Any]) -> list[str]:
    if not record["tests"]:
        return []
    order = [row.name for row in table.rows]
    tests = sorted(record["tests"], key=lambda test: order.index(test["row"]))
    return tests_table(record["baseline"], tests)


def tests_table(baseline: str, tests: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the Markdown table of paired tests; p has four decimals: the smallest is 1 of 10,001."""
    names = [name for name in SCORES if any(name in test for test in tests)]
    seeds = ["seed"] if any("seed" in test for test in tests) else []
    titles = [f"{SCORES[name].title} {what}" for name in names for what in ("difference", "p")]
    lines = header([f"against {baseline}", *seeds, *titles])
    for test in tests:
        cells = [in_cell(test["row"]), *(in_cell(test[seed]) for seed in seeds)]
        cells += [f"{test[n]['difference']:+.1f} | {test[n]['p']:.4f}" if n in test else "- | -" for n in names]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _in_common(table: Table) -> list[str]:
    """Return the facts about all runs, with several values if runs differ."""
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
        *distinct("translated with", results, lambda result: (result.get("scores") or {}).get("search")),
        *(parameters if len({_parameters(result) for result in results} - {None}) < 2 else []),
        *signatures,
        *_options(table),
        *_inputs(table),
        *environment(results),
        *(f"* {slot}: `{text}`" for slot, text in sorted(fillings)),
    ]


def _options(table: Table) -> list[str]:
    """Return a line with the options that differ between runs: the name of a row has the first that tells it apart."""
    differing = []
    for flag in differing_options([table.runs]):
        if flag not in INPUTS:
            values = dict.fromkeys(run.settings.get(flag, "not given") or "given" for run in table.runs if run.settings)
            differing.append(f"`{flag}` ({', '.join(map(_shortened, values))})")
    return [f"* options that differ between runs: {', '.join(differing)}"] if differing else []


def _shortened(value: str) -> str:
    """Return both ends of a long value, such as a list of paths."""
    return value if len(value) <= 2 * _SHOWN else f"{value[:_SHOWN]}...{value[-_SHOWN:]}"


def _inputs(table: Table) -> list[str]:
    """Return a line for the training data and one for the vectors, if runs differ in them: hash and path."""
    lines = []
    for key, option in INPUTS.items():
        paths = {
            run.inputs[key]: run.command.options.get(option, ())
            for run in table.runs
            if run.command and key in run.inputs
        }
        if len(paths) > 1:
            lines.append(
                f"* {key}: " + "; ".join(f"`{content}` ({' '.join(words)})" for content, words in paths.items())
            )
    return lines


def _parameters(result: Result) -> int | None:
    return (result.get("parameters") or {}).get("all")
