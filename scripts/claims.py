"""Recompute the numbers that README and docs/results/README.md claim from the records, and look for them there.

    python scripts/claims.py docs/results/records README.md docs/results/README.md

Prints each claim that a page should have in these words and does not, and ends with status 1 if there is one. The suite
calls it.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from records import best_epoch, interval, read

from embinit_fairseq.arguments import ArgumentParser

#: the pages that have a claim, as places in the arguments
README, FINDINGS, BOTH = (0,), (1,), (0, 1)
Claim = tuple[str, tuple[int, ...]]
Losses = dict[tuple[str, ...], dict[str, Any]]


def runs_by(path: Path, *columns: str) -> Losses:
    """Return the runs of a record: values of these columns -> run; a column that the record lacks is empty."""
    return {tuple(run.get(name, "") for name in columns): run for run in read(path)}


def loss(run: dict[str, Any], last: int | None = None) -> float:
    """Return the lowest validation loss of a run, of the first `last` epochs."""
    return best_epoch(run, last)["valid_loss"]


def spread(differences: Sequence[float], digits: int) -> str:
    """Return the 95 % interval of the mean over seeds, as `low to high`."""
    mean, half = statistics.mean(differences), interval(differences) or 0
    return f"{mean - half:.{digits}f} to {mean + half:.{digits}f}"


def initialisations(records: Path) -> Iterator[Claim]:
    """Yield what is said of Multi30k: BLEU, brevity penalties, differences over seeds, the higher rate."""
    runs = runs_by(records / "table1-full.csv", "init", "seed")
    names = {"xavier": "Xavier's random numbers | `xavier`", "pretrained": "raw vectors | `pretrained`"}
    names |= {"none": "fairseq's own N(0, 1/D) | not given", "shuffled": "raw vectors, shuffled | `shuffled`"}
    names["pretrained_xavier"] = "vectors at Xavier's scale | `pretrained_xavier`"
    names["shuffled_xavier"] = "the same, shuffled | `shuffled --embed-init-std xavier`"
    bleu = {init: [float(runs[init, seed]["bleu"]) for seed in "123"] for init in names}
    bits = {init: [loss(runs[init, seed]) for seed in "123"] for init in names}
    higher = runs_by(records / "table1-full-rates.csv", "init")
    for init, name in names.items():
        brevity = statistics.mean(float(runs[init, seed]["brevity"]) for seed in "123")
        score = f"{statistics.mean(bleu[init]):.1f} ± {statistics.stdev(bleu[init]):.1f}"
        last = ""
        if (init,) in higher:
            run = higher[(init,)]
            last = f"{float(run['bleu']):.1f} ({float(run['brevity']):.3f})"
        yield f"| {name} | {score} | {brevity:.3f} | {last}".rstrip(), README

    def differences(values: dict[str, list[float]], first: str, second: str) -> list[float]:
        return [a - b for a, b in zip(values[first], values[second])]

    lost = differences(bleu, "xavier", "pretrained")
    yield f"lose {statistics.mean(lost):.1f} BLEU to Xavier's", BOTH
    yield f"(95 % interval {spread(lost, 1)}", BOTH
    gained = differences(bleu, "pretrained_xavier", "xavier")
    yield f"gain {statistics.mean(gained):.2f} ({spread(gained, 2)})", BOTH
    content = differences(bleu, "pretrained_xavier", "shuffled_xavier")
    yield f"{-statistics.mean(content):.2f} less ({spread(content, 2)})", FINDINGS
    content = differences(bits, "shuffled", "pretrained")
    yield f"{statistics.mean(content):.3f} bits ({spread(content, 2)})", FINDINGS
    bits_lost = statistics.mean(differences(bits, "pretrained", "xavier"))
    yield f"raw vectors lose {bits_lost:.3f} bits and {statistics.mean(lost):.1f} BLEU", FINDINGS
    content = differences(bleu, "pretrained", "shuffled")
    yield f"{statistics.mean(content):.1f} BLEU ({spread(content, 1)})", BOTH
    penalty = loss(higher[("pretrained",)]) - loss(higher[("xavier",)])
    before = statistics.mean(differences(bits, "pretrained", "xavier"))
    yield f"lose {penalty:.2f} bits instead of {before:.2f}", FINDINGS
    yield f"{penalty:.2f} bits worse than Xavier's numbers instead of {before:.2f}", README


def scale(records: Path) -> Iterator[Claim]:
    """Yield what large random embeddings and raw vectors cost, by rate and by treatment of the positions."""
    runs = runs_by(records / "scale-small.csv", "init", "sigma", "positions", "seed")
    costs = {}
    for (init, sigma, positions, seed), run in runs.items():
        if (init, sigma) == ("xavier", "8x") and (init, "1x", positions, seed) in runs:
            costs[positions, seed] = loss(run) - loss(runs[init, "1x", positions, seed])
    yield f"cost {min(costs.values()):.2f} to {max(costs.values()):.2f} bits at a rate of 5e-4", FINDINGS
    runs = runs_by(records / "scale-rates.csv", "sigma", "positions", "rate", "seed")
    left: dict[str, list[float]] = {}
    for (sigma, positions, rate, seed), run in runs.items():
        if (sigma, rate) == ("8x", "2e-3"):
            left.setdefault(positions, []).append(loss(run) - loss(runs["1x", positions, rate, seed]))
    added, others = statistics.mean(left["added"]), [*left["absent"], *left["untied"]]
    yield f"{added:.2f} bits with added positions and {min(others):.2f} to {max(others):.2f} without", FINDINGS
    shares = sorted(1 - statistics.mean(left[name]) / added for name in ("absent", "untied"))
    yield f"{100 * shares[0]:.0f} to {100 * shares[1]:.0f} % of what is left", FINDINGS
    runs = runs_by(records / "positions-small.csv", "init", "positions", "seed")

    def cost(positions: str, last: int) -> list[float]:
        names = ("pretrained", "xavier")
        return [loss(runs[names[0], positions, s], last) - loss(runs[names[1], positions, s], last) for s in "12"]

    size = float(runs["pretrained", "added", "1"]["absorption_decoder"])
    yield f"the larger of which are {size:.1f} times as large as the positions", FINDINGS
    yield f"cost {statistics.mean(cost('added', 8)):.2f} bits with added positions after eight epochs", FINDINGS
    yield f"{statistics.mean(cost('untied', 8)):.2f} with untied ones (two seeds)", FINDINGS
    best = loss(runs["pretrained", "added", "1"]) - loss(runs["xavier", "added", "1"])
    epochs = {(init, seed): runs[init, "untied", seed]["epochs"] for init in ("pretrained", "xavier") for seed in "12"}
    late = [epochs["pretrained", seed][6]["valid_loss"] - epochs["xavier", seed][6]["valid_loss"] for seed in "12"]
    yield f"cost {best:.2f} (one seed) and {min(late):.2f} to {max(late):.2f}", FINDINGS


def masked_language_models(records: Path) -> Iterator[Claim]:
    """Yield the losses of masked language models after 6,000 updates."""
    found: dict[tuple[str, str], list[float]] = {}
    on_processor: dict[tuple[str, str], list[float]] = {}
    for run in read(records / "tupe-rates.csv"):
        if run["epochs"][-1]["updates"] == 6000:
            found.setdefault((run["model"], run["lr"]), []).append(loss(run))
            if "--cpu" in run["command"]:
                on_processor.setdefault((run["model"], run["lr"]), []).append(loss(run))
        elif run["model"] == "bert_a" and run["epochs"][-1]["updates"] == 18000:
            longer = loss(run)
    mean = {key: statistics.mean(values) for key, values in found.items()}
    yield f"RoPE has {mean['bert_rope', '2e-3']:.2f} bits at its better rate", FINDINGS
    yield f"(TUPE-R, {mean['tupe_r', '1e-3']:.2f})", FINDINGS
    yield f"(BERT-R, {mean['bert_r', '2e-3']:.2f})", FINDINGS
    yield f"TUPE-A with RoPE has {mean['tupe_a_rope', '2e-3']:.2f} (two seeds each)", FINDINGS
    a, ad = ({rate: statistics.mean(on_processor[m, rate]) for rate in ("5e-4", "1e-3")} for m in ("tupe_a", "bert_ad"))
    yield f"{a['1e-3']:.2f} and {ad['1e-3']:.2f} at 1e-3, {a['5e-4']:.2f} and {ad['5e-4']:.2f} at 5e-4", FINDINGS
    yield f"gain {ad['5e-4'] - a['5e-4']:.1f} to {ad['1e-3'] - a['1e-3']:.1f} bits over BERT-A^d", FINDINGS
    yield f"is on its plateau ({mean['bert_a', '1e-3']:.2f}; {longer:.2f} after 18,000 updates, one seed)", FINDINGS


def duo(records: Path) -> Iterator[Claim]:
    """Yield Duo against one stream with the same sets of vectors, and with dropout 0.3."""
    runs = {run["run"]: run for run in read(records / "duo-small-rates.csv")}
    two = runs["duo_two_sets.0.1.2e-3.seed1"]
    one = [runs[f"transformer_concat.0.1.2e-3.seed{seed}"] for seed in (1, 2)]
    yield f"({loss(two):.3f}, one seed; {loss(one[0]):.3f} and {loss(one[1]):.3f})", FINDINGS
    yield f"ends {loss(two) - loss(one[0]):.2f} bits worse", FINDINGS
    yield f"{two['epochs'][-1]['cpu_s'] / one[0]['epochs'][-1]['cpu_s']:.1f} times the time", FINDINGS
    runs = {run["run"]: run for run in read(records / "duo-small.csv")}
    gain = loss(runs["transformer.0.3.seed1"]) - loss(runs["duo_stream_decoder.0.3.seed1"])
    yield f"at 5e-4 and dropout 0.3, it leads by {gain:.2f} bits", FINDINGS


def paired(found: dict[tuple[str, int], list[float]], first: str, second: str) -> str:
    """Return the mean difference of two methods after 500 updates and half its 95 % interval over models."""
    differences = [a - b for a, b in zip(found[first, 500], found[second, 500])]
    return f"{statistics.mean(differences):.1f} ± {interval(differences) or 0:.1f}"


def new_words(records: Path) -> Iterator[Claim]:
    """Yield perplexities after adding words, and what a model without new words gains by the last 20 updates."""
    with open(records / "books.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        if row["experiment"] == "three_models":
            found.setdefault((row["method"], int(row["updates"])), []).append(float(row["word_ppl"]))
    mean = {key: statistics.mean(values) for key, values in found.items()}
    yield (
        f"perplexity {mean['subword', 500]:.0f} after 500 updates, {mean['zeros', 500]:.0f} from rows of zeros",
        FINDINGS,
    )
    yield f"{mean['avg', 500]:.0f} from the mean of all rows, {mean['none', 500]:.0f} without new words", FINDINGS
    yield f"gains {mean['none', 480] - mean['none', 500]:.0f} in the last 20 updates", FINDINGS
    yield f"to zeros {paired(found, 'subword', 'zeros')}, to no new words {paired(found, 'subword', 'none')}", FINDINGS
    yield f"`avg` to no new words {paired(found, 'avg', 'none')}", FINDINGS
    same = paired(found, "distill", "subword")
    yield f"end where the mean of the subwords does ({mean['distill', 500]:.1f}; {same})", FINDINGS
    starts = {(row["experiment"], row["run"]): row for row in rows if row["updates"] == "0"}
    shares = starts["three_models", "lm1/zeros.seed1"], starts["shifted", "zeros.seed1"]
    before, after = (100 * float(row["kl_new_words_probability"]) for row in shares)
    yield f"{before:.1f} % as trained, {after:.0f} % after all logits were lowered by 20", FINDINGS


PARTS = (initialisations, scale, masked_language_models, duo, new_words)


def missing(records: Path, pages: Sequence[Path]) -> list[str]:
    """Return the claims that follow from the records and that a page lacks, however its lines are broken."""
    texts = [" ".join(page.read_text(encoding="utf-8").split()) for page in pages]
    claims = (claim for part in PARTS for claim in part(records))
    return [claim for claim, places in claims if not all(claim in texts[place] for place in places)]


def main() -> None:
    """Print the claims that are missing."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, help="folder with the CSV files")
    parser.add_argument("pages", type=Path, nargs=2, help="README and findings")
    args = parser.parse_args()
    found = missing(args.records, args.pages)
    print("".join(f"{claim}\n" for claim in found), end="")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
