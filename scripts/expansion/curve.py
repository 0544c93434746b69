"""Perplexities of one run by number of updates, and how far the new words changed the model before any: RUN/curve.json.

Reads RUN/start.log (fairseq-validate), RUN/train.log (fairseq-train), both with --log-format json and --criterion
word_loss, and MODEL/verify.json (`embinit expand-vocab --verify`).
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from run_result import write_json

from embinit_fairseq.runs.logs import read_log

_VALIDATION = re.compile(r"\| INFO \| valid \| (\{.*\})$", re.MULTILINE)
_KINDS = ("word", "new", "other")
Point = dict[str, float]


def point_of(values: Mapping[str, Any]) -> Point:
    """A validation's values as fairseq logs them -> nats and perplexity per word, by kind, and numbers of words."""
    nll = {kind: float(values[f"valid_{kind}_nll"]) for kind in _KINDS if f"valid_{kind}_nll" in values}
    counts = {name: int(float(values[f"valid_{name}"])) for name in ("words", "new") if f"valid_{name}" in values}
    return {
        **counts,
        **{f"{kind}_nll": value for kind, value in nll.items()},
        **{f"{kind}_ppl": math.exp(value) for kind, value in nll.items()},
    }


def read_start(log: Path) -> Point:
    """What fairseq-validate found; SystemExit if it did not."""
    found = _VALIDATION.findall(log.read_text(encoding="utf-8", errors="replace")) if log.is_file() else []
    if len(found) != 1:
        raise SystemExit(f"error: {log} has no validation: remove it and start again")
    return point_of(json.loads(found[0]))


def curve_of(run: Path, every: int, updates: int) -> dict[int, Point]:
    """Before the first update and after every `every`-th one; SystemExit where one is missing or counts other words."""
    points = {place: point_of(values) for place, values in read_log(run / "train.log").validations.items()}
    points[0] = read_start(run / "start.log")
    places = sorted({*range(0, updates + 1, every), updates})
    missing = [place for place in places if place not in points]
    if missing:
        raise SystemExit(
            f"error: {run / 'train.log'} has no validation at update {missing[0]}: was --every changed? Remove the "
            "folder and start again"
        )
    if len({(point["words"], point.get("new")) for point in points.values()}) > 1:
        raise SystemExit(f"error: {run}: validations count different words; remove the folder and start again")
    return {place: points[place] for place in places}


def divergence(model: Path) -> dict[str, Any] | None:
    """Measured KL(old || new) in nats per piece, its bound, n and k; None without new words."""
    if not (model / "expansion.json").is_file():
        return None
    record = json.loads((model / "expansion.json").read_text(encoding="utf-8"))
    found = record["verify"]["methods"][record["method"]]
    names = ("mean", "q50", "q99", "max", "bound", "new_words_probability")
    return {**{name: found[name] for name in names}, "n": record["n"], "k": record["k"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="folder of the run")
    parser.add_argument("--model", type=Path, required=True, help="folder of the model it began with")
    parser.add_argument("--every", type=int, required=True, help="updates between two validations")
    parser.add_argument("--updates", type=int, required=True, help="updates in all")
    args = parser.parse_args()
    points = curve_of(args.run, args.every, args.updates)
    record = {"curve": {str(place): point for place, point in points.items()}, "kl": divergence(args.model)}
    write_json(args.run / "curve.json", record)
    first, last = points[0], points[max(points)]
    print(f"perplexity per word: {first['word_ppl']:.2f} -> {last['word_ppl']:.2f}", file=sys.stderr)


if __name__ == "__main__":
    main()
