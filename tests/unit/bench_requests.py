"""Requests to `embinit bench` for small models, measured in this process."""

from __future__ import annotations

from embinit_fairseq.bench import process as bench_request
from embinit_fairseq.bench import train as bench_train
from embinit_fairseq.bench.steps import SMALL, model_options

TINY = {"steps": 1, "warmup": 0, "batch": 2, "length": 8, "vocabulary": 32}
LM = ["--decoder-layers=2", "--decoder-embed-dim=16", "--decoder-input-dim=16", "--decoder-output-dim=16"]
LM += ["--decoder-ffn-embed-dim=24", "--decoder-attention-heads=2"]


def request(arch: str, *options: str, **changed) -> bench_request.Request:
    asked = {"name": arch, "arch": arch, "options": options, "task": None, "padding": 0.0, "precision": None}
    asked |= {"device": "cpu", "decode": False, "beam": 2, "user_dir": None, **TINY, **changed}
    return bench_request.Request(**asked)


def small(arch: str) -> list[str]:
    """Options that make an architecture small, those of transformer_lm's own widths, too."""
    known = model_options(arch)
    own = [f"{flag}=16" for flag in ("--decoder-input-dim", "--decoder-output-dim") if flag in known]
    return [f"{flag}={value}" for flag, value in SMALL.items() if known.get(flag) is int] + own


def measured(arch: str, *options: str, **changed) -> dict:
    """What one process would report; a step is announced for each that is timed, and each before those."""
    asked, steps = request(arch, *options, **changed), []
    result = bench_train.measure(asked, lambda: steps.append(1))
    assert len(steps) == len(result["seconds"]) + asked.warmup
    return result
