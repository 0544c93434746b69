"""Send rows from many files to many destinations: a file is written once, and a destination reads its part of each.

To keep a file for each pair of source and destination would be quadratic. Here a task sorts the rows of neighbouring
sources, the square root of their number, by destination into one file; a destination reads its slice of each of these
files. Rows of one destination stay in the order of the sources.

    folder/00003/rows.npy     rows of sources 3G to 4G-1 by destination, as columns
    folder/00003/ends.npy     rows that belong to destinations before the first, before the second, ..., all rows
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from shards.tasks import Step, Task

from embinit_fairseq.io import whole_folder


def group_of(number: int) -> int:
    """Return the number of files per task, such that it and the number of tasks for `number` files are about equal."""
    return math.isqrt(number - 1) + 1 if number else 1


@dataclass(frozen=True)
class Exchange:
    """Exchange rows, which are columns of (columns, rows) uint64 arrays in `.npy` files."""

    folder: Path
    #: returns the sources; called when the exchange begins
    sources: Callable[[], list[Path]]
    #: returns the number of destinations
    destinations: Callable[[], int]
    #: columns, number of destinations -> destination of each row
    destination: Callable[[np.ndarray, int], np.ndarray]

    def step(self, title: str) -> Step:
        """Return the step that sends the rows."""
        return Step(title, self.tasks)

    def tasks(self) -> list[Task]:
        """Return a task for each group of neighbouring sources."""
        sources, destinations = self.sources(), self.destinations()
        size = group_of(len(sources))
        return [
            Task(output, sort, (sources[number * size :][:size], output, self.destination, destinations))
            for number, output in enumerate(self._groups(len(sources)))
        ]

    def inputs(self) -> list[Path]:
        """Return the folders of which each destination reads its part by `rows_for`."""
        return self._groups(len(self.sources()))

    def _groups(self, sources: int) -> list[Path]:
        return [self.folder / f"{number:05}" for number in range(math.ceil(sources / group_of(sources)))]


def rows_for(destination: int, folders: list[Path]) -> np.ndarray:
    """Return all rows that were sent to a destination, in the order of the sources."""
    parts = []
    for folder in folders:
        first, last = np.load(folder / "ends.npy", mmap_mode="r")[destination : destination + 2]
        parts.append(np.array(np.load(folder / "rows.npy", mmap_mode="r")[:, first:last]))
    return np.concatenate(parts, axis=1)


def sort(
    sources: list[Path], output: Path, destination: Callable[[np.ndarray, int], np.ndarray], destinations: int
) -> None:
    """Write a folder with the rows of some sources, sorted by destination. One source at a time is in memory."""
    sent = [destination(np.load(source, mmap_mode="r"), destinations) for source in sources]
    counts = np.stack([np.bincount(numbers, minlength=destinations) for numbers in sent])
    ends = np.concatenate([[0], np.cumsum(counts.sum(0))])
    places = ends[:-1] + np.cumsum(counts, 0) - counts  # (sources, destinations): where the rows of a source begin
    with whole_folder(output, option="") as folder:
        np.save(folder / "ends.npy", ends)
        columns = np.load(sources[0], mmap_mode="r").shape[0]
        rows = np.lib.format.open_memmap(folder / "rows.npy", "w+", np.uint64, (columns, int(ends[-1])))
        for source, numbers, place, count in zip(sources, sent, places, counts):
            order = np.argsort(numbers, kind="stable")
            within = np.arange(len(order)) - np.repeat(np.cumsum(count) - count, count)
            rows[:, np.repeat(place, count) + within] = np.load(source)[:, order]
        rows.flush()
