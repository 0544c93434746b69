"""A signal ends a training after a checkpoint, and the continued training is the uninterrupted one."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from fairseq_commands import PYTHON, logged, run, script, translation

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


def stopped_at(place: str, data: Path, folder: Path, *options, number: int = signal.SIGTERM, ranks: str = "0", **variables):
    """Train until the signal. place: METHOD@UPDATE of fairseq's trainer. ranks: who gets it; "group": all of them."""
    program = folder / "train_and_stop.py"
    folder.mkdir(exist_ok=True)
    program.write_text(STOPPED)
    command = [PYTHON, program, *translation(data, folder, *OPTIONS, *options)]
    return run(command, check=False, STOP_AFTER=place, STOP_RANKS=ranks, STOP_SIGNAL=str(int(number)), **variables)


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


def test_a_job_whose_limit_comes_before_an_update_twice_in_succession_is_not_requeued_for_ever(pairs, tmp_path):
    """Each start: what Slurm says, how often it was requeued, where the signal comes, the exit status."""
    (tmp_path / "scontrol").write_text('#!/bin/sh\n[ "$4" = 7_2 ] && echo "TimeLimit=00:04:00 $TOLD"\n')
    (tmp_path / "scontrol").chmod(0o755)
    job = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    job |= {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}
    at_limit, preempted = "JobState=RUNNING PreemptTime=None", "JobState=RUNNING PreemptTime=2026-11-28T20:00:00"
    for restart, (told, place, status) in enumerate(
        [
            (at_limit, "get_train_iterator@0", 75),
            (preempted, "get_train_iterator@0", 75),
            (at_limit, "get_train_iterator@0", 75),
            (at_limit, "valid_step@6", 75),  # after updates: saved
            (at_limit, "valid_step@6", 75),  # in the same validation
            (at_limit, "valid_step@6", 78),
        ]
    ):
        job |= {"TOLD": told, "SLURM_RESTART_COUNT": str(restart)}
        stopped = stopped_at(place, pairs, tmp_path / "run", "--num-workers", "0", **job)
        assert stopped.returncode == status, (restart, stopped.stdout)
    assert re.search("its limit .00:04:00.* longer --time, .* --signal", stopped.stdout.splitlines()[-1])


def test_a_signal_to_one_process_stops_both(pairs, tmp_path):
    """After the same update, in whose checkpoint both have taken the same number of batches."""
    options = ["--num-workers", "0", "--distributed-world-size", "2"]
    stopped = stopped_at("train_step@1", pairs, tmp_path, *options, ranks="1")
    assert stopped.returncode == 75, stopped.stderr
    state = checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "checkpoint_last.pt"))
    assert state["optimizer_history"][-1]["num_updates"] == 1
    assert state["extra_state"]["train_iterator"]["iterations_in_epoch"] == 1
    assert state["extra_state"]["stopped"]
