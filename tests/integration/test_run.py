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

from embinit_fairseq.cli.main import main
from embinit_fairseq.runs import process

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


def test_a_word_where_a_training_is_silent(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/dict.txt").write_text("a 1\n")
    program, said, beat = tmp_path / "fairseq-train", tmp_path / "said", process.Pulse.beat
    program.write_text(f"#!/bin/bash\nfor _ in {{1..600}}; do [[ ! -e {said} ]] || exit; sleep 0.1; done\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(process, "SILENCE", 0.0)
    monkeypatch.setattr(process.Pulse, "beat", lambda pulse: [beat(pulse), said.touch()])
    assert main(["run", str(tmp_path / "run"), "--", "fairseq-train", str(tmp_path / "bin")]) == 1
    assert "embinit run: the training starts, " in capsys.readouterr().err


def test_killed_and_continued_is_as_if_nothing_had_been(toy_translation, whole, tmp_path) -> None:
    run = tmp_path / "run"
    process = start(toy_translation, run, at_update=7)
    training = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
    os.kill(training, signal.SIGSTOP)  # else it could end before the other call begins
    assert "another call is training in this folder" in call(toy_translation, run, code=2).stderr
    process.send_signal(signal.SIGKILL)
    process.wait()
    os.kill(training, signal.SIGCONT)  # for the SIGTERM that it gets with the end of its parent
    assert not (run / "result.json").exists()
    call(toy_translation, run)
    expected, found = (losses((folder / "train.log").read_text()) for folder in (whole, run))
    assert found == expected
    assert same(*(model_of(folder / "checkpoints/checkpoint_last.pt") for folder in (whole, run)))
    first, second = (json.loads((folder / "result.json").read_text()) for folder in (whole, run))
    assert first["best"] == second["best"]
    assert [session["exit"] for session in second["sessions"]] == [None, 0]
    assert 0 < second["sessions"][1]["cpu_s"] <= os.cpu_count() * second["sessions"][1]["wall_s"]
    # lost are at most the validations right before the kill, whose note was not yet written
    assert max(second["times"], key=int) == max(first["times"], key=int)
    assert set(second["times"]) <= set(first["times"])
    seconds = [second["times"][updates]["cpu_s"] for updates in sorted(second["times"], key=int)]
    assert seconds == sorted(seconds)
    assert "finished before" in call(toy_translation, run).stderr


def test_signals_reach_the_training_and_failures_say_why(toy_translation, tmp_path) -> None:
    process = start(toy_translation, tmp_path / "run", at_update=3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(600) == 128 + signal.SIGTERM
    (session,) = json.loads((tmp_path / "run/training.json").read_text())["sessions"]
    assert session["exit"] == 128 + signal.SIGTERM
    # the processes of the training have gone: nothing holds the log any longer
    call(toy_translation, tmp_path / "run", "--max-epoch", "1")
    error = call(toy_translation, tmp_path / "failed", "--no-such-option", code=2).stderr
    assert "unrecognized arguments: --no-such-option" in error
    assert "usage" not in error
    assert f"{tmp_path / 'failed'}/train.log" in error


def test_logs_of_all_formats_and_save_directories_agree(toy_translation, tmp_path, printed) -> None:
    every_epoch = [word for word in TRAIN if word != "--no-epoch-checkpoints"]
    for name in ("json", "simple", "tqdm"):
        options = ["--max-epoch", "2", "--save-dir", str(tmp_path / name), "--log-format", name]
        options += ["--log-file", str(tmp_path / f"{name}.file.log")]
        with (tmp_path / f"{name}.log").open("w") as log:
            train = [PYTHON, "-m", "fairseq_cli.train", str(toy_translation), *every_epoch, *options]
            subprocess.run(train, check=True, stdout=log, stderr=subprocess.STDOUT)
    sources = ["json.log", "json.file.log", "simple.log", "simple.file.log", "tqdm.log", "json"]
    (table,) = printed("compare", *(f"{name}={tmp_path / name}" for name in sources))["tables"]
    first, *others = (row["mean"] for row in table["rows"])
    assert (list(first), others) == (["1", "2"], [first] * 5)
