"""embinit run, score and compare with the real fairseq-train: killed and continued, refused, translated and scored."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from programs import PYTHON
from trainings import SAVE_OFTEN, TRAIN, losses, model_of, same

EPOCHS = ["--max-epoch", "30", "--validate-interval-updates", "8", *SAVE_OFTEN]

pytestmark = pytest.mark.end_to_end


def command(data: Path, run: Path, *options: str, python: str = PYTHON) -> list[str]:
    train = [python, "-m", "fairseq_cli.train", str(data), *TRAIN, *EPOCHS, *options]
    return [sys.executable, "-m", "embinit_fairseq.cli.main", "run", str(run), "--", *train]


def start(data: Path, run: Path, at_update: int) -> subprocess.Popen:
    """A run in processes of its own that has come to an update."""
    process = subprocess.Popen(command(data, run, python=sys.executable), stderr=subprocess.PIPE, text=True)
    log, deadline = run / "train.log", time.time() + 600
    while not (log.is_file() and f'"num_updates": "{at_update}"' in log.read_text()):
        assert process.poll() is None, process.stderr.read()
        assert time.time() < deadline
        time.sleep(0.02)
    return process


def call(data: Path, run: Path, *options: str, code: int = 0) -> subprocess.CompletedProcess:
    done = subprocess.run(command(data, run, *options), capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture(scope="module")
def whole(toy_translation, tmp_path_factory) -> Path:
    """An uninterrupted run."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    assert "best valid_loss" in call(toy_translation, run).stdout
    return run


def test_killed_and_continued_is_as_if_nothing_had_been(toy_translation, whole, tmp_path) -> None:
    run = tmp_path / "run"
    process = start(toy_translation, run, at_update=7)
    training = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
    os.kill(training, signal.SIGSTOP)  # else it could end before the other call begins
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert "another call is training in this folder" in call(toy_translation, run, code=2).stderr  # it holds the lock
    os.kill(training, signal.SIGKILL)
    assert not (run / "result.json").exists()
    call(toy_translation, run)
    expected, found = (losses((folder / "train.log").read_text()) for folder in (whole, run))
    assert found == expected
    assert same(*(model_of(folder / "checkpoints/checkpoint_last.pt") for folder in (whole, run)))
    first, second = (json.loads((folder / "result.json").read_text()) for folder in (whole, run))
    assert first["best"] == second["best"]
    assert [session["exit"] for session in second["sessions"]] == [None, 0]
    assert 0 < second["sessions"][1]["cpu_s"] <= os.cpu_count() * second["sessions"][1]["wall_s"]
    assert "cpu_s" not in second["time"], "that of the first session is not known"
    assert set(second["times"]) == set(first["times"])
    seconds = [second["times"][updates]["wall_s"] for updates in sorted(second["times"], key=int)]
    assert seconds == sorted(seconds)
    assert "finished before" in call(toy_translation, run).stderr


def test_signals_reach_the_training_and_failures_say_why(toy_translation, tmp_path) -> None:
    process = start(toy_translation, tmp_path / "run", at_update=3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(600) == 75  # saved first
    (session,) = json.loads((tmp_path / "run/training.json").read_text())["sessions"]
    assert session["exit"] == 75
    # the processes of the training have gone: nothing holds the log any longer
    call(toy_translation, tmp_path / "run", "--max-epoch", "1")
    error = call(toy_translation, tmp_path / "failed", "--no-such-option", code=2).stderr
    assert "unrecognized arguments: --no-such-option" in error
    assert "usage" not in error
    assert f"{tmp_path / 'failed'}/train.log" in error
