"""Hewitt's histogram: how often which divergence was measured, one panel a method."""

from __future__ import annotations

import os
from typing import Any

from embinit_fairseq.errors import counted
from embinit_fairseq.plots import figure as plot_figure


def draw(
    checkpoint: str, count: int, methods: dict[str, Any], histograms: dict[str, dict[str, list[float]]], path: str
) -> None:
    """methods: `analysis.expansion.summary` of each; histograms: edges and counts. Writes the PNG `path`."""
    columns = 2 if len(methods) <= 4 else 3
    figure, panels = plot_figure.new_figure(columns, -(-len(methods) // columns))
    for axes, (method, found) in zip(panels, methods.items()):
        edges, counts = histograms[method]["edges"], histograms[method]["counts"]
        axes.stairs(counts, edges, fill=True, color="0.45")
        axes.set_yscale("log", nonpositive="clip")
        axes.set_ylim(bottom=0.5)
        axes.minorticks_off()
        axes.set_title(f"{method}: mean {found['mean']:.3g}", fontsize=9, pad=4)
        axes.set_xlabel("KL(old || new) in nats", fontsize=8)
        axes.tick_params(labelsize=7, length=2)
        if found["bound"] is not None:
            axes.axvline(found["bound"], color="tab:red", linewidth=1, linestyle="--", label="bound")
            axes.legend(fontsize=7, frameon=False)
    panels[0].set_ylabel("tokens", fontsize=8)
    for axes in panels[len(methods) :]:
        axes.remove()
    file = os.path.join(*os.path.abspath(checkpoint).split(os.sep)[-2:])
    figure.suptitle(f"{counted(count, 'new word')}\n{file}", fontsize=9, parse_math=False)
    plot_figure.save(figure, path)
