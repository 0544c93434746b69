"""Run a list of shell commands, several at a time: one per GPU, or one per core. What has ended well is not run again
by the same call, so that it can be stopped and started at will. Several machines share a list with --worker; in a task
of a SLURM array that is set.

A line of the list is `NAME: COMMAND` or a command; its output goes to LOGS/NAME.log."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from embinit_fairseq.errors import OptionError, counted


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("list", metavar="FILE", help="a command per line; - reads standard input")
    add("--logs", required=True, metavar="DIR", help="what the commands print, and which of them are done")
    add("--jobs", type=int, metavar="N", help="commands at a time; default: one per GPU, else one per core")
    add("--minutes", type=float, default=float("inf"), metavar="M", help="end after M minutes; the same call goes on")
    add("--worker", metavar="K/N", help="of every N lines the K-th; default: all, in a SLURM array the task's share")
    add("--again", action="store_true", help="run those that ended well before, too")
    add("--print", action="store_true", help="show the commands, run nothing")


def run(args: argparse.Namespace) -> int:
    """Exit code 1 if a command failed, or was not reached."""
    from embinit_fairseq.runs.grid import Grid, default_jobs, default_share, read_lines, run_grid

    lines = read_lines(_text(args.list))
    share = default_share() if args.worker is None else _share(args.worker)
    jobs = default_jobs() if args.jobs is None else args.jobs
    grid = Grid(lines, Path(args.logs), jobs, args.minutes, share, args.again)
    if args.print:
        print(*(line.command for line in lines[share[0] - 1 :: share[1]]), sep="\n")
        return 0
    outcome = run_grid(grid, lambda text: None if args.quiet else print(text, file=sys.stderr, flush=True))
    if outcome.left:
        print(f"the time is up, {counted(len(outcome.left), 'command')} left: the same call goes on", file=sys.stderr)
    if outcome.failed:
        print(
            f"embinit grid: error: failed: {', '.join(outcome.failed)}; see {args.logs}/{outcome.failed[0]}.log",
            file=sys.stderr,
        )
    return 1 if outcome.failed or outcome.left else 0


def _text(path: str) -> str:
    try:
        content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        return content.decode("utf-8-sig")  # some editors begin with a mark
    except OSError as error:
        raise OptionError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except UnicodeDecodeError as error:
        number = error.object.count(b"\n", 0, error.start) + 1
        raise OptionError(
            f"{path}:{number}: not UTF-8 text; if it is Latin-1, convert it: iconv -f latin1 -t utf-8"
        ) from error


def _share(text: str) -> tuple[int, int]:
    if not re.fullmatch("[0-9]{1,9}/[0-9]{1,9}", text):
        raise OptionError(f"--worker {text}: give K/N, such as 1/4")
    number, of = text.split("/")
    return int(number), int(of)
