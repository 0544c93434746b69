"""Draw the positional correlation of every head of a trained TUPE or BERT-R, one panel per head, with the pattern by
which the head attends (Ke et al. 2021, Figure 6)."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import numpy as np

from embinit_fairseq.analysis.trained_model import read_model
from embinit_fairseq.cli.print_records import number, show, table
from embinit_fairseq.figures import check_output

if TYPE_CHECKING:
    from embinit_fairseq.analysis.positions import HeadPattern, PositionMap

HELP = "positions that each head attends to, whatever the words"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("--checkpoint", required=True, metavar="FILE.pt", help="written by fairseq-train")
    add("--length", type=int, metavar="N", help="positions; default: all of the model, 512 at most")
    part = "part of the model (encoder: also ELECTRA's discriminator); default: the encoder if it has positions"
    add("--part", choices=("encoder", "decoder", "generator"), help=part)
    add("--softmax", action="store_true", help="draw the attention by the scores alone instead of the scores")
    add("--output", required=True, metavar="FILE.png", help="the figure")
    add("--json", action="store_true", help="print one JSON object instead of a table")


def run(args: argparse.Namespace) -> int:
    """Read, name, draw, print."""
    check_output(args.output)
    from embinit_fairseq.analysis.positions import draw_positions, head_patterns, position_map

    model = read_model(args.checkpoint)
    shown = position_map(model, args.part, args.length)
    patterns = head_patterns(shown.ordinary)
    draw_positions(model, shown, patterns, args.softmax, args.output)
    record = {
        "checkpoint": args.checkpoint,
        "arch": model.arch,
        "encoding": shown.encoding,
        "part": shown.part,
        "length": shown.scores.shape[-1],
        "causal": shown.part == "decoder",
        "cls_untied": shown.untied,
        "left_out": shown.left_out,
        "picture": args.output,
        "heads": [_head_record(shown, index, pattern) for index, pattern in enumerate(patterns)],
    }
    show(record, render, args.json)
    return 0


def _head_record(shown: PositionMap, index: int, pattern: HeadPattern) -> dict[str, Any]:
    from embinit_fairseq.analysis.positions import PATTERNS, attention

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
    """Return the record as text."""
    forms = {"width": ".2f", "keys": ".1f", "direction": "+.2f", "distance": ".2f", "std": ".3g", "cls_share": ".1%"}
    cells = [["head", "pattern", "width", "keys", "direction", "distance", "sigma", "[CLS]"]]
    for head in record["heads"]:
        numbers = [number(head.get(key), form) for key, form in forms.items()]
        cells.append([str(head["head"]), head["pattern"], *numbers])
    title = (
        f"{record['checkpoint']}: {record['arch']} ({record['encoding']}), {record['part']}, "
        f"{record['length']} positions, {len(record['heads'])} heads"
    )
    left_out = [f"not in the map: {record['left_out']}"] if record["left_out"] else []
    return "\n".join([title, *left_out, "", *table(cells), "", f"figure: {record['picture']}"])
