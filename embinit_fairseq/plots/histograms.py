"""Histograms: the values of embedding matrices beside Xavier's sigma (Kim et al. 2024), and the divergences of an
expansion beside their bound (Hewitt 2021)."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

from embinit_fairseq.analysis.histograms import ValueHistogram
from embinit_fairseq.errors import counted
from embinit_fairseq.plots import style
from embinit_fairseq.plots.curves import new_panels


def xavier_std(table: ValueHistogram, scaled: bool) -> float:
    """Xavier's sigma for a matrix of this size, in the units of the histogram."""
    return table.xavier_std * (math.sqrt(table.dim) if scaled else 1.0)


def draw_values(
    edges: np.ndarray, histograms: list[ValueHistogram], positions: dict[int, float], scaled: bool, path: str
) -> None:
    """Densities as steps on a logarithmic scale; lines at + and - of each sigma, dashed Xavier's, dotted positions'."""
    figure, (axes,) = new_panels(1, height=4.8)
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
    axes.set_xlim(-reach, reach)
    axes.set_xlabel("value" + (" times sqrt(D)" if scaled else ""))
    axes.set_ylabel("density")
    axes.grid(alpha=0.3)
    legend = figure.legend(loc="outside lower center", fontsize=8)
    for text in legend.get_texts():
        text.set_parse_math(False)
    style.save(figure, path)


def draw_divergences(
    checkpoint: str, count: int, methods: dict[str, Any], histograms: dict[str, dict[str, list[float]]], path: str
) -> None:
    """methods: `expand.evaluation.summary` of each; histograms: edges and counts. Writes the PNG `path`."""
    columns = 2 if len(methods) <= 4 else 3
    figure, panels = style.new_figure(columns, -(-len(methods) // columns))
    for axes, (method, divergences) in zip(panels, methods.items()):
        edges, counts = histograms[method]["edges"], histograms[method]["counts"]
        axes.stairs(counts, edges, fill=True, color="0.45")
        axes.set_yscale("log", nonpositive="clip")
        axes.set_ylim(bottom=0.5)
        axes.minorticks_off()
        axes.set_title(f"{method}: mean {divergences['mean']:.3g}", fontsize=9, pad=4)
        axes.set_xlabel("KL(old || new) in nats", fontsize=8)
        axes.tick_params(labelsize=7, length=2)
        if divergences["bound"] is not None:
            axes.axvline(divergences["bound"], color="tab:red", linewidth=1, linestyle="--", label="bound")
            axes.legend(fontsize=7, frameon=False)
    panels[0].set_ylabel("tokens", fontsize=8)
    for axes in panels[len(methods) :]:
        axes.remove()
    file = os.path.join(*os.path.abspath(checkpoint).split(os.sep)[-2:])
    figure.suptitle(f"{counted(count, 'new word')}\n{file}", fontsize=9, parse_math=False)
    style.save(figure, path)
