"""Make the page of `tables.py textcls`: models, pairs of embeddings as Li et al. 2020, Tables 1 to 3, and vectors."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable, Sequence

from records import line

from embinit_fairseq.runs.command import parse_command
from embinit_fairseq.runs.comparison import distinct, environment, header
from embinit_fairseq.runs.record import Run
from embinit_fairseq.runs.result_table import Column, Result

TEST = Column("test accuracy (%)", ("scores", "test_accuracy"))
VALID = Column("val. accuracy (%)", ("best", "valid_accuracy"))
COLUMNS = (
    TEST,
    Column("test macro-F1 (%)", ("scores", "test_macro_f1")),
    VALID,
    Column("val. loss (nats)", ("best", "valid_loss_nats"), 3),
    Column("at epoch", ("best", "epoch"), 1),
    Column("wall time (s)", ("time", "wall_s"), 0),
)
BASELINES = {"tfidf_lr": "TF-IDF, logistic regression", "mlp": "TF-IDF, MLP with 1,024 hidden units"}
PROTOCOLS = {
    "textgcn": "words counted over train and test texts, all of them in the dictionary",
    "inductive": "words counted over train texts, all others <unk>",
}
#: choice of a pair -> value of its accuracy for readers, and the column that chooses
CHOICES = {
    "chosen by validation accuracy": ("the result of the couples", VALID),
    "best on the test texts": ("chosen with knowledge of them, so no result", TEST),
}
Rows = dict[tuple[str, str], list[Result]]  # (model, attention) -> results, by seed


def textcls(runs: Sequence[Run]) -> tuple[list[str], Result]:
    """Return the page, and data set and protocol -> its models as data."""
    groups: dict[tuple[str, str], Rows] = defaultdict(lambda: defaultdict(list))
    for run in sorted(runs, key=lambda run: int(run.seed)):
        best = run.record["best"]  # bags of words have their accuracy in `best`, trainings in `epochs`
        result = {**run.record, "best": {**run.record["epochs"].get(str(best["epoch"]), {}), **best}}
        model = run.labels["model"], run.labels.get("attention", "")
        groups[run.labels["task"], run.labels["protocol"]][model].append(result)
    lines, data = [], {}
    for (task, protocol), unsorted in sorted(groups.items()):
        rows = dict(sorted(unsorted.items(), key=model_rank))
        lines += [f"## {task}, protocol {protocol}: {PROTOCOLS.get(protocol, '')}", ""]
        lines += header(["model", "runs", "trained parameters", *(column.title for column in COLUMNS)])
        for model, results in rows.items():
            parameters = f"{results[0]['parameters']['trained']:,}"  # the same for all seeds
            lines.append(line(model_title(*model), len(results), parameters, *(c.cell(results) for c in COLUMNS)))
        lines.append("")
        for attention in sorted({attention for model, attention in rows if "+" in model}, reverse=True):
            lines += [*pairs_table(rows, attention), ""]
        choice = choose_pairs(rows)
        if choice is not None:
            lines += [f"Couples, seeds {', '.join(choice['seeds'])}:", ""]
            for how, (worth, _) in CHOICES.items():
                means = [f"{column.title} {choice[how][column.title]['mean']:.2f}" for column in (VALID, TEST)]
                lines.append(f"* {how} ({worth}): {choice[how]['model']}; {', '.join(means)}")
            lines.append("")
        lines += [*vectors_table(rows), "Mean ± sample standard deviation over seeds.", "", *textcls_notes(rows), ""]
        models = {
            model_title(*model): {"runs": len(results), **{c.title: c.summary(results) for c in COLUMNS}}
            for model, results in rows.items()
        }
        data[f"{task}, {protocol}"] = {**models, "couples": choice}
    return lines, data


def model_rank(item: tuple[tuple[str, str], list[Result]]) -> tuple:
    """Sort bags of words, transformers, then pairs by their test accuracy in each attention."""
    (model, attention), results = item
    kinds = list(BASELINES)
    kind = kinds.index(model) if model in kinds else len(kinds) + ("+" in model)
    return kind, attention == "linear", -TEST.summary(results)["mean"]


def model_title(model: str, attention: str) -> str:
    """Return the name of a model's line."""
    if "+" in model:
        return f"Duo ({attention}), {model.replace('+', ' + ')}"
    kind, _, name = model.partition(":")
    return BASELINES.get(model) or f"{kind}, {name or 'random table'}"


def slots_of(rows: Rows) -> dict[str, Result]:
    """Return name of the vectors -> report on the embedding matrix made from them, by dimension and name."""
    slots = {}
    for (model, _), results in rows.items():
        names = model.split("+") if "+" in model else [model.partition(":")[2]]
        reports = (results[0].get("init") or {}).get("slots") or {}
        slots |= {name: reports[s] for name, s in zip(names, ("encoder", "encoder_p")) if name and s in reports}
    return dict(sorted(slots.items(), key=lambda item: (item[1]["dim"], item[0])))


def pairs_table(rows: Rows, attention: str) -> list[str]:
    """Return vectors by vectors, the upper triangle; a cell with fewer runs than others has their number."""
    cells = {tuple(model.split("+")): results for (model, kind), results in rows.items() if kind == attention}
    names = list(slots_of({model: results for model, results in rows.items() if model[1] == attention}))
    most = max(map(len, cells.values()))
    lines = header([f"{attention} ({most} run{'s' * (most > 1)})", *names])
    for at, name in enumerate(names):
        cells_of_row = ["-"] * at
        for other in names[at:]:
            results = cells.get((name, other)) or cells.get((other, name)) or []
            cells_of_row.append(TEST.cell(results) + (f" ({len(results)})" if 0 < len(results) < most else ""))
        lines.append(line(name, *cells_of_row))
    return lines


def choose_pairs(rows: Rows) -> Result | None:
    """Return the pair that the validation texts choose, and the one that is best on the test texts; None without pairs.

    By mean accuracies over the seeds that all pairs have, since each seed has validation texts of its own. Of equal
    pairs the first name is chosen.
    """
    pairs = {
        model: {result["labels"].get("seed"): result for result in rows[model]}
        for model in sorted(rows)
        if "+" in model[0]
    }
    seeds = sorted(set.intersection(*map(set, pairs.values())), key=int) if pairs else []
    if not seeds:
        return None
    common = {model: [by_seed[seed] for seed in seeds] for model, by_seed in pairs.items()}
    choice: Result = {"seeds": seeds}
    for how, (_, column) in CHOICES.items():
        best = max(common, key=lambda model: column.summary(common[model])["mean"])
        choice[how] = {"model": model_title(*best), **{c.title: c.summary(common[best]) for c in (VALID, TEST)}}
    return choice


def vectors_table(rows: Rows) -> list[str]:
    """Return the coverage of the dictionary by each file of vectors."""
    titles = ["vectors", "file", "rows", "dimension", "words of the dictionary (%)", "running words (%)"]
    lines = header(titles, texts=2)
    for name, slot in slots_of(rows).items():
        coverages = [slot[share] for share in ("coverage_types", "coverage_tokens")]
        shares = ["-" if share is None else f"{100 * share:.1f}" for share in coverages]
        lines.append(line(name, slot["source"]["name"], f"{slot['source']['rows']:,}", slot["dim"], *shares))
    return [*lines, ""] if len(lines) > 2 else []


def textcls_notes(rows: Rows) -> list[str]:
    """Return the lines on facts that the runs have in common."""
    results = [result for of_model in rows.values() for result in of_model]

    def training(result: Result) -> str | None:
        if result["labels"].get("model") in BASELINES:
            return None
        options = parse_command(shlex.split(result["command"]), any_program=True).options
        flags = ("--lr", "--lr-scheduler", "--batch-size", "--patience", "--max-epoch", "--dropout")
        return " ".join(" ".join([flag, *options[flag]]) for flag in flags if flag in options)

    def of_label(name: str) -> Callable[[Result], str | None]:
        return lambda result: result["labels"].get(name)

    settings = ("clean", "stop_words", "min_count")
    return [
        f"* seeds: {', '.join(map(str, sorted({int(result['labels']['seed']) for result in results})))}",
        *(note for name in settings for note in distinct(name, results, of_label(name))),
        *distinct("trained by fairseq", results, training),
        *environment(results, data=lambda result: f"test {result['data']['input0/test.bin'][:16]}"),
    ]
