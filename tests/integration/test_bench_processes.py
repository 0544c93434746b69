"""`embinit bench` in processes of their own: one that measures, one that the system kills, one that is interrupted."""

from __future__ import annotations

import multiprocessing

import pytest

from embinit_fairseq.bench import process
from embinit_fairseq.errors import EmbinitError

pytestmark = pytest.mark.end_to_end
SIZES = "--encoder-layers=1 --encoder-embed-dim=16 --encoder-ffn-embed-dim=16 --encoder-attention-heads=2".split()
NUMBERS = {"batch": 2, "length": 8, "vocabulary": 32, "warmup": 0, "beam": 1, "padding": 0.0, "decode": False}


def test_the_command(printed):
    sizes = [f"--{name}={NUMBERS[name]}" for name in ("batch", "length", "vocabulary")]
    found = printed("bench", "--arch", "roberta", *SIZES, *sizes, "--steps", 1, "--warmup", 1, "--device", "cpu")
    (result,) = found["results"].values()
    assert (result["tokens"], len(result["all_seconds"])) == (16, 1)
    assert result["memory"]["peak_mb"] > result["memory"]["libraries_mb"] > 0


@pytest.mark.parametrize("expected", [EmbinitError, KeyboardInterrupt])
def test_no_process_is_left(expected):
    def on_step() -> None:
        if expected is KeyboardInterrupt:
            raise KeyboardInterrupt
        for child in multiprocessing.active_children():
            child.kill()

    asked = {**dict.fromkeys(("name", "arch"), "tupe_tiny"), "options": tuple(SIZES), "device": "cpu", "steps": 1000}
    asked |= dict.fromkeys(("task", "precision", "user_dir"))
    with pytest.raises(expected):
        process.measured(process.BenchRequest(**asked, **NUMBERS), on_step)
    assert multiprocessing.active_children() == []
