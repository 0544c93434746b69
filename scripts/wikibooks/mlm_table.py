"""Table and curves of pre-training runs: every result.json below RUNS -> results.md, results.json, curves.png.

Losses are those of the validation text in bits per predicted token (fairseq's masked_lm logs them to base 2). Each row
is the mean over the seeds of one model with the sample standard deviation behind it.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from run_table import read_arguments, read_results, write_results
from wikibooks.mlm_log import read_validations

from embinit_fairseq.cli.plot_curves import draw_mean, finish, new_panels, save, try_to_draw
from embinit_fairseq.runs.compare import Column
from embinit_fairseq.runs.markdown import environment, header, still_missing

COLUMNS = (
    Column("last val. loss (bits)", ("mlm", "last"), 3),
    Column("best val. loss (bits)", ("mlm", "best"), 3),
    Column("at update", ("mlm", "best_update"), 0),
    Column("updates", ("mlm", "updates"), 0),
    Column("tokens seen (millions)", ("mlm", "million_tokens"), 1),
    Column("wall time (min)", ("time", "wall_min"), 0),
)
Groups = dict[str, list[dict]]


def with_losses(result: dict, runs: Path) -> dict:
    """The result with its validation losses by number of updates; SystemExit if there is none."""
    log = runs / result["run"] / "train.log"
    losses = read_validations(log) if log.is_file() else {}
    if not losses:
        raise SystemExit(f"error: {log} is missing or has no validation: remove its folder and train again")
    best = min(losses, key=losses.get)
    updates = max(losses)
    mlm = {"last": losses[updates], "best": losses[best], "best_update": best, "updates": updates, "losses": losses}
    return {**result, "mlm": {**mlm, "million_tokens": million_tokens(result["epochs"])}}


def million_tokens(epochs: dict[str, dict[str, float]]) -> float | None:
    """Tokens of the training text, without padding: fairseq logs their mean per update, and the updates so far."""
    seen, before = 0.0, 0.0
    for epoch in sorted(epochs, key=int):
        record = epochs[epoch]
        if "train_wpb" not in record:
            return None
        seen += record["train_wpb"] * (record["train_num_updates"] - before)
        before = record["train_num_updates"]
    return seen / 1e6


def grouped(results: list[dict]) -> Groups:
    """Model -> its runs, by name."""
    groups: Groups = defaultdict(list)
    for result in results:
        groups[result["labels"]["model"]].append(result)
    return dict(sorted(groups.items()))


def markdown(groups: Groups, unfinished: list[str]) -> str:
    """The table, what the figures mean, and a command for each model."""
    lines = header(["model", "parameters", "runs", *(column.title for column in COLUMNS)])
    for model, runs in groups.items():
        parameters = " / ".join(sorted({f"{run['parameters']['all']:,}" for run in runs}))
        lines.append(
            f"| {model} | {parameters} | {len(runs)} | {' | '.join(column.cell(runs) for column in COLUMNS)} |"
        )
    lines += [
        "",
        "Mean ± sample standard deviation over seeds. Losses in bits per predicted token of the validation text.",
    ]
    lines += ["", *environment([run for runs in groups.values() for run in runs]), "", *still_missing(unfinished)]
    for model, runs in groups.items():
        lines += [f"{model}, seed {runs[0]['labels']['seed']}:", "", f"    {runs[0]['command']}", ""]
    return "\n".join(lines)


def mean_curve(runs: list[dict]) -> dict[int, list[float]]:
    """Updates -> losses of all runs, where all have been validated."""
    curves = [run["mlm"]["losses"] for run in runs]
    return {update: [curve[update] for curve in curves] for update in sorted(set.intersection(*map(set, curves)))}


def plot(groups: Groups, path: Path) -> None:
    """The whole training, and beside it the second half on a scale of its own."""
    curves = {model: mean_curve(runs) for model, runs in groups.items()}
    half = max((update for curve in curves.values() for update in curve), default=0) / 2
    figure, panels = new_panels(2, height=5.2)
    for axes, start, title in zip(panels, (0, half), ("whole training", "second half")):
        for model, curve in curves.items():
            part = {update: losses for update, losses in curve.items() if update >= start}
            draw_mean(axes, f"{model} ({len(groups[model])})", part)
        finish(axes, title, "updates", "validation loss (bits per predicted token)" if start == 0 else "")
        axes.xaxis.set_major_formatter("{x:,.0f}")
    # below the panels, where it hides no line
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, title="model (runs)", loc="outside lower center", ncols=3)
    save(figure, path)


def main() -> None:
    args = read_arguments(__doc__)
    results, unfinished = read_results(args.runs)
    groups = grouped([with_losses(result, args.runs) for result in results])
    record: dict[str, Any] = {
        model: {
            "runs": [run["run"] for run in runs],
            **{column.title: column.summary(runs) for column in COLUMNS},
            "losses": {run["run"]: run["mlm"]["losses"] for run in runs},
        }
        for model, runs in groups.items()
    }
    write_results(args.output, markdown(groups, unfinished), record)
    try_to_draw(plot, groups, args.output / "curves.png")


if __name__ == "__main__":
    main()
