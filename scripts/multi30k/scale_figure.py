"""Loss by the scale of the embeddings, with positions added, absent and untied: table and figure for
docs/results/scale.md, from the runs of `experiments.py scale`.

    python scripts/multi30k/scale_figure.py runs/scale --epochs 6 --output scale.png

Each training counts with its best validation loss up to that epoch, and the training loss of that epoch in brackets.
Those of twelve epochs are read at epoch 6, too: the learning rate is fixed, so these are the losses of a training of
six, and all scales are compared after the same updates. The absorption ratio is sigma of the scaled embeddings over
sigma of the positions (encoder's and decoder's, of the rows with a vector; the figure has the encoder's). Runs without
added positions have the ratio of the runs that add them.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs from a checkout, installed or not

from embinit_fairseq import figures
from embinit_fairseq.errors import DataError, one_line
from embinit_fairseq.runs.compare import header
from embinit_fairseq.runs.record import read_record

PLACES = ("added", "absent", "untied")
#: (initialisation, positions) -> factor of Xavier's sigma -> best losses in bits, and the training's there, one a seed
Losses = dict[tuple[str, str], dict[float, list[tuple[float, float]]]]
#: (initialisation, factor) -> absorption ratios of encoder and decoder
Ratios = dict[tuple[str, float], tuple[float, float]]


def best_losses(record: dict[str, Any], epochs: int, file: Path) -> tuple[float, float] | None:
    """Return bits of validation and of training; None without so many epochs; DataError if it diverged."""
    found = (record.get("epochs") or {}).items()
    losses = [(each.get("valid_loss"), each.get("train_loss")) for epoch, each in found if int(epoch) <= epochs]
    if len(losses) < epochs or any(None in pair for pair in losses):
        return None
    if not all(math.isfinite(valid) for valid, _ in losses):
        raise DataError(f"{file}: a validation loss of it is not finite; move it away, and say so on the page")
    return min(losses)


def kind(record: dict[str, Any], file: Path) -> tuple[str, str, float]:
    """Return (initialisation, positions, factor); raise DataError for the run of another grid."""
    labels = record["labels"]
    try:
        init, place, factor = labels["init"], labels["positions"], float(labels["sigma"].removesuffix("x"))
    except (KeyError, ValueError):
        init, place, factor = "", "", 0.0
    if place not in PLACES or not isinstance(record.get("init"), dict):
        raise DataError(f"{file}: not a run of `experiments.py scale` with its labels; move it away")
    return init, place, factor


def read(folder: Path, epochs: int) -> tuple[Losses, Ratios]:
    """Return the losses and the ratios; raise DataError if no run is long enough."""
    losses: Losses = defaultdict(lambda: defaultdict(list))
    ratios: Ratios = {}
    for file in sorted(folder.glob("*/result.json")):
        record = read_record(file)
        init, place, factor = kind(record, file)
        if (best := best_losses(record, epochs, file)) is not None:
            losses[init, place][factor].append(best)
        encoder, decoder = (ratio_of(record["init"]["slots"][side]) for side in ("encoder", "decoder"))
        if encoder is not None and decoder is not None:
            ratios[init, factor] = encoder, decoder
    if not losses or not ratios:
        raise DataError(f"{folder}: no result.json of {epochs} epochs; run experiments.py scale, or give --epochs")
    return losses, ratios


def ratio_of(slot: dict[str, Any]) -> float | None:
    """Return the ratio of the rows with a vector, else of all rows; None without added positions."""
    matched = slot.get("matched_absorption_ratio")
    return slot["absorption_ratio"] if matched is None else matched


def table(losses: Losses, ratios: Ratios) -> str:
    """Return Markdown, a row per scale: mean, standard deviation over seeds, in brackets the training loss."""
    columns = sorted(losses, key=lambda key: (key[0], PLACES.index(key[1])))
    lines = header(["sigma, of Xavier's", "absorption ratio (encoder, decoder)", *map(", ".join, columns)], texts=0)
    for factor in sorted({factor for column in losses.values() for factor in column}):
        found = [ratio for (_, each), ratio in ratios.items() if each == factor]
        cells = [f"{factor:g}", ", ".join(f"{mean(side):.2f}" for side in zip(*found)) or "-"]
        lines.append("| " + " | ".join([*cells, *(_cell(losses[key].get(factor, [])) for key in columns)]) + " |")
    return "\n".join(lines) + "\n"


def _cell(seeds: list[tuple[float, float]]) -> str:
    if not seeds:
        return "-"
    values, training = zip(*seeds)
    deviation = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
    return f"{mean(values):.3f}{deviation} ({mean(training):.3f})" + f", {len(values)} seeds" * bool(deviation)


def draw(losses: Losses, ratios: Ratios, epochs: int, path: Path) -> None:
    """Draw a panel per initialisation, a curve per use of positions; bars are standard deviations over seeds."""
    from matplotlib.figure import Figure

    inits = sorted({init for init, _ in losses})
    figure = Figure(figsize=(5 * len(inits), 4.2), layout="constrained")
    panels = figure.subplots(1, len(inits), sharey=True, squeeze=False)
    for axes, init in zip(panels[0], inits, strict=True):
        for place in PLACES:
            column = losses.get((init, place), {})
            values = {factor: [valid for valid, _ in seeds] for factor, seeds in column.items()}
            points = {ratios[init, factor][0]: values[factor] for factor in values if (init, factor) in ratios}
            at = sorted(points)
            bars = [stdev(points[ratio]) if len(points[ratio]) > 1 else 0 for ratio in at]
            axes.errorbar(at, [mean(points[ratio]) for ratio in at], bars, marker="o", label=place, capsize=3)
        axes.set(xscale="log", xlabel="absorption ratio (encoder)", title=init)
        axes.grid(alpha=0.3)
    panels[0][0].set_ylabel(f"best validation loss of {epochs} epochs (bits)")
    panels[0][-1].legend(title="positions")
    figures.save(figure, str(path))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="what `experiments.py scale --output` made")
    parser.add_argument("--epochs", type=int, default=6, help="default %(default)s")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE.png")
    args = parser.parse_args(argv)
    if args.epochs < 1:
        parser.error(f"--epochs {args.epochs}: must be at least 1")
    losses, ratios = read(args.runs, args.epochs)
    without = sorted({(init, factor) for (init, _), each in losses.items() for factor in each} - set(ratios))
    if without:
        named = ", ".join(f"{init} {factor:g}x" for init, factor in without)
        print(f"not in the figure, without a run that adds positions: {named}", file=sys.stderr)
    draw(losses, ratios, args.epochs, args.output)
    print(table(losses, ratios), end="")
    return 0


if __name__ == "__main__":
    with one_line():
        sys.exit(main())
