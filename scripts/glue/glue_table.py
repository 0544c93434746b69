"""Make the page of `tables.py glue`: models and tasks as Ke et al. 2021, Table 1, and all learning rates."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from glue.glue_tasks import TASKS
from records import line

from embinit_fairseq.runs.comparison import distinct, environment, header
from embinit_fairseq.runs.record import Run
from embinit_fairseq.runs.result_table import Result

METRICS = {"mcc": "Matthews", "f1": "F1", "pearson": "Pearson", "spearman": "Spearman"}
GLUE_NOTE = """\
Percentages on the development sets, which also choose epoch and learning rate (in brackets): as in Ke et al. 2021, but
too good for new data. Median over seeds of each run's best epoch, at the rate whose median is best. `last epoch`, `best
epoch` and `wall time` are medians. A constant answer is the most frequent label (F1: always the positive one).
"""


def glue(runs: Sequence[Run]) -> tuple[list[str], Result]:
    """Return the page, and task -> model -> its rates and the best of them."""
    groups: Result = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for run in runs:
        rate = run.command.option("--lr") if run.command else None
        groups[run.labels["task"]][run.labels["model"]][rate].append(run.record)
    table = {
        task: {model: glue_rates(task, groups[task][model]) for model in sorted(groups[task])}
        for task in TASKS
        if task in groups
    }
    results = [run.record for run in runs]

    def per(name: str, value: Callable[[Result], object]) -> Callable[[Result], str]:
        return lambda result: f"{result['labels'].get(name)}: {value(result)}"

    updates = per("model", lambda result: f"{int(result['labels'].get('updates') or 0):,} updates")
    notes = [
        *distinct("pre-training", results, updates),
        *distinct("parameters", results, per("model", lambda result: f"{result['parameters']['all']:,}")),
        *distinct("epochs", results, per("task", lambda result: max(map(int, result["epochs"])))),
        *distinct("seeds", results, lambda result: result["labels"].get("seed")),
        *environment(results, data=per("task", lambda result: result["data"]["all"])),
    ]
    constant = {result["labels"]["task"]: json.loads(result["labels"]["constant"]) for result in results}
    lines = [*glue_models(table, constant), "", GLUE_NOTE, *notes, ""]
    return [*lines, "## All learning rates", "", *glue_all_rates(table), ""], table


def glue_metrics(task: str) -> list[str]:
    """Return the metrics of a task in the table; the first one decides. CoLA is shown without accuracy."""
    if task == "MNLI":
        return ["accuracy", "mismatched"]
    return [metric for metric in TASKS[task].metrics if metric != "accuracy" or metric == TASKS[task].metrics[0]]


def glue_rates(task: str, by_rate: Mapping[str, Sequence[Result]]) -> Result:
    """Return medians for each rate, and the best rate: the highest median, of equal ones the lowest rate."""
    deciding, rates = glue_metrics(task)[0], {}
    for rate in sorted(by_rate, key=float):
        values = []
        for result in by_rate[rate]:
            epochs, best = result["epochs"], result["best"]["epoch"]
            values.append({metric: epochs[str(best)][f"valid_{metric}"] for metric in TASKS[task].metrics})
            if task == "MNLI":
                values[-1]["mismatched"] = result["scores"]["mismatched"]["accuracy"]
            values[-1] |= {"last": epochs[max(epochs, key=int)][f"valid_{deciding}"], "epoch": best}
        rates[rate] = {
            "runs": len(values),
            "median": {key: statistics.median(value[key] for value in values) for key in values[0]},
            "wall_min": statistics.median(result["time"]["wall_s"] / 60 for result in by_rate[rate]),
            "min": min(value[deciding] for value in values),
            "max": max(value[deciding] for value in values),
        }
    best_rate = max(rates, key=lambda rate: (rates[rate]["median"][deciding], -float(rate)))
    return {"best_rate": best_rate, "rates": rates}


def glue_models(table: Mapping[str, Mapping[str, Result]], constant: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return a line per model, with a column per task and the mean of the deciding metrics; last, a constant answer."""
    titles = [f"{task} ({' / '.join(METRICS.get(metric, metric) for metric in glue_metrics(task))})" for task in table]
    lines = header(["model", *titles, "mean"])
    for model in [*sorted({model for models in table.values() for model in models}), "(constant answer)"]:
        cells, deciding = [], []
        for task, models in table.items():
            rate, medians = "", constant[task]
            if model != "(constant answer)":
                if model not in models:
                    cells.append("-")
                    continue
                rate = models[model]["best_rate"]
                medians, rate = models[model]["rates"][rate]["median"], f" ({rate})"
            scores = (f"{medians[metric]:.1f}" if metric in medians else "-" for metric in glue_metrics(task))
            cells.append(" / ".join(scores) + rate)
            deciding.append(medians[glue_metrics(task)[0]])
        lines.append(line(model, *cells, f"{statistics.fmean(deciding):.1f}" if len(deciding) == len(table) else "-"))
    return lines


def glue_all_rates(table: Mapping[str, Mapping[str, Result]]) -> list[str]:
    """Return a line per task, model and learning rate, by the metric that decides."""
    titles = ["task", "model", "rate", "runs", "median", "min", "max", "last epoch", "best epoch", "wall time (min)"]
    lines = header(titles, texts=2)
    for task, models in table.items():
        for model, of_model in models.items():
            for rate, of_rate in of_model["rates"].items():
                median, mark = of_rate["median"], "**" if rate == of_model["best_rate"] else ""
                deciding = f"{mark}{median[glue_metrics(task)[0]]:.2f}{mark}"
                numbers = [f"{value:.2f}" for value in (of_rate["min"], of_rate["max"], median["last"])]
                numbers += [f"{median['epoch']:g}", f"{of_rate['wall_min']:.1f}"]
                lines.append(line(task, model, rate, of_rate["runs"], deciding, *numbers))
    return lines
