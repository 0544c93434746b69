"""Draw the figures of docs/results from the records of the experiments.

    python scripts/findings.py docs/results/records --output docs/results

Each function below draws one figure. The records are the CSV files that `scripts/records.py write` makes.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from records import best_epoch, read

from embinit_fairseq.arguments import ArgumentParser

#: a colour means the same on all figures: dots of single runs; what is compared with
DOTS, BASELINE = "#000000", "0.45"
#: initialisation -> name for readers, colour and line, in the order of the figure; dashed: not at Xavier's scale
INITIALISATIONS = {
    "none": ("fairseq's own", "#000000", "--"),
    "xavier": ("xavier", BASELINE, "-"),
    "pretrained_xavier": ("pretrained_xavier", "#332288", "-"),
    "shuffled_xavier": ("shuffled at Xavier's scale", "#aa4499", "-"),
    "pretrained": ("pretrained (raw)", "#332288", "--"),
    "shuffled": ("shuffled (raw)", "#aa4499", "--"),
}
#: use of position encodings -> colour
POSITIONS = {"added": "#0072b2", "absent": "#d55e00", "untied": "#009e73"}
#: method of new words -> colour
METHODS = {"subword": "#cc79a7", "zeros": "#e69f00", "avg": "#56b4e9", "none": BASELINE}
#: inches
PAGE_WIDTH = 8.4


def initialisations_by_rate(records: Path) -> Figure:
    """Draw the lowest validation loss of the initialisations, at the paper's learning rate and at 2.5 times it."""
    figure, axes = panels(2)
    titles = {
        "table1-full": "learning rate 2e-4 (three seeds)",
        "table1-full-rates": "learning rate 5e-4 (one seed)",
    }
    for panel, (file, title) in zip(axes, titles.items()):
        losses = defaultdict(list)
        for run in read(records / f"{file}.csv"):
            losses[run["init"]].append(best_epoch(run)["valid_loss"])
        rows = {name: losses[init] for init, (name, _, _) in INITIALISATIONS.items() if init in losses}
        draw_dots(panel, rows, losses["xavier"])
        panel.set(title=title, xlabel="validation loss (bits per token)", xlim=(2.32, 2.71))
    return figure


def initialisations_by_epoch(records: Path) -> Figure:
    """Draw validation loss and BLEU of the initialisations after each epoch, at the paper's learning rate."""
    figure, axes = panels(2)
    columns = {"valid_loss": "validation loss (bits per token)", "valid_score": "validation BLEU"}
    for panel, (column, label) in zip(axes, columns.items()):
        values: defaultdict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
        for run in read(records / "table1-full.csv"):
            for epoch in run["epochs"]:
                values[run["init"]][epoch["epoch"]].append(epoch[column])
        for init, (name, colour, style) in INITIALISATIONS.items():
            draw_means(panel, values[init], colour, name, style)
        panel.set(xlabel="epoch", ylabel=label)
    axes[0].legend(frameon=False)
    return figure


def scale(records: Path) -> Figure:
    """Draw the lowest validation loss against sigma of the embeddings, by treatment of the positions."""
    runs = [run for run in read(records / "scale-small.csv") if run["seed"] == "1"]
    inits = sorted({run["init"] for run in runs})
    figure, axes = panels(len(inits))
    for panel, init in zip(axes, inits):
        for positions, colour in POSITIONS.items():
            losses = defaultdict(list)
            for run in runs:
                if (run["init"], run["positions"]) == (init, positions):
                    losses[float(run["sigma"].removesuffix("x"))].append(best_epoch(run)["valid_loss"])
            draw_means(panel, losses, colour, positions)
        panel.set_xscale("log", base=2)
        panel.set_xticks([0.125, 0.5, 1, 2, 8], ["1/8", "1/2", "1", "2", "8"], minor=False)
        panel.set(title=init, xlabel="sigma of the embeddings / Xavier's", ylim=(2.55, 3.6))
    axes[0].set(ylabel="validation loss (bits per token)")
    axes[-1].legend(title="positions", frameon=False)
    return figure


def learning_rate(records: Path) -> Figure:
    """Draw the lowest loss at Xavier's scale and at eight times it, against the learning rate, by positions."""
    figure, axes = panels(len(POSITIONS))
    runs = [{"rate": "5e-4", **run} for run in read(records / "scale-small.csv")] + read(records / "scale-rates.csv")
    for panel, (positions, colour) in zip(axes, POSITIONS.items()):
        for sigma, style in (("8x", "o-"), ("1x", "o--")):
            losses = defaultdict(list)
            for run in runs:
                if (run["init"], run["positions"], run["sigma"]) == ("xavier", positions, sigma):
                    losses[float(run["rate"])].append(best_epoch(run)["valid_loss"])
            draw_means(panel, losses, colour, {"8x": "8 times Xavier's scale", "1x": "Xavier's scale"}[sigma], style)
        panel.set_xscale("log")
        panel.set_xticks([5e-4, 1e-3, 2e-3, 4e-3], ["5e-4", "1e-3", "2e-3", "4e-3"], minor=False)
        panel.minorticks_off()
        panel.set(title=f"positions {positions}", xlabel="learning rate", xlim=(4e-4, 5e-3), ylim=(2.35, 3.6))
        panel.legend(frameon=False)
    axes[0].set(ylabel="validation loss (bits per token)")
    return figure


def masked_language_models(records: Path) -> Figure:
    """Draw the loss of masked language models after 6,000 updates, one dot per training, at two learning rates."""
    names = {
        **{"bert_nope": "no positions", "bert_a": "BERT-A", "bert_ad": "BERT-A^d", "bert_alibi": "ALiBi"},
        **{"tupe_a": "TUPE-A", "bert_r": "BERT-R", "tupe_r": "TUPE-R", "bert_rope": "RoPE"},
        "tupe_a_rope": "TUPE-A + RoPE",
    }
    figure, axes = panels(2)
    losses = defaultdict(list)
    for run in read(records / "tupe-rates.csv"):
        if run["warmup"] == "600" and run["epochs"][-1]["updates"] == 6000:
            losses[run["lr"], run["model"]].append(best_epoch(run)["valid_loss"])
    for panel, rate in zip(axes, ("1e-3", "2e-3")):
        draw_dots(panel, {name: losses[rate, model] for model, name in names.items()})
        panel.set(title=f"learning rate {rate}", xlabel="validation loss (bits per masked token)", xlim=(6.2, 9))
    return figure


def duo(records: Path, file: str = "duo-small-rates", rate: str = ".2e-3", highest: float = 4.2) -> Figure:
    """Draw validation loss per epoch and per processor second: Duo, a transformer, one stream with both sets."""
    names = {
        "transformer": ("transformer, one set of vectors", BASELINE),
        "transformer_concat": ("transformer, both sets in one stream", "#009e73"),
        "duo_stream_decoder": ("Duo, one set of vectors", "#e69f00"),
        "duo_two_sets": ("Duo, both sets", "#d55e00"),
    }
    figure, axes = panels(2)
    runs = {run["run"]: run["epochs"] for run in read(records / f"{file}.csv")}
    for panel, column, label in zip(axes, ("epoch", "cpu_s"), ("epoch", "CPU seconds")):
        for model, (name, colour) in names.items():
            for seed, style in ((1, "o-"), (2, "o--")):
                epochs = runs.get(f"{model}.0.1{rate}.seed{seed}", [])
                points = [epoch[column] for epoch in epochs], [epoch["valid_loss"] for epoch in epochs]
                panel.plot(*points, style, color=colour, markersize=3, label=name if seed == 1 else None)
        panel.set(xlabel=label, ylabel="validation loss (bits per token)", ylim=(2.3, highest))
    axes[0].legend(frameon=False)
    return figure


def new_words(records: Path) -> Figure:
    """Draw perplexity after adding words, and the probability of all new words before and after a shift of logits."""
    rows = adaptations(records)
    figure, (left, right) = panels(2)
    draw_perplexities(left, rows, "word_ppl", (450, 600, 800, 1000))
    left.set(ylabel="perplexity per word")
    left.legend(frameon=False)
    levels = (
        ("three_models", "lm1/{}.seed1", "as trained (log Z = 8.7)", ""),
        ("shifted", "{}.seed1", "all logits lowered by 20", "///"),
    )
    methods = ("subword", "zeros", "avg")
    starts = {(row["experiment"], row["run"]): row for row in rows if row["updates"] == "0"}
    for number, (experiment, run, label, hatch) in enumerate(levels):
        shares = [float(starts[experiment, run.format(method)]["kl_new_words_probability"]) for method in methods]
        places = [place + 0.4 * number for place in range(3)]
        colours = [METHODS[method] for method in methods]
        right.bar(places, shares, 0.38, color=colours, hatch=hatch, edgecolor="white")
        right.bar([0], [0], color=BASELINE, hatch=hatch, edgecolor="white", label=label)  # for the legend alone
        for place, share in zip(places, shares):
            right.text(place, share * 0.85, f"{100 * share:.3g} %", ha="center", va="top", fontsize=7)
    right.set_xticks([0.2, 1.2, 2.2], methods)
    right.set(ylabel="probability of all new words (0 to 1)", yscale="log", ylim=(5e-4, 1))
    right.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
    return figure


def old_and_new_words(records: Path) -> Figure:
    """Draw the perplexities of the other words and of the new ones while a model learns a new domain."""
    rows = adaptations(records)
    figure, (left, right) = panels(2)
    draw_perplexities(left, rows, "other_ppl", (450, 500, 600, 800))
    draw_perplexities(right, rows, "new_ppl", (1000, 3000, 10000, 30000))
    left.set(ylabel="perplexity of the other words")
    right.set(ylabel="perplexity of the new words")
    right.legend(frameon=False)
    return figure


def adaptations(records: Path) -> list[dict[str, str]]:
    """Return the rows of the record of language models with new words."""
    with open(records / "books.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def draw_perplexities(axes: Axes, rows: list[dict[str, str]], column: str, ticks: Sequence[int]) -> None:
    """Draw the mean perplexity of three models after the first updates, a line per method."""
    for method, colour in METHODS.items():
        perplexities = defaultdict(list)
        for row in rows:
            if (row["experiment"], row["method"]) == ("three_models", method):
                perplexities[int(row["updates"])].append(float(row[column]))
        updates = sorted(perplexities)[1:]
        means = [statistics.mean(perplexities[update]) for update in updates]
        axes.plot(updates, means, color=colour, label={"none": "no new words"}.get(method, method))
    axes.set(xlabel="updates on the new domain", yscale="log")
    axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks], minor=False)
    axes.minorticks_off()


def panels(count: int) -> tuple[Figure, list[Axes]]:
    """Return a figure of the page's width with `count` panels next to each other."""
    figure = Figure(figsize=(PAGE_WIDTH, 2.9), layout="constrained")
    axes = list(figure.subplots(1, count, squeeze=False).flat)
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
    return figure, axes


def draw_dots(axes: Axes, values: dict[str, Sequence[float]], reference: Iterable[float] = ()) -> None:
    """Draw a row of dots per name, from top to bottom, and the mean of `reference` as a vertical line."""
    for place, numbers in enumerate(reversed(values.values())):
        axes.plot(numbers, [place] * len(numbers), "o", color=DOTS, markersize=5, alpha=0.75)
    if reference:
        axes.axvline(statistics.mean(reference), color=BASELINE, linewidth=0.8, zorder=0)
    axes.set_yticks(range(len(values)), list(reversed(values)))
    axes.set_ylim(-0.6, len(values) - 0.4)


def draw_means(axes: Axes, values: dict[float, list[float]], colour: str, label: str, style: str = "o-") -> None:
    """Draw a line through the means of the values at each place, and the values as points."""
    places = sorted(values)
    axes.plot(places, [statistics.mean(values[place]) for place in places], style, color=colour, label=label)
    for place in places:
        axes.plot([place] * len(values[place]), values[place], ".", color=colour, markersize=4)


#: name of the PNG file -> function that draws it
FIGURES: dict[str, Callable[[Path], Figure]] = {
    "finding_scale": initialisations_by_rate,
    "multi30k": initialisations_by_epoch,
    "scale": scale,
    "finding_learning_rate": learning_rate,
    "finding_positions": masked_language_models,
    "finding_duo": duo,
    "duo_multi30k": partial(duo, file="duo-small", rate="", highest=5.3),
    "finding_new_words": new_words,
    "expansion_books": old_and_new_words,
}


def main() -> None:
    """Draw all figures."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, help="folder with the CSV files")
    parser.add_argument("--output", type=Path, required=True, help="folder for the PNG files")
    args = parser.parse_args()
    matplotlib.rcParams.update({"font.size": 8, "axes.titlesize": 9, "axes.labelsize": 9})
    args.output.mkdir(parents=True, exist_ok=True)
    for name, draw in FIGURES.items():
        draw(args.records).savefig(args.output / f"{name}.png", dpi=130)


if __name__ == "__main__":
    main()
