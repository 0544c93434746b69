"""A signal ends a training after a checkpoint, and the continued training is the uninterrupted one."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace
from unittest import mock

import pytest
from fairseq_commands import PYTHON, logged, run, script, translation
from fairseq_compat.fixes import saved_stops
from omegaconf import OmegaConf

checkpoint_utils = pytest.importorskip("fairseq.checkpoint_utils")

#: a fairseq-train that sends itself a signal after an update: another process may come too late on a busy machine
STOPPED = """
import os
from fairseq_cli.train import Trainer, cli_main

PLACE, RANKS, SIGNAL = os.environ["STOP_AFTER"], os.environ["STOP_RANKS"], int(os.environ["STOP_SIGNAL"])
METHOD, UPDATE = PLACE.split("@")
def sending(trainer, *args, do=getattr(Trainer, METHOD), **options):
    done = do(trainer, *args, **options)
    if trainer.get_num_updates() == int(UPDATE) and str(trainer.data_parallel_rank) in RANKS:
        os.killpg(0, SIGNAL) if os.getpgid(0) == os.getpid() else os.kill(os.getpid(), SIGNAL)
    return done
setattr(Trainer, METHOD, sending)
if __name__ == "__main__":
    if "group" in RANKS and os.getpgid(0) != os.getpid():
        os.setpgid(0, 0)
    cli_main()
"""
OPTIONS = ["--max-epoch", "3", "--save-interval-updates", "2", "--dropout", "0.1"]


def stopped_at(place: str, data: Path, folder: Path, *options, number: int = signal.SIGTERM, ranks: str = "0"):
    """Train until the signal. place: METHOD@UPDATE of fairseq's trainer. ranks: who gets it; "group": all of them."""
    program = folder / "train_and_stop.py"
    folder.mkdir(exist_ok=True)
    program.write_text(STOPPED)
    command = [PYTHON, program, *translation(data, folder, *OPTIONS, *options)]
    return run(command, check=False, STOP_AFTER=place, STOP_RANKS=ranks, STOP_SIGNAL=str(int(number)))


def trained_to_the_end(data: Path, folder: Path, *options) -> CompletedProcess:
    return run([*script("fairseq-train"), *translation(data, folder, *OPTIONS, *options)])


@pytest.fixture(scope="module")
def whole(pairs, tmp_path_factory) -> CompletedProcess:
    """Three epochs of four updates."""
    return trained_to_the_end(pairs, tmp_path_factory.mktemp("whole"), "--num-workers", "0")


def losses(*logs: str) -> list[tuple[str, str, str]]:
    """Return (kind, updates, loss) of all updates, then of all validations, in several logs."""
    kinds = (("train_inner", "num_updates", "loss"), ("valid", "valid_num_updates", "valid_loss"))
    return [
        (kind, updates, loss)
        for kind, number, name in kinds
        for log in logs
        for updates, loss in zip(logged(log, kind, number), logged(log, kind, name))
    ]


@pytest.mark.parametrize(
    ("place", "number", "ranks", "workers"),
    [
        ("train_step@3", signal.SIGTERM, "group 0", 2),  # the workers of the data loader get it as well
        ("valid_step@6", signal.SIGTERM, "0", 0),  # within a validation, which is repeated
        ("train_step@8", signal.SIGUSR1, "0", 0),  # at the end of an epoch
        ("train_step@12", signal.SIGUSR1, "0", 0),  # after the last update
    ],
)
def test_continued_is_uninterrupted(place, number, ranks, workers, pairs, whole, tmp_path):
    stopped = stopped_at(place, pairs, tmp_path, "--num-workers", workers, number=number, ranks=ranks)
    assert stopped.returncode == 75, stopped.stderr
    assert "done training" not in stopped.stdout
    assert re.findall(r"updates, score (\S+)\)", stopped.stdout)[-1] == "None"  # saved without a validation
    continued = trained_to_the_end(pairs, tmp_path, "--num-workers", workers)
    assert "done training" in continued.stdout
    assert losses(stopped.stdout, continued.stdout) == losses(whole.stdout)


def test_before_the_first_update_there_is_nothing_to_save(pairs, tmp_path):
    stopped = stopped_at("get_train_iterator@0", pairs, tmp_path, "--num-workers", "0")
    assert stopped.returncode == 75
    assert not list(tmp_path.glob("*.pt"))


def test_a_signal_to_one_process_stops_both(pairs, tmp_path):
    """After the same update, in whose checkpoint both have taken the same number of batches."""
    options = ["--num-workers", "0", "--distributed-world-size", "2"]
    stopped = stopped_at("train_step@1", pairs, tmp_path, *options, ranks="1")
    assert stopped.returncode == 75, stopped.stderr
    state = checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "checkpoint_last.pt"))
    assert state["optimizer_history"][-1]["num_updates"] == 1
    assert state["extra_state"]["train_iterator"]["iterations_in_epoch"] == 1
    assert state["extra_state"]["stopped"]


# ---- The limit of a job ---------------------------------------------------------------------------------------------

AT_LIMIT = "JobState=RUNNING PreemptTime=None TimeLimit=00:04:00"
PREEMPTED = AT_LIMIT.replace("None", "2026-11-28T20:00:00")


@pytest.fixture
def stop(monkeypatch, tmp_path):
    """Stop a training of task 2 of job 7; return its exit status and what the log says."""
    said = []
    trainer = mock.Mock(**{"get_num_updates.return_value": 3, "data_parallel_world_size": 1})
    cfg = OmegaConf.create({"checkpoint": {"save_dir": str(tmp_path / "run"), "no_save": False}})
    cfg.checkpoint.write_checkpoints_asynchronously = False
    for name, value in (("cfg", cfg), ("loaded", 3), ("current", (cfg, None)), ("requested", True), ("begun", False)):
        monkeypatch.setattr(saved_stops.State, name, value)
    for level in ("info", "error"):
        monkeypatch.setattr(saved_stops.logger, level, said.append)
    monkeypatch.setattr(saved_stops.shutil, "which", lambda name: name)

    def call(told: str, restart: int, made: int = 0, **options) -> tuple[int, str]:
        """told: by scontrol. made: updates since the start; None: none was begun."""
        cfg.checkpoint.update(options)
        job = {"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}
        monkeypatch.setattr(os, "environ", {**os.environ, **job, "SLURM_RESTART_COUNT": str(restart)})
        answer = {("scontrol", "--oneliner", "show", "job", "7_2"): told}
        run = lambda command, **how: SimpleNamespace(stdout=answer.get(tuple(command), ""))  # noqa: E731
        monkeypatch.setattr(saved_stops.subprocess, "run", run)
        trainer.get_num_updates.return_value = 3 + (made or 0)
        signalled, arguments = saved_stops.leave_if_requested, (trainer, call.checkpoint_utils)
        if made is None:
            signalled, arguments = saved_stops.request, (signal.SIGUSR1, None)
        with pytest.raises(SystemExit) as left:
            signalled(*arguments)
        return left.value.code, said[-1]

    call.checkpoint_utils = mock.Mock()
    return call


@pytest.mark.parametrize("made", [None, 0])  # before the first update; in a validation that was due before it
def test_a_limit_that_comes_before_an_update_twice_in_succession_ends_the_job(stop, made):
    statuses = [stop(told, restart, made)[0] for restart, told in enumerate([AT_LIMIT, PREEMPTED, AT_LIMIT])]
    assert statuses == [75, 75, 75]
    assert stop(AT_LIMIT, 3, made=1)[0] == 75
    assert stop.checkpoint_utils.save_checkpoint.call_count == 1
    assert stop(AT_LIMIT, 4, made)[0] == 75
    for _ in range(2):  # all processes of a training say the same
        status, line = stop(AT_LIMIT, 5, made)
        assert status == 78
        assert re.search("00:04:00.* longer --time, or a --signal", line)
    assert stop(PREEMPTED, 5, made)[0] == 75
    assert stop("", 5, made)[0] == 75  # scontrol fails


def test_nothing_is_saved_with_no_save(stop):
    assert [stop(AT_LIMIT, restart, made=5, no_save=True)[0] for restart in (0, 1)] == [75, 78]
    stop.checkpoint_utils.save_checkpoint.assert_not_called()


@pytest.mark.parametrize(("program", "handles"), [("/bin/fairseq-train", True), ("/bin/pytest", False)])
def test_signals_are_handled_while_the_program_imports_torch(program, handles, monkeypatch, tmp_path):
    before = {number: signal.signal(number, signal.SIG_DFL) for number in saved_stops.SIGNALS}  # other tests' too
    monkeypatch.setattr(saved_stops.State, "cfg", None)
    monkeypatch.setattr(sys, "argv", [program, "data", "--save-dir", str(tmp_path), "--lr", "1"])
    try:
        with saved_stops.executing(SimpleNamespace(__name__="fairseq_cli.train")):
            assert (signal.getsignal(signal.SIGTERM) is saved_stops.request) == handles
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert saved_stops.save_dir() == tmp_path
