"""Recompute the tables of docs/results/controls.md from its records; `scripts/claims.py` looks for them there.

    python scripts/controls.py docs/results/records

Prints what the page must have: the rows of its tables and the numbers in its sentences.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from records import around, line, losses, runs_by
from records import loss as best_loss

from embinit_fairseq.arguments import ArgumentParser

SEEDS = "123"
Runs = dict[tuple[str, ...], dict[str, Any]]


def of_seeds(runs: Runs, *arm: str) -> dict[str, dict[str, Any]]:
    """Return seed -> run of an arm, of the seeds that were run."""
    return {seed: runs[(*arm, seed)] for seed in SEEDS if (*arm, seed) in runs}


def cost(arm: dict[str, dict[str, Any]], baseline: dict[str, dict[str, Any]]) -> list[float]:
    """Return the differences of the losses for each seed that both arms have."""
    return [best_loss(arm[seed]) - best_loss(baseline[seed]) for seed in arm if seed in baseline]


def shown(differences: Sequence[float], digits: int = 3) -> str:
    """Return `mean ± half the interval`; a single difference has no interval."""
    return around(differences, digits, "+") if len(differences) > 1 else f"{differences[0]:+.{digits}f}"


# ---- 1. Step size or scale -------------------------------------------------------------------------------------------

#: arm of step.csv (factor) or remedy.csv (rate) with added positions -> sigma, factor, rate
ADDED = {
    **{("1x", "on"): (1, 1, 1), ("0.1x", "on"): (0.1, 1, 1), ("1x", "4"): (1, 1, 4)},
    **{("10x", "sigma"): (10, 1, 10), ("10x", "3"): (10, 1, 3), ("10x", "on"): (10, 1, 1)},
    **{("1x", "off"): (1, 0.1, 1), ("10x", "off"): (10, 0.1, 1), ("100x", "off"): (100, 0.1, 1)},
}
#: arm with untied positions -> sigma, factor, rate
UNTIED = {("1x", "on"): (1, 1, 1), ("10x", "sigma"): (10, 1, 10), ("10x", "on"): (10, 1, 1)}
VECTORS = {
    ("vectors_1x", "one"): "vectors at Xavier's scale",
    ("raw", "one"): "raw vectors",
    ("raw", "sigma"): "raw vectors, rate times sigma",
}


def random_and_raw(records: Path) -> Runs:
    """Return (sigma, factor or rate, positions, seed) -> run."""
    steps = runs_by(records / "step.csv", "sigma", "factor", "positions", "seed")
    return steps | runs_by(records / "remedy.csv", "sigma", "rate", "positions", "seed")


def relative_step(sigma: float, factor: float, rate: float, ratio: float) -> float:
    """Return Adam's step relative to a sum of word and position, as a multiple of that of (1, on, 1).

    All sizes are multiples of a word's of (1, on), whose absorption ratio is given: a position has the size 1 / ratio.
    """
    return rate * factor * math.hypot(1, 1 / ratio) / math.hypot(sigma * factor, 1 / ratio)


def step_size(records: Path) -> Iterator[str]:
    """Yield losses and costs by size of the words and step of Adam, then of vectors."""
    runs = random_and_raw(records)
    xavier = {place: of_seeds(runs, "1x", "on", place) for place in ("added", "untied")}
    ratio = float(xavier["added"]["1"]["absorption_encoder"])
    for place, arms in (("added", ADDED), ("untied", UNTIED)):
        for arm, (sigma, factor, rate) in arms.items():
            if found := of_seeds(runs, *arm, place):
                sizes = f"{sigma:g}, {'on' if factor == 1 else 'off'}, {rate:g}", f"{sigma * factor:g}"
                share = relative_step(sigma, factor, rate, ratio) if place == "added" else rate / sigma
                difference = shown(cost(found, xavier[place])) if arm != ("1x", "on") else ""
                yield line(*sizes, place, f"{rate * factor:g}", f"{share:.2f}", losses(found.values()), difference)
    taken = []
    for place in ("added", "untied"):
        large, with_rate = (
            cost(of_seeds(runs, *arm, place), xavier[place]) for arm in (("10x", "on"), ("10x", "sigma"))
        )
        taken.append(f"{100 - 100 * statistics.mean(with_rate) / statistics.mean(large):.0f}")
    yield f"takes {taken[0]} % of the cost away with added positions, {taken[1]} % with untied ones"
    for arm, title in VECTORS.items():
        cells = []
        for place in ("added", "untied"):
            if found := of_seeds(runs, *arm, place):
                cells += [losses(found.values()), shown(cost(found, xavier[place]))]
        yield line(title, *cells)


# ---- 2. Content ------------------------------------------------------------------------------------------------------


def content(records: Path) -> Iterator[str]:
    """Yield the losses of few pairs, and the gain by the content of own and of oracle vectors."""
    runs = runs_by(records / "content.csv", "pairs", "init", "seed")
    for pairs in ("1000", "4000"):
        inits = ("xavier", "own_shuffled", "own", "oracle_shuffled", "oracle")
        arms = {init: of_seeds(runs, pairs, init) for init in inits}
        means = (f"{statistics.mean(map(best_loss, found.values())):.3f}" for found in arms.values())
        worth = (shown(cost(arms[f"{name}_shuffled"], arms[name])) for name in ("own", "oracle"))
        yield line(f"{int(pairs):,}", *means, *worth)


# ---- 3. New words ----------------------------------------------------------------------------------------------------


def word_perplexities(records: Path) -> tuple[dict[str, dict[str, float]], int, dict[str, float]]:
    """Return method -> model -> perplexity after 500 updates; when `none` has read as much text, and its numbers."""
    found: dict[tuple[str, int], dict[str, float]] = {}
    with open(records / "equal_text.csv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault((row["method"], int(row["updates"])), {})[row["model"]] = float(row["word_ppl"])
    last = max(updates for method, updates in found if method == "none")
    return {method: values for (method, updates), values in found.items() if updates == 500}, last, found["none", last]


def equal_text(records: Path) -> Iterator[str]:
    """Yield perplexities after 500 updates, and of `none` after as much text, one per language model."""
    found, last, equal = word_perplexities(records)
    fewer = found["none"]

    def numbers(values: Iterable[float]) -> str:
        return ", ".join(f"{value:.1f}" for value in values)

    yield line("none, 500 updates", numbers(fewer.values()), "", "")
    yield line(f"none, {last} updates", numbers(equal.values()), "", "")
    for method in ("subword", "zeros", "avg"):
        values = found[method]
        differences = ([values[model] - none[model] for model in values] for none in (fewer, equal))
        yield line(method, numbers(values.values()), *(shown(values, 1) for values in differences))


# ---- 5. Plateau ------------------------------------------------------------------------------------------------------


def plateau(records: Path) -> Iterator[str]:
    """Yield the updates until 8.5 bits, and the last loss, of three models and three initialisations."""
    runs = runs_by(records / "plateau.csv", "model", "vectors", "seed")
    for model, title in {"bert_a": "BERT-A", "bert_ad": "BERT-A^d", "tupe_a": "TUPE-A"}.items():
        for init in ("own", "vectors", "shuffled"):
            ends, firsts = [], []
            for run in of_seeds(runs, model, init).values():
                curve = {int(row["updates"]): row["valid_loss"] for row in run["epochs"] if "valid_loss" in row}
                firsts.append(next((f"{updates:,}" for updates in sorted(curve) if curve[updates] < 8.5), "not"))
                ends.append(f"{curve[max(curve)]:.3f}")
            if ends:
                yield line(title, init, ", ".join(firsts), ", ".join(ends))


PARTS = (step_size, content, equal_text, plateau)


def main() -> None:
    """Print the rows."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, help="folder of the records")
    records = parser.parse_args().records
    for part in PARTS:
        print(f"{part.__name__}:", *part(records), sep="\n")


if __name__ == "__main__":
    main()
