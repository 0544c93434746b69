"""A list of shell commands, several at a time: the trainings of a grid on the cores or the GPUs of one machine, or its
share of them on one of several.

A line is `NAME: COMMAND`, or a command alone, whose name is then its number. It is given to bash, in a process group of
its own, with its output in `LOGS/NAME.log`. A line that has ended well is not run again by a later call, unless its
command has changed (`LOGS/NAME.done` has the command); what was interrupted is started again, and goes on where the
command itself can, as `embinit run` does. Names are given once.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from embinit_fairseq import machine
from embinit_fairseq.errors import OptionError
from embinit_fairseq.files import check_place, made_folder, write_text
from embinit_fairseq.runs.process import Pulse, lock, send, start

Tell = Callable[[str], None]
_NAMED = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.+=@-]*): +(?=\S)")
#: seconds that what was asked to end (SIGTERM) may take before it is killed
_PATIENCE = 30.0


@dataclass(frozen=True)
class Line:
    """A command and what its log is called."""

    name: str
    command: str


@dataclass(frozen=True)
class Grid:
    """What to run.

    jobs: lines at a time. minutes: the call ends after so many, and what is running then with it. share: (k, n), of
    every n lines the k-th, from 1. again: also those that ended well before.
    """

    lines: Sequence[Line]
    logs: Path
    jobs: int
    minutes: float = float("inf")
    share: tuple[int, int] = (1, 1)
    again: bool = False

    def __post_init__(self) -> None:
        number, of = self.share
        if self.jobs < 1:
            raise OptionError(f"--jobs {self.jobs}: give a number from 1")
        if not self.minutes > 0:
            raise OptionError(f"--minutes {self.minutes:g}: give a number above 0")
        if not 1 <= number <= of:
            raise OptionError(f"--worker {number}/{of}: give K/N with K from 1 to N")


@dataclass(frozen=True)
class Outcome:
    """Names of lines: that ended well (now or before), that failed, and that the time was too short for."""

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
    """Blank lines and comments (`#`) are left out. Only a line feed ends a line: a command may have U+2028 in it."""
    commands = [line.strip() for line in text.split("\n")]
    if "\0" in text:
        number = text.count("\n", 0, text.index("\0")) + 1
        raise OptionError(f"line {number} of the list has a NUL character, which no command can have; remove it")
    lines = []
    for number, command in enumerate((c for c in commands if c and not c.startswith("#")), start=1):
        named = _NAMED.match(command)
        lines.append(Line(named[1], command[named.end() :]) if named else Line(str(number), command))
    if not lines:
        raise OptionError("the list has no command; give one per line")
    for name, count in Counter(line.name for line in lines).items():
        if count > 1:
            raise OptionError(f"the list names {name} twice; give each command a name of its own")
    return lines


def visible_gpus(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Names for CUDA_VISIBLE_DEVICES, without asking torch: a grid shall not import it."""
    if "CUDA_VISIBLE_DEVICES" in environment:
        return [name for name in environment["CUDA_VISIBLE_DEVICES"].split(",") if name.strip() not in ("", "-1")]
    devices = (path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))
    return sorted((name for name in devices if name.isdigit()), key=int)


def default_jobs() -> int:
    """One per GPU, else one per core: on a CPU, several trainings of one thread need less time in all than one
    training with all cores."""
    return len(visible_gpus()) or machine.cores()


def default_share(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Return (k, n) in a task of a SLURM array, the k-th of n tasks, else (1, 1).

    Raises:
        OptionError: the numbers of the tasks have gaps, so that none of them can tell which tasks come before it.
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


def run_grid(grid: Grid, tell: Tell = lambda text: None) -> Outcome:
    """Run what is not done. On KeyboardInterrupt (Ctrl-C, SIGTERM) what is running is ended first.

    tell: gets a line when a command starts and when it ends.
    """
    with made_folder(grid.logs, "--logs"):
        check_place(grid.logs / "1.log", "--logs")
        return _Runner(grid, tell).run()


def _last_words(log: Path) -> str:
    """The last line, or what a line with the progress was overwritten with."""
    with log.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 1000))
        lines = file.read().decode("utf-8", errors="replace").replace("\r", "\n").split("\n")
    return next((line.strip()[:80] for line in reversed(lines) if line.strip()), "")


@dataclass
class _Runner:
    grid: Grid
    tell: Tell
    running: list[_Job] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    pulse: Pulse = field(default_factory=Pulse)

    def __post_init__(self) -> None:
        tell = self.tell

        def said(text: str) -> None:
            self.pulse.beat()
            tell(text)

        self.tell = said

    def run(self) -> Outcome:
        """Start and collect until nothing is left or the time is up; what is still running then is ended."""
        number, of = self.grid.share
        waiting = deque(self.grid.lines[number - 1 :: of])
        until = time.monotonic() + 60 * self.grid.minutes
        try:
            while (waiting or self.running) and time.monotonic() < until:
                self._collect()
                while waiting and len(self.running) < self.grid.jobs:
                    self._start(waiting.popleft())
                if self.running and self.pulse.due():
                    self.tell(self._progress(len(waiting)))
                if self.running:
                    time.sleep(0.1)
        finally:
            left = [job.line.name for job in self.running]
            self._end()
        return Outcome(tuple(self.done), tuple(self.failed), tuple([*left, *(line.name for line in waiting)]))

    def _start(self, line: Line) -> None:
        mark = self.grid.logs / f"{line.name}.done"
        if not self.grid.again and mark.is_file() and mark.read_bytes() == f"{line.command}\n".encode():
            self.done.append(line.name)
            self.tell(f"{line.name}: done before")
            return
        log = (self.grid.logs / f"{line.name}.log").open("ab")
        if not lock(log):
            log.close()
            self.failed.append(line.name)
            self.tell(f"{line.name}: another call is running it")
            return
        mark.unlink(missing_ok=True)
        used = {job.slot for job in self.running}
        slot = next(number for number in itertools.count() if number not in used)
        log.write(f"$ {line.command}\n".encode())
        log.flush()
        command = ["bash", "-euo", "pipefail", "-c", line.command]
        process = start(command, log, self._environment(slot))
        self.running.append(_Job(line, slot, log, process))
        self.tell(f"{line.name}: started")

    def _progress(self, waiting: int) -> str:
        """What is running, each with the end of what it has printed."""
        ends = (f"{job.line.name}: {_last_words(self.grid.logs / f'{job.line.name}.log')}" for job in self.running)
        return f"{self.pulse.seconds}, {waiting} waiting; {'; '.join(ends)}"

    def _environment(self, slot: int) -> dict[str, str]:
        """A GPU of its own where there are several, and its share of the cores."""
        environment, gpus = dict(os.environ), visible_gpus()
        if len(gpus) > 1:
            environment["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
        environment.setdefault("OMP_NUM_THREADS", str(max(1, machine.cores() // self.grid.jobs)))
        return environment

    def _collect(self) -> None:
        for job in [job for job in self.running if job.process.poll() is not None]:
            self.running.remove(job)
            name, code = job.line.name, job.process.returncode
            job.log.close()
            if code:
                self.failed.append(name)
                log = self.grid.logs / f"{name}.log"
                self.tell(f"{name}: failed with exit status {code}; see {log}, which ends: {_last_words(log)}")
            else:
                write_text(self.grid.logs / f"{name}.done", f"{job.line.command}\n")
                self.done.append(name)
                self.tell(f"{name}: done")

    def _end(self) -> None:
        """SIGTERM to everything that is running, which `embinit run` gives on to its training; SIGKILL if it stays."""
        for job in self.running:
            send(job.process, signal.SIGTERM)
        until = time.monotonic() + _PATIENCE
        try:
            for job in self.running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    job.process.wait(max(0.1, until - time.monotonic()))
        finally:  # also if that is interrupted once more
            for job in self.running:
                send(job.process, signal.SIGKILL)  # what the command left behind in its group, too
                job.process.wait()
                job.log.close()
            self.running.clear()
