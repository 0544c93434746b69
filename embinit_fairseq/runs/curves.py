"""Draw curves over epochs, updates or seconds: the mean of several runs in a band (Kim et al. 2024, Figure 1)."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embinit_fairseq import figures
from embinit_fairseq.errors import OptionError
from embinit_fairseq.runs.log import nats
from embinit_fairseq.runs.record import is_regression
from embinit_fairseq.runs.result_table import Table, best_mean, mean, metric_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


def perplexity(bits: float) -> float:
    """Return 2 ** bits, infinity if that is larger than any float."""
    return math.inf if bits >= 1024 else math.pow(2, bits)


#: units of a loss; fairseq logs bits
UNITS: dict[str, Callable[[float], float]] = {"bits": float, "nats": nats, "perplexity": perplexity}
#: largest number of entries of a legend inside of the axes
_MOST_INSIDE = 8
#: line style of validations -> line style of trainings; the next one is used when all colours are used
LINES: dict[str, Any] = {"-": "--", ":": (0, (1, 4)), "-.": (0, (6, 2, 1, 2, 1, 2))}


def draw(
    tables: Sequence[Table], path: Path, unit: str = "bits", x: str | None = None, further: Sequence[str] = ()
) -> None:
    """Draw a panel for each table, and for each further metric that its runs have logged, as PNG.

    Args:
        tables: the tables.
        path: the PNG.
        unit: a key of UNITS.
        x: `epochs`, `updates` or `seconds`; None: as `Table.axis` chooses.
        further: names of further metrics.

    Raises:
        OptionError: no table has a curve.
    """
    panels = [
        panel
        for table in tables
        if table.curves(table.metric, x)
        for panel in (table, *(table.by_metric(name) for name in further if name != table.metric))
        if panel.curves(panel.metric, x)
    ]
    if not panels:
        raise OptionError(
            "no curve to draw: the metric was not logged, or is NaN or infinite in a run of every row; give another "
            "--metric, or leave out diverged runs"
        )
    figure, places = new_panels(len(panels))
    for axes, table in zip(places, panels):
        _draw_table(axes, table, unit, table.axis(x))
    figures.save(figure, str(path))


def _draw_table(axes: Axes, table: Table, unit: str, x: str) -> None:
    """Draw the validations of each row as a line, and its training as a thin dashed line of the same colour."""
    is_loss = table.metric.endswith("loss") and not is_regression(table.runs[0].record)
    convert = UNITS[unit] if is_loss else float
    runs = {row.name: len(row.runs) for row in table.rows}
    training = table.curves(table.training_metric, x)
    for name, curve in table.curves(table.metric, x).items():
        shown = {place: list(map(convert, values)) for place, values in curve.items()}
        line = draw_mean(axes, f"{name} ({runs[name]})", shown, table.higher)
        if name in training:
            means = [mean(list(map(convert, values))) for values in training[name].values()]
            kind, colour = LINES[str(line.get_linestyle())], line.get_color()
            axes.plot(list(training[name]), means, linestyle=kind, color=colour, linewidth=1, alpha=0.7)
    axes.set_title(table.title, parse_math=False)
    axes.set_xlabel(x if x == "seconds" else x.removesuffix("s"))
    axes.set_ylabel(metric_title(table.metric) + (f" ({unit})" if is_loss else ""))
    locator: Any = axes.xaxis.get_major_locator()
    locator.set_params(integer=True, min_n_ticks=1)  # also for a single epoch
    axes.grid(alpha=0.3)
    _add_legend(axes, "(runs)" + (", thin: training" if training else ""))


def draw_mean(axes: Axes, label: str, curve: Mapping[float, Sequence[float]], higher: bool | None = None) -> Line2D:
    """Draw the mean over runs in a band from the lowest to the highest; return the line.

    Args:
        axes: where to draw.
        label: label in the legend.
        curve: place -> values of all runs.
        higher: True if a higher value is better; a ring marks the best mean. None: no ring.
    """
    places, values = list(curve), list(curve.values())
    means = list(map(mean, values))
    number = len(axes.get_legend_handles_labels()[1])
    colour, kind = f"C{number % 10}", list(LINES)[number // 10 % len(LINES)]
    marker = "." if len(places) <= 40 else ""
    (line,) = axes.plot(places, means, marker=marker, label=label, color=colour, linestyle=kind)
    axes.fill_between(places, list(map(min, values)), list(map(max, values)), alpha=0.15, color=line.get_color())
    best = None if higher is None else best_mean(dict(zip(places, means)), higher)
    if best is not None:
        axes.plot(best, means[places.index(best)], "o", markersize=9, markerfacecolor="none", color=line.get_color())
    return line


def _add_legend(axes: Axes, title: str) -> None:
    """Add the legend; the figure is enlarged if it is long and next to the axes."""
    entries = len(axes.get_legend_handles_labels()[1])
    place: Any = {"loc": "upper left", "bbox_to_anchor": (1, 1)} if entries > _MOST_INSIDE else {}
    texts = axes.legend(title=title, **place).get_texts()
    for text in texts:
        text.set_parse_math(False)  # a label may have dollars
    if place:
        figure: Any = axes.figure
        width, height = figure.get_size_inches()
        longest = max(len(text.get_text()) for text in texts)
        figure.set_size_inches(width + 0.7 + 0.09 * longest, max(height, 0.8 + 0.21 * entries))


def new_panels(columns: int, height: float = 4.2) -> tuple[Figure, list[Axes]]:
    """Return a figure without a window, and its panels side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6 * columns, height), layout="constrained")
    return figure, list(figure.subplots(1, columns, squeeze=False)[0])


def try_to_draw(plot: Callable[..., None], *arguments: Any) -> bool:
    """Call `plot`; without matplotlib say so and return False: tables are useful without figures."""
    try:
        plot(*arguments)
    except ModuleNotFoundError as error:
        print(f"no figure: {error.name} is missing (pip install {error.name})", file=sys.stderr)
        return False
    return True
