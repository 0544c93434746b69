"""Run a command of a grid as a job, on this machine or on a cluster through submitit."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embinit_fairseq.errors import OptionError
from embinit_fairseq.io import explained, write_text
from embinit_fairseq.machine import cores
from embinit_fairseq.runs.run_folder import lock
from embinit_fairseq.runs.training import STOPPED, send, start

#: seconds between two looks at a command
_LOOK = 0.1
#: seconds from the first signal to SIGKILL: after Ctrl-C, and before the limit of a job on a cluster
_PATIENCE, _BEFORE_LIMIT = 30.0, 120
#: least limit of a job in minutes: one to start, and the time for saving
_LEAST = _BEFORE_LIMIT // 60 + 2
#: minutes after which a job of submitit's local executor is stopped, has saved and is started again
_LOCAL_LIMIT = 7 * 24 * 60
#: exit statuses above are signals
_SIGNALS = 128
#: how often a job may reach its limit and be started again
_REQUEUES = 1000


class _Failed(Exception):
    """Signal that a command that was to save has failed."""


@dataclass
class Task:
    """Wrap a command in a function without arguments, for a pool of threads and for submitit.

    Attributes:
        name: name of the log.
        command: command for bash.
        logs: folder of NAME.log, and of NAME.done, which contains the command if it has ended well.
        threads: OMP_NUM_THREADS unless it is set; 0: one per core.
        gpu: CUDA_VISIBLE_DEVICES; "": as it is.
        job: object of the pool or of submitit, after the task was given to it.
        since: when the grid first saw the task run, in seconds of the monotonic clock.
    """

    name: str
    command: str
    logs: Path
    threads: int = 0
    gpu: str = ""
    job: Any = None
    since: float | None = None
    _process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """Output of the command."""
        return self.logs / f"{self.name}.log"

    @property
    def mark(self) -> Path:
        """Return the file that shows that the command has ended well."""
        return self.logs / f"{self.name}.done"

    @property
    def is_done(self) -> bool:
        """Return True if this command has ended well before."""
        return self.mark.is_file() and self.mark.read_bytes() == f"{self.command}\n".encode()

    def __call__(self) -> int | None:
        """Run the command to its end and return its exit status; None if another call is running it."""
        environment = {"OMP_NUM_THREADS": str(self.threads or cores()), **os.environ}
        if self.gpu:
            environment["CUDA_VISIBLE_DEVICES"] = self.gpu
        with self.log.open("ab") as log:
            if not lock(log):
                return None
            self.mark.unlink(missing_ok=True)
            log.write(f"$ {self.command}\n".encode())
            log.flush()
            # with a trap bash waits for a command that saves after a signal
            words = ["bash", "-euo", "pipefail", "-c", f"trap : TERM USR1\n{self.command}"]
            process = self._process = start(words, log, environment)
        try:
            while process.poll() is None:
                time.sleep(_LOOK)
        except _Failed:
            pass
        except BaseException:  # a cluster ends the job
            send(process, signal.SIGTERM)
            raise
        if process.returncode == 0:
            write_text(self.mark, f"{self.command}\n")
        elif os.environ.get("SUBMITIT_EXECUTOR") == "slurm":
            from embinit_fairseq.runs.slurm_states import continue_later

            continue_later()
        return process.returncode

    def last_line(self, shown: int | None = None) -> str:
        """Return the last line of the log, at most `shown` characters of it."""
        printed = self.log.read_bytes()[-1000:].decode("utf-8", errors="replace") if self.log.is_file() else ""
        lines = [line.strip() for line in printed.replace("\r", "\n").split("\n")]
        return next((line[:shown] for line in reversed(lines) if line), "")

    def send(self, number: int) -> None:
        """Send a signal to the command and to all that it has started; `embinit run` forwards it."""
        if self._process is not None:
            send(self._process, number)

    def is_alive(self) -> bool:
        """Return True while the command, or a process that it has started, has not ended."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._process is not None:
                self._process.poll()  # until then it counts
                os.killpg(self._process.pid, 0)
                return True
        return False

    def checkpoint(self) -> Any:
        """Let the command save and end; return the task for submitit, which calls this and then requeues the job.

        Raises:
            _Failed: the command has failed instead, and would fail again; raised inside of `__call__`.
        """
        from submitit.helpers import DelayedSubmission

        end([self], signal.SIGUSR1, _BEFORE_LIMIT - 20)
        code = self._process.poll() if self._process is not None else None
        if code is not None and 0 < code <= _SIGNALS and code != STOPPED:
            raise _Failed
        return DelayedSubmission(Task(self.name, self.command, self.logs, self.threads))


def end(tasks: Sequence[Task], number: int, patience: float) -> None:
    """Send a signal to tasks, wait for their end, and send SIGKILL after `patience` seconds."""
    for task in tasks:
        task.send(number)
    until = time.monotonic() + patience
    try:
        while any(task.is_alive() for task in tasks) and time.monotonic() < until:
            time.sleep(_LOOK)
    finally:  # also if it is interrupted once more
        for task in filter(Task.is_alive, tasks):
            task.send(signal.SIGKILL)


class ThisMachine:
    """Run tasks in threads, several at a time, each with its share of the cores and of several GPUs."""

    def __init__(self, jobs: int, threads: int) -> None:
        self.pool, self.threads = ThreadPoolExecutor(jobs), threads
        self.tasks: list[Task] = []
        self.gpus: queue.SimpleQueue[str] = queue.SimpleQueue()
        names = visible_gpus()
        for number in range(jobs):
            self.gpus.put(names[number % len(names)] if len(names) > 1 else "")

    def submit(self, tasks: Sequence[Task]) -> None:
        """Start tasks as soon as there is room; the result of their job is the exit status."""
        self.tasks += tasks
        for task in tasks:
            task.job = self.pool.submit(self._run, task)

    def _run(self, task: Task) -> int | None:
        task.threads, task.gpu = self.threads, self.gpus.get()
        try:
            return task()
        finally:
            self.gpus.put(task.gpu)

    def close(self) -> None:
        """End all tasks."""
        self.pool.shutdown(wait=False, cancel_futures=True)
        # the process numbers of tasks that have ended may belong to other programs
        end([task for task in self.tasks if not task.job.done()], signal.SIGTERM, _PATIENCE)
        self.pool.shutdown()


class Cluster:
    """Run tasks by submitit, which requeues a job that is preempted or reaches its limit.

    Args:
        name: `slurm`; `local`: processes of this machine; `debug`: this process.
        folder: folder of submitit's files.
        jobs: jobs at a time; None: as many as SLURM allows.
        threads: OMP_NUM_THREADS of a task on this machine.
        sbatch: option of sbatch -> its value.

    Raises:
        OptionError: submitit or SLURM is missing, or does not know an option.
    """

    def __init__(self, name: str, folder: Path, jobs: int | None, threads: int, sbatch: Mapping[str, str]) -> None:
        # all processes of a job receive this signal, and fairseq-train saves when it does (fix `saved_stops`)
        os.environ.setdefault("SUBMITIT_PREEMPT_SIGNAL", "USR1")
        try:
            import submitit
        except ImportError as error:
            raise OptionError("--cluster needs submitit, which is not installed: pip install submitit") from error
        self.threads = 0 if name == "slurm" else threads
        self.jobs: list[Any] = []
        try:
            requeues = {f"{name}_max_num_timeout": _REQUEUES} if name != "debug" else {}
            self.executor = submitit.AutoExecutor(folder=folder, cluster=name, **requeues)
            self.executor.update_parameters(**_parameters(name, jobs, sbatch))
            if name == "slurm":
                from embinit_fairseq.runs.slurm_states import watch_queue_without_accounting

                watch_queue_without_accounting()
        except (RuntimeError, ValueError, NameError, AssertionError) as error:
            raise OptionError(f"--cluster {name}: {' '.join(str(error).split())}") from error

    def submit(self, tasks: Sequence[Task]) -> None:
        """Queue tasks, on SLURM as one array; the result of their job is the exit status."""
        import submitit

        for task in tasks:
            task.threads = self.threads
        try:
            with explained(self.executor.folder, "--logs"):
                jobs = self.executor.submit_array(list(tasks))
        except (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError) as error:
            raise OptionError(f"--cluster: sbatch has refused the jobs: {' '.join(str(error).split())}") from error
        self.jobs += jobs
        for task, job in zip(tasks, jobs):
            task.job = job

    def close(self) -> None:
        """Cancel all jobs."""
        for job in self.jobs:
            if job.state not in ("DONE", "FINISHED", "COMPLETED"):
                job.cancel()


def _parameters(cluster: str, jobs: int | None, sbatch: Mapping[str, str]) -> dict[str, Any]:
    """Return the parameters of submitit's AutoExecutor for options of sbatch; OptionError without a limit on SLURM."""
    from submitit.slurm.slurm import SlurmExecutor

    minutes = sbatch.get("time", "")
    if not minutes.isdecimal() and (minutes or cluster == "slurm"):
        raise OptionError(f"--sbatch time={minutes}: give the limit of a job in minutes, such as time=720")
    if cluster == "slurm" and int(minutes) < _LEAST:  # it would save before it has begun, and begin again for ever
        raise OptionError(
            f"--sbatch time={minutes}: the last {_BEFORE_LIMIT // 60} minutes are for saving, and Slurm may begin "
            f"one earlier; give {_LEAST} or more"
        )
    parameters: dict[str, Any] = {"timeout_min": int(minutes or _LOCAL_LIMIT), "slurm_signal_delay_s": _BEFORE_LIMIT}
    if jobs is not None:
        parameters["slurm_array_parallelism"] = jobs
    further = {}
    for key, value in sbatch.items():
        name = key.replace("-", "_")
        if name in SlurmExecutor._valid_parameters():
            parameters[f"slurm_{name}"] = int(value) if value.isdecimal() else value
        else:
            further[key] = value
    if cluster == "local" and "gpus-per-node" in sbatch:
        parameters["gpus_per_node"] = int(sbatch["gpus-per-node"])
    return {**parameters, "slurm_additional_parameters": further}


def visible_gpus(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return names for CUDA_VISIBLE_DEVICES, without importing torch."""
    if "CUDA_VISIBLE_DEVICES" in environment:
        return [name for name in environment["CUDA_VISIBLE_DEVICES"].split(",") if name.strip() not in ("", "-1")]
    devices = (path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))
    return sorted((name for name in devices if name.isdigit()), key=int)
