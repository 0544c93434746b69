"""Tables and curves of many runs: every result.json below RUNS -> results.md, results.json, curves.png.

Each row is the mean over the seeds of one initialisation (of one architecture, where the runs have several) with the
sample standard deviation behind it. The absorption ratio is sigma of the scaled embeddings to sigma of the positions
added to them, before training; "-" where none are added. Runs that have no result.json yet are counted but not shown.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from run_table import read_arguments, read_results, write_results

from embinit_fairseq.analysis.comparison import MISMATCHED, STRATEGIES, Column
from embinit_fairseq.analysis.runs_log import nats
from embinit_fairseq.cli.compare_table import distinct, environment, header, init_signatures, still_missing
from embinit_fairseq.cli.plot_curves import draw_mean, finish, new_panels, save, try_to_draw

#: Only columns for which some run has a value are shown.
COLUMNS = (
    Column("best val. accuracy (%)", ("best", "valid_accuracy")),
    Column("val. loss (bits)", ("best", "valid_loss_bits"), 3),
    Column("val. loss (nats)", ("best", "valid_loss_nats"), 3),
    Column("at epoch", ("best", "epoch"), 1),
    *MISMATCHED,
    Column("BLEU, tokenised", ("scores", "bleu_tokenized", "score"), 1),
    Column("BLEU, detokenised", ("scores", "bleu", "score"), 1),
    Column("absorption ratio, encoder", ("init", "slots", "encoder", "absorption_ratio")),
    Column("absorption ratio, decoder", ("init", "slots", "decoder", "absorption_ratio")),
    Column("wall time (min)", ("time", "wall_min"), 0),
)


def grouped(results: list[dict]) -> dict[str, dict[str, list[dict]]]:
    """direction or task -> initialisation -> its runs, in the order of STRATEGIES.

    Where the runs of a direction have several architectures, these stand before the initialisation.
    """
    groups: dict[str, dict[tuple[str, str], list[dict]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        labels = result["labels"]
        groups[labels.get("direction") or labels["task"]][labels.get("arch", "transformer"), labels["init"]].append(
            result
        )
    return {direction: _named(rows) for direction, rows in sorted(groups.items())}


def _named(rows: dict[tuple[str, str], list[dict]]) -> dict[str, list[dict]]:
    rank = {name: index for index, name in enumerate(STRATEGIES)}
    several = len({arch for arch, _ in rows}) > 1
    ordered = sorted(rows, key=lambda row: (row[0], rank.get(row[1], len(rank)), row[1]))
    return {f"{arch}, {init}" if several else init: rows[arch, init] for arch, init in ordered}


def markdown(groups: dict[str, dict[str, list[dict]]], unfinished: list[str]) -> str:
    """One table per direction, then what the figures mean."""
    lines = []
    for direction, rows in groups.items():
        runs = [run for row in rows.values() for run in row]
        columns = [column for column in COLUMNS if column.summary(runs)]
        lines += [f"## {direction}", "", *header(["initialisation", "runs", *(column.title for column in columns)])]
        for init, row in rows.items():
            lines.append(f"| {init} | {len(row)} | " + " | ".join(column.cell(row) for column in columns) + " |")
        lines += ["", *notes(runs), ""]
    return "\n".join([*lines, *still_missing(unfinished)])


def notes(runs: list[dict]) -> list[str]:
    """What all figures of a table have in common; several values where the runs differ."""
    return [
        "Mean ± sample standard deviation over seeds.",
        "",
        *distinct("epochs trained", runs, lambda run: max(map(int, run["epochs"]))),
        *distinct("parameters", runs, lambda run: run["parameters"]["all"]),
        *distinct("detokenised BLEU, signature", runs, lambda run: run["scores"].get("bleu", {}).get("signature")),
        *distinct(
            "tokenised BLEU, signature", runs, lambda run: run["scores"].get("bleu_tokenized", {}).get("signature")
        ),
        *distinct("beam", runs, lambda run: run["scores"].get("beam")),
        *environment(runs),
        *init_signatures(runs),
    ]


def plot(groups: dict[str, dict[str, list[dict]]], path: Path) -> None:
    """Curves of what chose the checkpoint, one panel per direction: mean over seeds, band from min to max."""
    figure, panels = new_panels(len(groups))
    for axes, (direction, rows) in zip(panels, groups.items()):
        for init, runs in rows.items():
            metric = runs[0]["metric"]
            curves = [{int(e): v[metric] for e, v in run["epochs"].items() if metric in v} for run in runs]
            epochs = sorted(set.intersection(*(set(curve) for curve in curves)))
            values = {epoch: [_shown(metric, curve[epoch]) for curve in curves] for epoch in epochs}
            draw_mean(axes, f"{init} ({len(runs)})", values)
        finish(axes, direction, "epoch", _axis(metric), legend="initialisation (runs)")
    save(figure, path)


def _shown(metric: str, value: float) -> float:
    return nats(value) if metric == "valid_loss" else value


def _axis(metric: str) -> str:
    return {"valid_loss": "validation loss (nats)", "valid_accuracy": "validation accuracy (%)"}.get(metric, metric)


def main() -> None:
    args = read_arguments(__doc__)
    results, unfinished = read_results(args.runs)
    groups = grouped(results)
    record = {
        direction: {
            init: {
                "runs": [run["run"] for run in runs],
                **{column.title: column.summary(runs) for column in COLUMNS if column.summary(runs)},
            }
            for init, runs in rows.items()
        }
        for direction, rows in groups.items()
    }
    write_results(args.output, markdown(groups, unfinished), record)
    try_to_draw(plot, groups, args.output / "curves.png")


if __name__ == "__main__":
    main()
