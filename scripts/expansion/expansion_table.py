"""Make page and figure of `tables.py expansion`: perplexities per word and divergences of each method."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from records import line

from embinit_fairseq import figures
from embinit_fairseq.errors import DataError
from embinit_fairseq.init.methods import EXPANSION
from embinit_fairseq.runs.comparison import environment, header
from embinit_fairseq.runs.curves import draw_mean, new_panels
from embinit_fairseq.runs.log import logged, read_log
from embinit_fairseq.runs.record import Run
from embinit_fairseq.runs.result_table import Column, Result

ORDER = ("none", *EXPANSION)
PLACES = (0, 20, 100)  # numbers of updates in the table, before the last one
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
                lines.append(line(method, len(of_method), *(column.cell(of_method) for column in columns)))
        lines.append("")

    for kind, title in KINDS.items():
        # with EQUAL_TEXT of run.sh `none` is trained longer
        places = sorted({*(place for place in PLACES if place < last), *lasts.values()})
        columns = [Column(f"{place:,} updates", ("curve", str(place), f"{kind}_ppl"), 1) for place in places]
        add_table(f"{title}:", columns)
    add_table("KL(old || new) before adaptation, nats per old piece of the validation text:", DIVERGENCE)
    words = {f"`{result['curve']['0']['words']:,}, {result['curve']['0'].get('new', 0):,}`" for result in results}
    lines += [
        "Mean ± sample standard deviation over seeds.",
        "",
        f"* words and sentence ends, new words among them: {'; '.join(sorted(words))}",
    ]
    lines += [*environment(results), ""]
    for method, of_method in groups.items():
        lines += [f"{method}, seed {of_method[0]['labels'].get('seed')}:", "", f"    {of_method[0]['command']}", ""]
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
