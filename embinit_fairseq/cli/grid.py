"""Run a list of shell commands, several at a time: one per GPU, or one per core. A command that has ended well is not
run again by the same call, so a call may be stopped and repeated. Several machines share a list with --worker;
--cluster gives the list to a scheduler.

A line of the list is `NAME: COMMAND` or a command; its output is written to LOGS/NAME.log."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

from embinit_fairseq.arguments import read_pairs
from embinit_fairseq.cli.print_records import at_least
from embinit_fairseq.errors import OptionError, counted
from embinit_fairseq.io import check_is_file


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("list", metavar="FILE", help="a command per line; - reads standard input")
    add("--logs", required=True, metavar="DIR", help="output of the commands, and marks of those done")
    add("--jobs", type=at_least(1), metavar="N", help="commands at a time; default: one per GPU, else core; SLURM: all")
    add("--minutes", type=float, default=float("inf"), metavar="M", help="end after M minutes; the same call continues")
    add("--worker", metavar="K/N", default="1/1", help="run the K-th of every N lines; default: all")
    add("--again", action="store_true", help="also run commands that ended well before")
    add("--print", action="store_true", help="show the commands, run nothing")
    add(
        "--cluster",
        choices=("slurm", "local", "debug"),
        default=os.environ.get("EMBINIT_CLUSTER") or None,
        help="run the commands as jobs of submitit, which are requeued after preemption and at their limit; default: "
        "EMBINIT_CLUSTER, else without submitit",
    )
    add(
        "--sbatch",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="options of sbatch for each job, such as time=720 (minutes) gpus-per-node=1 partition=long; they "
        "replace the options of EMBINIT_SBATCH",
    )


def run(args: argparse.Namespace) -> int:
    """Run the commands; return 1 if one failed or did not run."""
    from embinit_fairseq.runs.grid_runner import Grid, read_lines, run_grid

    if not re.fullmatch("[0-9]+/[0-9]+", args.worker):
        raise OptionError(f"--worker {args.worker}: give K/N, such as 1/4")
    k, n = map(int, args.worker.split("/"))
    form = "KEY=VALUE, such as time=720"
    options = read_pairs("EMBINIT_SBATCH", os.environ.get("EMBINIT_SBATCH", "").split(), form)
    options |= read_pairs("--sbatch", args.sbatch, form)
    if empty := [key for key, value in options.items() if not value]:
        raise OptionError(f"--sbatch {empty[0]}=: has no value; give {form}")
    logs = Path(args.logs)
    settings = (args.jobs, args.minutes, (k, n), args.again, args.cluster, options)
    grid = Grid(read_lines(_text(args.list), logs), logs, *settings)
    if args.print:
        print(*(task.command for task in grid.chosen), sep="\n")
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
    if path != "-" and not os.path.exists(path):
        check_is_file(path, remedy="name a file with a command per line, or - for standard input")
    try:
        return (sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = error.object.count(b"\n", 0, error.start) + 1
        raise OptionError(
            f"{path}:{number}: not UTF-8 text; if it is Latin-1 or cp1252, convert it: iconv -f cp1252 -t utf-8"
        ) from error
