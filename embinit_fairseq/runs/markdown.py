"""Tables of results as Markdown, and what is said below them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from embinit_fairseq.errors import counted
from embinit_fairseq.runs.bootstrap import SeedTest
from embinit_fairseq.runs.compare import PARAMETERS, Column, Table, baseline_row
from embinit_fairseq.runs.metrics import SCORES
from embinit_fairseq.runs.warnings import warnings

Result = dict[str, Any]


def header(titles: Sequence[str], texts: int = 1) -> list[str]:
    """The first two lines of a Markdown table; all but the first `texts` columns are flush right."""
    return [f"| {' | '.join(map(_in_cell, titles))} |", "|" + " --- |" * texts + " ---: |" * (len(titles) - texts)]


def _in_cell(text: str) -> str:
    """A label may hold the sign between columns."""
    return text.replace("|", "\\|")


def distinct(title: str, results: Sequence[Result], value: Callable[[Result], object]) -> list[str]:
    """A line with what the runs have in common, with several values where they differ; none without a value."""
    values = sorted({str(each) for each in map(value, results) if each is not None})
    return [f"* {title}: " + "; ".join(f"`{each}`" for each in values)] if values else []


def environment(
    results: Sequence[Result], data: Callable[[Result], str | None] = lambda result: result["data"]["all"]
) -> list[str]:
    """Data, hardware and versions, a line each. data: what is said about a run's data."""
    return [
        *distinct("data (SHA-256)", results, data),
        *distinct("hardware", results, lambda result: _hardware(result.get("hardware"))),
        *distinct("versions", results, lambda result: _versions(result.get("versions"))),
    ]


def _versions(versions: dict[str, str | None] | None) -> str | None:
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version) if versions else None


def _hardware(hardware: dict[str, Any] | None) -> str | None:
    if not hardware:
        return None
    cores, threads = hardware.get("cores"), hardware.get("threads")
    parts = [hardware.get("cpu"), cores and counted(cores, "core"), threads and f"{counted(threads, 'thread')} a run"]
    gpus = f"; {', '.join(hardware['gpus'])}" if hardware.get("gpus") else ""
    return ", ".join(part for part in parts if part) + gpus


def init_signatures(results: Sequence[Result]) -> list[str]:
    """How the tables of embeddings began, a line for each slot and initialisation."""
    slots = [item for result in results for item in ((result.get("init") or {}).get("slots") or {}).items()]
    # without the seed: one line for all runs of an initialisation
    signed = [
        (slot, re.sub("[|]seed:[0-9]+", "", found["signature"])) for slot, found in slots if found.get("signature")
    ]
    return [f"* {slot}: `{text}`" for slot, text in sorted(set(signed))]


def still_missing(unfinished: Sequence[str]) -> list[str]:
    """Says which runs are not in the table."""
    return [f"Not finished yet: {', '.join(unfinished)}.", ""] if unfinished else []


def markdown(
    tables: Sequence[Table],
    tests: Sequence[Sequence[SeedTest]],
    notes: Sequence[Sequence[str]],
    baseline: str | None,
    unfinished: Sequence[str],
) -> str:
    """All of `embinit compare`. tests, notes: of each table."""
    lines = []
    if len(tables) > 1:
        lines += [f"**{len(tables)} tables: task, data or metric differ; do not compare figures across them.**", ""]
    for table, of_table, remarks in zip(tables, tests, notes):
        lines += [f"## {table.title}", ""]
        lines += [line for text in warnings(table) for line in (f"**Attention: {text}.**", "")]
        lines += [*_rows(table), "", *_tests(table, of_table, baseline), *(f"* {text}" for text in remarks)]
        lines += [*_in_common(table), ""]
    if unfinished:
        lines += [f"{counted(len(unfinished), 'run')} not finished: {', '.join(unfinished)}.", ""]
    return "\n".join(" ".join(line.splitlines()) for line in lines)  # labels may have several lines


def _rows(table: Table) -> list[str]:
    columns = table.columns()
    lines = header(["", "runs", *(column.title for column in columns)])
    for row in table.rows:
        results = row.results(table.metric)
        cells = [_cell(column, results) for column in columns]
        lines.append(f"| {_in_cell(row.name)} | {len(row.runs)} | {' | '.join(cells)} |")
    return lines


def _cell(column: Column, results: Sequence[Result]) -> str:
    """Mean ± sigma, of one run its value; "(of 2)" where the others have none."""
    few = sum(column.value(result) is not None for result in results)
    return column.cell(results) + (f" (of {few})" if 0 < few < len(results) else "")


def _tests(table: Table, tests: Sequence[SeedTest], baseline: str | None) -> list[str]:
    base = baseline_row(table, baseline) if tests else None
    if base is None:
        return []
    names = [name for name in SCORES if any(score.metric == name for test in tests for score in test.scores)]
    titles = [f"{SCORES[name].title} {what}" for name in names for what in ("difference", "p")]
    lines = header([f"against {base.name}", "seed", *titles])
    order = {row.name: at for at, row in enumerate(table.rows)}
    for test in sorted(tests, key=lambda test: order[test.row]):
        cell_of = {score.metric: f"{score.difference:+.1f} | {score.p:.3f}" for score in test.scores}
        cells = [cell_of.get(name, "- | -") for name in names]
        lines.append(f"| {_in_cell(test.row)} | {_in_cell(test.seed)} | {' | '.join(cells)} |")
    return [*lines, ""]


def _in_common(table: Table) -> list[str]:
    """What all figures of a table have in common; several values where the runs differ."""
    results = [run.record for run in table.runs]
    return [
        "* mean ± sample standard deviation (sigma) over seeds; one run has none. Best: of the validations, by "
        f"`{table.metric}` ({'highest' if table.higher else 'lowest'}), the last of equal ones; training loss: mean "
        "over the epoch of the best validation, with dropout",
        *distinct("seeds", results, lambda result: result["labels"].get("seed")),
        *(f"* {label}: `{value}`" for label, value in table.common.items() if label != "seed"),
        *distinct("epochs trained", results, _epochs),
        *distinct("beam", results, lambda result: (result.get("scores") or {}).get("beam")),
        *([] if PARAMETERS.has_news(results) else distinct("parameters", results, _parameters)),
        *(line for name, score in SCORES.items() for line in _signature(name, score.title, results)),
        *environment(results, data=lambda result: (result.get("data") or {}).get("all")),
        *init_signatures(results),
    ]


def _parameters(result: Result) -> str | None:
    value = PARAMETERS.value(result)
    return None if value is None else f"{value:,}"


def _epochs(result: Result) -> int | None:
    return max(map(int, result.get("epochs") or {}), default=None)


def _signature(name: str, title: str, results: Sequence[Result]) -> list[str]:
    def of(result: Result) -> str | None:
        score = (result.get("scores") or {}).get(name)
        return score.get("signature") if isinstance(score, dict) else None

    return distinct(f"{title}, signature", results, of)
