"""Send rows from many files to many files: every file is opened a few times, however many there are.

To read each of S sources for each of S destinations would be quadratic. Here a destination is a number of LEVELS
digits of base F, the least F with F^LEVELS >= S. At each level a task reads F files and divides their rows among F
files by the next digit. Rows of one destination stay in the order of the sources.

    folder/1/00000-00003/2.npy    rows of sources 3F to 4F-1 whose destination begins with the digit 2
    folder/3/00007-00000/1.npy    all rows for one destination
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from shards.tasks import Step, Task

from embinit_fairseq.io import whole_folder

LEVELS = 3


def fan_of(number: int) -> int:
    """Return the least F with F^LEVELS >= number: files that a task reads and writes."""
    fan = max(2, round(number ** (1 / LEVELS)) - 1)
    while fan**LEVELS < number:
        fan += 1
    return fan


@dataclass(frozen=True)
class Exchange:
    """Rows as columns of (columns, rows) uint64 arrays in `.npy` files."""

    folder: Path
    #: returns the sources; called when the exchange begins
    sources: Callable[[], list[Path]]
    #: returns the number of destinations
    destinations: Callable[[], int]
    #: columns, number of destinations -> destination of each row
    destination: Callable[[np.ndarray, int], np.ndarray]

    @property
    def fan(self) -> int:
        """Files that a task reads and writes."""
        return fan_of(max(self.destinations(), len(self.sources())))

    def steps(self, title: str) -> list[Step]:
        """Return the steps of the exchange."""
        return [Step(f"{title} {level + 1}/{LEVELS}", Level(self, level)) for level in range(LEVELS)]

    def results(self) -> list[Path]:
        """Return the file of each destination."""
        folder, fan = self.folder / str(LEVELS), self.fan
        return [_file(folder, number, 0, fan) for number in range(self.destinations())]


@dataclass(frozen=True)
class Level:
    """The tasks of one level of an exchange."""

    exchange: Exchange
    level: int

    def __call__(self) -> list[Task]:
        exchange, level, sources = self.exchange, self.level, self.exchange.sources()
        destinations, fan = exchange.destinations(), exchange.fan
        tasks = []
        for prefix in range(fan**level):
            groups = math.ceil(len(sources) / fan**level)
            for group in range(math.ceil(groups / fan)):
                files = [
                    sources[one] if level == 0 else _file(exchange.folder / str(level), prefix, one, fan)
                    for one in range(group * fan, min((group + 1) * fan, groups))
                ]
                output = exchange.folder / str(level + 1) / f"{prefix:05}-{group:05}"
                unit = fan ** (LEVELS - 1 - level)
                tasks.append(Task(output, divide, (files, output, exchange.destination, destinations, unit, fan)))
        return tasks


def _file(folder: Path, prefix: int, group: int, fan: int) -> Path:
    return folder / f"{prefix // fan:05}-{group:05}" / f"{prefix % fan}.npy"


def divide(
    files: list[Path],
    output: Path,
    destination: Callable[[np.ndarray, int], np.ndarray],
    destinations: int,
    unit: int,
    fan: int,
) -> None:
    """Write a folder with a file per digit of one level, which is destination // unit % fan."""
    rows = np.concatenate([np.load(file) for file in files], axis=1)
    digits = destination(rows, destinations) // unit % fan
    order = np.argsort(digits, kind="stable")
    ends = np.searchsorted(digits[order], np.arange(fan + 1))
    with whole_folder(output, option="") as folder:
        for digit in range(fan):
            np.save(folder / f"{digit}.npy", rows[:, order[ends[digit] : ends[digit + 1]]])
