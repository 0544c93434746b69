"""The result tables of recipes whose papers show more than `embinit compare` does: RUNS -> results.md, results.json.

    python scripts/tables.py glue runs/glue/runs --output runs/glue

glue       Ke et al. 2021, Table 1: a run counts with its best epoch, a learning rate with the median over its seeds, a
           model with its best rate. The second metric of a task (F1, Spearman's correlation, MNLI's mismatched set) is
           that of the same epochs at the same rate.
textcls    Li et al. 2020, Tables 1 to 3: all models, and pairs of embeddings for each kind of attention, with the pair
           that the validation texts choose, and how much of the texts the vectors cover. Accuracies are of the
           checkpoint with the lowest validation loss.
expansion  Perplexity per word while a language model with new words is adapted, and the divergence of Hewitt 2021
           before; curves.png. Perplexity is exp of the sum of nats over all subwords and sentence ends of the
           validation text, divided by the number of its words and sentence ends: the same for every segmentation.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent / "glue"))

from glue_tasks import TASKS

from embinit_fairseq import figures
from embinit_fairseq.arguments import ArgumentParser
from embinit_fairseq.errors import DataError, one_line
from embinit_fairseq.init.methods import EXPANSION
from embinit_fairseq.io import make_folder, write_json, write_text
from embinit_fairseq.runs.command import parse_command
from embinit_fairseq.runs.comparison import distinct, environment, header, still_missing
from embinit_fairseq.runs.curves import draw_mean, new_panels, try_to_draw
from embinit_fairseq.runs.log import logged, read_log
from embinit_fairseq.runs.record import Run
from embinit_fairseq.runs.result_table import Column, read_finished

Result = dict[str, Any]
MEANS = ["Mean ± sample standard deviation over seeds.", ""]


def row(*cells: object) -> str:
    """Return a line of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def label(result: Result, name: str) -> str | None:
    """Return a label of a run."""
    return result["labels"].get(name)


# ---- GLUE -----------------------------------------------------------------------------------------------------------

METRICS = {"mcc": "Matthews", "f1": "F1", "pearson": "Pearson", "spearman": "Spearman"}
GLUE_NOTE = """\
Percentages on the development sets, which also choose epoch and learning rate (in brackets): as in Ke et al. 2021, but
too good for new data. Median over seeds of each run's best epoch, at the rate whose median is best. `last epoch`, `best
epoch` and `wall time` are medians. A constant answer is the most frequent label (F1: always the positive one).
"""


def glue(runs: Sequence[Run]) -> tuple[list[str], Result]:
    """Return the page, and task -> model -> its rates and the best of them."""
    groups: dict[str, Any] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
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
        return lambda result: f"{label(result, name)}: {value(result)}"

    updates = per("model", lambda result: f"{int(label(result, 'updates') or 0):,} updates")
    notes = [
        *distinct("pre-training", results, updates),
        *distinct("parameters", results, per("model", lambda result: f"{result['parameters']['all']:,}")),
        *distinct("epochs", results, per("task", lambda result: max(map(int, result["epochs"])))),
        *distinct("seeds", results, lambda result: label(result, "seed")),
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
            rate, medians = "", {"mismatched": constant[task].get("accuracy"), **constant[task]}
            if model != "(constant answer)":
                if model not in models:
                    cells.append("-")
                    continue
                rate = models[model]["best_rate"]
                medians, rate = models[model]["rates"][rate]["median"], f" ({rate})"
            cells.append(" / ".join(f"{medians[metric]:.1f}" for metric in glue_metrics(task)) + rate)
            deciding.append(medians[glue_metrics(task)[0]])
        lines.append(row(model, *cells, f"{statistics.fmean(deciding):.1f}" if len(deciding) == len(table) else "-"))
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
                lines.append(row(task, model, rate, of_rate["runs"], deciding, *numbers))
    return lines


# ---- Text classification --------------------------------------------------------------------------------------------

TEST = Column("test accuracy (%)", ("scores", "test_accuracy"))
VALID = Column("val. accuracy (%)", ("best", "valid_accuracy"))
COLUMNS = (
    TEST,
    Column("test macro-F1 (%)", ("scores", "test_macro_f1")),
    VALID,
    Column("val. loss (nats)", ("best", "valid_loss_nats"), 3),
    Column("at epoch", ("best", "epoch"), 1),
    Column("wall time (s)", ("time", "wall_s"), 0),
)
BASELINES = {"tfidf_lr": "TF-IDF, logistic regression", "mlp": "TF-IDF, MLP with 1,024 hidden units"}
PROTOCOLS = {
    "textgcn": "words counted over train and test texts, all of them in the dictionary",
    "inductive": "words counted over train texts, all others <unk>",
}
#: how a pair is chosen -> what its accuracy is worth, and the column that chooses
CHOICES = {
    "chosen by validation accuracy": ("the result of the couples", VALID),
    "best on the test texts": ("chosen with knowledge of them, so no result", TEST),
}
Rows = dict[tuple[str, str], list[Result]]  # (model, attention) -> results, by seed


def textcls(runs: Sequence[Run]) -> tuple[list[str], Result]:
    """Return the page, and data set and protocol -> its models as data."""
    groups: dict[tuple[str, str], Rows] = defaultdict(lambda: defaultdict(list))
    for run in sorted(runs, key=lambda run: int(run.seed)):
        best = run.record["best"]  # bags of words have their accuracy in `best`, trainings in `epochs`
        result = {**run.record, "best": {**run.record["epochs"].get(str(best["epoch"]), {}), **best}}
        model = run.labels["model"], run.labels.get("attention", "")
        groups[run.labels["task"], run.labels["protocol"]][model].append(result)
    lines, data = [], {}
    for (task, protocol), unsorted in sorted(groups.items()):
        rows = dict(sorted(unsorted.items(), key=model_rank))
        lines += [f"## {task}, protocol {protocol}: {PROTOCOLS.get(protocol, '')}", ""]
        lines += header(["model", "runs", "trained parameters", *(column.title for column in COLUMNS)])
        for model, results in rows.items():
            parameters = f"{results[0]['parameters']['trained']:,}"  # the same for all seeds
            lines.append(row(model_title(*model), len(results), parameters, *(c.cell(results) for c in COLUMNS)))
        lines.append("")
        for attention in sorted({attention for model, attention in rows if "+" in model}, reverse=True):
            lines += [*pairs_table(rows, attention), ""]
        choice = choose_pairs(rows)
        if choice is not None:
            lines += [f"Couples, seeds {', '.join(choice['seeds'])}:", ""]
            for how, (worth, _) in CHOICES.items():
                means = [f"{column.title} {choice[how][column.title]['mean']:.2f}" for column in (VALID, TEST)]
                lines.append(f"* {how} ({worth}): {choice[how]['model']}; {', '.join(means)}")
            lines.append("")
        lines += [*vectors_table(rows), *MEANS, *textcls_notes(rows), ""]
        models = {
            model_title(*model): {"runs": len(results), **{c.title: c.summary(results) for c in COLUMNS}}
            for model, results in rows.items()
        }
        data[f"{task}, {protocol}"] = {**models, "couples": choice}
    return lines, data


def model_rank(item: tuple[tuple[str, str], list[Result]]) -> tuple:
    """Sort bags of words, transformers, then pairs by their test accuracy in each attention."""
    (model, attention), results = item
    kind = list(BASELINES).index(model) if model in BASELINES else 3 if "+" in model else 2
    return kind, attention == "linear", -TEST.summary(results)["mean"]


def model_title(model: str, attention: str) -> str:
    """Return the name of a model's line."""
    if "+" in model:
        return f"Duo ({attention}), {model.replace('+', ' + ')}"
    kind, _, name = model.partition(":")
    return BASELINES.get(model) or f"{kind}, {name or 'random table'}"


def slots_of(rows: Rows) -> dict[str, Result]:
    """Return name of the vectors -> report on the embedding matrix that was made of them, by dimension and name."""
    slots = {}
    for (model, _), results in rows.items():
        names = model.split("+") if "+" in model else [model.partition(":")[2]]
        reports = (results[0].get("init") or {}).get("slots") or {}
        slots |= {name: reports[s] for name, s in zip(names, ("encoder", "encoder_p")) if name and s in reports}
    return dict(sorted(slots.items(), key=lambda item: (item[1]["dim"], item[0])))


def pairs_table(rows: Rows, attention: str) -> list[str]:
    """Return vectors by vectors, the upper triangle; a cell with fewer runs than others has their number."""
    cells = {tuple(model.split("+")): results for (model, kind), results in rows.items() if kind == attention}
    names = list(slots_of({model: results for model, results in rows.items() if model[1] == attention}))
    most = max(map(len, cells.values()))
    lines = header([f"{attention} ({most} run{'s' * (most > 1)})", *names])
    for at, name in enumerate(names):
        line = ["-"] * at
        for other in names[at:]:
            results = cells.get((name, other)) or cells.get((other, name)) or []
            line.append(TEST.cell(results) + (f" ({len(results)})" if 0 < len(results) < most else ""))
        lines.append(row(name, *line))
    return lines


def choose_pairs(rows: Rows) -> Result | None:
    """Return the pair that the validation texts choose, and the one that is best on the test texts; None without pairs.

    By mean accuracies over the seeds that all pairs have, since each seed has validation texts of its own. Of equal
    pairs the first name is chosen.
    """
    pairs = {
        model: {label(result, "seed"): result for result in rows[model]} for model in sorted(rows) if "+" in model[0]
    }
    seeds = sorted(set.intersection(*map(set, pairs.values())), key=int) if pairs else []
    if not seeds:
        return None
    common = {model: [by_seed[seed] for seed in seeds] for model, by_seed in pairs.items()}
    choice: Result = {"seeds": seeds}
    for how, (_, column) in CHOICES.items():
        best = max(common, key=lambda model: column.summary(common[model])["mean"])
        choice[how] = {"model": model_title(*best), **{c.title: c.summary(common[best]) for c in (VALID, TEST)}}
    return choice


def vectors_table(rows: Rows) -> list[str]:
    """Return the coverage of the dictionary by each file of vectors."""
    titles = ["vectors", "file", "rows", "dimension", "words of the dictionary (%)", "running words (%)"]
    lines = header(titles, texts=2)
    for name, slot in slots_of(rows).items():
        known = [slot[share] for share in ("coverage_types", "coverage_tokens")]
        shares = ["-" if share is None else f"{100 * share:.1f}" for share in known]
        lines.append(row(name, slot["source"]["name"], f"{slot['source']['rows']:,}", slot["dim"], *shares))
    return [*lines, ""] if len(lines) > 2 else []


def textcls_notes(rows: Rows) -> list[str]:
    """Return what the runs have in common."""
    results = [result for of_model in rows.values() for result in of_model]

    def training(result: Result) -> str | None:
        if label(result, "model") in BASELINES:
            return None
        options = parse_command(shlex.split(result["command"]), any_program=True).options
        flags = ("--lr", "--lr-scheduler", "--batch-size", "--patience", "--max-epoch", "--dropout")
        return " ".join(" ".join([flag, *options[flag]]) for flag in flags if flag in options)

    settings = ("clean", "stop_words", "min_count")
    return [
        f"* seeds: {', '.join(map(str, sorted({int(result['labels']['seed']) for result in results})))}",
        *(line for name in settings for line in distinct(name, results, lambda result, name=name: label(result, name))),
        *distinct("trained by fairseq", results, training),
        *environment(results, data=lambda result: f"test {result['data']['input0/test.bin'][:16]}"),
    ]


# ---- Expansion ------------------------------------------------------------------------------------------------------

ORDER = ("none", *EXPANSION)
PLACES = (0, 20, 100)  # numbers of updates, and the last one
KINDS = {
    "word": "Perplexity per word",
    "other": "Perplexity of all words but the new ones, sentence ends included",
    "new": "Perplexity of the new words (none: of their pieces together)",
}
DIVERGENCE = (
    Column("mean", ("kl", "mean"), 4),
    Column("99 %", ("kl", "q99"), 4),
    Column("max.", ("kl", "max"), 4),
    Column("bound", ("kl", "bound"), 4),
    Column("probability of the new words", ("kl", "new_words_probability"), 5),
)
Point = dict[str, float]


def expansion(runs: Sequence[Run]) -> tuple[list[str], Result]:
    """Return the page, and method -> its runs, their curves and divergences."""
    groups: dict[str, list[Result]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: (method_rank(run.labels["method"]), int(run.seed))):
        measured = {"run": run.path.name, "curve": read_curve(run.path), "kl": divergence(run.path)}
        groups[run.labels["method"]].append({**run.record, **measured})
    results = [result for of_method in groups.values() for result in of_method]
    lasts = {m: min(max(map(int, result["curve"])) for result in of_method) for m, of_method in groups.items()}
    last = min(lasts.values())  # update that all runs have
    lines = []

    def add_table(title: str, columns: Sequence[Column]) -> None:
        lines.extend([title, "", *header(["method", "runs", *(column.title for column in columns)])])
        for method, of_method in groups.items():
            if any(column.summary(of_method) for column in columns):
                lines.append(row(method, len(of_method), *(column.cell(of_method) for column in columns)))
        lines.append("")

    for kind, title in KINDS.items():
        # with EQUAL_TEXT of run.sh `none` is trained longer
        places = sorted({*(place for place in PLACES if place < last), *lasts.values()})
        columns = [Column(f"{place:,} updates", ("curve", str(place), f"{kind}_ppl"), 1) for place in places]
        add_table(f"{title}:", columns)
    add_table("KL(old || new) before adaptation, nats per old piece of the validation text:", DIVERGENCE)
    words = {f"`{result['curve']['0']['words']:,}, {result['curve']['0'].get('new', 0):,}`" for result in results}
    lines += [*MEANS, f"* words and sentence ends, new words among them: {'; '.join(sorted(words))}"]
    lines += [*environment(results), ""]
    for method, of_method in groups.items():
        lines += [f"{method}, seed {label(of_method[0], 'seed')}:", "", f"    {of_method[0]['command']}", ""]
    data = {
        method: {
            "runs": [result["run"] for result in of_method],
            "curves": {result["run"]: result["curve"] for result in of_method},
            "kl": {result["run"]: result["kl"] for result in of_method},
        }
        for method, of_method in groups.items()
    }
    return lines, data


def method_rank(method: str) -> tuple[int, str]:
    """Sort methods; METHOD=C follows METHOD, unknown ones come last."""
    name = method.partition("=")[0]
    return (ORDER.index(name) if name in ORDER else len(ORDER)), method


def read_curve(run: Path) -> dict[str, Point]:
    """Return number of updates, from 0 -> nats and perplexity per word, by kind, and numbers of words.

    start.log is of fairseq-validate before the first update. Raises DataError if it is missing.
    """
    start = logged(run / "start.log", "valid")
    if len(start) != 1:
        raise DataError(f"{run}/start.log: no validation in it; remove {run}, and run adapt.sh again")
    validations = {0: start[0], **dict(sorted(read_log(run / "train.log").validations.items()))}
    points: dict[str, Point] = {}
    for place, values in validations.items():
        nll = {kind: float(values[f"valid_{kind}_nll"]) for kind in KINDS if f"valid_{kind}_nll" in values}
        points[str(place)] = {
            **{name: int(float(values[f"valid_{name}"])) for name in ("words", "new") if f"valid_{name}" in values},
            **{f"{kind}_nll": value for kind, value in nll.items()},
            **{f"{kind}_ppl": math.exp(value) for kind, value in nll.items()},
        }
    return points


def divergence(run: Path) -> Result | None:
    """Return KL(old || new) in nats per subword, its bound, n and k; None without new words."""
    if not (run / "expansion.json").is_file():
        return None
    record = json.loads((run / "expansion.json").read_text(encoding="utf-8"))
    measured = record["verify"]["methods"][record["method"]]
    names = ("mean", "q50", "q99", "max", "bound", "new_words_probability")
    return {**{name: measured[name] for name in names}, "n": record["n"], "k": record["k"]}


def plot_expansion(data: Result, path: Path) -> None:
    """Draw a panel for each kind of word, logarithmic. gaussian is dashed: for a little noise it is equal to avg."""
    from matplotlib.ticker import LogFormatter

    figure, panels = new_panels(len(KINDS), height=4.8)
    for axes, (kind, title) in zip(panels, KINDS.items()):
        for method, of_method in data.items():
            curves = list(of_method["curves"].values())
            if f"{kind}_ppl" not in curves[0]["0"]:
                continue
            places = sorted(map(int, set.intersection(*(set(curve) for curve in curves))))
            values = {place: [curve[str(place)][f"{kind}_ppl"] for curve in curves] for place in places}
            line = draw_mean(axes, f"{method} ({len(curves)})", values)
            if method == "gaussian":
                line.set_linestyle("--")
        axes.set(title=title.partition(",")[0].partition(" (")[0], xlabel="updates", yscale="log")
        axes.yaxis.set_major_formatter(LogFormatter(labelOnlyBase=False))
        axes.yaxis.set_minor_formatter(LogFormatter(labelOnlyBase=False, minor_thresholds=(3, 0.6)))
        axes.grid(alpha=0.3, which="both")
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, title="method (runs)", loc="outside lower center", ncols=len(data))
    figures.save(figure, str(path))


# ---- The program ----------------------------------------------------------------------------------------------------


def main() -> None:
    """Read the runs, write and print the page."""
    tables = {"glue": glue, "textcls": textcls, "expansion": expansion}
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=tables)
    parser.add_argument("runs", help="folder of the runs' folders, at any depth")
    parser.add_argument("--output", type=Path, required=True, help="folder for results.md and results.json")
    args = parser.parse_args()
    runs, unfinished = read_finished([args.runs])
    if args.kind == "textcls":
        unfinished += [run.name for run in runs if TEST.value(run.record) is None]
        runs = [run for run in runs if TEST.value(run.record) is not None]
    lines, data = tables[args.kind](runs)
    text = "\n".join([*lines, *still_missing(unfinished)])
    make_folder(args.output)
    write_text(args.output / "results.md", text)
    write_json(args.output / "results.json", data)
    print(text)
    if args.kind == "expansion":
        try_to_draw(plot_expansion, data, args.output / "curves.png")


if __name__ == "__main__":
    with one_line():
        main()
