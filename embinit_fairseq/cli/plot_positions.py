"""The positional correlation of every head of a trained TUPE or BERT-R, one panel a head, with the pattern by which it
attends (Ke et al. 2021, Figure 6)."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import numpy as np

from embinit_fairseq.analysis.position_patterns import PATTERNS, HeadPattern, attention, head_patterns
from embinit_fairseq.analysis.trained_model import read_model
from embinit_fairseq.cli.records import show
from embinit_fairseq.figures import add_picture_options, check_output
from embinit_fairseq.plots.maps import draw_positions

if TYPE_CHECKING:
    from embinit_fairseq.analysis.position_maps import PositionMap
    from embinit_fairseq.analysis.trained_model import TrainedModel

#: what the names of parameters begin with
PARTS = ("encoder", "decoder", "generator")
HELP = "what each head attends to by position alone"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_picture_options(parser)
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
    check_output(args.output)
    from embinit_fairseq.analysis.position_maps import position_map

    model = read_model(args.checkpoint)
    shown = position_map(model, args.part, args.length)
    patterns = head_patterns(shown.ordinary)
    draw_positions(model, shown, patterns, args.softmax, args.output)
    record = _record(model, shown, patterns, args)
    show(record, render, args.json)
    return 0


def _record(
    model: TrainedModel, shown: PositionMap, patterns: list[HeadPattern], args: argparse.Namespace
) -> dict[str, Any]:
    return {
        "checkpoint": args.checkpoint,
        "arch": model.arch,
        "encoding": shown.encoding,
        "part": shown.part,
        "length": shown.scores.shape[-1],
        "causal": shown.part == "decoder",
        "cls_untied": shown.untied,
        "picture": args.output,
        "heads": [_head_record(shown, index, pattern) for index, pattern in enumerate(patterns)],
    }


def _head_record(shown: PositionMap, index: int, pattern: HeadPattern) -> dict[str, Any]:
    scores, ordinary = shown.scores[index], shown.ordinary[index]
    seen = ordinary[np.isfinite(ordinary)]
    numbers = {"min": seen.min(), "max": seen.max(), "mean": seen.mean(), "std": seen.std()}
    if shown.has_cls:
        numbers["cls_share"] = attention(scores)[1:, 0].mean()
    if shown.untied:
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
