"""Draw the effect of an expanded vocabulary on a model's predictions, next to the bound (Hewitt 2021)."""

from __future__ import annotations

from typing import Any

import numpy as np

from embinit_fairseq import figures
from embinit_fairseq.errors import counted


def draw_divergences(
    checkpoint: str, count: int, methods: dict[str, Any], histograms: dict[str, dict[str, list[float]]], path: str
) -> None:
    """Draw one panel per method, all with the same logarithmic axes, and the bound as a line.

    Args:
        checkpoint: path of the checkpoint, for the title.
        count: number of new words.
        methods: name -> {"mean", "bound" or None} of KL(old || new) per token, in nats.
        histograms: name -> {"edges": (bins + 1), "counts": (bins)}, all with the same edges.
        path: the PNG.
    """
    columns = 2 if len(methods) <= 4 else 3
    figure, panels = figures.new_figure(columns, -(-len(methods) // columns))
    edges = np.array(next(iter(histograms.values()))["edges"])
    first = edges[1] ** 2 / edges[2]  # the bin that begins at 0 is drawn as wide as the next
    bounds = [divergences["bound"] for divergences in methods.values() if divergences["bound"] is not None]
    most = max(max(histogram["counts"]) for histogram in histograms.values())
    for axes, (method, divergences) in zip(panels, methods.items()):
        axes.stairs(histograms[method]["counts"], [first, *edges[1:]], fill=True, color="0.45")
        axes.set(xscale="log", yscale="log", ylim=(0.5, 2 * most), xlim=(first, 1.5 * max(edges[-1], *bounds, first)))
        if axes.get_xlim()[1] > 100 * first:  # otherwise too few powers of ten to read a value
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
    figures.title(figure, checkpoint, counted(count, "new word"))
    figures.save(figure, path)
