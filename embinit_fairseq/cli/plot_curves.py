"""Validation curves of runs (Kim et al. 2024, Figure 1): a line for each group of seeds, the mean of its runs, in a
band from the lowest to the highest of them; a ring marks where the mean is best."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embinit_fairseq.errors import OptionError, counted
from embinit_fairseq.runs.compare import AXES, Curve, Table, check_finished, compare, mean, metric_title
from embinit_fairseq.runs.folders import find_runs, is_finished
from embinit_fairseq.runs.logs import best_place, nats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def perplexity(bits: float) -> float:
    """2 ** bits, infinity where that is beyond all numbers."""
    return math.inf if bits >= 1024 else math.pow(2, bits)


#: what a loss is shown in; fairseq logs bits
UNITS: dict[str, Callable[[float], float]] = {"bits": float, "nats": nats, "perplexity": perplexity}
HELP = "validation curves of runs, mean and band over seeds"


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """RUN ..., --metric, --by, --unit, --unfinished, --json."""
    add = parser.add_argument
    add(
        "runs",
        nargs="+",
        metavar="RUN",
        help="a run folder (result.json), a log or save directory of fairseq-train, or a folder that holds any of "
        "them; NAME=PATH names it",
    )
    add(
        "--metric",
        metavar="NAME",
        help="as logged, such as valid_loss, valid_bleu; default: what chose the checkpoints",
    )
    add("--by", nargs="+", default=[], metavar="LABEL", help="labels that make a row; default: all but the seed")
    add(
        "--x",
        choices=AXES,
        help="what curves are drawn over; seconds: of the processor where all runs know them, else of the clock; "
        "default: updates if there are validations within epochs, else epochs",
    )
    add("--unit", choices=UNITS, default="bits", help="of losses in pictures; default: %(default)s, as logged")
    add("--unfinished", action="store_true", help="also runs that have not come to their end")
    add("--json", action="store_true", help="print one JSON object instead of a table")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_run_options(parser)
    parser.add_argument("--output", required=True, metavar="FILE.png", help="the picture")


def run(args: argparse.Namespace) -> int:
    """Read, draw, print."""
    from embinit_fairseq.cli.vector_options import print_json
    from embinit_fairseq.plots import figure as plot_figure

    plot_figure.check_output(args.output)
    tables, unfinished = read_tables(args)
    draw(tables, Path(args.output), args.unit, args.x)
    records = [curves_record(table, args.x) for table in tables]
    if args.json:
        print_json({"picture": args.output, "tables": records, "unfinished": unfinished})
    else:
        print("\n".join([*(_line(record, row) for record in records for row in record["rows"]), "", args.output]))
    return 0


def read_tables(args: argparse.Namespace) -> tuple[list[Table], list[str]]:
    """What the arguments of `add_run_options` name, and the names of unfinished runs that were left out."""
    runs = list({run.path.resolve(): run for argument in args.runs for run in find_runs(argument)}.values())
    ended = [run for run in runs if is_finished(run) or (args.unfinished and run.validations)]
    left_out = [run for run in runs if run not in ended]
    check_finished(ended, left_out)
    return compare(ended, args.by, args.metric), [run.name for run in left_out]


def curves_record(table: Table, x: str | None = None) -> dict[str, Any]:
    """Means and best places of a table, as data: of the validations, and of the training where it has been logged."""
    axis, rows = table.axis(x), []
    curves, training = table.curves(axis=axis), table.curves(table.training_metric, axis)
    for row in table.rows:
        means = {place: mean(values) for place, values in curves.get(row.name, {}).items()}
        trained = {place: mean(values) for place, values in training.get(row.name, {}).items()}
        best = _best_mean(means, table.higher)
        rows.append(
            {
                "name": row.name,
                "runs": len(row.runs),
                "best": best,
                "value": means.get(best),
                "means": means,
                "training": trained,
            }
        )
    return {"title": table.title, "metric": table.metric, "place": axis.title, "rows": rows}


def _best_mean(means: Mapping[float, float], higher: bool) -> float | None:
    """The place of the best of all means, NaN left out."""
    return best_place({place: value for place, value in means.items() if not math.isnan(value)}, higher)


def _line(table: dict[str, Any], row: dict[str, Any]) -> str:
    value = "no curve" if row["best"] is None else f"{row['value']:.3f} at {table['place']} {row['best']:,.0f}"
    trained = row["training"].get(row["best"])
    beside = "" if trained is None else f" (of the training {trained:.3f})"
    name = f"{table['title']}, {row['name']} ({counted(row['runs'], 'run')})"
    return f"{name}: best mean {table['metric']} {value}{beside}"


def draw(
    tables: Sequence[Table], path: Path, unit: str = "bits", x: str | None = None, further: Sequence[str] = ()
) -> None:
    """One panel a table, and one for each of the further metrics that its runs have logged, in a PNG.

    OptionError if no table has a curve.
    """
    with_curves = [table for table in tables if table.curves()]
    if not with_curves:
        raise OptionError(
            "no curve to draw: the metric was not logged, or is NaN or infinite in a run of every row; name another "
            "--metric, or leave out what has diverged"
        )
    panels = [
        shown
        for table in with_curves
        for shown in (table, *(table.by_metric(name) for name in further if name != table.metric))
        if shown.curves()
    ]
    figure, places = new_panels(len(panels))
    for axes, table in zip(places, panels):
        _draw_table(axes, table, unit, x)
    save(figure, path)


def _draw_table(axes: Axes, table: Table, unit: str, x: str | None) -> None:
    """Each row's validations as a line; that of its training, dashed in the same colour, beside it."""
    axis, is_loss = table.axis(x), table.metric.endswith("loss")
    convert = UNITS[unit] if is_loss else float
    runs = {row.name: len(row.runs) for row in table.rows}
    training = table.curves(table.training_metric, axis)

    def shown(curve: Curve) -> Curve:
        return {place: list(map(convert, values)) for place, values in curve.items()}

    for name, curve in table.curves(axis=axis).items():
        colour = draw_mean(axes, f"{name} ({runs[name]})", shown(curve), table.higher)
        if name in training:
            trained = shown(training[name])
            axes.plot(list(trained), list(map(mean, trained.values())), "--", color=colour, linewidth=1, alpha=0.7)
    label = metric_title(table.metric) + (f" ({unit})" if is_loss else "")
    finish(axes, table.title, axis.title, label, legend="(runs)" + (", dashed: training" if training else ""))


def new_panels(columns: int, height: float = 4.2) -> tuple[Figure, list[Axes]]:
    """A figure without a window, and its panels side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6 * columns, height), layout="constrained")
    return figure, list(figure.subplots(1, columns, squeeze=False)[0])


def draw_mean(axes: Axes, label: str, curve: Mapping[float, Sequence[float]], higher: bool | None = None) -> str:
    """Mean over runs, a band from min to max; returns their colour. curve: place -> values of all runs. higher: with a
    ring at the best."""
    places, values = list(curve), list(curve.values())
    means = list(map(mean, values))
    (line,) = axes.plot(places, means, marker="." if len(places) <= 40 else "", label=label)
    axes.fill_between(places, list(map(min, values)), list(map(max, values)), alpha=0.15, color=line.get_color())
    best = None if higher is None else _best_mean(dict(zip(places, means)), higher)
    if best is not None:
        axes.plot(best, means[places.index(best)], "o", markersize=9, markerfacecolor="none", color=line.get_color())
    return line.get_color()


def finish(axes: Axes, title: str, place: str, value: str, legend: str | None = None) -> None:
    """Names, whole numbers below, a grid, and the legend under this title."""
    axes.set_title(title, parse_math=False)
    axes.set_xlabel(place)
    axes.set_ylabel(value)
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)  # also for a single epoch
    axes.grid(alpha=0.3)
    if legend is not None:
        for text in axes.legend(title=legend).get_texts():
            text.set_parse_math(False)  # a label may hold dollars


def save(figure: Figure, path: Path) -> None:
    """As PNG, complete or not there."""
    from embinit_fairseq.plots import figure as plot_figure

    plot_figure.save(figure, str(path))


def try_to_draw(plot: Callable[..., None], *arguments: Any) -> bool:
    """Call `plot`, or say what is missing: tables are worth having without pictures. Was it drawn?"""
    try:
        plot(*arguments)
    except ModuleNotFoundError as error:
        print(f"no picture: {error.name} is missing (pip install {error.name})", file=sys.stderr)
        return False
    return True
