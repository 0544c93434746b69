"""Run the steps of a preparation of text: each step is a list of tasks that do not depend on one another.

A task writes one file or folder, and a task whose output exists is done: the same call continues a stopped one, and a
killed task is repeated alone. An engine (engines.py) runs them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from embinit_fairseq.io import read_json

#: files of the text of a shard
SPLITS = ("train", "valid")
Line = TypeVar("Line")


@dataclass(frozen=True)
class Task:
    """Describe a call that writes `output`, a file or a folder, under a temporary name first."""

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
    """Hold tasks that may begin when all tasks of the step before are done."""

    title: str
    #: returns all tasks, finished ones included, in the same order at every call; called when the step begins
    tasks: Callable[[], Sequence[Task]]
    #: number of tasks where it is known before the step begins
    number: int | None = None

    def unfinished(self) -> list[Task]:
        """Return the tasks whose output does not exist."""
        return [task for task in self.tasks() if not task.output.exists()]


def once(title: str, output: Path, function: Callable[..., None], *arguments: Any) -> Step:
    """Return a step of one task."""
    return Step(title, partial(list, (Task(output, function, arguments),)), 1)


def shard_files(folder: Path, name: str) -> list[Path]:
    """Return the file of this name of each shard."""
    return [shard / name for shard in finished_shards(folder)]


def finished_shards(folder: Path) -> list[Path]:
    """Return the folders of the shards, in the order of the input."""
    return sorted(path for path in folder.glob("[0-9]*") if path.name.isdigit())


def sum_stats(folder: Path) -> dict[str, int]:
    """Return the sums of the shards' numbers in stats.json, sorted by name."""
    total: Counter[str] = Counter()
    for path in shard_files(folder, "stats.json"):
        total.update(read_json(path))
    return dict(sorted(total.items()))


def paragraphs(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """Yield the lines, or their converted values, between empty ones."""
    return (list(group) for is_text, group in groupby(lines, bool) if is_text)
