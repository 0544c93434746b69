"""GLUE's table of many runs: every finished run below RUNS -> results.md, results.json.

A run counts with its best epoch; a learning rate with the median over its seeds; a model with its best rate. The second
metric of a task (F1, Spearman's correlation, MNLI's mismatched set) is that of the same epochs at the same rate.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tasks import TASKS

from embinit_fairseq.errors import one_line
from embinit_fairseq.files import write_json, write_text
from embinit_fairseq.runs.compare import check_finished
from embinit_fairseq.runs.folders import find_runs, is_finished
from embinit_fairseq.runs.markdown import distinct, environment, header, still_missing
from embinit_fairseq.runs.run import Run

TITLES = {"mcc": "Matthews", "f1": "F1", "pearson": "Pearson", "spearman": "Spearman"}
Result = dict[str, Any]
NOTE = """\
Percentages on the development sets, which also choose epoch and learning rate (in brackets): as in Ke et al. 2021, but
too good for new data. Median over seeds of each run's best epoch, at the rate whose median is best. `last epoch`, `best
epoch` and `wall time` are medians. A constant answer names the most frequent label (F1: always the positive one).
"""


def shown(task: str) -> list[str]:
    """The metrics of a task in the table, the first of which decides. Of CoLA the accuracy is not shown."""
    if task == "MNLI":
        return ["accuracy", "mismatched"]
    return [metric for metric in TASKS[task].metrics if metric != "accuracy" or metric == TASKS[task].metrics[0]]


def scores(result: Result) -> dict[str, float]:
    """Metric -> value at the best epoch; `last`: the deciding metric at the last epoch; `epoch`: the best one."""
    task, best = result["labels"]["task"], result["best"]["epoch"]
    values = {metric: result["epochs"][str(best)][f"valid_{metric}"] for metric in TASKS[task].metrics}
    if task == "MNLI":
        values["mismatched"] = result["scores"]["mismatched"]["accuracy"]
    last = result["epochs"][str(max(map(int, result["epochs"])))]
    return {**values, "last": last[f"valid_{shown(task)[0]}"], "epoch": best}


def summary(task: str, by_rate: dict[str, list[Result]]) -> Result:
    """Medians for each rate, and the best rate: the highest median, of equal ones the lowest rate."""
    rates = {}
    for rate in sorted(by_rate, key=float):
        values = [scores(result) for result in by_rate[rate]]
        deciding = [value[shown(task)[0]] for value in values]
        rates[rate] = {
            "runs": len(values),
            "median": {key: statistics.median(value[key] for value in values) for key in values[0]},
            "wall_min": statistics.median(result["time"]["wall_s"] / 60 for result in by_rate[rate]),
            "min": min(deciding),
            "max": max(deciding),
        }
    best = max(rates, key=lambda rate: (rates[rate]["median"][shown(task)[0]], -float(rate)))
    return {"best_rate": best, "rates": rates}


def summaries(runs: list[Run]) -> dict[str, dict[str, Result]]:
    """Task, in GLUE's order -> model -> its summary."""
    groups: dict[str, Any] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for run in runs:
        groups[run.labels["task"]][run.labels["model"]][run.option("--lr")].append(run.record)
    return {
        task: {model: summary(task, by_rate) for model, by_rate in sorted(groups[task].items())}
        for task in TASKS
        if task in groups
    }


def main_table(table: dict[str, dict[str, Result]], constant: dict[str, dict[str, float]]) -> list[str]:
    """A row per model, a column per task and the mean of the deciding metrics; the last row is a constant answer."""
    titles = [f"{task} ({' / '.join(TITLES.get(metric, metric) for metric in shown(task))})" for task in table]
    lines = header(["model", *titles, "mean"])

    def add(name: str, values: dict[str, dict[str, float]], rates: dict[str, str]) -> None:
        cells = [
            "-" if task not in values else " / ".join(f"{values[task][m]:.1f}" for m in shown(task)) for task in table
        ]
        cells = [f"{cell} ({rates[task]})" if task in rates else cell for task, cell in zip(table, cells)]
        deciding = [values[task][shown(task)[0]] for task in values]
        mean = f"{statistics.fmean(deciding):.1f}" if len(deciding) == len(table) else "-"
        lines.append(f"| {' | '.join([name, *cells, mean])} |")

    for model in sorted({model for by_model in table.values() for model in by_model}):
        found = {task: by_model[model] for task, by_model in table.items() if model in by_model}
        rates = {task: each["best_rate"] for task, each in found.items()}
        add(model, {task: each["rates"][rates[task]]["median"] for task, each in found.items()}, rates)
    add(
        "(constant answer)",
        {task: {"mismatched": constant[task].get("accuracy", 0), **constant[task]} for task in table},
        {},
    )
    return lines


def rate_table(table: dict[str, dict[str, Result]]) -> list[str]:
    """All learning rates, by the metric that decides."""
    titles = ["task", "model", "rate", "runs", "median", "min", "max", "last epoch", "best epoch", "wall time (min)"]
    lines = header(titles, texts=2)
    for task, model, record in (
        (task, model, each) for task, models in table.items() for model, each in models.items()
    ):
        for rate, row in record["rates"].items():
            median, mark = row["median"], "**" if rate == record["best_rate"] else ""
            cells = [task, model, rate, row["runs"], f"{mark}{median[shown(task)[0]]:.2f}{mark}"]
            cells += [f"{value:.2f}" for value in (row["min"], row["max"], median["last"])]
            lines.append(f"| {' | '.join(map(str, cells))} | {median['epoch']:g} | {row['wall_min']:.1f} |")
    return lines


def notes(results: list[Result]) -> list[str]:
    """What the runs have in common, and where they differ."""

    def of(label: str, value: Callable[[Result], object]) -> Callable[[Result], str]:
        return lambda run: f"{run['labels'][label]}: {value(run)}"

    return [
        *distinct("pre-training", results, of("model", lambda run: f"{int(run['labels']['updates']):,} updates")),
        *distinct("parameters", results, of("model", lambda run: f"{run['parameters']['all']:,}")),
        *distinct("epochs", results, of("task", lambda run: max(map(int, run["epochs"])))),
        *distinct("seeds", results, lambda run: run["labels"]["seed"]),
        *environment(results, data=of("task", lambda run: run["data"]["all"])),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", help="folder of the runs' folders")
    parser.add_argument("--output", type=Path, required=True, help="folder for results.md and results.json")
    args = parser.parse_args()
    found = find_runs(args.runs)
    runs = [run for run in found if is_finished(run)]
    unfinished = [run for run in found if not is_finished(run)]
    check_finished(runs, unfinished)
    results, table = [run.record for run in runs], summaries(runs)
    constant = {result["labels"]["task"]: json.loads(result["labels"]["constant"]) for result in results}
    lines = [*main_table(table, constant), "", NOTE, *notes(results), ""]
    lines += [*still_missing([run.name for run in unfinished]), "## All learning rates", "", *rate_table(table), ""]
    write_text(args.output / "results.md", "\n".join(lines))
    write_json(args.output / "results.json", table)
    print("\n".join(lines))


if __name__ == "__main__":
    with one_line():
        main()
