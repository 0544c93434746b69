"""Tables of text classification: every result.json below RUNS -> results.md and results.json.

For each data set and protocol: all models, a table of couples as in Li et al. 2020 (tables 1 to 3) for each kind of
attention, and how much of the texts the vectors cover. Mean ± sample standard deviation over seeds of the accuracy on
the test texts, by the checkpoint with the lowest validation loss.
"""

from __future__ import annotations

from collections import defaultdict

from run_table import read_arguments, read_results, write_results
from textcls.runs import vectors_of

from embinit_fairseq.runs.compare import Column
from embinit_fairseq.runs.markdown import distinct, environment, header, still_missing

ACCURACY = Column("test accuracy (%)", ("scores", "test_accuracy"))
COLUMNS = (
    ACCURACY,
    Column("val. loss (nats)", ("best", "valid_loss_nats"), 3),
    Column("at epoch", ("best", "epoch"), 1),
    Column("wall time (s)", ("time", "wall_s"), 0),
)
BASELINES = {"tfidf_lr": "TF-IDF, logistic regression", "mlp": "TF-IDF, MLP with 1,024 hidden units"}
TITLES = {
    "textgcn": "words counted over train and test texts, all of them in the dictionary",
    "inductive": "words counted over train texts, all others <unk>",
}

Rows = dict[tuple[str, str], list[dict]]  # (model, attention) -> runs


def grouped(results: list[dict]) -> dict[tuple[str, str], Rows]:
    """(task, protocol) -> its rows: bags of words, transformers, couples by their best accuracy in each attention."""
    groups: dict[tuple[str, str], Rows] = defaultdict(lambda: defaultdict(list))
    for result in results:
        labels = result["labels"]
        groups[labels["task"], labels["protocol"]][labels["model"], labels.get("attention", "")].append(result)
    return {key: dict(sorted(rows.items(), key=_rank)) for key, rows in sorted(groups.items())}


def _rank(row: tuple[tuple[str, str], list[dict]]) -> tuple:
    (model, attention), runs = row
    kind = list(BASELINES).index(model) if model in BASELINES else 3 if "+" in model else 2
    return kind, attention == "linear", -ACCURACY.summary(runs)["mean"]


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
        parameters = f"{runs[0]['parameters']['trained']:,}"  # those of all seeds
        lines.append(f"| {title_of(model, attention)} | {len(runs)} | {parameters} | {cells} |")
    return lines


def couples_table(rows: Rows, attention: str) -> list[str]:
    """Vectors against vectors, the upper triangle; the number of runs behind a cell that has fewer than others."""
    cells = {tuple(model.split("+")): runs for (model, kind), runs in rows.items() if kind == attention}
    names = sorted({name for couple in cells for name in couple}, key=_order(cells))
    most = max(map(len, cells.values()))
    lines = header([f"{attention} ({most} run{'s' * (most > 1)})", *names])
    for at, name in enumerate(names):
        line = ["-"] * at
        for other in names[at:]:
            runs = cells.get((name, other)) or cells.get((other, name))
            few = f" ({len(runs)})" if runs and len(runs) < most else ""
            line.append(ACCURACY.cell(runs) + few if runs else "-")
        lines.append(f"| {name} | {' | '.join(line)} |")
    return lines


def _order(cells: dict[tuple[str, ...], list[dict]]):
    """By the dimension of the vectors, then by name."""
    dims = {}
    for couple, runs in cells.items():
        for name, slot in zip(couple, ("encoder", "encoder_p")):
            dims[name] = runs[0]["init"]["slots"][slot]["dim"]
    return lambda name: (dims[name], name)


def vectors_table(rows: Rows) -> list[str]:
    """Coverage of the dictionary by each set of vectors."""
    found = {}
    for (model, _), runs in rows.items():
        for name, slot in zip(vectors_of(model), ("encoder", "encoder_p")):
            found[name] = runs[0]["init"]["slots"][slot]
    lines = header(
        ["vectors", "file", "rows", "dimension", "words of the dictionary (%)", "running words (%)"], texts=2
    )
    for name, slot in sorted(found.items(), key=lambda item: (item[1]["dim"], item[0])):
        source = slot["source"]
        shares = f"{100 * slot['coverage_types']:.1f} | {100 * slot['coverage_tokens']:.1f}"
        lines.append(f"| {name} | {source['name']} | {source['rows']:,} | {slot['dim']} | {shares} |")
    return [*lines, ""] if found else []


def notes(rows: Rows) -> list[str]:
    """What the runs have in common."""
    runs = [run for of_row in rows.values() for run in of_row]
    return [
        f"* seeds: {', '.join(map(str, sorted({int(run['labels']['seed']) for run in runs})))}",
        *distinct("texts", runs, lambda run: run["labels"]["words"]),
        *distinct("trained by fairseq", runs, lambda run: run["labels"].get("training")),
        *environment(runs, data=lambda run: f"test {run['data']['input0/test.bin'][:16]}"),
    ]


def markdown(groups: dict[tuple[str, str], Rows], unfinished: list[str]) -> str:
    lines = []
    for (task, protocol), rows in groups.items():
        lines += [f"## {task}, protocol {protocol}: {TITLES.get(protocol, '')}", "", *main_table(rows), ""]
        for attention in sorted({attention for model, attention in rows if "+" in model}, reverse=True):
            lines += [*couples_table(rows, attention), ""]
        lines += [*vectors_table(rows), "Mean ± sample standard deviation over seeds.", "", *notes(rows), ""]
    return "\n".join([*lines, *still_missing(unfinished)])


def main() -> None:
    args = read_arguments(__doc__)
    results, unfinished = read_results(args.runs)
    groups = grouped(results)
    record = {
        f"{task}, {protocol}": {
            title_of(*row): {"runs": len(runs), **{column.title: column.summary(runs) for column in COLUMNS}}
            for row, runs in rows.items()
        }
        for (task, protocol), rows in groups.items()
    }
    write_results(args.output, markdown(groups, unfinished), record)


if __name__ == "__main__":
    main()
