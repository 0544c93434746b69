"""Run the steps of a preparation of text: each step is a list of tasks that do not depend on one another.

A task writes one file or folder, and a task whose output exists is done: the same call continues a stopped one, and a
killed task is repeated alone. EXECUTORS says who runs the tasks; the bytes of the result are the same.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from embinit_fairseq.arguments import read_pairs
from embinit_fairseq.errors import OptionError
from embinit_fairseq.io import cores

#: name -> what runs the tasks
EXECUTORS = {
    "pool": "processes of this machine",
    "local": "datatrove's processes of this machine",
    "slurm": "jobs that datatrove submits to Slurm, each step after the one before",
    "ray": "datatrove's tasks on a Ray cluster",
}


@dataclass(frozen=True)
class Task:
    """A call that writes `output`, a file or a folder, under a temporary name first."""

    output: Path
    function: Callable[..., None]
    arguments: tuple
    #: bytes of input, for the progress bar
    size: int = 1

    def run(self) -> None:
        """Call the function, unless its output exists."""
        if not self.output.exists():
            self.output.parent.mkdir(parents=True, exist_ok=True)
            self.function(*self.arguments)


@dataclass(frozen=True)
class Step:
    """Tasks that may begin when all tasks of the step before are done."""

    title: str
    #: returns all tasks, finished ones included, in the same order at every call; called when the step begins
    tasks: Callable[[], Sequence[Task]]


@dataclass(frozen=True)
class Executor:
    """Options of prepare.py: who runs the tasks, and how many at a time."""

    name: str
    jobs: int
    logs: Path
    #: datatrove's ranks, among which the tasks of a step are divided
    ranks: int
    #: further arguments of datatrove's executor
    options: dict[str, str]

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        """Add --executor, --jobs, --ranks and --executor-option."""
        about = "; ".join(f"{name}: {what}" for name, what in EXECUTORS.items())
        parser.add_argument("--executor", choices=EXECUTORS, default="pool", help=about)
        parser.add_argument("--jobs", type=int, default=cores(), help="tasks at a time (default: one per core)")
        parser.add_argument("--ranks", type=int, default=0, help="parts of a step for datatrove (default: as --jobs)")
        parser.add_argument("--executor-option", nargs="*", default=[], metavar="NAME=VALUE", help="of datatrove's")

    @classmethod
    def from_arguments(cls, args: argparse.Namespace, logs: Path) -> Executor:
        """Return the executor that the options describe.

        Raises:
            OptionError: an option is not NAME=VALUE or given twice, or datatrove is not installed.
        """
        options = read_pairs("--executor-option", args.executor_option, "NAME=VALUE, such as partition=cpu")
        if args.executor != "pool":
            _datatrove(args.executor)
        return cls(args.executor, args.jobs, logs, args.ranks or args.jobs, options)

    def run(self, steps: Sequence[Step]) -> bool:
        """Run the steps in order; return False if they are only submitted."""
        if self.name == "pool":
            for step in steps:
                _run_in_pool(step, self.jobs)
            return True
        kind = _datatrove(self.name)
        last = None
        for number, step in enumerate(steps):
            common: dict[str, Any] = {"pipeline": [_share(step)], "tasks": self.ranks, "skip_completed": False}
            common |= {"logging_dir": str(self.logs / f"{number:02}"), "depends": last}
            if self.name == "slurm":
                common |= {"job_name": f"{number:02}-{step.title.replace(' ', '-')}", "workers": self.jobs}
                common |= {"time": "12:00:00", "partition": "cpu"}
            elif self.name == "local":
                common["workers"] = self.jobs
            last = kind(**common | self.options)
        if last is not None:
            last.run()
        return self.name != "slurm"


def _datatrove(name: str) -> Callable[..., Any]:
    """Return datatrove's executor of this name; raise OptionError if datatrove is not installed."""
    try:
        from datatrove.executor import LocalPipelineExecutor, RayPipelineExecutor, SlurmPipelineExecutor
    except ImportError:
        raise OptionError(
            f"EXECUTOR={name} needs datatrove: pip install 'embinit-fairseq[corpus]', or leave it out"
        ) from None
    kinds = {"local": LocalPipelineExecutor, "slurm": SlurmPipelineExecutor, "ray": RayPipelineExecutor}
    return kinds[name]


def _share(step: Step) -> Callable[..., Iterator]:
    """Return the function that datatrove calls for each rank: it runs the rank's share of the tasks."""

    def run(data: Any, rank: int = 0, world_size: int = 1) -> Iterator:
        for task in step.tasks()[rank::world_size]:
            task.run()
        yield from ()

    return run


def _run_in_pool(step: Step, jobs: int) -> None:
    """Run the tasks in up to `jobs` processes with a progress bar; raise what the first failure raised."""
    tasks = [task for task in step.tasks() if not task.output.exists()]
    if not tasks:
        return
    unit = "B" if any(task.size > 1 for task in tasks) else " tasks"
    with tqdm(total=sum(task.size for task in tasks), unit=unit, unit_scale=True, desc=step.title) as bar:
        if jobs == 1 or len(tasks) < 2:
            for task in tasks:
                task.run()
                bar.update(task.size)
            return
        # spawn: a copy of this process could hold the locks of its threads
        with ProcessPoolExecutor(min(jobs, len(tasks)), multiprocessing.get_context("spawn")) as pool:
            futures = {pool.submit(task.run): task.size for task in tasks}
            try:
                for future in as_completed(futures):
                    future.result()
                    bar.update(futures[future])
            except BrokenProcessPool:
                raise SystemExit(
                    f"error: {step.title}: a process was killed, probably because memory ran out: start again with "
                    "fewer JOBS"
                ) from None
            finally:
                pool.shutdown(cancel_futures=True)


def once(title: str, output: Path, function: Callable[..., None], *arguments: Any) -> Step:
    """Return a step of one task."""
    return Step(title, partial(list, (Task(output, function, arguments),)))


def shard_files(folder: Path, name: str) -> list[Path]:
    """Return the file of this name of each shard."""
    return [shard / name for shard in finished_shards(folder)]


def finished_shards(folder: Path) -> list[Path]:
    """Return the folders of the shards, in the order of the input."""
    return sorted(path for path in folder.glob("[0-9]*") if path.name.isdigit())
