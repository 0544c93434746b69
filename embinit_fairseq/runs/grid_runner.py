"""Run a list of shell commands, several at a time: the trainings of a grid, on this machine or on a cluster.

A line is `NAME: COMMAND`, or a command, whose name is its number. bash runs it, with its output in LOGS/NAME.log. A
line that has ended well is not run again by a later call unless its command has changed (LOGS/NAME.done has the
command). An interrupted command is started again, and continues if the command can, as `embinit run` does.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embinit_fairseq.errors import OptionError
from embinit_fairseq.io import make_folder
from embinit_fairseq.machine import cores
from embinit_fairseq.runs.jobs import Cluster, Task, ThisMachine, visible_gpus
from embinit_fairseq.runs.training import STOPPED

_NAMED = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.+=@-]*): +(?=\S)")
#: a first word that ends with a colon, as no program's name does
_WRONGLY_NAMED = re.compile(r"""([^\s:'"$`(){}]+):\s""")
#: seconds between two looks at the jobs of this machine and of a cluster, and between two lines of progress
_LOOK, _LOOK_AT_CLUSTER, _REPORT = 0.1, 1.0, 60.0
#: characters of the last line of a running command's log in the progress
_SHOWN = 80


@dataclass(frozen=True)
class Grid:
    """Hold a list of commands, and the options for running them.

    Attributes:
        tasks: the commands, see `read_lines`.
        logs: folder of the commands' logs.
        jobs: commands at a time; None: one per GPU, else one per core; on SLURM no limit.
        minutes: time after which the call ends, with all running commands.
        share: (k, n): only the k-th of every n lines, 1-based.
        again: also run the commands that have ended well before.
        cluster: executor of submitit (`slurm`, `local`, `debug`); None: this machine.
        sbatch: option of sbatch -> its value.
    """

    tasks: Sequence[Task]
    logs: Path
    jobs: int | None = None
    minutes: float = float("inf")
    share: tuple[int, int] = (1, 1)
    again: bool = False
    cluster: str | None = None
    sbatch: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.minutes > 0:
            raise OptionError(f"--minutes {self.minutes:g}: must be more than 0")
        if not 1 <= self.share[0] <= self.share[1]:
            raise OptionError(f"--worker {self.share[0]}/{self.share[1]}: give K/N with K from 1 to N")

    @property
    def chosen(self) -> list[Task]:
        """Return the commands of this share."""
        return list(self.tasks[self.share[0] - 1 :: self.share[1]])


@dataclass
class Outcome:
    """Hold names of commands: ended well, now or before; failed; to be continued (no time, or stopped)."""

    done: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def read_lines(text: str, logs: Path = Path()) -> list[Task]:
    """Return the commands of a list, without empty lines and comments (`#`).

    Args:
        text: the list.
        logs: folder of the commands' logs.

    Raises:
        OptionError: the list has no command, a name with other characters, or one name twice.
    """
    tasks = []
    for number, command in enumerate(_commands(text), start=1):
        named = _NAMED.match(command)
        if named is None and (wrong := _WRONGLY_NAMED.match(command)):
            raise OptionError(
                f"the list has the name {wrong[1]}, expected letters, digits and . _ + = @ -, since it becomes the "
                "name of a log; give it another one"
            )
        tasks.append(Task(named[1], command[named.end() :], logs) if named else Task(str(number), command, logs))
    if not tasks:
        raise OptionError("the list has no command; give one per line")
    for name, count in Counter(task.name for task in tasks).items():
        if count > 1:
            raise OptionError(f"the list has the name {name} twice; give each command a name of its own")
    return tasks


def _commands(text: str) -> Iterator[str]:
    """Yield the commands of a list; a command continues after a backslash at the end of its line, as in a shell."""
    begun = ""
    for line in [*text.split("\n"), ""]:  # only LF ends a line: a command may have U+2028
        if begun or not line.lstrip().startswith("#"):
            begun += line.rstrip()
        if (len(begun) - len(begun.rstrip("\\"))) % 2:  # two backslashes are one character
            begun = begun[:-1]
        elif begun:
            yield begun.strip()
            begun = ""


def run_grid(grid: Grid, tell: Callable[[str], None] = lambda text: None) -> Outcome:
    """Run the commands that are not done; on Ctrl-C or SIGTERM end the running ones first.

    Args:
        grid: the commands, and the options for running them.
        tell: called with a line when a command ends, and with the progress.
    """
    make_folder(grid.logs, "--logs")
    outcome, waiting = Outcome(), []
    for task in grid.chosen:
        if grid.again or not task.is_done:
            waiting.append(task)
        else:
            outcome.done.append(task.name)
            tell(f"{task.name}: done before")
    jobs = min(grid.jobs or len(visible_gpus()) or cores(), max(len(waiting), 1))
    threads = max(1, cores() // (grid.jobs or jobs))
    executor: ThisMachine | Cluster = ThisMachine(jobs, threads)
    room = len(waiting)
    if grid.cluster is not None:
        executor = Cluster(grid.cluster, grid.logs / "submitit", grid.jobs, threads, grid.sbatch)
        room = len(waiting) if grid.cluster == "slurm" else jobs  # the other executors have no limit of their own
    begun: list[Task] = []
    seconds: list[float] = []
    until, reported = time.monotonic() + 60 * grid.minutes, time.monotonic()
    try:
        while (waiting or begun) and time.monotonic() < until:
            if new := waiting[: room - len(begun)]:
                executor.submit(new)
                begun += new
                del waiting[: len(new)]
            ended = [task for task in begun if task.job.done()]
            for task in ended:
                begun.remove(task)
                if _end(task, outcome, tell) and task.since is not None:
                    seconds.append(time.monotonic() - task.since)
            for task in begun:
                if task.since is None and _is_running(task.job):
                    task.since = time.monotonic()
            if ended or time.monotonic() - reported > _REPORT:
                reported = time.monotonic()
                tell(_progress(outcome, begun, len(waiting), seconds))
            if begun:
                time.sleep(_LOOK if grid.cluster is None else _LOOK_AT_CLUSTER)
    finally:
        executor.close()
    outcome.left += [task.name for task in (*begun, *waiting)]
    return outcome


def _is_running(job: Any) -> bool:
    return job.state == "RUNNING" if hasattr(job, "state") else job.running()


def _end(task: Task, outcome: Outcome, tell: Callable[[str], None]) -> bool:
    """Say how a task has ended, and return True if it has ended well."""
    try:
        code = task.job.result()
    except Exception as error:  # submitit's, if the process of the job was killed
        outcome.left.append(task.name)
        tell(f"{task.name}: its job has ended early, to be continued ({str(error).splitlines()[0]})")
        return False
    if code == 0:
        outcome.done.append(task.name)
        tell(f"{task.name}: done")
    elif code == STOPPED:
        outcome.left.append(task.name)
        tell(f"{task.name}: stopped, to be continued")
    else:
        outcome.failed.append(task.name)
        reason = f"failed with exit status {code}; see {task.log}, which ends: {task.last_line()}"
        tell(f"{task.name}: {'another call is running it' if code is None else reason}")
    return code == 0


def _progress(outcome: Outcome, begun: Sequence[Task], waiting: int, seconds: Sequence[float]) -> str:
    """Return "3 of 6 done, 2 running, about 4 min left", and the last line of each running command's log.

    Args:
        outcome: the commands that have ended.
        begun: tasks that are running or queued by a cluster.
        waiting: number of the other tasks.
        seconds: durations of the commands that have ended well.
    """
    since = {task.name: task.since for task in begun if task.since is not None}
    ended = len(outcome.done) + len(outcome.failed) + len(outcome.left)
    parts = [f"{len(outcome.done)} of {ended + len(begun) + waiting} done"]
    parts += [f"{len(outcome.failed)} failed"] if outcome.failed else []
    parts += [f"{len(since)} running"] if since else []
    if seconds and since:
        mean = sum(seconds) / len(seconds)
        elapsed = sum(min(time.monotonic() - began, mean) for began in since.values())
        left = (mean * (len(begun) + waiting) - elapsed) / len(since)
        parts.append(f"about {left / 3600:.1f} h left" if left > 5400 else f"about {left / 60:.0f} min left")
    lines = [f"  {task.name}: {task.last_line(_SHOWN)}" for task in begun if task.name in since]
    return "\n".join([", ".join(parts), *lines])
