"""Loss against the scale of the embeddings, with positions added, absent and untied: the table and the picture for
docs/results/scale.md, from the runs of `experiments.py scale`.

    python scripts/multi30k/scale_figure.py runs/scale --epochs 6 --output scale.png

Each training counts with its best validation loss up to that epoch. Those of twelve epochs are read at epoch 6, too:
the learning rate is fixed, so these are the losses of a training of six, and all scales are compared after the same
updates. The absorption ratio is sigma of the scaled embeddings over sigma of the positions (the encoder's, of the rows
with a vector); where no positions are added, that of the runs that add them.
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

from embinit_fairseq.errors import DataError, one_line
from embinit_fairseq.files import whole_file
from embinit_fairseq.runs.markdown import header
from embinit_fairseq.runs.record import read_record

PLACES = ("added", "absent", "untied")
#: (initialisation, positions) -> factor of Xavier's sigma -> best losses in bits, one a seed
Losses = dict[tuple[str, str], dict[float, list[float]]]


def best_loss(record: dict[str, Any], epochs: int, file: Path) -> float | None:
    """Bits; None for a training that is not there yet. DataError for one that has diverged."""
    found = (record.get("epochs") or {}).items()
    losses = [values.get("valid_loss") for epoch, values in found if int(epoch) <= epochs]
    if len(losses) < epochs or None in losses:
        return None
    if not all(map(math.isfinite, losses)):
        raise DataError(f"{file}: a validation loss of it is not finite; move it away, and say so on the page")
    return min(losses)


def kind(record: dict[str, Any], file: Path) -> tuple[str, str, float]:
    """(initialisation, positions, factor). DataError for the run of another grid."""
    labels = record["labels"]
    try:
        init, place, factor = labels["init"], labels["positions"], float(labels["sigma"].removesuffix("x"))
    except (KeyError, ValueError):
        init, place, factor = "", "", 0.0
    if place not in PLACES or not isinstance(record.get("init"), dict):
        raise DataError(f"{file}: not a run of `experiments.py scale` with its labels; move it away")
    return init, place, factor


def read(folder: Path, epochs: int) -> tuple[Losses, dict[tuple[str, float], float]]:
    """The losses, and (initialisation, factor) -> absorption ratio. DataError if no run is long enough."""
    losses: Losses = defaultdict(lambda: defaultdict(list))
    ratios = {}
    for file in sorted(folder.glob("*/result.json")):
        record = read_record(file)
        init, place, factor = kind(record, file)
        if (loss := best_loss(record, epochs, file)) is not None:
            losses[init, place][factor].append(loss)
        slot = record["init"]["slots"]["encoder"]
        matched = slot.get("matched_absorption_ratio")
        if (ratio := slot["absorption_ratio"] if matched is None else matched) is not None:
            ratios[init, factor] = ratio
    if not losses or not ratios:
        raise DataError(f"{folder}: no result.json of {epochs} epochs; run experiments.py scale, or give --epochs")
    return losses, ratios


def table(losses: Losses, ratios: dict[tuple[str, float], float]) -> str:
    """Markdown: a row a scale; mean and, of several seeds, sample standard deviation."""
    columns = sorted(losses, key=lambda key: (key[0], PLACES.index(key[1])))
    lines = header(["sigma, of Xavier's", "absorption ratio", *map(", ".join, columns)], texts=0)
    for factor in sorted({factor for column in losses.values() for factor in column}):
        found = [ratio for (_, each), ratio in ratios.items() if each == factor]
        cells = [f"{factor:g}", f"{mean(found):.2f}" if found else "-"]
        lines.append("| " + " | ".join([*cells, *(_cell(losses[key].get(factor, [])) for key in columns)]) + " |")
    return "\n".join(lines) + "\n"


def _cell(values: list[float]) -> str:
    if not values:
        return "-"
    return f"{mean(values):.3f}" + (f" ± {stdev(values):.3f} ({len(values)})" if len(values) > 1 else "")


def draw(losses: Losses, ratios: dict[tuple[str, float], float], epochs: int, path: Path) -> None:
    """A panel an initialisation, a curve a use of positions; bars: standard deviation over seeds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    inits = sorted({init for init, _ in losses})
    figure, panels = pyplot.subplots(
        1, len(inits), figsize=(5 * len(inits), 4.2), sharey=True, squeeze=False, layout="constrained"
    )
    for axes, init in zip(panels[0], inits, strict=True):
        for place in PLACES:
            column = losses.get((init, place), {})
            points = {ratios[init, factor]: column[factor] for factor in column if (init, factor) in ratios}
            at = sorted(points)
            bars = [stdev(points[ratio]) if len(points[ratio]) > 1 else 0 for ratio in at]
            axes.errorbar(at, [mean(points[ratio]) for ratio in at], bars, marker="o", label=place, capsize=3)
        axes.set(xscale="log", xlabel="absorption ratio (encoder)", title=init)
        axes.grid(alpha=0.3)
    panels[0][0].set_ylabel(f"best validation loss of {epochs} epochs (bits)")
    panels[0][-1].legend(title="positions")
    with whole_file(path, option="--output") as file:
        figure.savefig(file, dpi=140, format="png")
    pyplot.close(figure)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="what `experiments.py scale --output` made")
    parser.add_argument("--epochs", type=int, default=6, help="default %(default)s")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE.png")
    args = parser.parse_args(argv)
    if args.epochs < 1:
        parser.error(f"--epochs {args.epochs}: must be at least 1")
    losses, ratios = read(args.runs, args.epochs)
    draw(losses, ratios, args.epochs, args.output)
    print(table(losses, ratios), end="")
    return 0


if __name__ == "__main__":
    with one_line():
        sys.exit(main())
