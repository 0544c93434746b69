"""SIGTERM and SIGUSR1 end a training without saving it.

Symptom: SIGTERM or SIGUSR1, by which a cluster announces that it takes the machine back, ends a training at once; all
    work since its last checkpoint is lost.
Where: fairseq_cli/train.py:306 (``validate_and_save``), :257 (``train``).
Remedy: the signal is remembered. After the next update, or the next batch of a validation, all processes stop together:
    a checkpoint is written, without a validation, and the exit status is 75. When the training continues, a validation
    that was due at that update is made first, so that losses and checkpoints equal an uninterrupted training.
    Workers of the data loader, which a signal to the whole job reaches as well, continue. A signal before the first
    update ends the process with status 75 at once, also while fairseq-train imports torch. When the limit of a Slurm
    job comes before an update is saved, twice in succession, the status is 78: the job would be requeued for ever.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from fairseq_compat.patches import shadow, wrap

BROKEN = r"def validate_and_save\(|def call_main\(|class EpochBatchIterator\("
#: exit status of a training that was stopped and can continue (EX_TEMPFAIL of sysexits.h)
STATUS = 75
#: exit status of a training whose job has too short a limit for progress (EX_CONFIG)
TOO_SHORT = 78
#: file in --save-dir: the job, and the number of its start, that reached its limit before an update was saved
NOTE = "stopped_before_update"
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
logger = logging.getLogger(__name__)


class State:
    """Hold the state of the training in this process.

    Attributes:
        requested: True after a signal.
        begun: True once updates are made.
        cfg: configuration.
        loaded: number of updates of the loaded checkpoint.
        pending: True if a stop wrote the loaded checkpoint, and its validation is still missing.
        last_losses: losses of this validation if the training ends with it.
        current: (configuration, iterator of the epoch) of the last update.
        leaving: the end of the process, at the end of an epoch whose means are still to be logged.
    """

    requested = False
    begun = False
    cfg: Any = None
    loaded = 0
    pending = False
    last_losses: list[Any] | None = None
    current: tuple[Any, Any] | None = None
    leaving: SystemExit | None = None


# ---- The training ---------------------------------------------------------------------------------------------------


def patch_training(module) -> None:
    """Let the loop of a training look for a stop after each update and each batch of a validation."""
    loop = Loop(module)

    @wrap(module)
    def main(original, cfg, *args, **kwargs):
        handle_signals(cfg)
        return original(cfg, *args, **kwargs)

    shadow(module, "checkpoint_utils.load_checkpoint", loop.load_checkpoint)
    module.train, module.validate_and_save = loop.train, loop.validate_and_save


class Loop:
    """Replace fairseq's functions of a training by functions of the same names that look for a stop."""

    def __init__(self, module) -> None:
        self.inner_train, self.inner_validate_and_save = module.train, module.validate_and_save
        self.checkpoint_utils, self.inner_load = module.checkpoint_utils, module.checkpoint_utils.load_checkpoint

    def load_checkpoint(self, checkpoint_cfg, trainer, **kwargs):
        """Load; if the training was stopped at the end of an epoch, make the validation that was due."""
        extra_state, epoch_itr = self.inner_load(checkpoint_cfg, trainer, **kwargs)
        State.loaded = trainer.get_num_updates()

        @wrap(trainer)
        def valid_step(original, *args, **kwargs):
            leave_if_requested(trainer, self.checkpoint_utils)
            return original(*args, **kwargs)

        at_start = epoch_itr.epoch == 1 and epoch_itr.iterations_in_epoch == 0  # also with --reset-dataloader
        if extra_state is None or not extra_state.get("stopped") or at_start:
            return extra_state, epoch_itr
        State.pending = True
        if epoch_itr.iterations_in_epoch == 0:
            ended = EndedEpoch(extra_state["train_iterator"])
            losses = self.validate_pending(trainer, ended, end_of_epoch=True)
            trainer.lr_step(ended.epoch, losses[0])
            trainer.lr_step(epoch_itr.epoch)  # as fairseq does when it begins
        return extra_state, epoch_itr

    def train(self, cfg, trainer, task, epoch_itr):
        """Train for an epoch; if the training was stopped within it, make the validation that was due before."""
        State.begun = True
        if State.pending:

            @wrap(trainer)
            def begin_epoch(original, epoch):  # here the iterator is at the batch of the stop
                del trainer.begin_epoch
                original(epoch)
                self.validate_pending(trainer, epoch_itr, end_of_epoch=False)
                if State.last_losses is not None:
                    raise Finished

        try:
            if State.last_losses is not None:
                raise Finished
            done = self.inner_train(cfg, trainer, task, epoch_itr)
        except Finished:
            return State.last_losses, True
        if State.leaving is not None:
            raise State.leaving
        return done

    def validate_pending(self, trainer, epoch_itr, end_of_epoch: bool):
        """Return the losses of the validation that was due when the training was stopped; [None] if none was."""
        State.pending, cfg = False, trainer.cfg
        subsets = cfg.dataset.valid_subset.split(",")
        losses, should_stop = self.validate_and_save(cfg, trainer, trainer.task, epoch_itr, subsets, end_of_epoch)
        State.last_losses = losses if should_stop else None
        return losses

    def validate_and_save(self, cfg, trainer, task, epoch_itr, valid_subsets, end_of_epoch):
        """Validate and save after an update, unless a stop was requested."""
        State.current = cfg, epoch_itr
        try:
            leave_if_requested(trainer, self.checkpoint_utils)
            return self.inner_validate_and_save(cfg, trainer, task, epoch_itr, valid_subsets, end_of_epoch)
        except SystemExit as leaving:
            if not end_of_epoch or isinstance(epoch_itr, EndedEpoch):
                raise
            State.leaving = leaving
            return [None], True


class EndedEpoch:
    """Replace the iterator of an epoch that has ended, for the validation and the checkpoint at its end."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state, self.epoch = state, state["epoch"] - 1

    def end_of_epoch(self) -> bool:
        return True

    def state_dict(self) -> dict[str, Any]:
        return self.state


class Finished(Exception):
    """Signal that the training had made its last update before it was stopped."""


def leave_if_requested(trainer, checkpoint_utils) -> None:
    """Save and end the process if a signal reached any process of the training."""
    if State.current is None or not requested_anywhere(trainer):
        return
    cfg, epoch_itr = State.current
    if cfg.checkpoint.no_save or trainer.get_num_updates() == State.loaded:  # a validation that was due
        leave_without_progress()
    save = trainer.save_checkpoint
    trainer.save_checkpoint = lambda name, extra_state: save(name, {**extra_state, "stopped": True})
    checkpoint_utils.save_checkpoint(cfg.checkpoint, trainer, epoch_itr, None)
    if cfg.checkpoint.write_checkpoints_asynchronously:
        from fairseq.file_io import PathManager

        PathManager.async_close()
    if trainer.data_parallel_world_size > 1:  # the others wait for the process that writes
        import torch

        torch.distributed.barrier()
    logger.info(f"stopped after {trainer.get_num_updates()} updates; the same command continues (exit status {STATUS})")
    raise SystemExit(STATUS)


def leave_without_progress() -> None:
    """End the process when no update can be saved, with TOO_SHORT if this start and the last one reached the limit."""
    job, start = os.environ.get("SLURM_JOB_ID"), int(os.environ.get("SLURM_RESTART_COUNT", 0))
    limit = limit_of_job()
    if limit is not None:
        note = save_dir() / NOTE
        if note.exists() and note.read_text() == f"{job} {start - 1}":
            logger.error(
                f"job {job}: its limit ({limit}) came before an update was saved, as at its start before; give sbatch "
                f"a longer --time, or a --signal that comes later (exit status {TOO_SHORT})"
            )
            raise SystemExit(TOO_SHORT)
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(f"{job} {start}")
    logger.info(f"stopped before an update was saved; the same command starts again (exit status {STATUS})")
    raise SystemExit(STATUS)


def save_dir() -> Path:
    """Return --save-dir, also before fairseq has read its options."""
    if State.cfg is not None:
        return Path(State.cfg.checkpoint.save_dir)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--save-dir", default="checkpoints")
    return Path(parser.parse_known_args()[0].save_dir)


def limit_of_job() -> str | None:
    """Return the time limit of this process's Slurm job; None without a job, or if Slurm preempts the job."""
    job, array = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_ARRAY_JOB_ID")
    if array:  # the number of its last job is that of the array, too
        job = f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    if not job or shutil.which("scontrol") is None:
        return None
    command = ["scontrol", "--oneliner", "show", "job", job]
    words = subprocess.run(command, capture_output=True, text=True).stdout.split()
    state = dict(word.split("=", 1) for word in words if "=" in word)
    is_running = state.get("JobState") == "RUNNING" and state["PreemptTime"] == "None"
    return state["TimeLimit"] if is_running else None


def requested_anywhere(trainer) -> bool:
    """Return True if a signal reached this process or, with several, any other."""
    import torch
    from fairseq.distributed import utils

    if not torch.distributed.is_initialized():
        return State.requested
    flag = torch.tensor([float(State.requested)], device=trainer.device)
    utils.all_reduce(flag, group=utils.get_global_group())
    return bool(flag.item())


# ---- Signals --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def executing(module):
    """Handle signals also while fairseq-train imports torch and fairseq: Slurm ends a job that a signal kills."""
    if module.__name__ == "fairseq_cli.train" and sys.argv[0].endswith(("fairseq-train", "fairseq_cli/train.py")):
        handle_signals(None)
    yield


def handle_signals(cfg) -> None:
    """Remember signals instead of ending; only the main thread of a process can ask for that."""
    State.cfg = cfg
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            signal.signal(number, request)


def request(number: int, frame: object) -> None:
    """Remember the signal and send it to fairseq's processes for further devices."""
    processes = [child.pid for child in multiprocessing.active_children() if not child.daemon and child.pid is not None]
    for process in processes:
        os.kill(process, number)
    is_first, State.requested = not State.requested, True
    if not State.begun and not processes:
        leave_without_progress()
    if is_first:
        logger.info(f"{signal.Signals(number).name}: stops after this update, with a checkpoint")


def patch_processes(module) -> None:
    """Let the process that starts one process per device send it signals, and end with its status."""

    @wrap(module)
    def call_main(original, cfg, main, **kwargs):
        if getattr(main, "__module__", None) != "fairseq_cli.train":
            return original(cfg, main, **kwargs)
        from torch.multiprocessing import ProcessExitedException

        handle_signals(cfg)
        try:
            return original(cfg, main, **kwargs)
        except ProcessExitedException as error:
            if error.exit_code in (STATUS, TOO_SHORT):
                raise SystemExit(error.exit_code) from error
            raise


def patch_workers(module) -> None:
    """Let the workers of the data loader survive a signal to the whole job."""
    loader = module.torch.utils.data.DataLoader

    def data_loader(*args, **kwargs):
        return loader(*args, **{"worker_init_fn": ignore_signals, **kwargs})

    shadow(module, "torch.utils.data.DataLoader", data_loader)


def ignore_signals(worker: int) -> None:
    """Ignore SIGNALS in a worker of the data loader unless its own process sends them, which ends it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # a handler could not tell who sends; torch's ends the worker
    parent = os.getppid()

    def wait() -> None:
        while signal.sigwaitinfo(SIGNALS).si_pid != parent:
            pass
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


PATCHES = {
    "fairseq_cli.train": patch_training,
    "fairseq.distributed.utils": patch_processes,
    "fairseq.data.iterators": patch_workers,
}
