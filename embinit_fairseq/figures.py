"""Draw all figures in one style: panels of (T, T) maps with one colour bar, PNG files that are complete or absent."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from embinit_fairseq.errors import OptionError
from embinit_fairseq.io import check_file, check_place, whole_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: inches
_PANEL = 2.7
#: dots per inch
_DPI = 140
#: largest number of classes of a confusion matrix with numbers in it
_READABLE = 24


def check_output(path: str) -> None:
    """Raise OptionError or OutputError, before any work, if no figure can be written to --output."""
    if not path.lower().endswith(".png"):
        raise OptionError(f"--output {path}: the figure is a PNG file; give a name that ends in .png")
    check_file(path, force=True)
    check_place(os.path.dirname(os.path.abspath(path)), shown=path)
    if importlib.util.find_spec("matplotlib") is None:
        raise OptionError("figures need matplotlib, which is not installed: pip install matplotlib")


def new_figure(columns: int, rows: int) -> tuple[Figure, list[Axes]]:
    """Return a figure without a window, and its rows * columns square panels, row by row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_PANEL * columns + 1.3, (_PANEL + 0.2) * rows + 0.6), layout="compressed")
    axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.flat)


def draw_map(axes: Axes, values: np.ndarray, title: str, **options: Any) -> Any:
    """Draw (T, T), query by key, as an image, grey where a value is NaN; options: of `Axes.imshow`."""
    axes.set_facecolor("0.88")
    axes.set_title(title, fontsize=9, pad=4)
    return axes.imshow(values, interpolation="nearest", aspect="equal", **options)


def mark_cls(axes: Axes) -> None:
    """Draw a thin line after row 0 and after column 0."""
    axes.axhline(0.5, color="black", linewidth=0.6)
    axes.axvline(0.5, color="black", linewidth=0.6)


def position_ticks(length: int, has_cls: bool) -> tuple[list[int], list[str]]:
    """Return (places, labels) of about four round numbers; the label of 0 may be `[CLS]`."""
    step = next(step for size in (1, 10, 100, 1000) for step in (size, 2 * size, 5 * size) if length <= 5 * step)
    places = list(range(0, length, step))
    return places, ["[CLS]" if has_cls and place == 0 else str(place) for place in places]


def label_axes(
    panels: Sequence[Axes], columns: int, query: str, key: str, places: Sequence[int], labels: Sequence[str]
) -> None:
    """Add ticks to all panels, their labels and the names of the axes to the leftmost and lowest ones."""
    upright = len(places) > 12
    for number, axes in enumerate(panels):
        axes.set_xticks(places, labels, parse_math=False, rotation=90 if upright else 0)
        axes.set_yticks(places, labels, parse_math=False)
        last = number + columns >= len(panels)
        axes.tick_params(labelsize=7, length=2, labelbottom=last, labelleft=number % columns == 0)
        axes.set_xlabel(key if last else "", fontsize=8)
        axes.set_ylabel(query if number % columns == 0 else "", fontsize=8)


def title(figure: Figure, path: str, content: str) -> None:
    """Add the figure's title: its content, and the file with its run, since most are checkpoints/checkpoint_best.pt."""
    *_, run, folder, file = ["", *os.path.abspath(path).split(os.sep)]
    name = os.path.join(run if folder == "checkpoints" else "", folder, file)
    figure.suptitle(f"{content}\n{name}", fontsize=9, parse_math=False)


def limits(values: np.ndarray, share: float = 0.01) -> tuple[float, float]:
    """Return (lowest, highest) of the finite values without the outermost `share` on both sides."""
    finite = values[np.isfinite(values)]
    low, high = np.quantile(finite, [share, 1 - share])
    return (float(low), float(high)) if high > low else (float(low) - 0.5, float(low) + 0.5)


def colours(low: float, high: float) -> dict[str, Any]:
    """Return options of `draw_map`: if values are on both sides of 0, blue below, white at and red above 0."""
    if low < 0 < high:
        return {"cmap": "RdBu_r", "vmin": -max(-low, high), "vmax": max(-low, high)}
    return {"cmap": "viridis", "vmin": low, "vmax": high}


def colour_bar(figure: Figure, image: Any, axes: Sequence[Axes] | Axes, label: str, values: np.ndarray) -> None:
    """Add the bar of `image`: ratios as labels if its scale is logarithmic, a pointed end if `values` exceed it."""
    from matplotlib.colors import LogNorm

    finite = values[np.isfinite(values)]
    low, high = image.get_clim()
    below, above = bool((finite < low).any()), bool((finite > high).any())
    extend = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}
    rows = figure.get_figheight() / _PANEL
    shape: dict[str, Any] = {"fraction": 0.05, "aspect": 25 * rows, "extendfrac": 0.03, "pad": 0.02}
    bar = figure.colorbar(image, ax=axes, extend=extend[below, above], **shape)
    bar.set_label(label, fontsize=8)
    if isinstance(image.norm, LogNorm):
        steps = [step * 10**power for power in range(4) for step in ((1, 2, 5) if high < 30 else (1,))]
        ratios = sorted({ratio for step in steps if step <= high for ratio in (step, 1 / step)})
        bar.set_ticks(ratios, labels=[f"{r:.0f}" if r >= 1 else f"1/{1 / r:.0f}" for r in ratios], minor=False)
        bar.ax.minorticks_off()
    bar.ax.tick_params(labelsize=7, length=2)


def save(figure: Figure, path: str) -> None:
    """Write the PNG, complete or not at all; OutputError if the disk or the place does not allow it."""
    with whole_file(path, option="--output") as file:
        figure.savefig(file, format="png", dpi=_DPI)


def draw_confusion(counts: np.ndarray, labels: Sequence[str], subject: str, path: str) -> None:
    """Draw a confusion matrix: colours by the share of the true class, numbers if there are few classes.

    Args:
        counts: (K, K), examples of class i that were taken for class j.
        labels: names of the classes.
        subject: title of the figure.
        path: the PNG.
    """
    size = len(labels)
    figure, (axes,) = new_figure(1, 1)
    inches = min(max(0.45 * size + 1.5, 4.0), 16.0)
    figure.set_size_inches(inches + 1.3, inches)
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    image = draw_map(axes, share, "", cmap="Blues", vmin=0.0, vmax=1.0)
    label_axes([axes], 1, "true class", "predicted class", range(size), labels)
    if size > 4:
        axes.tick_params(axis="x", labelrotation=90)
    for row, column in np.argwhere(counts) if size <= _READABLE else ():
        colour = "white" if share[row, column] > 0.5 else "black"
        axes.text(column, row, f"{counts[row, column]:,}", ha="center", va="center", fontsize=7, color=colour)
    colour_bar(figure, image, axes, "share of the true class", share)
    figure.suptitle(subject, fontsize=9, parse_math=False)
    save(figure, path)
