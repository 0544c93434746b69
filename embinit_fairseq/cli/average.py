"""Average checkpoints of one training, parameter by parameter, into one checkpoint for fairseq-generate: the last or
the best N of a run, or the named files."""

from __future__ import annotations

import argparse
from pathlib import Path

from embinit_fairseq.checkpoints.averaging import average, best_checkpoints, checkpoints_in, last_checkpoints
from embinit_fairseq.cli.print_records import print_json
from embinit_fairseq.errors import CheckpointError, OptionError, counted
from embinit_fairseq.runs.metrics import wrong_direction


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("paths", nargs="+", metavar="RUN|FILE.pt", help="a run's folder (with --last or --best), or checkpoints")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--last", type=int, metavar="N", help="the newest N that have a number in their name")
    which.add_argument(
        "--best", type=int, metavar="N", help="the N with the best validation value, of --keep-best-checkpoints if any"
    )
    add(
        "--by",
        choices=("updates", "epochs"),
        help="with --last: checkpoint_1_500.pt or checkpoint3.pt; default: updates, if there are any",
    )
    add("--output", required=True, metavar="FILE.pt", help="the mean")
    add("--force", action="store_true", help="replace a file of that name")
    add("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Choose, average, print."""
    chosen = _chosen(args)
    average(chosen, Path(args.output), args.force)
    if args.json:
        print_json({"output": args.output, "checkpoints": [str(path) for path in chosen]})
    else:
        print(f"{args.output}: mean of {counted(len(chosen), 'checkpoint')}")
        print(*(f"  {path}" for path in chosen), sep="\n")
    return 0


def _chosen(args: argparse.Namespace) -> list[Path]:
    paths = [Path(path) for path in args.paths]
    if args.by and args.last is None:
        raise OptionError(f"--by {args.by}: chooses among the last ones; give --last N, too")
    if args.last is None and args.best is None:
        return _files(paths)
    flag, number = ("--last", args.last) if args.last is not None else ("--best", args.best)
    if number < 2:
        raise OptionError(f"{flag} {number}: the mean of two checkpoints at least; one is its own mean")
    if len(paths) == 1 and not paths[0].exists():
        raise OptionError(f"{paths[0]}: no such folder; check the path")
    if len(paths) != 1 or not paths[0].is_dir():
        named_paths = " ".join(args.paths)
        raise OptionError(f"{flag}: chooses among the checkpoints of a run; give one folder, not {named_paths}")
    folder = checkpoints_in(paths[0])
    if flag == "--last":
        return last_checkpoints(folder, number, args.by)
    return best_checkpoints(folder, number, wrong_direction)


def _files(paths: list[Path]) -> list[Path]:
    for path in paths:
        if path.is_dir():
            raise OptionError(f"{path}: a folder; say which of its checkpoints: --last N or --best N")
        if not path.is_file():
            raise CheckpointError(f"{path}: no such checkpoint; check the path")
    if len(paths) < 2:
        raise OptionError(f"{paths[0]}: one checkpoint is its own mean; name two at least, or a run with --last N")
    return paths
