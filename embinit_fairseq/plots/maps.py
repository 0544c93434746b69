"""Maps of T x T attention scores: what each head attends to by position alone (Ke et al. 2021, Figure 6), and the
correlations of words and positions (Figure 2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from embinit_fairseq import figures as style
from embinit_fairseq.analysis.position_patterns import HeadPattern, attention

if TYPE_CHECKING:
    from embinit_fairseq.analysis.position_maps import PositionMap
    from embinit_fairseq.analysis.trained_model import TrainedModel

#: up to this length words are written beside a sentence's map
_READABLE = 24


def draw_positions(
    model: TrainedModel, shown: PositionMap, patterns: list[HeadPattern], softmax: bool, path: str
) -> None:
    """One panel per head: scores as they are, or with `softmax` the attention that they alone give."""
    num_heads, length, _ = shown.scores.shape
    columns = min(num_heads, 4 if num_heads <= 16 else 6)
    figure, panels = style.new_figure(columns, math.ceil(num_heads / columns))
    values, options, label = _relative_attention(shown.scores) if softmax else _plain_scores(shown)
    for number, (axes, pattern) in enumerate(zip(panels, patterns)):
        image = style.draw_map(axes, values[number], f"head {number + 1}: {pattern.name}", **options)
        if shown.has_cls:
            style.mark_cls(axes)
    for axes in panels[num_heads:]:
        axes.remove()
    panels = panels[:num_heads]
    ticks = style.position_ticks(length, shown.has_cls)
    style.label_axes(panels, columns, "query position", "key position", *ticks)
    style.colour_bar(figure, image, panels, label, values)
    style.title(figure, model.path, f"{model.arch}, {shown.encoding}, {shown.part}")
    style.save(figure, path)


def _plain_scores(shown: PositionMap) -> tuple[np.ndarray, dict[str, Any], str]:
    """One scale for all heads, made for what is not reset."""
    values = np.where(np.isfinite(shown.scores), shown.scores, np.nan)
    return values, style.colours(*style.limits(shown.ordinary)), "positional correlation (before the softmax)"


def _relative_attention(scores: np.ndarray) -> tuple[np.ndarray, dict[str, Any], str]:
    """Attention as a multiple of uniform attention, in logarithmic colours: white is uniform."""
    from matplotlib.colors import LogNorm

    seen = np.isfinite(scores)
    tiny = np.finfo(scores.dtype).tiny  # nothing is nothing, but its logarithm must be drawn
    values = np.where(seen, np.maximum(attention(scores) * seen.sum(axis=-1, keepdims=True), tiny), np.nan)
    factor = max(2.0, style.limits(values, share=0.002)[1])
    options = {"cmap": "RdBu_r", "norm": LogNorm(1 / factor, factor)}
    return values, options, "attention by position alone (1: uniform)"


def draw_confusion(counts: np.ndarray, labels: Sequence[str], title: str, path: str) -> None:
    """C (K, K), examples of class i taken for class j: colours by the share of its row, numbers where there is room."""
    size = len(labels)
    figure, (axes,) = style.new_figure(1, 1)
    inches = min(max(0.45 * size + 1.5, 4.0), 16.0)
    figure.set_size_inches(inches + 1.3, inches)
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    image = style.draw_map(axes, share, "", cmap="Blues", vmin=0.0, vmax=1.0)
    style.label_axes([axes], 1, "true class", "predicted class", range(size), labels)
    if size > 4:
        axes.tick_params(axis="x", labelrotation=90)
    for row, column in np.argwhere(counts) if size <= _READABLE else ():
        colour = "white" if share[row, column] > 0.5 else "black"
        axes.text(column, row, f"{counts[row, column]:,}", ha="center", va="center", fontsize=7, color=colour)
    style.colour_bar(figure, image, axes, "share of the true class", share)
    figure.suptitle(title, fontsize=9, parse_math=False)
    style.save(figure, path)


def draw_correlations(
    model: TrainedModel,
    terms: np.ndarray,
    sentences: Sequence[Sequence[str]],
    path: str,
    head: int | None = None,
    own_scale: bool = False,
) -> None:
    """The terms of the first attention (`analysis.correlations.TERMS`) and their sum, four panels in a row.

    terms: (4 or more, T, T). sentences: the symbols of each. head: from 1; None: the mean over the heads. own_scale: a
    colour scale for each term.
    """
    from embinit_fairseq.analysis.correlations import TERMS

    figure, panels = style.new_figure(4, 1)
    shared = style.limits(terms[:4, 1:, 1:])
    for axes, name, term in zip(panels, TERMS, terms):
        scale = style.limits(term[1:, 1:]) if own_scale else shared
        image = style.draw_map(axes, term, name, **style.colours(*scale))
        style.mark_cls(axes)
        if own_scale:
            style.colour_bar(figure, image, axes, "", term)
    style.label_axes(panels, 4, "query", "key", *_ticks(terms.shape[-1], sentences))
    if not own_scale:
        style.colour_bar(figure, image, panels, "part of the logit", terms[:4])
    of = "mean over the heads" if head is None else f"head {head}"
    over = "one sentence" if len(sentences) == 1 else f"mean over {len(sentences)} sentences"
    style.title(figure, model.path, f"{model.arch}, layer 1, {of}, {over}")
    style.save(figure, path)


def _ticks(length: int, sentences: Sequence[Sequence[str]]) -> tuple[list[int], list[str]]:
    """The words of a single short sentence, else positions."""
    if len(sentences) == 1 and length <= _READABLE:
        return list(range(length)), ["[CLS]", *sentences[0][1:]]
    return style.position_ticks(length, has_cls=True)
