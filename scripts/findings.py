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
from fractions import Fraction
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib
from controls import ARMS, NewWords, of_seeds, perplexities_of_words, random_and_raw
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from records import best_epoch, read

from embinit_fairseq.arguments import ArgumentParser

#: colour of the baseline; a colour means the same on all figures
BASELINE = "0.45"
#: initialisation -> name for readers, colour and line, in the order of the figure; dashed: not at Xavier's scale
INITIALISATIONS = {
    "none": ("fairseq's own", "#000000", "--"),
    "xavier": ("xavier", BASELINE, "-"),
    "pretrained_xavier": ("pretrained_xavier", "#332288", "-"),
    "shuffled_xavier": ("shuffled at Xavier's scale", "#aa4499", "-"),
    "pretrained": ("pretrained (raw)", "#332288", "--"),
    "shuffled": ("shuffled (raw)", "#aa4499", "--"),
}
#: absolute positions in the records -> name for readers, colour
POSITIONS = {"added": ("added", "#0072b2"), "absent": ("no positions", "#d55e00"), "untied": ("untied", "#009e73")}
#: masked language model -> name for readers, its absolute positions
MASKED = {
    **{"bert_nope": ("no positions", "absent"), "bert_a": ("BERT-A", "added"), "bert_ad": ("BERT-A^d", "added")},
    **{"bert_alibi": ("ALiBi", "absent"), "tupe_a": ("TUPE-A", "untied"), "bert_r": ("BERT-R", "added")},
    **{"tupe_r": ("TUPE-R", "untied"), "bert_rope": ("RoPE", "absent"), "tupe_a_rope": ("TUPE-A + RoPE", "untied")},
}
#: translation model with one or two sets of vectors -> vectors, colour
DUO = {
    "transformer": ("one set of vectors", BASELINE),
    "transformer_concat": ("two sets in one stream", "#882255"),
    "duo_stream_decoder": ("one set, one learned", "#c2b94f"),
    "duo_two_sets": ("two sets", "#66620f"),
}
#: method of new words -> colour
METHODS = {
    **{"subword": "#cc79a7", "zeros": "#e69f00", "avg": "#56b4e9", "focus": "#44aa99", "none": BASELINE},
    **{"omp": "#117733", "quarter/focus": "#44aa99", "shuffled/focus": "#88ccee", "shuffled/omp": "#88ccee"},
}


def initialisations_by_rate(records: Path) -> Figure:
    """Draw the lowest validation loss of the initialisations, at the paper's learning rate and at 2.5 times it."""
    rates = {  # record -> title, limits of the loss
        "table1-full": ("learning rate 2e-4, three seeds", (2.32, 2.71)),
        "table1-full-rates": ("learning rate 5e-4, one seed", (2.32, 2.51)),
    }
    figure, axes = panels(2, widths=[high - low for _, (low, high) in rates.values()])  # one scale for both
    for panel, (file, (title, losses_shown)) in zip(axes, rates.items()):
        losses = defaultdict(list)
        for run in read(records / f"{file}.csv"):
            losses[run["init"]].append(best_epoch(run)["valid_loss"])
        rows = [(name, colour, losses[init]) for init, (name, colour, _) in INITIALISATIONS.items()]
        draw_dots(panel, rows, losses["xavier"])
        panel.set(title=title, xlabel="validation loss (bits per token)", xlim=losses_shown)
    axes[1].set_yticklabels([])
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
    axes[0].legend(title="a dot per training, lines: means", frameon=False)
    return figure


def scale(records: Path) -> Figure:
    """Draw the lowest validation loss against sigma of the embeddings, by treatment of the positions."""
    runs = [run for run in read(records / "scale-small.csv") if run["seed"] == "1"]
    inits = sorted({run["init"] for run in runs})
    figure, axes = panels(len(inits))
    for panel, init in zip(axes, inits):
        for positions, (name, colour) in POSITIONS.items():
            losses = defaultdict(list)
            for run in runs:
                if (run["init"], run["positions"]) == (init, positions):
                    losses[float(run["sigma"].removesuffix("x"))].append(best_epoch(run)["valid_loss"])
            draw_means(panel, losses, colour, name)
        panel.set_xscale("log", base=2)
        panel.set_xticks(sorted(losses), [str(Fraction(sigma)) for sigma in sorted(losses)], minor=False)
        panel.set(title=init, xlabel="sigma of the embeddings / Xavier's", ylim=(2.55, 3.6))
    axes[0].set(ylabel="validation loss (bits per token)")
    axes[-1].legend(title="positions (one seed)", frameon=False)
    return figure


def learning_rate(records: Path) -> Figure:
    """Draw the lowest loss at Xavier's scale and at eight times it, against the learning rate, by positions."""
    figure, axes = panels(len(POSITIONS))
    runs = [{"rate": "5e-4", **run} for run in read(records / "scale-small.csv")] + read(records / "scale-rates.csv")
    for panel, (positions, (name, colour)) in zip(axes, POSITIONS.items()):
        for sigma, style, label in (("8x", "-", "8 times Xavier's scale"), ("1x", "--", "Xavier's scale")):
            losses = defaultdict(list)
            for run in runs:
                if (run["init"], run["positions"], run["sigma"]) == ("xavier", positions, sigma):
                    losses[float(run["rate"])].append(best_epoch(run)["valid_loss"])
            draw_means(panel, losses, colour, label, style)
        panel.set_xscale("log")
        panel.set_xticks(sorted(losses), [f"{rate:.0e}".replace("e-0", "e-") for rate in sorted(losses)], minor=False)
        panel.minorticks_off()
        panel.set(
            title=name if positions == "absent" else f"positions {name}",
            xlabel="learning rate",
            xlim=(4e-4, 5e-3),
            ylim=(2.35, 3.8),
        )
        panel.legend(title="a dot per training", frameon=False, loc="upper right")
    axes[0].set(ylabel="validation loss (bits per token)")
    return figure


def masked_language_models(records: Path) -> Figure:
    """Draw the loss of masked language models after 6,000 updates, one dot per training, at two learning rates."""
    figure, axes = panels(2)
    losses = defaultdict(list)
    for run in read(records / "tupe-rates.csv"):
        if run["warmup"] == "600" and run["epochs"][-1]["updates"] == 6000:
            losses[run["lr"], run["model"]].append(best_epoch(run)["valid_loss"])
    for panel, rate in zip(axes, ("1e-3", "2e-3")):
        rows = [(name, POSITIONS[positions][1], losses[rate, model]) for model, (name, positions) in MASKED.items()]
        draw_dots(panel, rows)
        panel.set(title=f"learning rate {rate}", xlabel="validation loss (bits per masked token)", xlim=(6.2, 9))
    for name, colour in POSITIONS.values():
        axes[1].plot([], [], "o", color=colour, markersize=5, label=name.replace("no positions", "none"))
    axes[1].legend(title="absolute positions", frameon=False, loc="upper left")
    return figure


def duo(records: Path, file: str = "duo-small-rates", rate: str = "2e-3", highest: float = 4.2) -> Figure:
    """Draw validation loss per epoch and, of the runs of one revision, per processor second: Duo and transformers."""
    figure, axes = panels(2)
    runs = {(run["model"], run["seed"]): run for run in read(records / f"{file}.csv") if run["dropout"] == "0.1"}
    draw_by_epoch(axes[0], runs, DUO)
    one = runs["transformer", "1"]["revision"]
    draw_by_epoch(axes[1], {arm: run for arm, run in runs.items() if run["revision"] == one}, DUO, "cpu_s")
    axes[0].set(title=f"rate {rate}, dropout 0.1; solid: seed 1, dashed: seed 2", xlabel="epoch")
    axes[1].set(title=f"rate {rate}, dropout 0.1, runs of one revision", xlabel="CPU seconds")
    for panel in axes:
        panel.set(ylabel="validation loss (bits per token)", ylim=(2.3, highest))
    axes[0].legend(frameon=False)
    return figure


def duo_fairly(records: Path) -> Figure:
    """Draw validation and training loss per epoch: Duo and one stream, all with two sets of vectors and dropout 0.3."""
    models = {
        "transformer_avg": ("one stream", BASELINE),
        "transformer_equal_avg": ("one stream of Duo's size", "#882255"),
        "duo_two_sets": ("Duo", DUO["duo_two_sets"][1]),
    }
    figure, axes = panels(2)
    runs = {(run["model"], run["seed"]): run for run in read(records / "duo-fair.csv")}
    for panel, column, name in zip(axes, ("valid_loss", "train_loss"), ("validation", "training")):
        draw_by_epoch(panel, runs, models, y=column)
        panel.set(title="solid, dashed, dotted: seeds 1, 2, 3", xlabel="epoch (from 3)", xlim=(3, 17), ylim=(2.1, 3.5))
        panel.set(ylabel=f"{name} loss (bits per token)")
    axes[0].legend(frameon=False)
    return figure


def equal_text(records: Path) -> Figure:
    """Draw the gain of perplexity by new words, a dot per language model: at equal updates, at equal text."""
    figure, axes = panels(2)
    words = perplexities_of_words(records)
    draw_gains(axes[0], words, words.none, "equal updates")
    draw_gains(axes[1], words, words.equal_text, f"equal text ({words.updates} updates without)")
    axes[1].set_yticklabels([])
    return figure


def draw_gains(axes: Axes, words: NewWords, none: dict[str, float], title: str) -> None:
    """Draw the perplexity of each method minus that without new words, a dot per language model."""
    gains = {method: [values[model] - none[model] for model in none] for method, values in words.methods.items()}
    names = {method: ", ".join(reversed(method.split("/"))) for method in gains}  # `focus, shuffled`
    draw_dots(axes, [(names[method], METHODS[method], gains[method]) for method in gains], [0.0])
    axes.set(title=title, xlabel="perplexity - perplexity without new words", xlim=(-45, 15))


def new_words(records: Path) -> Figure:
    """Draw perplexity at equal text, and the probability of all new words before and after a shift of logits."""
    rows = rows_of(records / "books.csv")
    figure, (left, right) = panels(2)
    words = perplexities_of_words(records)
    draw_gains(left, words, words.equal_text, "equal text, a dot per language model")
    methods = ("subword", "zeros", "avg")
    shares = {(row["experiment"], row["run"]): row["kl_new_words_probability"] for row in rows if row["updates"] == "0"}
    trained = ("three_models", "lm1/", "as trained (log Z = 8.7)", "")
    lowered = ("shifted", "", "all logits lowered by 20", "///")
    for number, (experiment, model, label, hatch) in enumerate((trained, lowered)):
        right.bar([0], [0], color=BASELINE, hatch=hatch, edgecolor="white", label=label)  # for the legend alone
        for place, method in enumerate(methods):
            x, share = place + 0.4 * number, float(shares[experiment, f"{model}{method}.seed1"])
            right.bar(x, share, 0.38, color=METHODS[method], hatch=hatch, edgecolor="white")
            percent = float(f"{100 * share:.2g}")  # two digits, as on the pages
            right.text(x, share * 1.05, f"{percent:g} %", ha="center", va="bottom", fontsize=7)
    right.set_xticks([0.2, 1.2, 2.2], methods)
    right.set(ylabel="probability of all new words (0 to 1)", yscale="log", ylim=(5e-4, 2))
    right.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
    return figure


def old_and_new_words(records: Path) -> Figure:
    """Draw the perplexities of the other words and of the new ones while a model learns a new domain."""
    figure, (left, right) = panels(2)
    rows = rows_of(records / "books.csv")
    draw_perplexities(left, rows, "other_ppl", "perplexity of the other words", (450, 500, 600, 800))
    draw_perplexities(right, rows, "new_ppl", "perplexity of the new words", (1000, 3000, 10000, 30000))
    right.legend(frameon=False)
    return figure


def bounds(records: Path) -> Figure:
    """Draw the measured KL(old || new), its bound and two simpler bounds against the number of new words."""
    rows = rows_of(records / "bound.csv")
    methods = list(dict.fromkeys(row["method"] for row in rows))
    figure, axes = panels(len(methods))
    for panel, method in zip(axes, methods):
        names = {"separate": "separate", "uniform": "uniform", "limit": "the bound"}
        names.update(max="largest measured", mean="mean measured")
        colours = [BASELINE, BASELINE, "#000000", METHODS[method], METHODS[method]]
        for (column, name), colour, style in zip(names.items(), colours, (":", "--", "-", "o-", "o:")):
            points = [(int(row["k"]), float(row[column])) for row in rows if row["method"] == method]
            panel.plot(*zip(*points), style, color=colour, markersize=3, label=name)
        panel.set(title=method, xlabel="new words", xscale="log", yscale="log", ylim=(2e-5, 10))
        panel.set_xticks([1, 10, 100], ["1", "10", "100"])
    axes[0].set(ylabel="KL(old || new) in nats")
    axes[0].legend(frameon=False)
    return figure


def step_size(records: Path) -> Figure:
    """Draw the loss of random embeddings against the rate of the embedding matrices, by size of the words.

    A ring is where the rate is as many times Xavier's as the size: the same step of Adam relative to the words.
    """
    runs = random_and_raw(records)
    places = {"added": "positions added", "untied": "positions untied", "absent": "no positions"}
    figure, axes = panels(len(places))
    for panel, (place, title) in zip(axes, places.items()):
        points: defaultdict[float, dict[float, list[float]]] = defaultdict(dict)
        for arm, (size, rate) in ARMS.items():
            if seeds := of_seeds(runs, *arm, place):
                points[size][rate] = [best_epoch(run)["valid_loss"] for run in seeds.values()]
        for size, colour in {0.1: "#88ccee", 1: BASELINE, 10: "#882255"}.items():
            if size in points:
                draw_means(panel, points[size], colour, f"size {size:g}")
                if size in points[size]:
                    ring = {"markersize": 9, "fillstyle": "none", "color": colour}
                    panel.plot([size], [statistics.mean(points[size][size])], "o", **ring)
        panel.set_xscale("log")
        panel.set_xticks([0.1, 1, 3, 10, 30], ["0.1", "1", "3", "10", "30"], minor=False)
        panel.minorticks_off()
        panel.set(title=title, xlabel="rate", xlim=(0.07, 45), ylim=(2.5, 4.05))
    axes[0].set(ylabel="validation loss (bits per token)")
    axes[0].legend(title="a dot per seed; ring: rate = size", frameon=False)
    return figure


def content(records: Path) -> Figure:
    """Draw the best loss with few pairs, a dot per seed: vectors of these pairs, of other pairs, and shuffled ones."""
    names = {
        "xavier": ("xavier", BASELINE),
        "own_shuffled": ("vectors of these pairs, shuffled", INITIALISATIONS["shuffled"][1]),
        "own": ("vectors of these pairs", INITIALISATIONS["pretrained"][1]),
        "oracle_shuffled": ("oracle, shuffled", INITIALISATIONS["shuffled"][1]),
        "oracle": ("oracle", INITIALISATIONS["pretrained"][1]),
    }
    figure, axes = panels(2)
    for panel, pairs in zip(axes, ("1000", "4000")):
        losses = defaultdict(list)
        for run in read(records / "content.csv"):
            if run["pairs"] == pairs:
                losses[run["init"]].append(best_epoch(run)["valid_loss"])
        draw_dots(panel, [(name, colour, losses[init]) for init, (name, colour) in names.items()], losses["xavier"])
        xavier = statistics.mean(losses["xavier"])
        panel.set(xlim=(xavier - 0.25, xavier + 0.05), xlabel="validation loss (bits per token); line: mean of xavier")
        panel.set(title=f"{int(pairs):,} pairs")
    axes[1].set_yticklabels([])
    return figure


def plateau(records: Path) -> Figure:
    """Draw validation loss against updates: three masked models, their own numbers, vectors, shuffled vectors."""
    inits = {"own": ("fairseq's random numbers", BASELINE), "vectors": ("vectors", INITIALISATIONS["pretrained"][1])}
    inits["shuffled"] = ("vectors, shuffled", INITIALISATIONS["shuffled"][1])
    figure, axes = panels(3)
    runs = read(records / "plateau.csv")
    for panel, model in zip(axes, ("bert_a", "bert_ad", "tupe_a")):
        for init, (name, colour) in inits.items():
            for run in runs:
                if (run["model"], run["vectors"]) == (model, init):
                    points = ((row["updates"], row["valid_loss"]) for row in run["epochs"] if "valid_loss" in row)
                    panel.plot(*zip(*points), color=colour, label=name if run["seed"] == "1" else None)
        panel.axhline(8.5, color=BASELINE, linewidth=0.6)
        panel.text(3700, 8.53, "8.5 bits", fontsize=7, ha="right")
        panel.set(title=MASKED[model][0], xlabel="updates", ylim=(6.4, 10))
    axes[0].set(ylabel="validation loss (bits per masked token)")
    axes[0].legend(title="a line per seed", frameon=False, loc="lower left")
    return figure


def rows_of(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def draw_perplexities(axes: Axes, rows: list[dict[str, str]], column: str, name: str, ticks: Sequence[int]) -> None:
    """Draw the mean perplexity of three models after the first updates, a line per method."""
    for method, colour in METHODS.items():
        perplexities = defaultdict(list)
        for row in rows:
            if (row["experiment"], row["method"]) == ("three_models", method):
                perplexities[int(row["updates"])].append(float(row[column]))
        if updates := sorted(perplexities)[1:]:
            means = [statistics.mean(perplexities[update]) for update in updates]
            axes.plot(updates, means, color=colour, label={"none": "no new words"}.get(method, method))
    axes.set(title="mean of three models", xlabel="updates on the new domain", ylabel=name, yscale="log")
    axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks], minor=False)
    axes.minorticks_off()


def panels(count: int, widths: Sequence[float] | None = None) -> tuple[Figure, list[Axes]]:
    """Return a figure of the page's width, 8.4 inches, with `count` panels next to each other."""
    figure = Figure(figsize=(8.4, 2.9), layout="constrained")
    axes = list(figure.subplots(1, count, squeeze=False, width_ratios=widths).flat)
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
    return figure, axes


def draw_dots(axes: Axes, rows: Sequence[tuple[str, str, Sequence[float]]], reference: Iterable[float] = ()) -> None:
    """Draw a row of dots per (name, colour, values), from top to bottom, and the mean of `reference` as a line."""
    for place, (_, colour, values) in enumerate(rows):
        axes.plot(values, [place] * len(values), "o", color=colour, markersize=5, alpha=0.75)
    if reference:
        axes.axvline(statistics.mean(reference), color=BASELINE, linewidth=0.8, zorder=0)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)


def draw_by_epoch(
    axes: Axes,
    runs: dict[tuple[str, str], dict[str, Any]],
    models: dict[str, tuple[str, str]],
    x: str = "epoch",
    y: str = "valid_loss",
) -> None:
    """Draw a line per run: solid for seed 1, dashed for seed 2, dotted for seed 3.

    Args:
        axes: the figure's axes.
        runs: (model, seed) -> run.
        models: model -> description for the legend, and its colour.
        x, y: columns of the record.
    """
    for (model, (title, colour)), (seed, style) in product(models.items(), {"1": "o-", "2": "o--", "3": "o:"}.items()):
        if run := runs.get((model, seed)):
            points = [(row[x], row[y]) for row in run["epochs"] if x in row and y in row]
            label = f"{model}: {title}" if seed == "1" else None
            axes.plot(*zip(*points), style, color=colour, markersize=3, label=label)


def draw_means(axes: Axes, values: dict[float, list[float]], colour: str, label: str, style: str = "-") -> None:
    """Draw a line through the means of the values at each place, and a dot per value."""
    places = sorted(values)
    axes.plot(places, [statistics.mean(values[place]) for place in places], style, color=colour, label=label)
    for place in places:
        axes.plot([place] * len(values[place]), values[place], "o", color=colour, markersize=3)


#: name of the PNG file -> function that draws it
FIGURES: dict[str, Callable[[Path], Figure]] = {
    "finding_scale": initialisations_by_rate,
    "multi30k": initialisations_by_epoch,
    "scale": scale,
    "finding_learning_rate": learning_rate,
    "finding_positions": masked_language_models,
    "duo_multi30k_rates": duo,
    "duo_multi30k": partial(duo, file="duo-small", rate="5e-4", highest=5.3),
    "finding_new_words": new_words,
    "expansion_books": old_and_new_words,
    "controls_step": step_size,
    "controls_content": content,
    "controls_new_words": equal_text,
    "controls_plateau": plateau,
    "finding_duo": duo_fairly,
    "../bound": bounds,
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
