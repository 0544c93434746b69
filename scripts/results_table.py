"""Tables and curves of many runs: every result.json below RUNS -> results.md, results.json, curves.png.

Each row is the mean over the seeds of one initialisation (of one architecture, where the runs have several) with the
sample standard deviation behind it. The absorption ratio is sigma of the scaled embeddings to sigma of the positions
added to them, before training; "-" where none are added. Runs that have no result.json yet are counted but not shown.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from run_log import nats
from run_result import write_json

ORDER = ("none", "normal", "xavier", "pretrained", "pretrained_xavier", "shuffled", "xavier_pretrained")


@dataclass(frozen=True)
class Column:
    """A column of the table: where its value is in a result, and how many digits to show."""

    title: str
    path: tuple[str, ...]
    digits: int = 2

    def value(self, result: dict) -> float | None:
        node = result
        for key in self.path:
            node = node.get(key) if isinstance(node, dict) else None
        return node


#: Only columns for which some run has a value are shown.
COLUMNS = (
    Column("best val. accuracy (%)", ("best", "valid_accuracy")),
    Column("val. loss (bits)", ("best", "valid_loss_bits"), 3),
    Column("val. loss (nats)", ("best", "valid_loss_nats"), 3),
    Column("at epoch", ("best", "epoch"), 1),
    Column("BLEU, tokenised", ("scores", "bleu_tokenized", "score"), 1),
    Column("BLEU, detokenised", ("scores", "bleu", "score"), 1),
    Column("absorption ratio, encoder", ("init", "slots", "encoder", "absorption_ratio")),
    Column("absorption ratio, decoder", ("init", "slots", "decoder", "absorption_ratio")),
    Column("wall time (min)", ("time", "wall_min"), 0),
)


def read_results(runs: Path) -> tuple[list[dict], list[str]]:
    """Finished results sorted by seed, and the names of unfinished runs."""
    results, unfinished = [], []
    for folder in sorted(path.parent for path in runs.rglob("training.json")):
        name = folder.relative_to(runs).as_posix()
        if not (folder / "result.json").is_file():
            unfinished.append(name)
            continue
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        result["run"] = name
        result["time"]["wall_min"] = result["time"]["wall_s"] / 60
        results.append(result)
    if not results:
        raise SystemExit(f"error: {runs} has no finished run (<run>/result.json)")
    return sorted(results, key=lambda result: int(result["labels"]["seed"])), unfinished


def grouped(results: list[dict]) -> dict[str, dict[str, list[dict]]]:
    """direction or task -> initialisation -> its runs, in the order of ORDER.

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
    rank = {name: index for index, name in enumerate(ORDER)}
    several = len({arch for arch, _ in rows}) > 1
    ordered = sorted(rows, key=lambda row: (row[0], rank.get(row[1], len(rank)), row[1]))
    return {f"{arch}, {init}" if several else init: rows[arch, init] for arch, init in ordered}


def summary(column: Column, runs: list[dict]) -> dict[str, float | None] | None:
    """Mean and sample standard deviation (None for one run); None if no run has the value."""
    values = [value for value in map(column.value, runs) if value is not None]
    if not values:
        return None
    return {"mean": statistics.fmean(values), "sd": statistics.stdev(values) if len(values) > 1 else None}


def cell(column: Column, value: dict[str, float | None] | None) -> str:
    if value is None:
        return "-"
    deviation = "" if value["sd"] is None else f" ± {value['sd']:.{max(column.digits, 1)}f}"
    return f"{value['mean']:.{column.digits}f}{deviation}"


def markdown(groups: dict[str, dict[str, list[dict]]], unfinished: list[str]) -> str:
    """One table per direction, then what the figures mean."""
    lines = []
    for direction, rows in groups.items():
        runs = [run for row in rows.values() for run in row]
        columns = [column for column in COLUMNS if any(column.value(run) is not None for run in runs)]
        lines += [f"## {direction}", "", "| initialisation | runs | " + " | ".join(c.title for c in columns) + " |"]
        lines += ["| --- |" + " ---: |" * (len(columns) + 1)]
        for init, row in rows.items():
            cells = [cell(column, summary(column, row)) for column in columns]
            lines.append(f"| {init} | {len(row)} | " + " | ".join(cells) + " |")
        lines += ["", *notes(runs), ""]
    if unfinished:
        lines += [f"Not finished yet: {', '.join(unfinished)}.", ""]
    return "\n".join(lines)


def notes(runs: list[dict]) -> list[str]:
    """What all figures of a table have in common; several values where the runs differ."""

    def distinct(title: str, value: Callable[[dict], object]) -> list[str]:
        found = sorted({str(each) for each in map(value, runs) if each is not None})
        return [f"* {title}: " + "; ".join(f"`{each}`" for each in found)] if found else []

    return [
        "Mean ± sample standard deviation over seeds.",
        "",
        *distinct("epochs trained", lambda run: max(map(int, run["epochs"]))),
        *distinct("parameters", lambda run: run["parameters"]["all"]),
        *distinct("detokenised BLEU, signature", lambda run: run["scores"].get("bleu", {}).get("signature")),
        *distinct("tokenised BLEU, signature", lambda run: run["scores"].get("bleu_tokenized", {}).get("signature")),
        *distinct("beam", lambda run: run["scores"].get("beam")),
        *distinct("data (SHA-256)", lambda run: run["data"]["all"]),
        *distinct("hardware", lambda run: _hardware(run["hardware"])),
        *distinct("versions", lambda run: ", ".join(f"{k} {v}" for k, v in run["versions"].items() if v)),
        *[line for line in sorted({line for run in runs for line in _signatures(run)})],
    ]


def _hardware(found: dict) -> str:
    gpus = f"; {', '.join(found['gpus'])}" if found["gpus"] else ""
    return f"{found['cpu']}, {found['cores']} cores, {found['threads']} threads a run{gpus}"


def _signatures(run: dict) -> list[str]:
    slots = (run.get("init") or {}).get("slots", {})
    # Without the seed: one line for all runs of an initialisation.
    return [
        f"* {slot}: `{re.sub('[|]seed:[0-9]+', '', record['signature'])}`"
        for slot, record in slots.items()
        if record.get("signature")
    ]


def plot(groups: dict[str, dict[str, list[dict]]], path: Path) -> None:
    """Curves of what chose the checkpoint, one panel per direction: mean over seeds, band from min to max."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(groups), figsize=(6 * len(groups), 4.2), squeeze=False)
    for panel, (direction, rows) in zip(panels[0], groups.items()):
        for init, runs in rows.items():
            metric = runs[0]["metric"]
            curves = [{int(e): v[metric] for e, v in run["epochs"].items() if metric in v} for run in runs]
            epochs = sorted(set.intersection(*(set(curve) for curve in curves)))
            values = [[_shown(metric, curve[epoch]) for curve in curves] for epoch in epochs]
            (line,) = panel.plot(
                epochs, [statistics.fmean(v) for v in values], marker=".", label=f"{init} ({len(runs)})"
            )
            panel.fill_between(
                epochs, list(map(min, values)), list(map(max, values)), alpha=0.15, color=line.get_color()
            )
        panel.set(title=direction, xlabel="epoch", ylabel=_axis(metric))
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.grid(alpha=0.3)
        panel.legend(title="initialisation (runs)")
    figure.tight_layout()
    temporary = path.with_name(path.name + ".part")
    figure.savefig(temporary, format="png", dpi=130)
    plt.close(figure)
    os.replace(temporary, path)


def _shown(metric: str, value: float) -> float:
    return nats(value) if metric == "valid_loss" else value


def _axis(metric: str) -> str:
    return {"valid_loss": "validation loss (nats)", "valid_accuracy": "validation accuracy (%)"}.get(metric, metric)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs' folders")
    parser.add_argument("--output", type=Path, required=True, help="folder for the table and the picture")
    args = parser.parse_args()
    results, unfinished = read_results(args.runs)
    groups = grouped(results)
    text = markdown(groups, unfinished)
    args.output.mkdir(parents=True, exist_ok=True)
    temporary = args.output / "results.md.part"
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, args.output / "results.md")
    record = {
        direction: {
            init: {
                "runs": [run["run"] for run in runs],
                **{column.title: summary(column, runs) for column in COLUMNS if summary(column, runs)},
            }
            for init, runs in rows.items()
        }
        for direction, rows in groups.items()
    }
    write_json(args.output / "results.json", record)
    try:
        plot(groups, args.output / "curves.png")
    except ModuleNotFoundError as error:
        print(f"no picture: {error.name} is missing (pip install {error.name})", file=sys.stderr)
    print(text)


if __name__ == "__main__":
    main()
