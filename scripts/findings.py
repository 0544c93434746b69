"""Draw the figures of the README and of docs/results/README.md from the records of the experiments.

    python scripts/findings.py docs/results/records --output docs/results

Each function below draws one finding. The records are the CSV files that `scripts/records.py write` makes.
"""

from __future__ import annotations

import argparse
import collections
import csv
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from records import read

#: initialisation -> name for readers, in the order of the figure
INITIALISATIONS = {
    "none": "fairseq's own",
    "xavier": "xavier",
    "pretrained_xavier": "pretrained_xavier",
    "shuffled_xavier": "shuffled at Xavier's scale",
    "pretrained": "pretrained (raw)",
    "shuffled": "shuffled (raw)",
}
_WIDTH, _HEIGHT = 4.2, 2.9  # inches per panel
_BLUE, _ORANGE, _GREEN, _GREY = "#0072b2", "#d55e00", "#009e73", "0.45"


def initialisations(records: Path) -> Figure:
    """Draw test BLEU on Multi30k, one dot per seed, for six initialisations; Xavier's mean is a line."""
    figure, (axes,) = panels(1, width=6.4)
    _bleu(axes, read(records / "table1-full.csv"))
    return figure


def scale(records: Path) -> Figure:
    """Draw the lowest validation loss of the initialisations, at the paper's learning rate and at 2.5 times it."""
    figure, axes = panels(2, width=4.6)
    losses = {rate: _best_by(records / f"{file}.csv", "init") for rate, file in RATES.items()}
    names = [name for name in INITIALISATIONS if name in losses["learning rate 5e-4 (one seed)"]]
    for panel, (title, of_init) in zip(axes, losses.items()):
        shown = list(INITIALISATIONS) if len(of_init) > len(names) else names
        _dots(panel, [(INITIALISATIONS[name], of_init[name]) for name in shown], of_init["xavier"])
        panel.set(title=title, xlabel="validation loss (bits per token)", xlim=(2.32, 2.71))
    return figure


#: title of a panel -> records
RATES = {"learning rate 2e-4 (three seeds)": "table1-full", "learning rate 5e-4 (one seed)": "table1-full-rates"}


def learning_rate(records: Path) -> Figure:
    """Draw what eight times Xavier's scale costs, against the learning rate, by treatment of the positions."""
    figure, (axes,) = panels(1)
    runs = [{"rate": "5e-4", **run} for run in read(records / "scale-small.csv")] + read(records / "scale-rates.csv")
    losses: dict[tuple[str, float, str, str], float] = {}
    for run in runs:
        if run["init"] == "xavier" and run["sigma"] in ("1x", "8x"):
            losses[run["positions"], float(run["rate"]), run["seed"], run["sigma"]] = _best(run)
    for positions, colour in (("added", _BLUE), ("absent", _ORANGE), ("untied", _GREEN)):
        cost = collections.defaultdict(list)
        for (of, rate, seed, sigma), loss in losses.items():
            if of == positions and sigma == "8x" and (of, rate, seed, "1x") in losses:
                cost[rate].append(loss - losses[of, rate, seed, "1x"])
        rates = sorted(cost)
        axes.plot(rates, [statistics.mean(cost[rate]) for rate in rates], "o-", color=colour, label=positions)
        for rate in rates:
            axes.plot([rate] * len(cost[rate]), cost[rate], ".", color=colour, markersize=4)
    axes.set_xscale("log")
    axes.set_xticks([5e-4, 1e-3, 2e-3, 4e-3], ["5e-4", "1e-3", "2e-3", "4e-3"], minor=False)
    axes.minorticks_off()
    axes.set(xlabel="learning rate", ylabel="cost of 8 times Xavier's scale (bits)", ylim=(0, None))
    axes.legend(title="positions", frameon=False)
    return figure


def positions(records: Path) -> Figure:
    """Draw the loss of masked language models after 6,000 updates, one dot per seed, at two learning rates."""
    names = {"bert_a": "BERT-A", "bert_ad": "BERT-A^d", "tupe_a": "TUPE-A", "bert_r": "BERT-R", "tupe_r": "TUPE-R"}
    figure, axes = panels(2)
    runs = [run for run in read(records / "tupe-rates.csv") if run["warmup"] == "600" and ".18000." not in run["run"]]
    for panel, rate in zip(axes, ("1e-3", "2e-3")):
        losses = [
            (name, [_best(run) for run in runs if (run["model"], run["lr"]) == (model, rate)])
            for model, name in names.items()
        ]
        _dots(panel, losses, None)
        panel.set(title=f"learning rate {rate}", xlabel="validation loss (bits per masked token)", xlim=(6.4, 9))
    return figure


def duo(records: Path) -> Figure:
    """Draw validation loss per epoch and per processor second: Duo, a transformer, one stream with both sets."""
    names = {
        "transformer": ("transformer, one set of embeddings", _GREY),
        "transformer_concat": ("transformer, both sets in one stream", _GREEN),
        "duo_stream_decoder": ("Duo", _ORANGE),
    }
    figure, axes = panels(2)
    runs = {run["run"]: run for run in read(records / "duo-small-rates.csv")}
    for panel, column, label in zip(axes, ("epoch", "cpu_s"), ("epoch", "CPU seconds")):
        for model, (name, colour) in names.items():
            for seed, style in ((1, "o-"), (2, "o--")):
                epochs = runs[f"{model}.0.1.2e-3.seed{seed}"]["epochs"]
                points = [epoch[column] for epoch in epochs], [epoch["valid_loss"] for epoch in epochs]
                panel.plot(*points, style, color=colour, markersize=3, label=name if seed == 1 else None)
        panel.set(xlabel=label, ylabel="validation loss (bits per token)", ylim=(2.3, 4.2))
    axes[0].legend(frameon=False)
    return figure


def new_words(records: Path) -> Figure:
    """Draw perplexity after adding words, and the probability of all new words before and after a shift of logits."""
    names = {"subword": _GREEN, "zeros": _BLUE, "avg": _ORANGE, "none": _GREY}
    with open(records / "books.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    figure, (left, right) = panels(2)
    for method, colour in names.items():
        by_updates = collections.defaultdict(list)
        for row in rows:
            if (row["experiment"], row["method"]) == ("three_models", method):
                by_updates[int(row["updates"])].append(float(row["word_ppl"]))
        updates = sorted(by_updates)[1:]
        means = [statistics.mean(by_updates[update]) for update in updates]
        left.plot(updates, means, color=colour, label={"none": "no new words"}.get(method, method))
    left.set(xlabel="updates on the new domain", ylabel="perplexity per word", yscale="log")
    left.set_yticks([450, 600, 800, 1000], ["450", "600", "800", "1000"], minor=False)
    left.minorticks_off()
    left.legend(frameon=False)
    levels = (
        ("three_models", "lm1/{}.seed1", "as trained (log Z = 8.7)"),
        ("shifted", "{}.seed1", "all logits lowered by 20"),
    )
    at_start = {(row["experiment"], row["run"]): row for row in rows if row["updates"] == "0"}
    for number, (experiment, run, label) in enumerate(levels):
        shares = [
            float(at_start[experiment, run.format(method)]["kl_new_words_probability"])
            for method in ("subword", "zeros", "avg")
        ]
        places = [place + 0.4 * number for place in range(3)]
        right.bar(places, shares, 0.38, color=(_BLUE, _ORANGE)[number], label=label)
        for place, share in zip(places, shares):
            right.text(place, share * 1.15, f"{100 * share:.3g} %", ha="center", fontsize=7)
    right.set_xticks([0.2, 1.2, 2.2], ["subword", "zeros", "avg"])
    right.set(ylabel="probability of all new words", yscale="log", ylim=(5e-4, 20))
    right.legend(frameon=False)
    return figure


def panels(count: int, width: float = _WIDTH) -> tuple[Figure, list[Axes]]:
    """Return a figure with `count` panels next to each other, `width` inches each."""
    figure = Figure(figsize=(width * count, _HEIGHT), layout="constrained")
    axes = list(figure.subplots(1, count, squeeze=False).flat)
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _bleu(axes: Axes, runs: list[dict[str, Any]]) -> None:
    scores = [
        (name, [float(run["bleu"]) for run in runs if run["init"] == init]) for init, name in INITIALISATIONS.items()
    ]
    _dots(axes, scores, dict(scores)["xavier"])
    axes.set(xlabel="test BLEU (higher is better)")


def _dots(axes: Axes, values: list[tuple[str, list[float]]], reference: Iterable[float] | None) -> None:
    """Draw a row of dots per name, from top to bottom, and the mean of `reference` as a vertical line."""
    for place, (_, numbers) in enumerate(reversed(values)):
        axes.plot(numbers, [place] * len(numbers), "o", color=_BLUE, markersize=5, alpha=0.75)
    if reference is not None:
        axes.axvline(statistics.mean(reference), color=_GREY, linewidth=0.8, zorder=0)
    axes.set_yticks(range(len(values)), [name for name, _ in reversed(values)])
    axes.set_ylim(-0.6, len(values) - 0.4)


def _best_by(file: Path, column: str) -> dict[str, list[float]]:
    losses = collections.defaultdict(list)
    for run in read(file):
        losses[run[column]].append(_best(run))
    return losses


def _best(run: dict[str, Any]) -> float:
    return min(epoch["valid_loss"] for epoch in run["epochs"])


#: name of the PNG file -> what draws it
FIGURES: dict[str, Callable[[Path], Figure]] = {
    "initialisations": initialisations,
    "finding_scale": scale,
    "finding_learning_rate": learning_rate,
    "finding_positions": positions,
    "finding_duo": duo,
    "finding_new_words": new_words,
}


def main() -> None:
    """Draw all figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, help="folder with the CSV files")
    parser.add_argument("--output", type=Path, required=True, help="folder for the PNG files")
    args = parser.parse_args()
    matplotlib.rcParams.update({"font.size": 8, "axes.titlesize": 9, "axes.labelsize": 9})
    for name, draw in FIGURES.items():
        draw(args.records).savefig(args.output / f"{name}.png", dpi=130)


if __name__ == "__main__":
    main()
