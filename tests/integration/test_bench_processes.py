"""`embinit bench` in processes of their own: one that measures, one that the system kills, one that is interrupted."""

from __future__ import annotations

import json
import multiprocessing

import pytest

from embinit_fairseq.bench import process, report
from embinit_fairseq.cli.main import main
from embinit_fairseq.errors import EmbinitError

pytestmark = pytest.mark.end_to_end
SHAPE = "--encoder-layers=1 --encoder-embed-dim=16 --encoder-ffn-embed-dim=16 --encoder-attention-heads=2"
NUMBERS = {"batch": 2, "length": 8, "vocabulary": 32, "warmup": 0}


def test_the_command_compares_and_estimates(capfd):
    sizes = [f"--{name}={value}" for name, value in {**NUMBERS, "steps": 2, "turns": 1}.items()]
    training = ["--updates", "100", "--tokens-per-update", "1600", "--gpus", "4", "--scaling", "0.5"]
    other = f"tupe_tiny {SHAPE} --rel-pos"
    archs = ["--arch", f"roberta {SHAPE}", "--dropout", "0.0", "--compare", other]
    assert main(["bench", *archs, *sizes, *training, "--device", "cpu", "--json"]) == 0
    record = json.loads(capfd.readouterr().out)
    first, second = record["results"].values()
    assert list(record["results"])[1] == other
    assert (record["options"], len(first["all_seconds"]), first["tokens"]) == (["--dropout", "0.0"], 2, 16)
    median = first["seconds"]["median"]
    assert first["tokens_per_second"] == pytest.approx(16 / median)
    assert record["relative"]["seconds"][other] == pytest.approx(second["seconds"]["median"] / median)
    hours = 100 * 1600 / (second["tokens_per_second"] * 4 * 0.5) / 3600
    assert record["estimate"][other]["hours"] == pytest.approx(hours)
    assert first["memory"]["peak_mb"] > first["memory"]["libraries_mb"] > 0
    text = report.render(record)
    for expected in ("tokens/s", "measured here", "estimate, not a measurement", "eager", "against roberta"):
        assert expected in text


@pytest.mark.parametrize(("how", "error"), [("killed", EmbinitError), ("interrupted", KeyboardInterrupt)])
def test_no_process_is_left(how, error):
    """When the first step was done."""

    def on_step() -> None:
        if how == "interrupted":
            raise KeyboardInterrupt
        for child in multiprocessing.active_children():
            child.kill()

    given = {**dict.fromkeys(process.BenchRequest.__annotations__), **NUMBERS, "padding": 0.0, "steps": 1000}
    given |= {"name": "tupe_tiny", "arch": "tupe_tiny", "options": tuple(SHAPE.split()), "device": "cpu"}
    with pytest.raises(error, match="a smaller --batch" if how == "killed" else None):
        process.measured(process.BenchRequest(**given), on_step)
    assert multiprocessing.active_children() == []
