"""Run the steps of a preparation by one of the ENGINES; the bytes of the result are the same.

A step begins when all tasks of the one before are done, and a task that fails ends the preparation: the error says
which step, and the same call continues with its unfinished tasks. One call at a time works on a preparation.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shards.tasks import Step, Task
from tqdm import tqdm

from embinit_fairseq.arguments import read_pairs
from embinit_fairseq.errors import OptionError
from embinit_fairseq.io import explained
from embinit_fairseq.machine import cores
from embinit_fairseq.runs.run_folder import lock

#: name -> description of the engine
ENGINES = {
    "pool": "processes of this machine",
    "local": "datatrove's processes of this machine",
    "slurm": "jobs that datatrove submits to Slurm, an array for each step",
    "ray": "tasks of a Ray cluster",
}
#: engine -> module that it needs, extra of the package that brings it
_NEEDS = {"local": ("datatrove.executor", "corpus"), "slurm": ("datatrove.executor", "corpus"), "ray": ("ray", "ray")}


@dataclass(frozen=True)
class Engine:
    """Hold the options of a preparation: the engine that runs the tasks, and how many run at a time."""

    name: str
    jobs: int
    logs: Path
    #: parts of a step for datatrove, among which its tasks are divided
    ranks: int
    #: further arguments for datatrove's executor, sbatch or ray.init
    options: dict[str, str]
    #: with Slurm: wait for the jobs
    wait: bool = True

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        """Add --executor, --jobs, --ranks, --wait and --executor-option."""
        about = "; ".join(f"{name}: {what}" for name, what in ENGINES.items())
        parser.add_argument("--executor", choices=ENGINES, default="pool", help=about)
        parser.add_argument("--jobs", type=int, default=cores(), help="tasks at a time (default: one per core)")
        parser.add_argument("--ranks", type=int, help="parts of a step for datatrove (default: as --jobs)")
        parser.add_argument("--wait", type=int, choices=(0, 1), default=1, help="slurm: wait for the jobs")
        about = "of datatrove's executor, of sbatch, of ray.init"
        parser.add_argument("--executor-option", nargs="*", default=[], metavar="NAME=VALUE", help=about)

    @classmethod
    def from_arguments(cls, args: argparse.Namespace, logs: Path) -> Engine:
        """Return the engine that the options describe.

        Raises:
            OptionError: an option is not NAME=VALUE or given twice, or a package of the engine is missing.
        """
        options = read_pairs("--executor-option", args.executor_option, "NAME=VALUE, such as partition=cpu")
        if args.executor in _NEEDS:
            module, extra = _NEEDS[args.executor]
            try:
                __import__(module)
            except ImportError:
                package = module.partition(".")[0]
                raise OptionError(
                    f"EXECUTOR={args.executor} needs {package}: pip install 'embinit-fairseq[{extra}]', or leave it out"
                ) from None
        return cls(args.executor, args.jobs, logs, args.ranks or args.jobs, options, bool(args.wait))

    def run(self, steps: Sequence[Step]) -> bool:
        """Run the steps that are not done; return False if they are only submitted.

        Raises:
            OptionError: another call works on them, or a task failed.
            OutputError: the disk is full.
        """
        with explained(self.logs.parent.parent, remedy="choose another OUTPUT"), alone(self.logs):
            if self.name == "slurm":
                from shards import slurm

                return slurm.run(steps, self)
            run = {"pool": _run_in_pool, "local": _run_locally, "ray": _run_on_ray}[self.name]
            for step in steps:
                if tasks := step.unfinished():
                    run(step, tasks, self)
            return True


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other calls out while the block runs; raise OptionError if there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "ab") as file:
        if not lock(file):
            raise OptionError(f"{folder.parent.parent}: another call prepares it; wait for its end")
        yield


def _bar(step: Step, tasks: list[Task]) -> tqdm:
    unit = "B" if any(task.size > 1 for task in tasks) else " tasks"
    return tqdm(total=sum(task.size for task in tasks), unit=unit, unit_scale=True, desc=step.title)


def _run_in_pool(step: Step, tasks: list[Task], engine: Engine) -> None:
    """Run the tasks in processes with a progress bar; raise the error of the first failure."""
    with _bar(step, tasks) as bar:
        if engine.jobs == 1 or len(tasks) < 2:
            for task in tasks:
                task.run()
                bar.update(task.size)
            return
        # spawn: a copy of this process could hold the locks of its threads
        with ProcessPoolExecutor(min(engine.jobs, len(tasks)), multiprocessing.get_context("spawn")) as pool:
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


@dataclass(frozen=True)
class Share:
    """Run the share of a step that datatrove's executor gives to a rank."""

    step: Step

    def __call__(self, data: Any, rank: int = 0, world_size: int = 1) -> Iterator:
        """Run the tasks of a rank; datatrove expects documents, of which there are none."""
        for task in self.step.tasks()[rank::world_size]:
            task.run()
        yield from ()


def _run_locally(step: Step, tasks: list[Task], engine: Engine) -> None:
    """Run the tasks by datatrove's executor for one machine."""
    from datatrove.executor import LocalPipelineExecutor

    folder = engine.logs / step.title.replace(" ", "-")
    common: dict[str, Any] = {"tasks": engine.ranks, "workers": engine.jobs, "skip_completed": False}
    LocalPipelineExecutor([Share(step)], logging_dir=str(folder), **common | engine.options).run()


def _run_on_ray(step: Step, tasks: list[Task], engine: Engine) -> None:
    """Run the tasks on the Ray cluster of `address` (default: one of this machine); OptionError if one fails."""
    import ray

    if not ray.is_initialized():
        options: dict[str, Any] = engine.options or {"address": "local", "num_cpus": engine.jobs}
        try:
            ray.init(log_to_driver=False, **options)
        except (ConnectionError, TypeError, ValueError) as error:
            raise OptionError(f"EXECUTOR=ray: {error}: correct EXECUTOR_OPTIONS (address=HOST:PORT)") from None
    run = ray.remote(max_retries=2)(Task.run)
    waiting = {run.remote(task): task.size for task in tasks}
    with _bar(step, tasks) as bar:
        while waiting:
            done, _ = ray.wait(list(waiting))
            for reference in done:
                try:
                    ray.get(reference)
                except ray.exceptions.RayError as error:
                    lines = str(error).strip().splitlines() or [type(error).__name__]
                    raise OptionError(
                        f"EXECUTOR=ray: {step.title}: {lines[-1]}; correct it, then the same call continues"
                    ) from None
                bar.update(waiting.pop(reference))
