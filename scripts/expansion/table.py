"""Tables and curves of adaptation: every result.json below RUNS -> results.md, results.json, curves.png.

Perplexity per word: exp of the sum of nats over all pieces and sentence ends of the validation text, divided by the
number of its words and sentence ends, which is the same however words are cut. Each row is the mean over the seeds of
one method with the sample standard deviation behind it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from run_table import read_arguments, read_results, write_results

from embinit_fairseq.cli.plot_curves import draw_mean, new_panels, save, try_to_draw
from embinit_fairseq.init.new_rows import METHODS
from embinit_fairseq.runs.compare import Column
from embinit_fairseq.runs.markdown import distinct, environment, header, still_missing

ORDER = ("none", *METHODS)
PLACES = (0, 20, 100)  # and the last update
KINDS = {
    "word": "Perplexity per word",
    "other": "Perplexity of all words but the new ones, sentence ends included",
    "new": "Perplexity of the new words (none: of their pieces together)",
}
DIVERGENCE = (
    Column("mean", ("scores", "kl", "mean"), 4),
    Column("99 %", ("scores", "kl", "q99"), 4),
    Column("max.", ("scores", "kl", "max"), 4),
    Column("bound", ("scores", "kl", "bound"), 4),
    Column("probability of the new words", ("scores", "kl", "new_words_probability"), 5),
)
Groups = dict[str, list[dict]]


def grouped(results: list[dict]) -> Groups:
    """Method -> its runs, in the order of ORDER."""
    groups: Groups = defaultdict(list)
    for result in results:
        groups[result["labels"]["method"]].append(result)
    return {method: groups[method] for method in ORDER if method in groups}


def curve_columns(kind: str, results: Sequence[dict]) -> list[Column]:
    """The perplexity at PLACES and at the last update that all runs have."""
    last = min(max(map(int, result["scores"]["curve"])) for result in results)
    places = [*(place for place in PLACES if place < last), last]
    return [Column(f"{place:,} updates", ("scores", "curve", str(place), f"{kind}_ppl"), 1) for place in places]


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
    point = result["scores"]["curve"]["0"]
    return f"{point['words']:,}, {point.get('new', 0):,}"


def curve(runs: Sequence[dict], kind: str) -> dict[int, list[float]]:
    """Updates -> perplexities of all runs, where all were validated."""
    found = [{int(place): point[f"{kind}_ppl"] for place, point in run["scores"]["curve"].items()} for run in runs]
    places = sorted(set.intersection(*(set(each) for each in found)))
    return {place: [each[place] for each in found] for place in places}


def plot(groups: Groups, path: Path) -> None:
    """One panel for each kind of word, logarithmic. gaussian is dashed: for a small factor of noise it lies on avg."""
    from matplotlib.ticker import LogFormatter

    figure, panels = new_panels(len(KINDS), height=4.8)
    for axes, (kind, title) in zip(panels, KINDS.items()):
        for method, runs in groups.items():
            if f"{kind}_ppl" in runs[0]["scores"]["curve"]["0"]:
                draw_mean(axes, f"{method} ({len(runs)})", curve(runs, kind))
                axes.lines[-1].set_linestyle("--" if method == "gaussian" else "-")
        axes.set(title=title.partition(",")[0].partition(" (")[0], xlabel="updates", yscale="log")
        axes.yaxis.set_major_formatter(LogFormatter(labelOnlyBase=False))
        axes.yaxis.set_minor_formatter(LogFormatter(labelOnlyBase=False, minor_thresholds=(3, 0.6)))
        axes.grid(alpha=0.3, which="both")
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, title="method (runs)", loc="outside lower center", ncols=len(groups))
    save(figure, path)


def main() -> None:
    args = read_arguments(__doc__)
    results, unfinished = read_results(args.runs)
    groups = grouped(results)
    record: dict[str, Any] = {
        method: {
            "runs": [run["run"] for run in runs],
            "curves": {run["run"]: run["scores"]["curve"] for run in runs},
            "kl": {run["run"]: run["scores"]["kl"] for run in runs},
        }
        for method, runs in groups.items()
    }
    write_results(args.output, markdown(groups, unfinished), record)
    try_to_draw(plot, groups, args.output / "curves.png")


if __name__ == "__main__":
    main()
