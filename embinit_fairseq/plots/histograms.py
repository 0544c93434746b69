"""Histograms: the values of embedding matrices beside Xavier's sigma (Kim et al. 2024), and the divergences of an
expansion beside their bound (Hewitt 2021)."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from embinit_fairseq import figures as style
from embinit_fairseq.analysis.histograms import ValueHistogram, linear_width
from embinit_fairseq.errors import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def xavier_std(table: ValueHistogram, scaled: bool) -> float:
    """Xavier's sigma for a matrix of this size, in the units of the histogram."""
    return table.xavier_std * (math.sqrt(table.dim) if scaled else 1.0)


def draw_values(
    edges: np.ndarray, histograms: list[ValueHistogram], positions: dict[int, float], scaled: bool, path: str
) -> None:
    """Densities as steps on a logarithmic scale; lines at + and - of each sigma, dashed Xavier's, dotted positions'.

    Values are on a linear axis if the tables reach about as far, else on one that is logarithmic outside (arcsinh).
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4.8), layout="constrained")
    axes = figure.subplots()
    for table in histograms:
        label = f"{table.name}: sigma {table.moments['std']:.3g}"
        steps = axes.stairs(table.density, edges, label=label, linewidth=1.3, baseline=None)
        for sign in (-1, 1):
            axes.axvline(sign * xavier_std(table, scaled), color=steps.get_edgecolor(), linestyle="--", linewidth=0.9)
    for std in sorted(set(positions.values())):
        for sign in (-1, 1):
            axes.axvline(sign * std, color="black", linestyle=":", linewidth=1)
    axes.plot([], [], "--", color="0.4", label="Xavier's sigma for N x D")
    axes.plot([], [], ":", color="black", label="positions' sigma" + ("" if scaled else " / sqrt(D)"))
    axes.set_yscale("log")
    reach = max(edges[-1], *(1.1 * std for std in positions.values()))
    width = linear_width([table.reach for table in histograms])
    if width is not None:
        axes.set_xscale("asinh", linear_width=width)
        _round_ticks(axes, width, reach)
    axes.set_xlim(-reach, reach)
    far = "" if width is None else ", logarithmic far from 0"
    axes.set_xlabel("value" + (" times sqrt(D)" if scaled else "") + far)
    axes.set_ylabel("density")
    axes.grid(alpha=0.3)
    legend = figure.legend(loc="outside lower center", fontsize=8)
    for text in legend.get_texts():
        text.set_parse_math(False)
    style.save(figure, path)


def _round_ticks(axes: Axes, width: float, reach: float) -> None:
    """0 and, on both sides, powers of ten from the linear part on; with their 2 and 5 where that is less than three."""
    tens = range(math.floor(math.log10(width)) - 1, math.floor(math.log10(reach)) + 1)
    powers = [10.0**n for n in tens if 10.0**n >= width]
    if len(powers) < 3:
        powers = [step * 10.0**n for n in tens for step in (1, 2, 5) if width / 2 <= step * 10.0**n <= reach]
    places = [sign * power for sign in (-1, 1) for power in powers or [reach]]
    axes.set_xticks([0.0, *places], [f"{place:.2g}" for place in (0.0, *places)])
    axes.set_xticks([], minor=True)


def draw_divergences(
    checkpoint: str, count: int, methods: dict[str, Any], histograms: dict[str, dict[str, list[float]]], path: str
) -> None:
    """One panel a method, all with the same logarithmic axes, and the bound as a line. Writes the PNG `path`.

    methods: `resize.verify.summary` of each; histograms: `resize.verify.histograms`, of one list of edges.
    """
    columns = 2 if len(methods) <= 4 else 3
    figure, panels = style.new_figure(columns, -(-len(methods) // columns))
    edges = np.array(next(iter(histograms.values()))["edges"])
    first = edges[1] ** 2 / edges[2]  # the bin that begins at 0 is drawn as wide as the next
    bounds = [found["bound"] for found in methods.values() if found["bound"] is not None]
    most = max(max(each["counts"]) for each in histograms.values())
    for axes, (method, divergences) in zip(panels, methods.items()):
        axes.stairs(histograms[method]["counts"], [first, *edges[1:]], fill=True, color="0.45")
        axes.set(xscale="log", yscale="log", ylim=(0.5, 2 * most), xlim=(first, 1.5 * max(edges[-1], *bounds, first)))
        if axes.get_xlim()[1] > 100 * first:  # on less there are too few powers of ten to read a value
            axes.minorticks_off()
        axes.tick_params(which="minor", labelsize=6)
        axes.set_title(f"{method}: mean {divergences['mean']:.3g}", fontsize=9, pad=4)
        axes.set_xlabel("KL(old || new) in nats", fontsize=8)
        axes.tick_params(labelsize=7, length=2)
        if divergences["bound"] is not None:
            axes.axvline(divergences["bound"], color="tab:red", linewidth=1, linestyle="--", label="bound")
            axes.legend(fontsize=7, frameon=False, loc="upper left")
    panels[0].set_ylabel("tokens", fontsize=8)
    for axes in panels[len(methods) :]:
        axes.remove()
    file = os.path.join(*os.path.abspath(checkpoint).split(os.sep)[-2:])
    figure.suptitle(f"{counted(count, 'new word')}\n{file}", fontsize=9, parse_math=False)
    style.save(figure, path)
