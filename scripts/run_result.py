"""The record of an experiment that is no plain `embinit run`: begun before training, finished after scoring.

`begin` writes RUN/training.json, or refuses another run than the one that is there; `finish` writes RUN/result.json
with the losses of every epoch, the initialisation's report and the scores; `finished` asks whether there is anything
left to do; `fixed` prints which options must stay the same.
"""

from __future__ import annotations

import argparse
import functools
import json
import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout, installed or not

from embinit_fairseq import machine
from embinit_fairseq.errors import EmbinitError
from embinit_fairseq.files import sha256, write_json, write_text  # noqa: F401  write_text: for other scripts
from embinit_fairseq.runs import launch
from embinit_fairseq.runs.command import data_hashes as hashes_of_folders
from embinit_fairseq.runs.command import fixed_words, parse_command
from embinit_fairseq.runs.logs import read_log
from embinit_fairseq.runs.record import LOG, RESULT, TRAINING, read_record, result_of, summary, write_record


def file_sha256(path: Path) -> str:
    """Read once a process, unless size or time have changed since: a grid asks again and again."""
    status = path.stat()
    return _sha256(path, status.st_size, status.st_mtime_ns)


@functools.cache
def _sha256(path: Path, size: int, mtime_ns: int) -> str:
    return sha256(path)


def data_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every dictionary and binarised file below `folder`, by relative path; "all" is their joint hash."""
    return hashes_of_folders([folder])


def begin(args: argparse.Namespace) -> None:
    run, command = Path(args.run), parse_command(args.command, any_program=True)
    labels = dict(label.split("=", 1) for label in args.label)
    request = launch.Request(run, args.command, labels, args.metric, args.higher)
    record = launch.new_record(request, command, data_hashes(Path(args.data))) | {"labels": labels}
    run.mkdir(parents=True, exist_ok=True)
    before = launch.record_before(run)
    if before is not None:
        launch.check_same(run, before, record)
        if (run / RESULT).is_file() and before["command"] == record["command"]:
            return
    del record["sessions"], record["times"]
    write_record(run / TRAINING, {**record, "hardware": machine.hardware()})


def finish(args: argparse.Namespace) -> None:
    run = Path(args.run)
    record = read_record(run / TRAINING)
    log = read_log(run / LOG)
    summary(log, record["metric"], record["higher_is_better"])  # an error where it has no best epoch
    scores = json.loads(Path(args.scores).read_text(encoding="utf-8")) if args.scores else {}
    write_record(run / RESULT, result_of(record, run, log, scores))


def fixed(args: argparse.Namespace) -> None:
    """Print the options that must be the same when a run, or a grid, is continued."""
    print(shlex.join(fixed_words(args.command)))


def finished(args: argparse.Namespace) -> None:
    """Exit code 0 if the run was scored after at least that many epochs, else 1."""
    path = Path(args.run) / RESULT
    epochs = read_record(path)["epochs"] if path.is_file() else {}
    sys.exit(0 if max(map(int, epochs), default=0) >= args.epochs else 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="step", required=True)
    start = commands.add_parser("begin", help="before training; what follows -- is the command to be recorded")
    start.add_argument("--run", required=True, help="folder of the run")
    start.add_argument("--data", required=True, help="folder with the binarised data")
    start.add_argument("--label", nargs="*", default=[], metavar="KEY=VALUE", help="what tables are sorted by")
    start.add_argument("--metric", default="valid_loss", help="what chooses the checkpoint, as fairseq logs it")
    start.add_argument("--higher", action="store_true", help="a higher metric is better")
    start.set_defaults(call=begin)
    end = commands.add_parser("finish", help="after scoring")
    end.add_argument("--run", required=True, help="folder of the run")
    end.add_argument("--scores", help="JSON file with the scores")
    end.set_defaults(call=finish)
    check = commands.add_parser("finished", help="exit code 0 if the run needs no more training and scoring")
    check.add_argument("--run", required=True, help="folder of the run")
    check.add_argument("--epochs", type=int, required=True, help="epochs it shall have")
    check.set_defaults(call=finished)
    same = commands.add_parser("fixed", help="which of the options behind -- must stay the same in a folder of runs")
    same.set_defaults(call=fixed)
    arguments = sys.argv[1:]
    split = arguments.index("--") if "--" in arguments else len(arguments)
    args = parser.parse_args(arguments[:split])
    args.command = arguments[split + 1 :]
    try:
        args.call(args)
    except EmbinitError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
