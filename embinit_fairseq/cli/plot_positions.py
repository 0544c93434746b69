"""The positional correlation of every head of a trained TUPE or BERT-R, one panel a head, with the pattern by which it
attends (Ke et al. 2021, Figure 6)."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from embinit_fairseq.analysis.position_patterns import PATTERNS, HeadPattern, attention, head_patterns
from embinit_fairseq.cli.vector_options import print_json
from embinit_fairseq.plots import figure as plot_figure

if TYPE_CHECKING:
    from embinit_fairseq.analysis.position_maps import PositionMap
    from embinit_fairseq.analysis.trained_model import TrainedModel

#: what the names of parameters begin with
PARTS = ("encoder", "decoder", "generator")
HELP = "what each head attends to by position alone"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    plot_figure.add_picture_options(parser)
    parser.add_argument("--length", type=int, metavar="N", help="positions; default: all of the model, 512 at most")
    parser.add_argument(
        "--part",
        choices=PARTS,
        help="of a model with several (encoder: also ELECTRA's discriminator); default: the encoder if it can",
    )
    parser.add_argument(
        "--softmax", action="store_true", help="draw the attention that the scores alone give, instead of the scores"
    )


def run(args: argparse.Namespace) -> int:
    """Read, name, draw, print."""
    plot_figure.check_output(args.output)
    from embinit_fairseq.analysis.position_maps import position_map

    model = plot_figure.read_model(args.checkpoint)
    found = position_map(model, args.part, args.length)
    patterns = head_patterns(found.ordinary)
    draw(model, found, patterns, args.softmax, args.output)
    record = _record(model, found, patterns, args)
    if args.json:
        print_json(record)
    else:
        print(render(record))
    return 0


def _record(
    model: TrainedModel, found: PositionMap, patterns: list[HeadPattern], args: argparse.Namespace
) -> dict[str, Any]:
    return {
        "checkpoint": args.checkpoint,
        "arch": model.arch,
        "encoding": found.encoding,
        "part": found.part,
        "length": found.scores.shape[-1],
        "causal": found.part == "decoder",
        "cls_untied": found.untied,
        "picture": args.output,
        "heads": [_head_record(found, index, pattern) for index, pattern in enumerate(patterns)],
    }


def _head_record(found: PositionMap, index: int, pattern: HeadPattern) -> dict[str, Any]:
    scores, ordinary = found.scores[index], found.ordinary[index]
    seen = ordinary[np.isfinite(ordinary)]
    numbers = {"min": seen.min(), "max": seen.max(), "mean": seen.mean(), "std": seen.std()}
    if found.has_cls:
        numbers["cls_share"] = attention(scores)[1:, 0].mean()
    if found.untied:
        numbers.update(from_cls=scores[0, 0], to_cls=scores[1, 0])
    measured = {key: getattr(pattern, key) for key in ("width", "keys", "direction", "distance")}
    named = {"head": index + 1, "pattern": pattern.name, "meaning": PATTERNS[pattern.name]}
    return {**named, **measured, **{name: float(value) for name, value in numbers.items()}}


def render(record: dict[str, Any]) -> str:
    """The record as a table for people."""
    lines = [
        f"{record['checkpoint']}: {record['arch']} ({record['encoding']}), {record['part']}, "
        f"{record['length']} positions, {len(record['heads'])} heads",
        "",
        f"{'head':>4}  {'pattern':<10}{'width':>8}{'keys':>8}{'direction':>11}{'distance':>10}{'sigma':>9}{'[CLS]':>8}",
    ]
    for head in record["heads"]:
        share = f"{head['cls_share']:>8.1%}" if "cls_share" in head else f"{'-':>8}"
        lines.append(
            f"{head['head']:>4}  {head['pattern']:<10}{head['width']:>8.2f}{head['keys']:>8.1f}"
            f"{head['direction']:>+11.2f}{head['distance']:>10.2f}{head['std']:>9.3g}{share}"
        )
    return "\n".join([*lines, "", f"picture: {record['picture']}"])


def draw(model: TrainedModel, found: PositionMap, patterns: list[HeadPattern], softmax: bool, path: str) -> None:
    """One panel a head."""
    num_heads, length, _ = found.scores.shape
    columns = min(num_heads, 4 if num_heads <= 16 else 6)
    figure, panels = plot_figure.new_figure(columns, math.ceil(num_heads / columns))
    values, options, label = _relative_attention(found.scores) if softmax else _plain_scores(found)
    for number, (axes, pattern) in enumerate(zip(panels, patterns)):
        image = plot_figure.draw_map(axes, values[number], f"head {number + 1}: {pattern.name}", **options)
        if found.has_cls:
            plot_figure.mark_cls(axes)
    for axes in panels[num_heads:]:
        axes.remove()
    panels = panels[:num_heads]
    ticks = plot_figure.position_ticks(length, found.has_cls)
    plot_figure.label_axes(panels, columns, "query position", "key position", *ticks)
    plot_figure.colour_bar(figure, image, panels, label, values)
    plot_figure.title(figure, model, f"{model.arch}, {found.encoding}, {found.part}")
    plot_figure.save(figure, path)


def _plain_scores(found: PositionMap) -> tuple[np.ndarray, dict[str, Any], str]:
    """One scale for all heads, made for what is not reset."""
    low, high = plot_figure.limits(found.ordinary)
    values = np.where(np.isfinite(found.scores), found.scores, np.nan)
    return values, {"cmap": "viridis", "vmin": low, "vmax": high}, "positional correlation (before the softmax)"


def _relative_attention(scores: np.ndarray) -> tuple[np.ndarray, dict[str, Any], str]:
    """Attention as a multiple of uniform attention, in logarithmic colours: white is uniform."""
    from matplotlib.colors import LogNorm

    seen = np.isfinite(scores)
    tiny = np.finfo(scores.dtype).tiny  # nothing is nothing, but its logarithm must be drawn
    values = np.where(seen, np.maximum(attention(scores) * seen.sum(axis=-1, keepdims=True), tiny), np.nan)
    factor = max(2.0, plot_figure.limits(values, share=0.002)[1])
    options = {"cmap": "RdBu_r", "norm": LogNorm(1 / factor, factor)}
    return values, options, "attention by position alone (1: uniform)"
