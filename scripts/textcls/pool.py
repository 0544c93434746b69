"""Many short jobs, each in a process forked from this one, so that what is imported is imported once.

fork copies the calling thread only: nothing may have started threads before (torch, a GPU, tqdm's monitor).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm


@dataclass(frozen=True)
class Job:
    """call() runs in a process of its own with its output in `log`; it returns what is said of a job that is done."""

    name: str
    log: Path
    call: Callable[[], str]


def run_jobs(jobs: list[Job], at_a_time: int) -> list[str]:
    """Run them all; returns the names of those that failed. Those that run are stopped if this process is."""
    tqdm.monitor_interval = 0  # its thread would not survive a fork
    waiting, running, failed, done = list(reversed(jobs)), {}, [], 0
    with stopped_by_signals(), tqdm(total=len(jobs), unit="run", disable=None, smoothing=0) as bar:
        try:
            while waiting or running:
                while waiting and len(running) < at_a_time:
                    job = waiting.pop()
                    process, answer = start(job)
                    running[process.sentinel] = (process, answer, job, time.monotonic())
                for sentinel in multiprocessing.connection.wait(list(running)):
                    process, answer, job, began = running.pop(sentinel)
                    process.join()
                    bar.update()
                    done += 1
                    said = received(answer)
                    if said is None:
                        failed.append(job.name)
                        said = f"FAILED ({last_line(job.log)})"
                    seconds = time.monotonic() - began
                    tqdm.write(f"[{done}/{len(jobs)}] {job.name}: {said}, {seconds:.0f} s", sys.stderr)
        finally:
            for process, *_ in running.values():
                process.terminate()
            for process, *_ in running.values():
                process.join()
    return failed


def start(job: Job) -> tuple[multiprocessing.Process, multiprocessing.connection.Connection]:
    """The forked process and the end of a pipe on which it may say something."""
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe(duplex=False)
    process = fork.Process(target=_work, args=(job, there), daemon=True)
    process.start()
    there.close()
    return process, here


def received(answer: multiprocessing.connection.Connection) -> str | None:
    """What a process that has ended said, None if it failed before."""
    try:
        return answer.recv()
    except EOFError:
        return None


def _work(job: Job, answer: multiprocessing.connection.Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches everybody; the parent stops its children
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        said = job.call()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    answer.send(said)


def last_line(log: Path) -> str:
    """What a process said last, mostly why it failed."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.is_file() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), f"see {log}")


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does: by KeyboardInterrupt."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
