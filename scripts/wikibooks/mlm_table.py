"""Table and curves of pre-training runs: every result.json below RUNS -> results.md, results.json, curves.png.

Losses are those of the validation text in bits per predicted token (fairseq's masked_lm logs them to base 2). Each row
is the mean over the seeds of one model with the sample standard deviation behind it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections import defaultdict
from pathlib import Path

from results_table import Column, cell, notes, read_results, summary
from run_result import write_json
from wikibooks.mlm_log import read_validations

COLUMNS = (
    Column("last val. loss (bits)", ("mlm", "last"), 3),
    Column("best val. loss (bits)", ("mlm", "best"), 3),
    Column("at update", ("mlm", "best_update"), 0),
    Column("updates", ("mlm", "updates"), 0),
    Column("wall time (min)", ("time", "wall_min"), 0),
)
Groups = dict[str, list[dict]]


def with_losses(result: dict, runs: Path) -> dict:
    """The result with its validation losses by number of updates."""
    losses = read_validations(runs / result["run"] / "train.log")
    if not losses:
        raise SystemExit(
            f"error: {runs / result['run']}/train.log has no validation: remove the folder and train again"
        )
    best = min(losses, key=losses.get)
    updates = max(losses)
    mlm = {"last": losses[updates], "best": losses[best], "best_update": best, "updates": updates, "losses": losses}
    return {**result, "mlm": mlm}


def grouped(results: list[dict]) -> Groups:
    """Model -> its runs, by name."""
    groups: Groups = defaultdict(list)
    for result in results:
        groups[result["labels"]["model"]].append(result)
    return dict(sorted(groups.items()))


def markdown(groups: Groups, unfinished: list[str]) -> str:
    lines = ["| model | parameters | runs | " + " | ".join(column.title for column in COLUMNS) + " |"]
    lines += ["| --- |" + " ---: |" * (len(COLUMNS) + 2)]
    for model, runs in groups.items():
        parameters = " / ".join(sorted({f"{run['parameters']['all']:,}" for run in runs}))
        cells = [cell(column, summary(column, runs)) for column in COLUMNS]
        lines.append(f"| {model} | {parameters} | {len(runs)} | " + " | ".join(cells) + " |")
    lines += ["", *notes([run for runs in groups.values() for run in runs]), ""]
    if unfinished:
        lines += [f"Not finished yet: {', '.join(unfinished)}.", ""]
    return "\n".join(lines)


def mean_curve(runs: list[dict]) -> dict[int, list[float]]:
    """Updates -> losses of all runs, where all have been validated."""
    curves = [run["mlm"]["losses"] for run in runs]
    return {update: [curve[update] for curve in curves] for update in sorted(set.intersection(*map(set, curves)))}


def plot(groups: Groups, path: Path) -> None:
    """Mean over seeds, band from min to max."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots(figsize=(7, 4.5))
    for model, runs in groups.items():
        curve = mean_curve(runs)
        (line,) = panel.plot(list(curve), [statistics.fmean(v) for v in curve.values()], label=f"{model} ({len(runs)})")
        low, high = ([pick(values) for values in curve.values()] for pick in (min, max))
        panel.fill_between(list(curve), low, high, alpha=0.15, color=line.get_color())
    panel.set(xlabel="updates", ylabel="validation loss (bits per predicted token)")
    panel.grid(alpha=0.3)
    panel.legend(title="model (runs)")
    figure.tight_layout()
    temporary = path.with_name(path.name + ".part")
    figure.savefig(temporary, format="png", dpi=130)
    plt.close(figure)
    os.replace(temporary, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs' folders")
    parser.add_argument("--output", type=Path, required=True, help="folder for the table and the picture")
    args = parser.parse_args()
    results, unfinished = read_results(args.runs)
    groups = grouped([with_losses(result, args.runs) for result in results])
    text = markdown(groups, unfinished)
    args.output.mkdir(parents=True, exist_ok=True)
    temporary = args.output / "results.md.part"
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, args.output / "results.md")
    record = {
        model: {
            "runs": [run["run"] for run in runs],
            **{column.title: summary(column, runs) for column in COLUMNS},
            "losses": {run["run"]: run["mlm"]["losses"] for run in runs},
        }
        for model, runs in groups.items()
    }
    write_json(args.output / "results.json", record)
    try:
        plot(groups, args.output / "curves.png")
    except ModuleNotFoundError as error:
        print(f"no picture: {error.name} is missing (pip install {error.name})", file=sys.stderr)
    print(text)


if __name__ == "__main__":
    main()
