"""embinit run with the real fairseq-train: killed and continued, stopped, refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from programs import PYTHON
from trainings import SAVE_OFTEN, TRAIN, losses, model_of, same

OPTIONS = [*TRAIN, "--max-epoch", "3", "--validate-interval-updates", "8", *SAVE_OFTEN]
#: a fairseq-train that stops itself (SIGSTOP) before an update, so that signals come at a known moment
STOPPING = """#!{python}
import os
from fairseq.trainer import Trainer
from fairseq_cli.train import cli_main
def step(trainer, *args, do=Trainer.train_step, **options):
    if trainer.get_num_updates() == 7:
        print(os.getpid(), file=open(__file__ + ".pid", "w"), flush=True)
        os.kill(os.getpid(), {signal})
    return do(trainer, *args, **options)
Trainer.train_step = step
cli_main()
"""

pytestmark = pytest.mark.end_to_end


def command(run: Path, *training: str) -> list[str]:
    return [PYTHON, "-m", "embinit_fairseq.cli.main", "run", str(run), "--", *training]


def call(data: Path, run: Path, *options: str, code: int = 0) -> subprocess.CompletedProcess:
    training = [PYTHON, "-m", "fairseq_cli.train", str(data), *OPTIONS, *options]
    done = subprocess.run(command(run, *training), capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done


def start(data: Path, run: Path) -> tuple[subprocess.Popen, int]:
    """A run whose training has stopped itself, and the training's process id."""
    program = run.parent / "fairseq-train"
    program.write_text(STOPPING.format(python=PYTHON, signal=int(signal.SIGSTOP)))
    program.chmod(0o755)
    process = subprocess.Popen(command(run, str(program), str(data), *OPTIONS), stderr=subprocess.PIPE, text=True)
    file, deadline = Path(f"{program}.pid"), time.time() + 600
    while not file.is_file() or ") T " not in Path(f"/proc/{file.read_text().strip()}/stat").read_text():
        assert process.poll() is None, process.stderr.read()
        assert time.time() < deadline
        time.sleep(0.1)
    return process, int(file.read_text())


def test_killed_and_continued_is_as_if_nothing_had_been(toy_translation, tmp_path) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert "best valid_loss" in call(toy_translation, whole).stdout
    process, training = start(toy_translation, run)
    process.send_signal(signal.SIGKILL)
    process.wait()
    said = call(toy_translation, run, code=2).stderr  # the training holds the lock
    (session,) = json.loads((run / "training.json").read_text())["sessions"]
    assert f"another call is training in this folder, process {session['process']} on {session['host']}; " in said
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
    process, training = start(toy_translation, tmp_path / "run")
    process.send_signal(signal.SIGTERM)
    while not is_pending(training):
        assert process.poll() is None, "it does not wait for the training"
        time.sleep(0.1)
    os.kill(training, signal.SIGCONT)
    assert process.wait(600) == 75  # saved first
    (session,) = json.loads((tmp_path / "run/training.json").read_text())["sessions"]
    assert session["exit"] == 75
    assert (tmp_path / "run/checkpoints/checkpoint_last.pt").is_file()
    error = call(toy_translation, tmp_path / "failed", "--no-such-option", code=2).stderr
    assert "unrecognized arguments: --no-such-option" in error.splitlines()[-1]  # the line that a grid quotes
    assert "usage" not in error
    assert f"{tmp_path / 'failed'}/train.log" in error


def test_fairseqs_own_trackers_continue_with_the_run(toy_translation, tmp_path, monkeypatch) -> None:
    """TensorBoard's steps, and Weights & Biases offline: two sessions with the id of one run."""
    pytest.importorskip("wandb", reason="wandb is not installed")
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = tmp_path / "run"
    options = ["--wandb-project", "p", "--tensorboard-logdir", str(run / "tensorboard"), "--max-epoch"]
    for epochs in ("1", "2"):
        call(toy_translation, run, *options, epochs)
    run_id = json.loads((run / "result.json").read_text())["wandb_run_id"]
    sessions = [path.name for path in (run / "wandb").glob("offline-run-*/*.wandb")]  # others have logs only
    assert sessions == [f"run-{run_id}.wandb"] * 2
    assert len(list((run / "tensorboard/train").glob("events.*"))) == 2
    assert (run / "train.log").read_text().count("done training") == 2


def is_pending(process: int) -> bool:
    """SIGTERM waits for the process."""
    status = Path(f"/proc/{process}/status").read_text().splitlines()
    masks = [line.split()[1] for line in status if line.startswith(("SigPnd", "ShdPnd"))]
    return any(int(mask, 16) >> (signal.SIGTERM - 1) & 1 for mask in masks)
