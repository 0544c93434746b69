"""Recompute the tables of docs/results/controls.md from its records; `scripts/claims.py` looks for them on the page.

    python scripts/controls.py docs/results/records

Prints the rows of tables and the numbers of sentences that the page must have.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from records import around, best_epoch, line, losses, runs_by
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

#: arm of step.csv (sigma, factor) or remedy.csv (sigma, rate) -> size of the words, rate of the embedding matrices.
#: `off` is ten times the sigma without the factor sqrt(D) = 10: the forward pass of a tenth of the sigma, and a step
#: of Adam that is a tenth as large next to the words, so the same training as with a tenth of the rate
ARMS = {
    **{("1x", "off"): (0.1, 0.1), ("0.1x", "on"): (0.1, 1)},
    **{("10x", "off"): (1, 0.1), ("1x", "on"): (1, 1), ("1x", "4"): (1, 4)},
    **{("100x", "off"): (10, 0.1), ("10x", "on"): (10, 1), ("10x", "3"): (10, 3)},
    **{("10x", "sigma"): (10, 10), ("10x", "30"): (10, 30)},
}
PLACES = {"added": "added", "untied": "untied", "absent": "none"}
VECTORS = {
    ("vectors_1x", "one"): "Xavier's",
    ("raw", "one"): "GloVe's",
    ("raw", "sigma"): "GloVe's, rate times sigma",
}


def random_and_raw(records: Path) -> Runs:
    """Return (sigma, factor or rate, positions, seed) -> run."""
    steps = runs_by(records / "step.csv", "sigma", "factor", "positions", "seed")
    return steps | runs_by(records / "remedy.csv", "sigma", "rate", "positions", "seed")


def training(arm: dict[str, dict[str, Any]]) -> str:
    """Return the training losses of the best epochs."""
    return ", ".join(f"{best_epoch(run)['train_loss']:.3f}" for run in arm.values())


def step_size(records: Path) -> Iterator[str]:
    """Yield losses and costs by size of the words and rate of the embedding matrices, then of vectors."""
    runs = random_and_raw(records)
    xavier = {place: of_seeds(runs, "1x", "on", place) for place in PLACES}
    for place, title in PLACES.items():
        for arm, sizes in ARMS.items():
            if seeds := of_seeds(runs, *arm, place):
                difference = shown(cost(seeds, xavier[place])) if arm != ("1x", "on") else ""
                yield line(title, *(f"{size:g}" for size in sizes), losses(seeds.values()), training(seeds), difference)
    for arm, title in VECTORS.items():
        cells = []
        for place in ("added", "untied"):
            if seeds := of_seeds(runs, *arm, place):
                cells += [losses(seeds.values()), training(seeds), shown(cost(seeds, xavier[place]))]
        yield line(title, *cells)
    yield from _remedy(runs, xavier)


def less_by(arm: dict[str, dict[str, Any]], other: dict[str, dict[str, Any]]) -> str:
    """Return the losses of `other` minus the losses of `arm`."""
    return around(cost(other, arm), 3)


def _remedy(runs: Runs, xavier: dict[str, dict[str, dict[str, Any]]]) -> Iterator[str]:
    """Yield the cost that a rate times sigma removes, and the rest; costs at equal steps relative to the words."""
    large, with_rate = (
        {place: of_seeds(runs, *arm, place) for place in PLACES} for arm in (("10x", "on"), ("10x", "sigma"))
    )
    yield f"{less_by(with_rate['added'], large['added'])} bits with added positions"
    yield f"{less_by(with_rate['untied'], large['untied'])} with untied ones"
    raw, raw_with_rate = (of_seeds(runs, "raw", rate, "added") for rate in ("one", "sigma"))
    yield f"{less_by(raw_with_rate, raw)} with added positions"
    yield f"{shown(cost(with_rate['added'], of_seeds(runs, '1x', '4', 'added')))} bits"
    for place, title in (
        ("added", "with added positions"),
        ("untied", "with untied ones"),
        ("absent", "without positions"),
    ):
        yield f"{shown(cost(with_rate[place], xavier[place]))} {title}"
    rests = [cost(with_rate[place], xavier[place]) for place in ("added", "untied")]
    yield f"larger by {around([added - untied for added, untied in zip(*rests)], 3)} with added positions"
    smaller_step = cost(of_seeds(runs, "10x", "off", "added"), large["added"])
    yield f"differ by {around(smaller_step, 3)} bits"


# ---- 2. Content ------------------------------------------------------------------------------------------------------


def content(records: Path) -> Iterator[str]:
    """Yield the losses of few pairs, and the gain by the content of own and of oracle vectors."""
    runs = runs_by(records / "content.csv", "pairs", "init", "seed")
    for pairs in ("1000", "4000"):
        inits = ("xavier", "own_shuffled", "own", "oracle_shuffled", "oracle")
        arms = {init: of_seeds(runs, pairs, init) for init in inits}
        common = set.intersection(*map(set, arms.values()))
        means = (f"{statistics.mean(best_loss(seeds[seed]) for seed in common):.3f}" for seeds in arms.values())
        worth = (shown(cost(arms[f"{name}_shuffled"], arms[name])) for name in ("own", "oracle"))
        yield line(f"{int(pairs):,}", *means, *worth)
        gain = cost(arms["xavier"], arms["oracle"])
        yield f"{shown(gain)} with {int(pairs):,} pairs"


# ---- 3. New words ----------------------------------------------------------------------------------------------------


#: method -> name for readers, in the order of the table; `FOLDER/METHOD`: the runs in FOLDER, with other vectors
NEW_WORD_METHODS = {
    "focus": "focus",
    "quarter/focus": "focus, vectors of a quarter of the text",
    "omp": "omp",
    "subword": "subword",
    "zeros": "zeros",
    "avg": "avg",
    "shuffled/focus": "focus, vectors shuffled",
    "shuffled/omp": "omp, vectors shuffled",
}


@dataclass(frozen=True)
class NewWords:
    """Hold the perplexities per word of language models that were adapted to a new domain, with and without new words.

    Args:
        methods: key of NEW_WORD_METHODS -> model -> perplexity after 500 updates.
        none: model -> perplexity without new words after 500 updates.
        equal_text: the same after `updates` updates, when the model has read as much text as those with new words.
        at_start: method -> mean perplexity before the first update, also of `none`.
    """

    methods: dict[str, dict[str, float]]
    none: dict[str, float]
    equal_text: dict[str, float]
    updates: int
    at_start: dict[str, float]

    def gains(self, method: str) -> list[float]:
        """Return the perplexity without new words at equal text minus that of a method, one per language model."""
        return [self.equal_text[model] - self.methods[method][model] for model in self.none]


def perplexities_of_words(records: Path, methods: Iterable[str] = NEW_WORD_METHODS, none: str = "none") -> NewWords:
    """Read the perplexities of methods, and without new words, from equal_text.csv."""
    perplexities: dict[tuple[str, int], dict[str, float]] = {}
    with open(records / "equal_text.csv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            folder, _, model = row["model"].rpartition("/")
            method = f"{folder}/{row['method']}" if folder else row["method"]
            perplexities.setdefault((method, int(row["updates"])), {})[model] = float(row["word_ppl"])
    last = max(updates for method, updates in perplexities if method == none)
    with_words = {method: perplexities[method, 500] for method in methods}
    at_start = {method: statistics.mean(perplexities[method, 0].values()) for method in (*methods, none)}
    return NewWords(with_words, perplexities[none, 500], perplexities[none, last], last, at_start)


def equal_text(records: Path) -> Iterator[str]:
    """Yield perplexities after 500 updates, and of `none` after as much text, one per language model."""
    words = perplexities_of_words(records)

    def numbers(values: Iterable[float]) -> str:
        return ", ".join(f"{value:.1f}" for value in values)

    yield f"continues to {words.updates} updates"
    yield line("none, 500 updates", numbers(words.none.values()), "", "")
    yield line(f"none, {words.updates} updates", numbers(words.equal_text.values()), "", "")
    for method, title in NEW_WORD_METHODS.items():
        values = words.methods[method]
        differences = ([values[model] - none[model] for model in none] for none in (words.none, words.equal_text))
        yield line(title, numbers(values.values()), *(shown(values, 1) for values in differences))
    others = {"subword": "`subword`", "omp": "`omp`"}
    others |= {"shuffled/focus": "shuffled vectors", "quarter/focus": "vectors of a quarter of the text"}
    for other, name in others.items():
        differences = [words.methods["focus"][model] - words.methods[other][model] for model in words.none]
        yield f"{shown(differences, 1)} to {name}"
    by_content = [words.methods["omp"][model] - words.methods["shuffled/omp"][model] for model in words.none]
    yield f"`omp` {shown(by_content, 1)}"
    ratios = [focus / subword for focus, subword in zip(words.gains("focus"), words.gains("subword"))]
    yield f"{around(ratios, 1)} times as much as `subword`"
    others_at_start = (f"`{method}` {words.at_start[method]:,.0f}" for method in ("omp", "subword", "none", "avg"))
    yield f"`focus` has a perplexity of {words.at_start['focus']:,.0f}, {', '.join(others_at_start)}"
    updates, same = old_domain(records)
    yield f"(equal text, {updates} updates): `subword` {same['subword']}, `focus` {same['focus']}"


def old_domain(records: Path) -> tuple[int, dict[str, str]]:
    """Return the updates at equal text, and method -> perplexity minus that of `none`, in the model's own domain."""
    words = perplexities_of_words(records, ("own/subword", "own/focus"), "own/none")
    differences = {name.removeprefix("own/"): [-gain for gain in words.gains(name)] for name in words.methods}
    return words.updates, {method: shown(values, 1) for method, values in differences.items()}


# ---- 4. Plateau ------------------------------------------------------------------------------------------------------


def plateau(records: Path) -> Iterator[str]:
    """Yield the updates until 8.5 bits, the last loss and its cost against vectors: three models, three starts."""
    runs = runs_by(records / "plateau.csv", "model", "vectors", "seed")
    for model, title in {"bert_a": "BERT-A", "bert_ad": "BERT-A^d", "tupe_a": "TUPE-A"}.items():
        for init in ("own", "vectors", "shuffled"):
            ends, firsts = [], []
            for run in of_seeds(runs, model, init).values():
                curve = {int(row["updates"]): row["valid_loss"] for row in run["epochs"] if "valid_loss" in row}
                firsts.append(next((f"{updates:,}" for updates in sorted(curve) if curve[updates] < 8.5), "not"))
                ends.append(f"{curve[max(curve)]:.3f}")
            worse = cost(of_seeds(runs, model, init), of_seeds(runs, model, "vectors"))
            yield line(title, init, ", ".join(firsts), ", ".join(ends), "" if init == "vectors" else shown(worse))


# ---- 5. Duo ----------------------------------------------------------------------------------------------------------

TWO_SETS = {
    "transformer_avg": "one stream",
    "transformer_equal_avg": "one stream of Duo's size",
    "duo_two_sets": "Duo",
}


def duo(records: Path) -> Iterator[str]:
    """Yield size, losses and BLEU of Duo and of one stream, all with two sets of vectors and dropout 0.3."""
    runs = runs_by(records / "duo-fair.csv", "model", "seed")
    arms = {model: of_seeds(runs, model) for model in TWO_SETS}
    for model, title in TWO_SETS.items():
        of_model = arms[model].values()
        best = [best_epoch(run) for run in of_model]
        best_losses = ", ".join(f"{row['valid_loss']:.3f} ({row['epoch']:.0f})" for row in best)
        scores = ", ".join(f"{float(run['bleu']):.1f} ({float(run['brevity']):.3f})" for run in of_model)
        size = f"{int(next(iter(of_model))['parameters']) / 1e6:.2f}"
        difference = "" if model == "duo_two_sets" else shown(cost(arms["duo_two_sets"], arms[model]))
        yield line(title, size, best_losses, training(arms[model]), scores, difference)


PARTS = (step_size, content, equal_text, plateau, duo)


def main() -> None:
    """Print the rows."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, help="folder of the records")
    records = parser.parse_args().records
    for part in PARTS:
        print(f"{part.__name__}:", *part(records), sep="\n")


if __name__ == "__main__":
    main()
