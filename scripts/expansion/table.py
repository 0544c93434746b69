"""Tables and curves of adaptation: the finished runs below RUNS -> results.md, results.json, curves.png.

Perplexity per word: exp of the sum of nats over all pieces and sentence ends of the validation text, divided by the
number of its words and sentence ends, which is the same however words are cut. Each row is the mean over the seeds of
one method with the sample standard deviation behind it.

Read are RUN/start.log (fairseq-validate before the first update), RUN/train.log (fairseq-train), both with --log-format
json and --criterion word_loss, and RUN/expansion.json (`embinit expand-vocab --verify`).
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from embinit_fairseq.errors import DataError, one_line
from embinit_fairseq.files import write_json, write_text
from embinit_fairseq.init.new_rows import METHODS
from embinit_fairseq.plots.curves import draw_mean, new_panels, save, try_to_draw
from embinit_fairseq.runs.compare import Column
from embinit_fairseq.runs.folders import find_runs, is_finished
from embinit_fairseq.runs.logs import read_log
from embinit_fairseq.runs.markdown import distinct, environment, header, still_missing

ORDER = ("none", *METHODS)
PLACES = (0, 20, 100)  # and the last update
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
_VALIDATION = re.compile(r"\| INFO \| valid \| (\{.*\})$", re.MULTILINE)
Groups = dict[str, list[dict]]
Point = dict[str, float]


# ---- reading --------------------------------------------------------------------------------------------------------


def point_of(values: Mapping[str, Any]) -> Point:
    """A validation's values as fairseq logs them -> nats and perplexity per word, by kind, and numbers of words."""
    nll = {kind: float(values[f"valid_{kind}_nll"]) for kind in KINDS if f"valid_{kind}_nll" in values}
    counts = {name: int(float(values[f"valid_{name}"])) for name in ("words", "new") if f"valid_{name}" in values}
    return {
        **counts,
        **{f"{kind}_nll": value for kind, value in nll.items()},
        **{f"{kind}_ppl": math.exp(value) for kind, value in nll.items()},
    }


def read_curve(run: Path) -> dict[str, Point]:
    """By number of updates, from 0. DataError if there is no beginning, or if validations count different words."""
    log = run / "start.log"
    found = _VALIDATION.findall(log.read_text(encoding="utf-8", errors="replace")) if log.is_file() else []
    if len(found) != 1:
        raise DataError(f"{log}: no validation in it; remove {run}, and run adapt.sh again")
    points = {0: point_of(json.loads(found[0]))}
    points |= {place: point_of(values) for place, values in sorted(read_log(run / "train.log").validations.items())}
    if len({(point.get("words"), point.get("new")) for point in points.values()}) > 1:
        raise DataError(f"{run}: its validations count different words; remove it, and run adapt.sh again")
    return {str(place): point for place, point in points.items()}


def divergence(run: Path) -> dict[str, Any] | None:
    """Measured KL(old || new) in nats per piece, its bound, n and k; None without new words."""
    if not (run / "expansion.json").is_file():
        return None
    record = json.loads((run / "expansion.json").read_text(encoding="utf-8"))
    found = record["verify"]["methods"][record["method"]]
    names = ("mean", "q50", "q99", "max", "bound", "new_words_probability")
    return {**{name: found[name] for name in names}, "n": record["n"], "k": record["k"]}


def grouped(runs: Path) -> tuple[Groups, list[str]]:
    """Method -> its finished runs by seed, in the order of ORDER; names of unfinished runs."""
    groups: Groups = defaultdict(list)
    found = find_runs(str(runs))
    for run in sorted(filter(is_finished, found), key=lambda run: int(run.seed)):
        read = {"run": run.path.relative_to(runs).as_posix(), "curve": read_curve(run.path), "kl": divergence(run.path)}
        groups[run.labels["method"]].append({**run.record, **read})
    if not groups:
        raise DataError(f"{runs}: no finished run in it; run adapt.sh first")
    unfinished = [run.path.relative_to(runs).as_posix() for run in found if not is_finished(run)]
    return {method: groups[method] for method in sorted(groups, key=rank)}, unfinished


def rank(method: str) -> tuple[int, str]:
    """Those that are no longer known come last. METHOD=C stands behind METHOD."""
    name = method.partition("=")[0]
    return (ORDER.index(name) if name in ORDER else len(ORDER)), method


# ---- tables and curves ----------------------------------------------------------------------------------------------


def curve_columns(kind: str, results: Sequence[dict]) -> list[Column]:
    """The perplexity at PLACES and at the last update that all runs have."""
    last = min(max(map(int, result["curve"])) for result in results)
    places = [*(place for place in PLACES if place < last), last]
    return [Column(f"{place:,} updates", ("curve", str(place), f"{kind}_ppl"), 1) for place in places]


def table(columns: Sequence[Column], groups: Groups) -> list[str]:
    """A line for each method that has a value."""
    lines = header(["method", "runs", *(column.title for column in columns)])
    for method, runs in groups.items():
        if any(column.summary(runs) for column in columns):
            lines.append(f"| {method} | {len(runs)} | {' | '.join(column.cell(runs) for column in columns)} |")
    return [*lines, ""]


def markdown(groups: Groups, unfinished: list[str]) -> str:
    """A table for each kind of word, the divergence before adaptation, what the figures mean, a command a method."""
    results = [run for runs in groups.values() for run in runs]
    lines = []
    for kind, title in KINDS.items():
        lines += [f"{title}:", "", *table(curve_columns(kind, results), groups)]
    lines += ["KL(old || new) before adaptation, nats per old piece of the validation text:", ""]
    lines += [
        *table(DIVERGENCE, groups),
        "Mean ± sample standard deviation over seeds.",
        "",
        *distinct("words and sentence ends, new words among them", results, _counts),
        *environment(results),
        "",
        *still_missing(unfinished),
    ]
    for method, runs in groups.items():
        lines += [f"{method}, seed {runs[0]['labels']['seed']}:", "", f"    {runs[0]['command']}", ""]
    return "\n".join(lines)


def _counts(result: dict) -> str:
    point = result["curve"]["0"]
    return f"{point['words']:,}, {point.get('new', 0):,}"


def mean_curve(runs: Sequence[dict], kind: str) -> dict[int, list[float]]:
    """Updates -> perplexities of all runs, where all were validated."""
    found = [{int(place): point[f"{kind}_ppl"] for place, point in run["curve"].items()} for run in runs]
    places = sorted(set.intersection(*(set(each) for each in found)))
    return {place: [each[place] for each in found] for place in places}


def plot(groups: Groups, path: Path) -> None:
    """One panel for each kind of word, logarithmic. gaussian is dashed: for a small factor of noise it lies on avg."""
    from matplotlib.ticker import LogFormatter

    figure, panels = new_panels(len(KINDS), height=4.8)
    for axes, (kind, title) in zip(panels, KINDS.items()):
        for method, runs in groups.items():
            if f"{kind}_ppl" in runs[0]["curve"]["0"]:
                draw_mean(axes, f"{method} ({len(runs)})", mean_curve(runs, kind))
                if method == "gaussian":
                    axes.lines[-1].set_linestyle("--")
        axes.set(title=title.partition(",")[0].partition(" (")[0], xlabel="updates", yscale="log")
        axes.yaxis.set_major_formatter(LogFormatter(labelOnlyBase=False))
        axes.yaxis.set_minor_formatter(LogFormatter(labelOnlyBase=False, minor_thresholds=(3, 0.6)))
        axes.grid(alpha=0.3, which="both")
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, title="method (runs)", loc="outside lower center", ncols=len(groups))
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="folder of the runs' folders")
    parser.add_argument("--output", type=Path, required=True, help="folder for results.md, results.json, curves.png")
    args = parser.parse_args()
    groups, unfinished = grouped(args.runs)
    record = {
        method: {
            "runs": [run["run"] for run in runs],
            "curves": {run["run"]: run["curve"] for run in runs},
            "kl": {run["run"]: run["kl"] for run in runs},
        }
        for method, runs in groups.items()
    }
    text = markdown(groups, unfinished)
    args.output.mkdir(parents=True, exist_ok=True)
    write_text(args.output / "results.md", text)
    write_json(args.output / "results.json", record)
    print(text)
    try_to_draw(plot, groups, args.output / "curves.png")


if __name__ == "__main__":
    with one_line():
        main()
