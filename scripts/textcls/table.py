"""Tables of text classification: every result.json below RUNS -> results.md and results.json in OUTPUT.

`embinit compare` would make a table for each seed, since each has validation texts, and so data, of its own. Here, for
each data set and protocol: all models, a table of couples as in Li et al. 2020 (tables 1 to 3) for each kind of
attention, which couple the validation texts choose, and how much of the texts the vectors cover. Mean ± sample standard
deviation over seeds; accuracies are those of the checkpoint with the lowest validation loss.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs from a checkout, installed or not

from embinit_fairseq.errors import DataError, one_line
from embinit_fairseq.files import made_folder, write_json, write_text
from embinit_fairseq.runs.command import parse_command
from embinit_fairseq.runs.compare import Column
from embinit_fairseq.runs.folders import find_runs, is_finished
from embinit_fairseq.runs.markdown import distinct, environment, header, still_missing

TEST = Column("test accuracy (%)", ("scores", "test_accuracy"))
MACRO_F1 = Column("test macro-F1 (%)", ("scores", "test_macro_f1"))
VALID = Column("val. accuracy (%)", ("best", "valid_accuracy"))
COLUMNS = (
    TEST,
    MACRO_F1,
    VALID,
    Column("val. loss (nats)", ("best", "valid_loss_nats"), 3),
    Column("at epoch", ("best", "epoch"), 1),
    Column("wall time (s)", ("time", "wall_s"), 0),
)
BASELINES = {"tfidf_lr": "TF-IDF, logistic regression", "mlp": "TF-IDF, MLP with 1,024 hidden units"}
TITLES = {
    "textgcn": "words counted over train and test texts, all of them in the dictionary",
    "inductive": "words counted over train texts, all others <unk>",
}

Result = dict[str, Any]
Rows = dict[tuple[str, str], list[Result]]  # (model, attention) -> runs, by seed


def read_results(folder: Path) -> tuple[list[Result], list[str]]:
    """Records of finished and tested runs, and the names of the others; DataError if there are none."""
    results, unfinished = [], []
    for run in find_runs(str(folder)):
        result = run.record
        if not is_finished(run) or TEST.value(result) is None:
            unfinished.append(run.path.relative_to(folder).as_posix())
            continue
        missing = [name for name in ("task", "protocol", "model") if name not in result["labels"]]
        if missing:
            remedy = f"start it again with LABELS={missing[0]}=..., or move it to another folder"
            raise DataError(f"{run.path}: no label {', '.join(missing)} in its record; {remedy}")
        best = result["best"]  # fairseq's validations are in `epochs`; bags of words have their accuracy in `best`
        results.append({**result, "best": {**result["epochs"].get(str(best["epoch"]), {}), **best}})
    if not results:
        raise DataError(f"{folder}: no finished run; run train.sh, or give another folder")
    return sorted(results, key=lambda result: int(result["labels"]["seed"])), unfinished


def grouped(results: list[Result]) -> dict[tuple[str, str], Rows]:
    """(task, protocol) -> its rows: bags of words, transformers, couples by their test accuracy in each attention."""
    groups: dict[tuple[str, str], Rows] = defaultdict(lambda: defaultdict(list))
    for result in results:
        labels = result["labels"]
        groups[labels["task"], labels["protocol"]][labels["model"], labels.get("attention", "")].append(result)
    return {key: dict(sorted(rows.items(), key=_rank)) for key, rows in sorted(groups.items())}


def _rank(row: tuple[tuple[str, str], list[Result]]) -> tuple:
    (model, attention), runs = row
    kind = list(BASELINES).index(model) if model in BASELINES else 3 if "+" in model else 2
    return kind, attention == "linear", -TEST.summary(runs)["mean"]


def title_of(model: str, attention: str) -> str:
    """What a row is called."""
    if "+" in model:
        return f"Duo ({attention}), {model.replace('+', ' + ')}"
    kind, _, name = model.partition(":")
    return BASELINES.get(model) or f"{kind}, {name or 'random table'}"


def main_table(rows: Rows) -> list[str]:
    """A line for each model."""
    lines = header(["model", "runs", "trained parameters", *(column.title for column in COLUMNS)])
    for (model, attention), runs in rows.items():
        cells = " | ".join(column.cell(runs) for column in COLUMNS)
        parameters = f"{runs[0]['parameters']['trained']:,}"  # the same for all seeds
        lines.append(f"| {title_of(model, attention)} | {len(runs)} | {parameters} | {cells} |")
    return lines


# ---- couples --------------------------------------------------------------------------------------------------------


def slots_of(run: Result) -> dict[str, dict[str, Any]]:
    """Name of the vectors -> what the record says about the embedding matrix that was made of them."""
    model = run["labels"]["model"]
    names = model.split("+") if "+" in model else [model.partition(":")[2]]
    slots = (run.get("init") or {}).get("slots") or {}
    return {name: slots[slot] for name, slot in zip(names, ("encoder", "encoder_p")) if name and slot in slots}


def couples_table(rows: Rows, attention: str) -> list[str]:
    """Vectors against vectors, the upper triangle; the number of runs behind a cell that has fewer than others."""
    cells = {tuple(model.split("+")): runs for (model, kind), runs in rows.items() if kind == attention}
    dims = {name: slot["dim"] for runs in cells.values() for name, slot in slots_of(runs[0]).items()}
    names = sorted({name for couple in cells for name in couple}, key=lambda name: (dims.get(name, 0), name))
    most = max(map(len, cells.values()))
    lines = header([f"{attention} ({most} run{'s' * (most > 1)})", *names])
    for at, name in enumerate(names):
        line = ["-"] * at
        for other in names[at:]:
            runs = cells.get((name, other)) or cells.get((other, name))
            few = f" ({len(runs)})" if runs and len(runs) < most else ""
            line.append(TEST.cell(runs) + few if runs else "-")
        lines.append(f"| {name} | {' | '.join(line)} |")
    return lines


def choose_couples(rows: Rows) -> dict[str, Any] | None:
    """The couple that the validation texts choose, and the one that is best on the test texts; None without couples.

    By mean accuracies over the seeds that all couples have, since each seed has validation texts of its own. Among
    equal ones the name decides.
    """
    couples = {key: {run["labels"]["seed"]: run for run in runs} for key, runs in rows.items() if "+" in key[0]}
    seeds = sorted(set.intersection(*map(set, couples.values())), key=int) if couples else []
    if not seeds:
        return None
    common = {key: [runs[seed] for seed in seeds] for key, runs in sorted(couples.items())}

    def best(column: Column) -> dict[str, Any]:
        key = max(common, key=lambda key: column.summary(common[key])["mean"])
        return {"model": title_of(*key), **{each.title: each.summary(common[key]) for each in (VALID, TEST)}}

    return {"seeds": seeds, "chosen by validation accuracy": best(VALID), "best on the test texts": best(TEST)}


def choice_lines(rows: Rows) -> list[str]:
    """The same in words."""
    choice = choose_couples(rows)
    if choice is None:
        return []
    said = {
        "chosen by validation accuracy": "the result of the couples",
        "best on the test texts": "chosen with knowledge of them, so no result",
    }
    lines = [f"Couples, seeds {', '.join(choice['seeds'])}:", ""]
    for how, what in said.items():
        found = choice[how]
        means = [f"{column.title} {found[column.title]['mean']:.2f}" for column in (VALID, TEST)]
        lines.append(f"* {how} ({what}): {found['model']}; {', '.join(means)}")
    return [*lines, ""]


# ---- what else is said ----------------------------------------------------------------------------------------------


def vectors_table(rows: Rows) -> list[str]:
    """Coverage of the dictionary by each set of vectors."""
    found = {name: slot for runs in rows.values() for name, slot in slots_of(runs[0]).items()}
    titles = ["vectors", "file", "rows", "dimension", "words of the dictionary (%)", "running words (%)"]
    lines = header(titles, texts=2)
    for name, slot in sorted(found.items(), key=lambda item: (item[1]["dim"], item[0])):
        source = slot["source"]
        shares = f"{100 * slot['coverage_types']:.1f} | {100 * slot['coverage_tokens']:.1f}"
        lines.append(f"| {name} | {source['name']} | {source['rows']:,} | {slot['dim']} | {shares} |")
    return [*lines, ""] if found else []


def notes(rows: Rows) -> list[str]:
    """What the runs have in common."""
    runs = [run for row in rows.values() for run in row]
    return [
        f"* seeds: {', '.join(map(str, sorted({int(run['labels']['seed']) for run in runs})))}",
        *(line for name in ("clean", "stop_words", "min_count") for line in distinct(name, runs, _label(name))),
        *distinct("trained by fairseq", runs, _training),
        *environment(runs, data=lambda run: f"test {run['data']['input0/test.bin'][:16]}"),
    ]


def _label(name: str):
    return lambda run: run["labels"].get(name)


def _training(run: Result) -> str | None:
    """How a model was trained, in the words of its command."""
    if run["labels"]["model"] in BASELINES:
        return None
    options = parse_command(shlex.split(run["command"]), any_program=True).options
    flags = ("--lr", "--lr-scheduler", "--batch-size", "--patience", "--max-epoch", "--dropout")
    return " ".join(" ".join([flag, *options[flag]]) for flag in flags if flag in options)


def markdown(groups: dict[tuple[str, str], Rows], unfinished: list[str]) -> str:
    """The whole page."""
    lines = []
    for (task, protocol), rows in groups.items():
        lines += [f"## {task}, protocol {protocol}: {TITLES.get(protocol, '')}", "", *main_table(rows), ""]
        for attention in sorted({attention for model, attention in rows if "+" in model}, reverse=True):
            lines += [*couples_table(rows, attention), ""]
        lines += [*choice_lines(rows), *vectors_table(rows)]
        lines += ["Mean ± sample standard deviation over seeds.", "", *notes(rows), ""]
    return "\n".join([*lines, *still_missing(unfinished)])


def data_of(rows: Rows) -> dict[str, Any]:
    """The same as data."""
    models = {
        title_of(*row): {"runs": len(runs), **{column.title: column.summary(runs) for column in COLUMNS}}
        for row, runs in rows.items()
    }
    return {**models, "couples": choose_couples(rows)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="folder of the runs' folders, at any depth")
    parser.add_argument("--output", type=Path, required=True, help="folder for results.md and results.json")
    args = parser.parse_args()
    results, unfinished = read_results(args.runs)
    groups = grouped(results)
    text = markdown(groups, unfinished)
    with made_folder(args.output):
        write_text(args.output / "results.md", text)
        record = {f"{task}, {protocol}": data_of(rows) for (task, protocol), rows in groups.items()}
        write_json(args.output / "results.json", record)
    print(text)


if __name__ == "__main__":
    with one_line():
        main()
