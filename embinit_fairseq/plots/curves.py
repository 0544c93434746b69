"""Curves over epochs, updates or seconds, as a mean over runs with a band (Kim et al. 2024, Figure 1): of validations,
and of whatever else has a value at a place."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embinit_fairseq import figures as style
from embinit_fairseq.errors import OptionError
from embinit_fairseq.runs.compare import Curve, Table, best_mean, mean, metric_title
from embinit_fairseq.runs.logs import nats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


def perplexity(bits: float) -> float:
    """2 ** bits, infinity where that is beyond all numbers."""
    return math.inf if bits >= 1024 else math.pow(2, bits)


#: above so many entries a legend stands beside the axes, in a figure that is made larger for it
BESIDE = 8
#: rows are drawn with a line of the next kind when all colours are used up; the kind of validations -> of the training
LINES: dict[str, Any] = {"-": "--", ":": (0, (1, 4)), "-.": (0, (6, 2, 1, 2, 1, 2))}

#: what a loss is shown in; fairseq logs bits
UNITS: dict[str, Callable[[float], float]] = {"bits": float, "nats": nats, "perplexity": perplexity}


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
        line = draw_mean(axes, f"{name} ({runs[name]})", shown(curve), table.higher)
        if name in training:
            trained = shown(training[name])
            kind, colour = LINES[str(line.get_linestyle())], line.get_color()
            means = list(map(mean, trained.values()))
            axes.plot(list(trained), means, linestyle=kind, color=colour, linewidth=1, alpha=0.7)
    label = metric_title(table.metric) + (f" ({unit})" if is_loss else "")
    finish(axes, table.title, axis.title, label, legend="(runs)" + (", thin: training" if training else ""))


def new_panels(columns: int, height: float = 4.2) -> tuple[Figure, list[Axes]]:
    """A figure without a window, and its panels side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6 * columns, height), layout="constrained")
    return figure, list(figure.subplots(1, columns, squeeze=False)[0])


def _line_of(number: int) -> tuple[str, str]:
    """Colour and kind of the line of the row with this number, from 0: no two alike among the first thirty."""
    return f"C{number % 10}", list(LINES)[number // 10 % len(LINES)]


def draw_mean(axes: Axes, label: str, curve: Mapping[float, Sequence[float]], higher: bool | None = None) -> Line2D:
    """Mean over runs, a band from min to max; returns the line. curve: place -> values of all runs. higher: with a
    ring at the best."""
    places, values = list(curve), list(curve.values())
    means = list(map(mean, values))
    colour, kind = _line_of(len(axes.get_legend_handles_labels()[1]))
    marker = "." if len(places) <= 40 else ""
    (line,) = axes.plot(places, means, marker=marker, label=label, color=colour, linestyle=kind)
    axes.fill_between(places, list(map(min, values)), list(map(max, values)), alpha=0.15, color=line.get_color())
    best = None if higher is None else best_mean(dict(zip(places, means)), higher)
    if best is not None:
        axes.plot(best, means[places.index(best)], "o", markersize=9, markerfacecolor="none", color=line.get_color())
    return line


def finish(axes: Axes, title: str, place: str, value: str, legend: str | None = None) -> None:
    """Names, whole numbers below, a grid, and the legend under this title."""
    axes.set_title(title, parse_math=False)
    axes.set_xlabel(place)
    axes.set_ylabel(value)
    locator: Any = axes.xaxis.get_major_locator()
    locator.set_params(integer=True, min_n_ticks=1)  # also for a single epoch
    axes.grid(alpha=0.3)
    if legend is not None:
        entries = len(axes.get_legend_handles_labels()[1])
        beside: Any = {"loc": "upper left", "bbox_to_anchor": (1, 1)} if entries > BESIDE else {}
        texts = axes.legend(title=legend, **beside).get_texts()
        for text in texts:
            text.set_parse_math(False)  # a label may hold dollars
        if beside and axes.figure is not None:
            _make_room(axes.figure, max(len(text.get_text()) for text in texts), entries)


def _make_room(figure: Any, characters: int, entries: int) -> None:
    """Makes the figure as much wider and as high as a legend of this size beside one of its axes takes."""
    width, height = figure.get_size_inches()
    figure.set_size_inches(width + 0.7 + 0.09 * characters, max(height, 0.8 + 0.21 * entries))


def save(figure: Figure, path: Path) -> None:
    """As PNG, complete or not there."""
    style.save(figure, str(path))


def try_to_draw(plot: Callable[..., None], *arguments: Any) -> bool:
    """Call `plot`, or say what is missing: tables are worth having without pictures. Was it drawn?"""
    try:
        plot(*arguments)
    except ModuleNotFoundError as error:
        print(f"no picture: {error.name} is missing (pip install {error.name})", file=sys.stderr)
        return False
    return True
