"""Run a list of shell commands, several at a time: one per GPU, or one per core. What has ended well is not run again
by the same call, so that it can be stopped and started at will. Several machines share a list with --worker; in a task
of a SLURM array that is set.

A line of the list is `NAME: COMMAND` or a command; its output is written to LOGS/NAME.log."""

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
    add("--minutes", type=float, default=float("inf"), metavar="M", help="end after M minutes; the same call continues")
    add("--worker", metavar="K/N", help="of every N lines the K-th; default: all, in a SLURM array the task's share")
    add("--again", action="store_true", help="also run those that ended well before")
    add("--print", action="store_true", help="show the commands, run nothing")


def run(args: argparse.Namespace) -> int:
    """Return 1 if a command failed, or was not reached."""
    from embinit_fairseq.runs.grid import Grid, default_jobs, default_share, read_lines, run_grid

    lines = read_lines(_text(args.list))
    if args.worker is not None and not re.fullmatch("[0-9]+/[0-9]+", args.worker):
        raise OptionError(f"--worker {args.worker}: give K/N, such as 1/4")
    number, _, of = (args.worker or "").partition("/")
    share = (int(number), int(of)) if args.worker is not None else default_share()
    grid = Grid(
        lines, Path(args.logs), default_jobs() if args.jobs is None else args.jobs, args.minutes, share, args.again
    )
    if args.print:
        print(*(line.command for line in lines[share[0] - 1 :: share[1]]), sep="\n")
        return 0
    outcome = run_grid(grid, lambda text: None if args.quiet else print(text, file=sys.stderr, flush=True))
    if outcome.left:
        print(f"{counted(len(outcome.left), 'command')} not finished: the same call continues", file=sys.stderr)
    if outcome.failed:
        print(
            f"embinit grid: error: failed: {', '.join(outcome.failed)}; see {args.logs}/{outcome.failed[0]}.log",
            file=sys.stderr,
        )
    return 1 if outcome.failed or outcome.left else 0


def _text(path: str) -> str:
    """Return the list; some editors begin it with a byte-order mark."""
    try:
        return (sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = error.object.count(b"\n", 0, error.start) + 1
        raise OptionError(
            f"{path}:{number}: not UTF-8 text; if it is Latin-1, convert it: iconv -f latin1 -t utf-8"
        ) from error
