"""Recompute the numbers on README and the pages of results from the records, and look for them on the pages.

    python scripts/claims.py .

Prints each claim and each row of a table that a page should have in these words and does not, and ends with status 1 if
there is one. The suite calls it.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import controls
from records import around, best_epoch, cell, line, loss, losses, number, read, runs_by, spread

from embinit_fairseq.arguments import ArgumentParser

#: the pages that have a claim; folder of the records
README, FINDINGS = ("README.md",), ("docs/results/README.md",)
BOTH = README + FINDINGS
MULTI30K, SCALE, MLM, DUO, EXPANSION, TRANSFER, CONTROLS = (
    (f"docs/results/{name}.md",) for name in "multi30k scale mlm duo_multi30k expansion transfer controls".split()
)
EXPAND_VOCAB = ("docs/expand_vocab.md",)
RECORDS = "docs/results/records"
Claim = tuple[str, tuple[str, ...]]


#: initialisation -> title on the page; name on the README
TABLE1 = {
    "none": ("fairseq's own, N(0, 1/D)", "fairseq's own N(0, 1/D) | not given"),
    "xavier": ("xavier", "Xavier's random numbers | `xavier`"),
    "shuffled_xavier": ("shuffled at Xavier's scale", "the same, shuffled | `shuffled --embed-init-std xavier`"),
    "pretrained_xavier": ("pretrained_xavier", "vectors at Xavier's scale | `pretrained_xavier`"),
    "pretrained": ("pretrained (raw)", "raw vectors | `pretrained`"),
    "shuffled": ("shuffled (raw)", "raw vectors, shuffled | `shuffled`"),
}


def of_init(records: Path, value: Callable[[dict[str, Any]], float]) -> dict[str, list[float]]:
    """Return initialisation -> the value of its three runs at the paper's learning rate."""
    runs = runs_by(records / "table1-full.csv", "init", "seed")
    return {init: [value(runs[init, seed]) for seed in "123"] for init in TABLE1}


def bleu(run: dict[str, Any]) -> float:
    """Return the BLEU of a run."""
    return float(run["bleu"])


def subtract(values: dict[str, list[float]], first: str, second: str) -> list[float]:
    """Return the differences of two initialisations, one per seed."""
    return [a - b for a, b in zip(values[first], values[second])]


def initialisation_tables(records: Path) -> Iterator[Claim]:
    """Yield the rows of Multi30k: losses, BLEU, brevity penalties, the higher rate."""
    scores, bits = of_init(records, bleu), of_init(records, loss)
    training = of_init(records, lambda run: run["epochs"][7]["train_loss"])
    brevities = of_init(records, lambda run: float(run["brevity"]))
    higher = runs_by(records / "table1-full-rates.csv", "init")
    for init, (title, name) in TABLE1.items():
        train, brevity = f"{statistics.mean(training[init]):.3f}", f"{statistics.mean(brevities[init]):.3f}"
        against = "" if init == "xavier" else around(subtract(scores, init, "xavier"), 2, "+")
        yield line(title, cell(bits[init], 3), train, cell(scores[init], 1), brevity, against), MULTI30K
        row = f"| {name} | {cell(scores[init], 1)} | {brevity} |"
        if run := higher.get((init,)):
            facts = number(run, "bleu", 1), number(run, "brevity", 3)
            yield line(title.split(",")[0], losses([run]), *facts), MULTI30K
            row += " {} ({})".format(*facts)
        yield row, README


def initialisations(records: Path) -> Iterator[Claim]:
    """Yield the statements on Multi30k: differences over seeds, and at the higher rate."""
    scores, bits = of_init(records, bleu), of_init(records, loss)
    lost = subtract(scores, "xavier", "pretrained")
    yield f"lose {statistics.mean(lost):.1f} BLEU to Xavier's", BOTH + MULTI30K
    yield f"(95 % interval {spread(lost, 1)}", BOTH
    for init, pages in (("pretrained_xavier", BOTH), ("shuffled_xavier", FINDINGS)):
        gained = subtract(scores, init, "xavier")
        yield f"gain {statistics.mean(gained):.2f} ({spread(gained, 2)})", pages
    content = subtract(scores, "pretrained_xavier", "shuffled_xavier")
    yield f"{around(content, 2)} BLEU at Xavier's scale", MULTI30K
    yield f"{-statistics.mean(content):.2f} less ({spread(content, 2)})", FINDINGS
    raw_bits, raw_bleu = subtract(bits, "shuffled", "pretrained"), subtract(scores, "pretrained", "shuffled")
    yield f"{around(raw_bleu, 2, '+')} raw ({around(raw_bits, 3)} bits)", MULTI30K
    yield f"{statistics.mean(raw_bits):.3f} bits ({spread(raw_bits, 2)})", FINDINGS
    yield f"{statistics.mean(raw_bleu):.1f} BLEU ({spread(raw_bleu, 1)})", BOTH
    penalty = statistics.mean(subtract(bits, "pretrained", "xavier"))
    yield f"raw vectors lose {penalty:.3f} bits and {statistics.mean(lost):.1f} BLEU", FINDINGS
    higher = runs_by(records / "table1-full-rates.csv", "init")
    left = loss(higher[("pretrained",)]) - loss(higher[("xavier",)])
    yield f"lose {left:.2f} bits instead of {penalty:.2f}", FINDINGS
    yield f"{left:.2f} bits worse than Xavier's numbers instead of {penalty:.2f}", README


def scale(records: Path) -> Iterator[Claim]:
    """Yield the cost of large random embeddings, by rate and by treatment of the positions."""
    runs = runs_by(records / "scale-small.csv", "init", "sigma", "positions", "seed")
    costs = {}
    for (init, sigma, positions, seed), run in runs.items():
        if (init, sigma) == ("xavier", "8x") and (init, "1x", positions, seed) in runs:
            costs[positions, seed] = loss(run) - loss(runs[init, "1x", positions, seed])
    for title, sigma in (("1/8", "0.125x"), ("1", "1x"), ("8", "8x")):
        of_sigma = [runs["xavier", sigma, positions, "1"] for positions in ("added", "absent", "untied")]
        ratio = ", ".join(number(of_sigma[0], f"absorption_{side}", 2) for side in ("encoder", "decoder"))
        yield line(title, ratio, *(losses([run]) for run in of_sigma)), SCALE
    with_vectors = [
        loss(runs["pretrained_xavier", "8x", positions, "1"]) - loss(runs["pretrained_xavier", "1x", positions, "1"])
        for positions in ("added", "absent", "untied")
    ]
    large = f"{costs['added', '1']:.3f}, {costs['added', '2']:.3f}"
    yield line("5e-4", large, f"{costs['absent', '1']:.3f}", f"{costs['untied', '1']:.3f}"), SCALE
    yield line("5e-4, with vectors (`pretrained_xavier`)", *(f"{cost:.3f}" for cost in with_vectors)), SCALE
    yield f"cost {min(costs.values()):.2f} to {max(costs.values()):.2f} bits at a rate of 5e-4", FINDINGS
    runs = runs_by(records / "scale-rates.csv", "sigma", "positions", "rate", "seed")
    left: dict[tuple[str, str], list[float]] = {}
    for (sigma, positions, rate, seed), run in runs.items():
        if sigma == "8x":
            left.setdefault((rate, positions), []).append(loss(run) - loss(runs["1x", positions, rate, seed]))
    for title, rate in (("1e-3", "1e-3"), ("2e-3", "2e-3"), ("4e-3, Xavier's model worse by 0.2 bits", "4e-3")):
        kinds = [left.get((rate, positions), []) for positions in ("added", "absent", "untied")]
        yield line(title, *(", ".join(f"{cost:.3f}" for cost in costs) or "-" for costs in kinds)), SCALE
    added, absent, untied = (left["2e-3", positions] for positions in ("added", "absent", "untied"))
    mean, others = statistics.mean(added), [*absent, *untied]
    yield f"{mean:.2f} bits with added positions and {min(others):.2f} to {max(others):.2f} without", FINDINGS
    more = [a - b for a, b in zip(added, absent)]
    yield f"it is {statistics.mean(more):.3f} bits, undecided ({spread(more, 3)}", FINDINGS
    yield f"{statistics.mean(more):.3f} bits, 95 % interval {spread(more, 3)}", SCALE
    to_untied = mean - statistics.mean(untied)
    yield f"account for {statistics.mean(more):.2f} to {to_untied:.2f} bits of the cost", SCALE
    shares = f"{100 * statistics.mean(more) / mean:.0f} % against no positions, {100 * to_untied / mean:.0f} % against"
    yield f"That is {shares} untied ones", SCALE


def raw_vectors(records: Path) -> Iterator[Claim]:
    """Yield the cost of raw vectors with each kind of positions."""
    runs = runs_by(records / "positions-small.csv", "init", "positions", "seed")

    def cost(positions: str, last: int) -> list[float]:
        names = ("pretrained", "xavier")
        return [loss(runs[names[0], positions, s], last) - loss(runs[names[1], positions, s], last) for s in "12"]

    kinds = {"added": "added", "absent": "no positions", "untied": "untied (`tupe_transformer`)"}
    for positions, title in (kinds | {"rope": "rotary", "alibi": "ALiBi"}).items():
        seeds = [seed for seed in "12" if ("xavier", positions, seed) in runs]
        # the page compares eight epochs; some of Xavier's runs are longer
        both = [[loss(runs[init, positions, s], 8) for s in seeds] for init in ("xavier", "pretrained")]
        cells = [", ".join(f"{value:.3f}" for value in values) for values in both]
        yield line(title, *cells, ", ".join(f"{b - a:+.3f}" for a, b in zip(*both))), SCALE
    difference = [a - b for a, b in zip(cost("added", 8), cost("untied", 8))]
    yield f"undecided ({statistics.mean(difference):.2f}; {spread(difference, 2)}; two seeds)", FINDINGS
    size = float(runs["pretrained", "added", "1"]["absorption_decoder"])
    yield f"the larger of which are {size:.1f} times as large as the positions", FINDINGS
    yield f"cost {statistics.mean(cost('added', 8)):.2f} bits with added positions after eight epochs", FINDINGS
    yield f"{statistics.mean(cost('untied', 8)):.2f} with untied ones", FINDINGS
    best = loss(runs["pretrained", "added", "1"]) - loss(runs["xavier", "added", "1"])
    epochs = {(init, seed): runs[init, "untied", seed]["epochs"] for init in ("pretrained", "xavier") for seed in "12"}
    late = [epochs["pretrained", seed][6]["valid_loss"] - epochs["xavier", seed][6]["valid_loss"] for seed in "12"]
    sizes = (number(runs["pretrained", "added", "1"], f"absorption_{side}", 1) for side in ("encoder", "decoder"))
    yield f"Raw vectors are {' (encoder) and '.join(sizes)} times (decoder, GloVe)", SCALE
    epoch = f"epoch {best_epoch(runs['xavier', 'added', '1'])['epoch']:.0f}: {losses([runs['xavier', 'added', '1']])}"
    yield f"{best:.2f} with added positions ({epoch}, one seed), {min(late):.2f} and {max(late):.2f} untied", SCALE
    yield f"cost {best:.2f} with added positions (one seed), {min(late):.2f} to {max(late):.2f} with", FINDINGS


def masked_language_models(records: Path) -> Iterator[Claim]:
    """Yield the losses of masked language models after 6,000 updates."""
    losses: dict[tuple[str, str], list[float]] = {}
    training: dict[tuple[str, str], list[float]] = {}
    on_processor: dict[tuple[str, str], list[float]] = {}
    for run in read(records / "tupe-rates.csv"):
        if run["epochs"][-1]["updates"] == 6000:
            losses.setdefault((run["model"], run["lr"]), []).append(loss(run))
            training.setdefault((run["model"], run["lr"]), []).append(best_epoch(run)["train_loss"])
            if "--cpu" in run["command"]:
                on_processor.setdefault((run["model"], run["lr"]), []).append(loss(run))
        elif run["model"] == "bert_a" and run["epochs"][-1]["updates"] == 18000:
            longer = loss(run)
    titles = {"bert_nope": "no positions, on its plateau", "bert_a": "BERT-A, on its plateau", "bert_ad": "BERT-A^d"}
    titles |= {"bert_alibi": "ALiBi", "tupe_a": "TUPE-A", "tupe_a_tie_cls": "TUPE-A, tied `[CLS]`", "bert_r": "BERT-R"}
    titles |= {"tupe_r": "TUPE-R", "bert_rope": "RoPE", "tupe_a_rope": "TUPE-A + RoPE"}
    for model, title in titles.items():
        cells = []
        for key in ((model, "1e-3"), (model, "2e-3")):
            first = len(on_processor.get(key, []))  # the record has runs on a processor first
            cells.append(", ".join(f"{x:.3f}" if i < first else f"*{x:.3f}*" for i, x in enumerate(losses[key])))
        yield line(title, *cells), MLM
    four = ("bert_rope", "tupe_a_rope", "bert_r", "tupe_r")
    train = (f"{titles[model]} {statistics.mean(training[model, '2e-3']):.2f}" for model in four)
    yield f"at 2e-3 {', '.join(train)}", MLM
    rope = [x for (model, _), values in losses.items() if model in ("bert_rope", "tupe_a_rope") for x in values]
    rest = [x for (model, _), values in losses.items() if model not in ("bert_rope", "tupe_a_rope") for x in values]
    yield f"(at most {max(rope):.3f}, at least {min(rest):.3f})", FINDINGS
    yield f"(at most {max(rope):.3f}) is better than every run without (at least {min(rest):.3f})", MLM
    yield f"({cell(losses['bert_r', '2e-3'], 2)}, {cell(losses['tupe_r', '2e-3'], 2)}: standard deviations", MLM
    untied = [b - a for a, b in zip(on_processor["tupe_a", "1e-3"], on_processor["bert_ad", "1e-3"])]
    yield (
        f"{statistics.mean(untied):.2f} bits less than BERT-A^d at 1e-3 (two seeds; 95 % interval {spread(untied, 2)})",
        MLM,
    )
    yield f"do not decide it (at 1e-3 {spread(untied, 2)})", FINDINGS
    mean = {key: statistics.mean(values) for key, values in losses.items()}
    yield f"{mean['bert_rope', '2e-3']:.2f} [bits](../glossary.md) at their better learning rate", MLM
    yield f"RoPE has {mean['bert_rope', '2e-3']:.2f} bits at its better rate", FINDINGS
    yield f"{mean['tupe_r', '1e-3'] - mean['bert_rope', '2e-3']:.1f} less than relative positions", FINDINGS + MLM
    yield f"(TUPE-R, {mean['tupe_r', '1e-3']:.2f})", FINDINGS
    yield f"(BERT-R, {mean['bert_r', '2e-3']:.2f})", FINDINGS
    yield f"TUPE-A with RoPE has {mean['tupe_a_rope', '2e-3']:.2f} (two seeds each)", FINDINGS
    a, ad = ({rate: statistics.mean(on_processor[m, rate]) for rate in ("5e-4", "1e-3")} for m in ("tupe_a", "bert_ad"))
    yield f"{a['1e-3']:.2f} and {ad['1e-3']:.2f} at 1e-3, {a['5e-4']:.2f} and {ad['5e-4']:.2f} at 5e-4", FINDINGS
    yield f"and {ad['5e-4'] - a['5e-4']:.1f} at 5e-4 (one seed)", MLM
    yield f"At 5e-4 they have {a['5e-4']:.2f} and {ad['5e-4']:.2f}", MLM
    yield f"leaves its plateau and ends at {longer:.2f} (one seed)", MLM
    yield f"gain {ad['5e-4'] - a['5e-4']:.1f} to {ad['1e-3'] - a['1e-3']:.1f} bits over BERT-A^d", FINDINGS
    plateau = f"{mean['bert_a', '1e-3']:.2f}; {longer:.2f} after 18,000 updates, one seed"
    yield f"is on its [plateau](../glossary.md) ({plateau})", FINDINGS


def duo(records: Path) -> Iterator[Claim]:
    """Yield Duo against one stream with the same sets of vectors, and with dropout 0.3."""
    files = {f"0.1.{seed}": "duo-small" for seed in ("seed1", "seed2")}
    files |= {f"0.1.2e-3.{seed}": "duo-small-rates" for seed in ("seed1", "seed2")}
    every = {name: {run["run"]: run for run in read(records / f"{name}.csv")} for name in set(files.values())}
    single = {label: every[name][f"transformer.{label}"] for label, name in files.items()}
    double = {label: every[name][f"duo_stream_decoder.{label}"] for label, name in files.items()}
    models = "transformer transformer_avg transformer_concat transformer_equal duo_stream_decoder duo_two_sets"
    for model in models.split():
        of_model = [every[name].get(f"{model}.{label}") for label, name in files.items()]
        yield (
            line(
                model,
                *(f"{losses([x])}, {number(x, 'bleu', 1)} ({number(x, 'brevity', 3)})" if x else "-" for x in of_model),
            ),
            DUO,
        )
    after = [single[x]["epochs"][1]["valid_loss"] - double[x]["epochs"][1]["valid_loss"] for x in files]
    ends = [loss(double[x]) - loss(single[x]) for x in files]
    low, high = sorted(after[:2]), sorted(after[2:])
    yield f"by {low[0]:.2f} to {low[1]:.2f} bits at 5e-4 and by {high[0]:.2f} to {high[1]:.2f} at 2e-3", DUO
    yield f"worse by {statistics.mean(ends[:2]):.2f} and by {min(ends[2:]):.2f} to {max(ends[2:]):.2f} bits", DUO
    yield f"({spread(ends[:2], 3)}, {spread(ends[2:], 2)})", DUO
    lead = [
        sum(d["valid_loss"] < s["valid_loss"] for d, s in zip(double[x]["epochs"], single[x]["epochs"])) for x in files
    ]
    words = [("no one two three four five six seven eight".split())[count] for count in lead]
    yield f"leads at 2e-3 for {words[3]} to {words[2]} epochs, at 5e-4 for {words[0]}", FINDINGS
    gains = [
        loss(every["duo-small"][f"duo_two_sets.0.1.{seed}"]) - loss(every["duo-small"][f"{model}.0.1.{seed}"])
        for model in ("transformer_avg", "transformer_concat")
        for seed in ("seed1", "seed2")
    ]
    yield f"beat Duo with two sets by {min(gains):.2f} to {max(gains):.2f} bits at 5e-4", DUO
    equal, small = every["duo-small"]["transformer_equal.0.1.seed1"], double["0.1.seed1"]
    seconds = equal["epochs"][-1]["cpu_s"], small["epochs"][-1]["cpu_s"]
    yield (
        f"by {loss(small) - loss(equal):.2f} bits at 5e-4 (one seed), in {seconds[0] / seconds[1]:.1f} times the time",
        DUO,
    )
    done = int(8 * seconds[1] / seconds[0])  # epochs of the larger transformer in Duo's time
    yield f"In the same time it is worse by {loss(equal, done) - loss(small):.1f}", DUO
    runs = {run["run"]: run for run in read(records / "duo-small-rates.csv")}
    two = runs["duo_two_sets.0.1.2e-3.seed1"]
    one = [runs[f"transformer_concat.0.1.2e-3.seed{seed}"] for seed in (1, 2)]
    yield f"has {loss(two):.3f} bits (one seed), one stream of both {loss(one[0]):.3f} and {loss(one[1]):.3f}", FINDINGS
    longer = two["epochs"][-1]["cpu_s"] / one[0]["epochs"][-1]["cpu_s"]
    yield (
        f"better than Duo by {loss(two) - loss(one[0]):.2f} bits (one seed of Duo) and {longer:.1f} times as fast",
        DUO,
    )
    runs = {run["run"]: run for run in read(records / "duo-small.csv")}
    gain = loss(runs["transformer.0.3.seed1"]) - loss(runs["duo_stream_decoder.0.3.seed1"])
    yield f"transformer with one set by {gain:.2f} bits after eight epochs", DUO


def paired(perplexities: dict[tuple[str, int], list[float]], first: str, second: str) -> str:
    """Return the mean difference of two methods after 500 updates and half its 95 % interval over models."""
    return around([a - b for a, b in zip(perplexities[first, 500], perplexities[second, 500])], 1)


def new_words(records: Path) -> Iterator[Claim]:
    """Yield perplexities after adding words, and the gain of a model without new words in the last 20 updates."""
    with open(records / "books.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    ppl: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        if row["experiment"] == "three_models":
            ppl.setdefault((row["method"], int(row["updates"])), []).append(float(row["word_ppl"]))
    mean = {key: statistics.mean(values) for key, values in ppl.items()}
    for method in ("none", "subword", "zeros", "avg"):
        values = [ppl[method, updates] for updates in (0, 100, 500)]
        cells = [f"{statistics.mean(three):,.1f} ± {statistics.stdev(three):.1f}" for three in values]
        yield line(method, *cells, "" if method == "none" else paired(ppl, method, "none")), EXPANSION
    yield f"`subword` against `zeros`: {paired(ppl, 'subword', 'zeros')}", EXPANSION
    gains = [before - after for before, after in zip(ppl["none", 480], ppl["none", 500])]
    yield f"`none` gains {min(gains):.1f} to {max(gains):.1f}", EXPANSION
    yield f"end where `subword` does ({paired(ppl, 'distill', 'subword')})", EXPANSION
    yield f"{mean['subword', 500]:.0f} from subwords, {mean['zeros', 500]:.0f} from zeros", FINDINGS
    yield f"{mean['avg', 500]:.0f} from the mean of all rows, {mean['none', 500]:.0f} without new words", FINDINGS
    yield f"gains {mean['none', 480] - mean['none', 500]:.0f} in the last 20 updates", FINDINGS
    yield f"to zeros {paired(ppl, 'subword', 'zeros')}, to no new words {paired(ppl, 'subword', 'none')}", FINDINGS
    yield f"`avg` to no new words {paired(ppl, 'avg', 'none')}", FINDINGS
    same = paired(ppl, "distill", "subword")
    yield f"end where the mean of the subwords does ({mean['distill', 500]:.1f}; {same})", FINDINGS
    starts = {(row["experiment"], row["run"]): row for row in rows if row["updates"] == "0"}
    for method in ("avg", "zeros", "subword"):
        both = starts["three_models", f"lm1/{method}.seed1"], starts["shifted", f"{method}.seed1"]
        chances = ", ".join(number(start, "kl_new_words_probability", 4) for start in both)
        perplexities = [float(start["word_ppl"]) for start in both]
        power = [f"{x:,.0f}" if x < 1e6 else f"{x:.1e}".replace("e+", " x 10^") for x in perplexities]
        yield line(method, chances, ", ".join(power)), EXPANSION
    shares = starts["three_models", "lm1/zeros.seed1"], starts["shifted", "zeros.seed1"]
    before, after = (100 * float(row["kl_new_words_probability"]) for row in shares)
    yield f"{before:.1f} % as trained, {after:.0f} % after all logits were lowered by 20", FINDINGS


def transfer(records: Path) -> Iterator[Claim]:
    """Yield a model of words moved to BPE: one epoch of tuning by each method, and models from scratch."""
    runs = runs_by(records / "transfer.csv", "method", "seed")
    titles = {
        "anew": "`scratch` (`anew`): a new model",
        "copy": "`copy`",
        "avg": "`avg`, `subword`",
        "focus": "`focus`",
    }
    titles |= {"omp=8": "`omp`, K = 8", "omp=64": "`omp`, K = 64", "whole": "`whole`: BPE from the start, 8 epochs"}
    bleu = {}
    for method, title in titles.items():
        of_method = [runs[method, seed] for seed in "12" if (method, seed) in runs]
        facts = (", ".join(number(run, *fact) for run in of_method) for fact in (("bleu", 1), ("brevity", 3)))
        yield line(title, losses(of_method), *facts), TRANSFER
        bleu[method] = [float(run["bleu"]) for run in of_method]
    scratch, whole = bleu.pop("anew"), bleu.pop("whole")
    moved = [score for scores in bleu.values() for score in scores]
    yield f"has {min(moved):.0f} to {max(moved):.0f} BLEU", TRANSFER
    yield f"has {min(scratch):.0f} to {max(scratch):.0f} after one epoch and {whole[0]:.1f} after eight", TRANSFER


def of_controls(records: Path) -> Iterator[Claim]:
    """Yield the tables of the page of controls, and the statements of other pages about them."""
    for part in controls.PARTS:
        for row in part(records):
            yield row, CONTROLS
    runs = controls.random_and_raw(records)
    xavier = controls.of_seeds(runs, "1x", "on", "added")
    for sigma, rate in (("10x", "on"), ("raw", "one")):
        large, with_rate = (controls.of_seeds(runs, sigma, name, "added") for name in (rate, "sigma"))
        whole = f"{statistics.mean(controls.cost(large, xavier)):.2f} bits"
        yield f"{controls.less_by(with_rate, large)} of {whole}", FINDINGS
    few = runs_by(records / "content.csv", "pairs", "init", "seed")
    for pairs, said in (("1000", "gain {} bits"), ("4000", "with 4,000 {}")):
        arms = (controls.of_seeds(few, pairs, init) for init in ("xavier", "oracle"))
        yield said.format(around(controls.cost(*arms), 3)), FINDINGS
    own = (controls.of_seeds(few, "4000", init) for init in ("own_shuffled", "own"))
    yield f"gain {around(controls.cost(*own), 3)}", FINDINGS + CONTROLS
    fair = runs_by(records / "duo-fair.csv", "model", "seed")
    duo, *streams = (controls.of_seeds(fair, model) for model in reversed(controls.TWO_SETS))
    larger, small = (around(controls.cost(duo, stream), 3) for stream in streams)
    yield (
        f"{small} bits worse than one stream of both (three seeds) and {larger} worse than one of its size",
        FINDINGS + DUO,
    )
    words = controls.perplexities_of_words(records)
    for method, name in (("focus", "vectors gain"), ("subword", "subwords gain"), ("zeros", "zeros")):
        yield f"{name} {around(words.gains(method), 1)}", FINDINGS
    focus, subword, none = (
        statistics.mean(values.values()) for values in (*map(words.methods.get, ("focus", "subword")), words.equal_text)
    )
    yield f"of a perplexity of {none:.0f}, from", FINDINGS
    yield f"(`avg`) it is undecided ({around([-gain for gain in words.gains('avg')], 1)};", FINDINGS
    by_content = [right - shuffled for right, shuffled in zip(words.gains("focus"), words.gains("shuffled/focus"))]
    yield f"shuffled ones are {around(by_content, 1)} worse", FINDINGS
    _, same = controls.old_domain(records)
    yield f"`focus` differs by {same['focus']}, `subword` by {same['subword']} from no new words", FINDINGS
    yield f"a perplexity of {focus:.0f}, `subword` {subword:.0f}, no new words {none:.0f}", EXPANSION
    plateau = {arm: run["epochs"] for arm, run in runs_by(records / "plateau.csv", "model", "vectors", "seed").items()}
    for model, name in (("tupe_a", "TUPE-A has"), ("bert_ad", "BERT-A^d")):
        ends = [f"{plateau[model, 'vectors', seed][-1]['valid_loss']:.2f}" for seed in "12"]
        yield f"{name} {' and '.join(ends)}", MLM


def bounds(records: Path) -> Iterator[Claim]:
    """Yield bound and largest divergence of 100 words of books, of three language models."""
    with open(records / "equal_text.csv", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["updates"] == "0" and "/" not in row["model"]]
    for method in ("focus", "subword", "avg", "omp"):
        of_method = [row for row in rows if row["method"] == method]
        numbers = [max(float(row[name]) for row in of_method) for name in ("kl_bound", "kl_max") if of_method[0][name]]
        yield f"| {', '.join(f'{number:.3f}' for number in numbers)} |", EXPAND_VOCAB


def shares_of_new_words(records: Path) -> Iterator[Claim]:
    """Yield how many of the running words are new ones, in the old domain and in books."""
    with open(records / "equal_text.csv", encoding="utf-8", newline="") as file:
        shares = {row["model"]: f"{100 * int(row['new']) / int(row['words']):.1f} %" for row in csv.DictReader(file)}
    yield f"{shares['own/1']} of the running words, those of the books {shares['1']}", CONTROLS


PARTS = (
    *(initialisation_tables, initialisations, scale, raw_vectors, masked_language_models),
    *(duo, new_words, transfer, of_controls, bounds, shares_of_new_words),
)


def plain(text: str) -> str:
    """Return text without bold face and line breaks."""
    return " ".join(text.replace("**", "").split())


def texts(root: Path) -> dict[str, str]:
    """Return the pages that have a claim, by their names."""
    names = BOTH + MULTI30K + SCALE + MLM + DUO + EXPANSION + TRANSFER + CONTROLS + EXPAND_VOCAB
    return {name: (root / name).read_text(encoding="utf-8") for name in names}


def missing(claims: Iterable[Claim], pages: dict[str, str]) -> list[str]:
    """Return the claims that a page lacks, however its lines are broken."""
    plain_pages = {name: plain(text) for name, text in pages.items()}
    return [claim for claim, names in claims if not all(plain(claim) in plain_pages[name] for name in names)]


def main() -> None:
    """Print the claims that are missing."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="folder of this repository")
    root = parser.parse_args().root
    claims = [claim for part in PARTS for claim in part(root / RECORDS)]
    missing_claims = missing(claims, texts(root))
    print("".join(f"{claim}\n" for claim in missing_claims), end="")
    sys.exit(bool(missing_claims))


if __name__ == "__main__":
    main()
