"""`embinit bench` in processes of their own: one that measures, one that the system kills, one that is interrupted."""

from __future__ import annotations

import json
import multiprocessing

import pytest

from embinit_fairseq.bench import process
from embinit_fairseq.cli.main import main
from embinit_fairseq.errors import EmbinitError

pytestmark = pytest.mark.end_to_end
SIZES = "--encoder-layers=1 --encoder-embed-dim=16 --encoder-ffn-embed-dim=16 --encoder-attention-heads=2".split()
NUMBERS = {"batch": 2, "length": 8, "vocabulary": 32, "warmup": 0, "beam": 1, "padding": 0.0, "decode": False}


def request(steps: int) -> process.BenchRequest:
    nothing = dict.fromkeys(("task", "precision", "user_dir"))
    return process.BenchRequest(
        name="tupe_tiny", arch="tupe_tiny", options=tuple(SIZES), device="cpu", steps=steps, **NUMBERS, **nothing
    )


def test_the_command(capfd):
    sizes = [f"--{name}={NUMBERS[name]}" for name in ("batch", "length", "vocabulary")]
    command = ["bench", "--arch", "roberta", *SIZES, *sizes, "--steps", "1", "--warmup", "1", "--device", "cpu"]
    assert main([*command, "--json"]) == 0
    (found,) = json.loads(capfd.readouterr().out)["results"].values()
    assert (found["tokens"], len(found["all_seconds"])) == (16, 1)
    assert found["memory"]["peak_mb"] > found["memory"]["libraries_mb"] > 0


@pytest.mark.parametrize("how", ["killed", "interrupted"])
def test_no_process_is_left(how):
    """on_step: when the first step was done."""

    def on_step() -> None:
        if how == "interrupted":
            raise KeyboardInterrupt
        for child in multiprocessing.active_children():
            child.kill()

    with pytest.raises(KeyboardInterrupt if how == "interrupted" else EmbinitError) as error:
        process.measured(request(steps=1000), on_step)
    assert how == "interrupted" or "a smaller --batch" in str(error.value)
    assert multiprocessing.active_children() == []
