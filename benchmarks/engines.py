"""Measure the overhead of an engine of scripts/{wikibooks,wmt14}/prepare.sh: steps of two empty tasks.

    PYTHONPATH=scripts:. python benchmarks/engines.py /shared/folder --executor slurm --jobs 2

--executor, --jobs, --ranks and --executor-option are those of prepare.py. Prints seconds:

    first       from the call to the first task: start of the engine, submission, start of a process
    next        from the last task of a step to the first one of the next, mean over the steps
    whole       from the call to its end
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path

from shards.engines import Engine
from shards.tasks import Step, Task

from embinit_fairseq.arguments import ArgumentParser
from embinit_fairseq.errors import one_line
from embinit_fairseq.io import write_text


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a new folder that all machines see")
    parser.add_argument("--steps", type=int, default=8, help="steps (default: %(default)s)")
    Engine.add_arguments(parser)
    args = parser.parse_args()
    folders = [args.folder / f"{step:02}" for step in range(args.steps)]
    # jobs cannot import functions of this file, which is __main__ here: the time of a task is that of its file
    tasks = [[Task(path, write_text, (path, "")) for path in map(folder.joinpath, "ab")] for folder in folders]
    steps = [Step(folder.name, partial(list, tuple(step))) for folder, step in zip(folders, tasks)]
    engine, start = Engine.from_arguments(args, args.folder / "work" / "logs"), time.time()
    engine.run(steps)
    end = time.time()
    times = [[task.output.stat().st_mtime for task in step] for step in tasks]
    gaps = [min(after) - max(before) for before, after in zip(times, times[1:])]
    print(f"first {min(times[0]) - start:.1f}, next {sum(gaps) / len(gaps):.2f}, whole {end - start:.1f} seconds")


if __name__ == "__main__":
    with one_line():
        main()
