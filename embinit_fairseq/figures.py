"""What all pictures share: the checkpoint, panels of T x T maps with one colour bar, PNG files written at once."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from embinit_fairseq.errors import OptionError
from embinit_fairseq.files import whole_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANEL = 2.7  # inches
_DPI = 140


def add_picture_options(parser: argparse.ArgumentParser) -> None:
    """--checkpoint, --output, --json."""
    parser.add_argument("--checkpoint", required=True, metavar="FILE.pt", help="written by fairseq-train")
    parser.add_argument("--output", required=True, metavar="FILE.png", help="the picture")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def check_output(path: str) -> None:
    """Before any work: OptionError for a picture that could not be written."""
    folder = os.path.dirname(path) or "."
    if not path.lower().endswith(".png"):
        raise OptionError(f"--output {path}: the picture is a PNG file; give a name that ends in .png")
    if not os.path.isdir(folder):
        raise OptionError(f"--output {path}: there is no folder {folder}; make it first (mkdir -p {folder})")
    if os.path.isdir(path):
        raise OptionError(f"--output {path}: a folder; name a file")
    if not os.access(folder, os.W_OK):
        raise OptionError(f"--output {path}: the folder {folder} cannot be written to; choose another one")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise OptionError("pictures need matplotlib, which is not installed: pip install matplotlib") from error


def new_figure(columns: int, rows: int) -> tuple[Figure, list[Axes]]:
    """A figure without a window, and its rows x columns square panels from left to right."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_PANEL * columns + 1.3, (_PANEL + 0.2) * rows + 0.6), layout="compressed")
    axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.flat)


def draw_map(axes: Axes, values: np.ndarray, title: str, **options: Any) -> Any:
    """(T, T), query by key, as an image; grey where there is nothing (NaN)."""
    axes.set_facecolor("0.88")
    axes.set_title(title, fontsize=9, pad=4)
    return axes.imshow(values, interpolation="nearest", aspect="equal", **options)


def mark_cls(axes: Axes) -> None:
    """A thin line behind row and column 0."""
    axes.axhline(0.5, color="black", linewidth=0.6)
    axes.axvline(0.5, color="black", linewidth=0.6)


def position_ticks(length: int, has_cls: bool) -> tuple[list[int], list[str]]:
    """(places, labels): round numbers, about four; 0 is `[CLS]`."""
    step = next(step for size in (1, 10, 100, 1000) for step in (size, 2 * size, 5 * size) if length <= 5 * step)
    places = list(range(0, length, step))
    return places, ["[CLS]" if has_cls and place == 0 else str(place) for place in places]


def label_axes(
    panels: Sequence[Axes], columns: int, query: str, key: str, places: Sequence[int], labels: Sequence[str]
) -> None:
    """Ticks, and names of the axes where nothing follows below or on the left."""
    upright = len(places) > 12
    for number, axes in enumerate(panels):
        axes.set_xticks(places, labels, parse_math=False, rotation=90 if upright else 0)
        axes.set_yticks(places, labels, parse_math=False)
        last = number + columns >= len(panels)
        axes.tick_params(labelsize=7, length=2, labelbottom=last, labelleft=number % columns == 0)
        axes.set_xlabel(key if last else "", fontsize=8)
        axes.set_ylabel(query if number % columns == 0 else "", fontsize=8)


def title(figure: Figure, path: str, what: str) -> None:
    """What is drawn, and of which file (with its folder: most are called checkpoint_best.pt)."""
    name = os.path.join(*os.path.abspath(path).split(os.sep)[-2:])
    figure.suptitle(f"{what}\n{name}", fontsize=9, parse_math=False)


def limits(values: np.ndarray, share: float = 0.01) -> tuple[float, float]:
    """(lowest, highest) of the finite values without the outermost `share` on both sides."""
    finite = values[np.isfinite(values)]
    low, high = np.quantile(finite, [share, 1 - share])
    return (float(low), float(high)) if high > low else (float(low) - 0.5, float(low) + 0.5)


def colours(low: float, high: float) -> dict[str, Any]:
    """For `draw_map`: where there are values on both sides of 0, blue below, red above and white at 0."""
    if low < 0 < high:
        return {"cmap": "RdBu_r", "vmin": -max(-low, high), "vmax": max(-low, high)}
    return {"cmap": "viridis", "vmin": low, "vmax": high}


def colour_bar(figure: Figure, image: Any, axes: Sequence[Axes] | Axes, label: str, values: np.ndarray) -> None:
    """The bar of `image`, with ratios as labels if its scale is logarithmic; pointed where `values` lie beyond it."""
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
    """Write the PNG: complete under its final name, or not at all. OutputError if the place does not allow it."""
    with whole_file(path, option="--output") as file:
        figure.savefig(file, format="png", dpi=_DPI)
