"""Work on many shards in several processes, with a progress bar."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from tqdm import tqdm

#: bytes of input, for the progress bar; arguments of the function
Task = tuple[int, tuple]


def run_tasks(title: str, function: Callable[..., None], tasks: list[Task], jobs: int) -> None:
    """Call `function` for each task in up to `jobs` processes; raise what the first failure raised."""
    with tqdm(total=sum(size for size, _ in tasks), unit="B", unit_scale=True, desc=title) as bar:
        if jobs == 1 or len(tasks) < 2:
            for size, arguments in tasks:
                function(*arguments)
                bar.update(size)
            return
        # spawn: a copy of this process could hold the locks of its threads
        with ProcessPoolExecutor(min(jobs, len(tasks)), multiprocessing.get_context("spawn")) as pool:
            futures = {pool.submit(function, *arguments): size for size, arguments in tasks}
            try:
                for future in as_completed(futures):
                    future.result()
                    bar.update(futures[future])
            except BrokenProcessPool:
                raise SystemExit(
                    f"error: {title}: a process was killed, probably because memory ran out: start again with fewer "
                    "JOBS"
                ) from None
            finally:
                pool.shutdown(cancel_futures=True)


def finished_shards(folder: Path) -> list[Path]:
    """Return the folders of the shards, in the order of the input."""
    return sorted(path for path in folder.glob("[0-9]*") if path.name.isdigit())
