"""GLUE's table of many runs: every result.json below RUNS -> results.md, results.json.

A run counts with its best epoch; a learning rate with the median over its seeds; a model with its best rate. The second
metric of a task (F1, Spearman's correlation, MNLI's mismatched set) is that of the same epochs at the same rate.
"""

from __future__ import annotations

import json
import re
import statistics
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from glue.tasks import TASKS
from run_table import read_arguments, read_results, write_results

from embinit_fairseq.runs.markdown import distinct, environment, header, still_missing

TITLES = {
    "accuracy": "accuracy",
    "mcc": "Matthews",
    "f1": "F1",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "mismatched": "mismatched",
}
#: what stands behind the deciding metric in a cell
SECOND = {"MRPC": "f1", "QQP": "f1", "STS-B": "spearman", "MNLI": "mismatched"}
_MISMATCHED = re.compile(r"\| INFO \| valid1 \| (\{.*\})$", re.MULTILINE)

Runs = dict[str, dict[str, dict[str, list[dict]]]]  # task -> model -> learning rate -> runs


def grouped(results: list[dict]) -> Runs:
    """The runs by task (in GLUE's order), model and learning rate (the lowest first)."""
    groups: Runs = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for result in sorted(results, key=lambda each: float(each["labels"]["lr"])):
        labels = result["labels"]
        groups[labels["task"]][labels["model"]][labels["lr"]].append(result)
    return {task: dict(sorted(groups[task].items())) for task in TASKS if task in groups}


def mismatched_accuracy(log: Path) -> dict[int, float]:
    """Epoch -> accuracy on MNLI's second validation set; of an epoch that was repeated, the later."""
    records = map(json.loads, _MISMATCHED.findall(log.read_text(encoding="utf-8", errors="replace")))
    return {int(record["epoch"]): float(record["valid1_accuracy"]) for record in records}


def scores(result: dict, runs: Path) -> dict[str, float]:
    """Metric -> value at the best epoch; `last`: the deciding metric at the last epoch; `epoch`: the best one."""
    labels, best = result["labels"], result["best"]["epoch"]
    at_best, metrics = result["epochs"][str(best)], TASKS[labels["task"]].metrics
    found = {metric: at_best[f"valid_{metric}"] for metric in metrics}
    if SECOND.get(labels["task"]) == "mismatched":
        found["mismatched"] = mismatched_accuracy(runs / result["run"] / "train.log")[best]
    last = result["epochs"][str(max(map(int, result["epochs"])))]
    return {**found, "last": last[f"valid_{metrics[0]}"], "epoch": best}


def summary(task: str, by_rate: dict[str, list[dict]], runs: Path) -> dict:
    """Medians for each rate, and the best rate: the highest median, of equal ones the lowest rate."""
    rates = {}
    for rate, results in by_rate.items():
        values = [scores(result, runs) for result in results]
        deciding = [value[TASKS[task].metrics[0]] for value in values]
        rates[rate] = {
            "runs": len(results),
            "median": {key: statistics.median(value[key] for value in values) for key in values[0]},
            "wall_min": statistics.median(result["time"]["wall_min"] for result in results),
            "min": min(deciding),
            "max": max(deciding),
        }
    best = max(rates, key=lambda rate: (rates[rate]["median"][TASKS[task].metrics[0]], -float(rate)))
    return {"best_rate": best, "rates": rates}


def main_table(table: dict[str, dict[str, dict]], baseline: dict[str, dict[str, float]]) -> list[str]:
    """A row per model, a column per task and their mean; the last row is a constant answer."""
    models = sorted({model for by_model in table.values() for model in by_model})
    titles = [" / ".join(TITLES[each] for each in shown(task)) for task in table]
    lines = header(["model", *(f"{task} ({title})" for task, title in zip(table, titles)), "mean"])
    for model in models:
        cells, deciding = [], []
        for task, by_model in table.items():
            if model not in by_model:
                cells.append("-")
                continue
            best = by_model[model]["best_rate"]
            medians = by_model[model]["rates"][best]["median"]
            cells.append(" / ".join(f"{medians[each]:.1f}" for each in shown(task)) + f" ({best})")
            deciding.append(medians[TASKS[task].metrics[0]])
        mean = f"{statistics.fmean(deciding):.1f}" if len(deciding) == len(table) else "-"
        lines.append(f"| {model} | " + " | ".join(cells) + f" | {mean} |")
    cells = [
        " / ".join(f"{baseline[task].get(each, baseline[task]['first']):.1f}" for each in shown(task)) for task in table
    ]
    mean = statistics.fmean(baseline[task]["first"] for task in table)
    return [*lines, "| (constant answer) | " + " | ".join(cells) + f" | {mean:.1f} |"]


def shown(task: str) -> list[str]:
    return [TASKS[task].metrics[0], *([SECOND[task]] if task in SECOND else [])]


def rate_table(table: dict[str, dict[str, dict]]) -> list[str]:
    """All learning rates, by the metric that decides."""
    titles = ["task", "model", "rate", "runs", "median", "min", "max", "last epoch", "best epoch", "wall time (min)"]
    lines = header(titles, texts=2)
    for task, by_model in table.items():
        for model, record in by_model.items():
            for rate, row in record["rates"].items():
                median, mark = row["median"], "**" if rate == record["best_rate"] else ""
                value = f"{mark}{median[TASKS[task].metrics[0]]:.2f}{mark}"
                lines.append(
                    f"| {task} | {model} | {rate} | {row['runs']} | {value} | {row['min']:.2f} | {row['max']:.2f} | "
                    f"{median['last']:.2f} | {median['epoch']:g} | {row['wall_min']:.1f} |"
                )
    return lines


def notes(results: list[dict], unfinished: list[str]) -> list[str]:
    """What the figures mean, and what all runs have in common."""
    lines = [
        "Percentages on the development sets, which also choose epoch and learning rate (in brackets): as in Ke et al. "
        "2021, but too good for new data. Median over seeds of each run's best epoch, at the rate whose median is "
        "best. `last epoch`, `best epoch` and `wall time` are medians as well. A constant answer names the most "
        "frequent label (F1: always the positive one).",
        "",
    ]

    def of(label: str, value: Callable[[dict], object]) -> Callable[[dict], str]:
        return lambda run: f"{run['labels'][label]}: {value(run)}"

    return [
        *lines,
        *distinct("pre-training", results, of("model", lambda run: f"{int(run['labels']['updates']):,} updates")),
        *distinct("parameters", results, of("model", lambda run: f"{run['parameters']['all']:,}")),
        *distinct("epochs", results, of("task", lambda run: max(map(int, run["epochs"])))),
        *distinct("seeds", results, lambda run: run["labels"]["seed"]),
        *environment(results, data=of("task", lambda run: run["data"]["all"])),
        "",
        *still_missing(unfinished),
    ]


def baselines(results: list[dict]) -> dict[str, dict[str, float]]:
    """Task -> metric -> what a constant answer scores; `first`: the deciding metric."""
    found = {}
    for result in results:
        task = result["labels"]["task"]
        values = json.loads(result["labels"]["constant"])
        found[task] = {**values, "first": values[TASKS[task].metrics[0]]}
    return found


def main() -> None:
    args = read_arguments(__doc__)
    results, unfinished = read_results(args.runs)
    table = {
        task: {model: summary(task, by_rate, args.runs) for model, by_rate in by_model.items()}
        for task, by_model in grouped(results).items()
    }
    lines = [*main_table(table, baselines(results)), "", *notes(results, unfinished), "## All learning rates", ""]
    write_results(args.output, "\n".join([*lines, *rate_table(table), ""]), table)


if __name__ == "__main__":
    main()
