"""Run a list of shell commands, several at a time: the trainings of a grid on the cores or GPUs of one machine.

A line is `NAME: COMMAND`, or a command, whose name is its number. bash runs it, with its output in LOGS/NAME.log. A
line that has ended well is not run again by a later call unless its command has changed (LOGS/NAME.done has the
command). What was interrupted is started again, and continues if the command can, as `embinit run` does.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from embinit_fairseq.errors import OptionError
from embinit_fairseq.io import cores, make_folder, write_text
from embinit_fairseq.runs.run import STOPPED, lock, send, start

_NAMED = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.+=@-]*): +(?=\S)")
#: seconds from SIGTERM to SIGKILL
_PATIENCE = 30.0


@dataclass(frozen=True)
class Line:
    """A command, and the name of its log."""

    name: str
    command: str


@dataclass(frozen=True)
class Grid:
    """What to run.

    Attributes:
        lines: the commands.
        logs: folder of their logs.
        jobs: commands at a time.
        minutes: time after which the call ends, with all running commands.
        share: (k, n): only the k-th of every n lines, 1-based.
        again: also run what has ended well before.
    """

    lines: Sequence[Line]
    logs: Path
    jobs: int
    minutes: float = float("inf")
    share: tuple[int, int] = (1, 1)
    again: bool = False

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise OptionError(f"--jobs {self.jobs}: must be at least 1")
        if not self.minutes > 0:
            raise OptionError(f"--minutes {self.minutes:g}: must be more than 0")
        if not 1 <= self.share[0] <= self.share[1]:
            raise OptionError(f"--worker {self.share[0]}/{self.share[1]}: give K/N with K from 1 to N")


@dataclass(frozen=True)
class Outcome:
    """Names of lines: that ended well, now or before; that failed; that have more to do (no time, or stopped)."""

    done: tuple[str, ...]
    failed: tuple[str, ...]
    left: tuple[str, ...]


@dataclass
class _Job:
    line: Line
    slot: int
    log: IO[bytes]
    process: subprocess.Popen[bytes]


def read_lines(text: str) -> list[Line]:
    """Return the commands of a list, without empty lines and comments (`#`); raise OptionError without any command."""
    commands = [line.strip() for line in text.split("\n")]  # only LF ends a line: a command may have U+2028
    lines = []
    for number, command in enumerate((c for c in commands if c and not c.startswith("#")), start=1):
        named = _NAMED.match(command)
        lines.append(Line(named[1], command[named.end() :]) if named else Line(str(number), command))
    if not lines:
        raise OptionError("the list has no command; give one per line")
    for name, count in Counter(line.name for line in lines).items():
        if count > 1:
            raise OptionError(f"the list has the name {name} twice; give each command a name of its own")
    return lines


def visible_gpus(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return names for CUDA_VISIBLE_DEVICES, without importing torch."""
    if "CUDA_VISIBLE_DEVICES" in environment:
        return [name for name in environment["CUDA_VISIBLE_DEVICES"].split(",") if name.strip() not in ("", "-1")]
    devices = (path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))
    return sorted((name for name in devices if name.isdigit()), key=int)


def default_jobs() -> int:
    """Return one job per GPU, else one per core: several trainings of one thread are faster than one of several."""
    return len(visible_gpus()) or cores()


def default_share(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Return (k, n) in the k-th of n tasks of a SLURM array, else (1, 1).

    Raises:
        OptionError: the numbers of the tasks have gaps, so that no task knows how many tasks come before it.
    """
    task = environment.get("SLURM_ARRAY_TASK_ID", "")
    if not task.isdecimal():
        return 1, 1
    first, last, step, count = (
        int(environment.get(f"SLURM_ARRAY_TASK_{name}") or default)
        for name, default in (("MIN", task), ("MAX", task), ("STEP", 1), ("COUNT", 1))
    )
    if first + (count - 1) * step != last or (int(task) - first) % step:
        raise OptionError(
            f"SLURM array of {count} tasks from {first} to {last}, with gaps; give --array=0-{count - 1}, or --worker"
        )
    return (int(task) - first) // step + 1, count


def run_grid(grid: Grid, tell: Callable[[str], None] = lambda text: None) -> Outcome:
    """Run the lines that are not done; on Ctrl-C or SIGTERM end the running ones first.

    Args:
        grid: what to run.
        tell: called with a line when a command starts and when it ends.
    """
    make_folder(grid.logs, "--logs")
    waiting = deque(grid.lines[grid.share[0] - 1 :: grid.share[1]])
    running: list[_Job] = []
    done, failed, stopped = [], [], []
    until = time.monotonic() + 60 * grid.minutes
    try:
        while (waiting or running) and time.monotonic() < until:
            for job in [job for job in running if job.process.poll() is not None]:
                running.remove(job)
                job.log.close()
                if job.process.returncode == STOPPED:
                    stopped.append(job.line.name)
                    tell(f"{job.line.name}: stopped, to be continued")
                elif _ended_well(job, grid.logs, tell):
                    done.append(job.line.name)
                else:
                    failed.append(job.line.name)
            while waiting and len(running) < grid.jobs:
                line = waiting.popleft()
                mark = grid.logs / f"{line.name}.done"
                if not grid.again and mark.is_file() and mark.read_bytes() == f"{line.command}\n".encode():
                    done.append(line.name)
                    tell(f"{line.name}: done before")
                    continue
                job_log = (grid.logs / f"{line.name}.log").open("ab")
                if not lock(job_log):
                    job_log.close()
                    failed.append(line.name)
                    tell(f"{line.name}: another call is running it")
                    continue
                mark.unlink(missing_ok=True)
                running.append(_start(line, _free_slot(running), job_log, grid.jobs))
                tell(f"{line.name}: started")
            if running:
                time.sleep(0.1)
    finally:
        left = [*stopped, *(job.line.name for job in running)]
        _end(running)
    return Outcome(tuple(done), tuple(failed), (*left, *(line.name for line in waiting)))


def _free_slot(running: Sequence[_Job]) -> int:
    used = {job.slot for job in running}
    return next(number for number in range(len(used) + 1) if number not in used)


def _start(line: Line, slot: int, log: IO[bytes], jobs: int) -> _Job:
    """Start a command with a GPU of its own, if there are several, and with its share of the cores."""
    environment, gpus = dict(os.environ), visible_gpus()
    if len(gpus) > 1:
        environment["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
    environment.setdefault("OMP_NUM_THREADS", str(max(1, cores() // jobs)))
    log.write(f"$ {line.command}\n".encode())
    log.flush()
    return _Job(line, slot, log, start(["bash", "-euo", "pipefail", "-c", line.command], log, environment))


def _ended_well(job: _Job, logs: Path, tell: Callable[[str], None]) -> bool:
    name, code = job.line.name, job.process.returncode
    if code == 0:
        write_text(logs / f"{name}.done", f"{job.line.command}\n")
        tell(f"{name}: done")
        return True
    log = logs / f"{name}.log"
    printed = log.read_bytes()[-1000:].decode("utf-8", errors="replace").replace("\r", "\n").split("\n")
    last = next((line.strip()[:80] for line in reversed(printed) if line.strip()), "")
    tell(f"{name}: failed with exit status {code}; see {log}, which ends: {last}")
    return False


def _end(running: Sequence[_Job]) -> None:
    """Send SIGTERM to the running commands, which `embinit run` forwards, and SIGKILL after _PATIENCE."""
    for job in running:
        send(job.process, signal.SIGTERM)
    until = time.monotonic() + _PATIENCE
    try:
        for job in running:
            try:
                job.process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue
    finally:  # also if it is interrupted once more
        for job in running:
            send(job.process, signal.SIGKILL)  # also what the command has left in its process group
            job.process.wait()
            job.log.close()
