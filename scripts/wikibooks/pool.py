"""Many tasks in several processes, with progress and the resources that they took."""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from tqdm import tqdm

#: bytes of input, for the progress; arguments of the function
Task = tuple[int, tuple]


def peak_bytes() -> int:
    """The largest resident memory that this process ever had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _end_with(parent: int) -> None:
    """Stop this process when its parent has gone: after kill -9 of the parent nobody else would."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _measured(function: Callable, arguments: tuple) -> tuple[float, int]:
    start = time.process_time()
    function(*arguments)
    return time.process_time() - start, peak_bytes()


def _results(function: Callable, tasks: list[Task], jobs: int) -> Iterator[tuple[int, float, int]]:
    """Yields (bytes of input, CPU seconds, peak bytes of the process) for each task as it ends."""
    if jobs == 1 or len(tasks) == 1:
        for size, arguments in tasks:
            yield size, *_measured(function, arguments)
        return
    # spawn: the processes share no memory with this one, so that their size is what is reported.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(tasks)), context, _end_with, (os.getpid(),)) as pool:
        try:
            futures = {pool.submit(_measured, function, arguments): size for size, arguments in tasks}
            for future in as_completed(futures):
                yield futures[future], *future.result()
        except BrokenProcessPool:
            raise SystemExit(
                "error: a process was killed, probably because memory ran out: start again with fewer --jobs"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


def finished_shards(folder: Path) -> list[Path]:
    """The shards' folders, in the order of the input."""
    return sorted(path for path in folder.glob("[0-9]*") if path.name.isdigit())


def run_tasks(title: str, function: Callable[..., None], tasks: list[Task], jobs: int) -> None:
    """Call `function` for each task in up to `jobs` processes (1: in this one); raises what the first failure raised.

    title: for the progress bar and for the line at the end, which tells MB of input per CPU second of one process.
    """
    if not tasks:
        print(f"{title}: there already", file=sys.stderr)
        return
    megabytes, seconds, peak = 0.0, 0.0, 0
    with tqdm(total=sum(size for size, _ in tasks), unit="B", unit_scale=True, desc=title) as bar:
        for size, used, process_peak in _results(function, tasks, jobs):
            megabytes, seconds, peak = megabytes + size / 1e6, seconds + used, max(peak, process_peak)
            bar.update(size)
    speed, peak = megabytes / max(seconds, 1e-9), max(peak, peak_bytes())
    print(
        f"{title}: {megabytes:,.1f} MB in {seconds:,.1f} CPU seconds ({speed:.2f} MB/s a process), "
        f"largest process {peak / 1e6:,.0f} MB",
        file=sys.stderr,
    )
