"""Tables and curves of many runs: every result.json below RUNS -> results.md, results.json, curves.png.

Each row is the mean over the seeds of one initialisation (of one architecture, where the runs have several) with the
sample standard deviation behind it. The absorption ratio is sigma of the scaled embeddings to sigma of the positions
added to them, before training; "-" where none are added. Runs that have no result.json yet are counted but not shown.
Runs that were scored after every epoch (--eval-bleu) get validation BLEU and perplexity by epoch, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from run_table import read_arguments, read_results, write_results

from embinit_fairseq.analysis.comparison import MISMATCHED, PARAMETERS, Column, rank
from embinit_fairseq.analysis.runs_log import nats
from embinit_fairseq.cli.compare_table import distinct, environment, header, init_signatures, still_missing
from embinit_fairseq.cli.plot_curves import UNITS, draw_mean, finish, new_panels, save, try_to_draw

#: Only columns for which some run has a value are shown.
COLUMNS = (
    PARAMETERS,
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
    """direction or task -> initialisation -> its runs, in the order of `comparison.rank`.

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
    several = len({arch for arch, _ in rows}) > 1
    ordered = sorted(rows, key=lambda row: tuple(map(rank, row)))
    return {f"{arch}, {init}" if several else init: rows[arch, init] for arch, init in ordered}


def markdown(groups: dict[str, dict[str, list[dict]]], unfinished: list[str]) -> str:
    """One table per direction, then what the figures mean."""
    lines = []
    for direction, rows in groups.items():
        runs = [run for row in rows.values() for run in row]
        columns = [column for column in COLUMNS if column.has_news(runs)]
        lines += [f"## {direction}", "", *header(["initialisation", "runs", *(column.title for column in columns)])]
        for init, row in rows.items():
            lines.append(f"| {init} | {len(row)} | " + " | ".join(column.cell(row) for column in columns) + " |")
        lines += ["", *notes(runs), "", *by_epoch(direction, rows)]
    return "\n".join([*lines, *still_missing(unfinished)])


def notes(runs: list[dict]) -> list[str]:
    """What all figures of a table have in common; several values where the runs differ."""
    return [
        "Mean ± sample standard deviation over seeds.",
        "",
        *distinct("epochs trained", runs, lambda run: max(map(int, run["epochs"]))),
        *([] if PARAMETERS.has_news(runs) else distinct("parameters", runs, PARAMETERS.value)),
        *distinct("detokenised BLEU, signature", runs, lambda run: run["scores"].get("bleu", {}).get("signature")),
        *distinct(
            "tokenised BLEU, signature", runs, lambda run: run["scores"].get("bleu_tokenized", {}).get("signature")
        ),
        *distinct("beam", runs, lambda run: run["scores"].get("beam")),
        *environment(runs),
        *init_signatures(runs),
    ]


def by_epoch(direction: str, rows: dict[str, list[dict]]) -> list[str]:
    """Tables 6 and 7 of Li et al. 2020: means over seeds after each epoch; nothing for runs without validation BLEU."""
    if not has_bleu(rows):
        return []
    lines = []
    for metric, title in (("valid_bleu", "BLEU"), ("valid_loss", "perplexity")):
        convert = UNITS["perplexity"] if metric == "valid_loss" else float
        curves = {name: curve(runs, metric) for name, runs in rows.items()}
        lines += [f"### {direction}: validation {title} by epoch", "", *header(["epoch", *rows])]
        for epoch in sorted(set().union(*curves.values())):
            cells = [_mean(map(convert, found.get(epoch, ()))) for found in curves.values()]
            lines.append(f"| {epoch} | {' | '.join(cells)} |")
        lines.append("")
    return lines


def has_bleu(rows: dict[str, list[dict]]) -> bool:
    """Was any run scored on its validation set?"""
    return any(curve(runs, "valid_bleu") for runs in rows.values())


def curve(runs: list[dict], metric: str) -> dict[int, list[float]]:
    """Epoch -> the values of all runs, where all have one."""
    curves = [{int(e): v[metric] for e, v in run["epochs"].items() if metric in v} for run in runs]
    return {epoch: [each[epoch] for each in curves] for epoch in sorted(set.intersection(*map(set, curves)))}


def _mean(values: Iterable[float]) -> str:
    found = list(values)
    return f"{fmean(found):.2f}" if found else "-"


def plot(groups: dict[str, dict[str, list[dict]]], path: Path) -> None:
    """Curves of what chose the checkpoint and of validation BLEU, where there is one, a panel each per direction.

    Lines are means over seeds, bands go from min to max.
    """
    wanted = [
        (direction, rows, metric)
        for direction, rows in groups.items()
        for metric in (next(iter(rows.values()))[0]["metric"], *(["valid_bleu"] if has_bleu(rows) else []))
    ]
    figure, panels = new_panels(len(wanted))
    for axes, (direction, rows, metric) in zip(panels, wanted):
        for init, runs in rows.items():
            shown = {
                epoch: [_shown(metric, value) for value in values] for epoch, values in curve(runs, metric).items()
            }
            if shown:
                draw_mean(axes, f"{init} ({len(runs)})", shown)
        finish(axes, direction, "epoch", _axis(metric), legend="initialisation (runs)")
    save(figure, path)


def _shown(metric: str, value: float) -> float:
    return nats(value) if metric == "valid_loss" else value


def _axis(metric: str) -> str:
    titles = {"valid_loss": "validation loss (nats)", "valid_accuracy": "validation accuracy (%)"}
    return {**titles, "valid_bleu": "validation BLEU"}.get(metric, metric)


def main() -> None:
    args = read_arguments(__doc__)
    results, unfinished = read_results(args.runs)
    groups = grouped(results)
    record = {
        direction: {
            init: {
                "runs": [run["run"] for run in runs],
                **{column.title: column.summary(runs) for column in COLUMNS if column.summary(runs)},
                **({"valid_bleu": curve(runs, "valid_bleu")} if has_bleu(rows) else {}),
            }
            for init, runs in rows.items()
        }
        for direction, rows in groups.items()
    }
    write_results(args.output, markdown(groups, unfinished), record)
    try_to_draw(plot, groups, args.output / "curves.png")


if __name__ == "__main__":
    main()
