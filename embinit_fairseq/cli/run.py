"""Train in one folder: checkpoints, a log, a record of the call (command, versions, hardware, hashes of data and
vectors) and, at the end, result.json with the losses of all epochs. The same call again continues an interrupted
training; exit status 75 says that the training was stopped and has saved. Another command in a used folder is refused.
The command of the training follows after --."""

from __future__ import annotations

import argparse
import contextlib
import re
import shlex
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from embinit_fairseq.arguments import read_pairs
from embinit_fairseq.cli.print_records import show
from embinit_fairseq.errors import OptionError
from embinit_fairseq.runs.log import RunLog
from embinit_fairseq.runs.metrics import is_score

#: lines shown of a training that has failed
_LAST = 30
#: exit statuses above are signals
_SIGNALS = 128
_USAGE_ERROR = re.compile(r"\S+: error: ")
#: torchrun's lines about its processes; a report without the cause follows the line of a failed process
_TORCHRUN = re.compile(r"[WE]\d{4} .*\belastic\b.*\] (failed \(exitcode)?")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.usage = (
        "embinit run DIR [--metric NAME] [--higher] [--label KEY=VALUE ...] [-q] [-v] [--json] "
        "-- [LAUNCHER ...] fairseq-train DATA ..."
    )
    add = parser.add_argument
    add("folder", metavar="DIR", help="folder of train.log, training.json, result.json and checkpoints/")
    add(
        "--metric",
        metavar="NAME",
        help="logged value that chooses the best epoch; default: valid_loss, or --best-checkpoint-metric",
    )
    add("--higher", action="store_true", help="a higher metric is better")
    add(
        "--label",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="labels for the rows of `embinit compare`; arch, init and seed are taken from the command",
    )
    add("-v", "--verbose", action="store_true", help="show the whole log, not only validations, warnings and progress")
    add("--json", action="store_true", help="print the record as one JSON object at the end")


def run(args: argparse.Namespace) -> int:
    """Train; return the exit status of the training."""
    from embinit_fairseq.runs.training import STOPPED, run

    if not args.folder.strip():
        raise OptionError("the folder of the run is empty; name one (is a variable of the shell unset?)")
    labels = read_pairs("--label", args.label, "KEY=VALUE, such as direction=de-en")
    screen = _Screen(args.verbose, args.quiet)
    outcome = run(Path(args.folder), args.training, labels, args.metric, args.higher, screen.show)
    screen.clear()
    said = [f"{args.folder}: {note}" for note in outcome.notes]
    if outcome.code > _SIGNALS:
        said.append(_interrupted(args.folder, outcome.code - _SIGNALS))
    elif outcome.code not in (0, STOPPED):
        cause = screen.show_last("--user-dir" in args.training)
        ending = "did not finish" if outcome.notes else f"ended with exit status {outcome.code}"
        # lists of trainings quote this line
        said.append(f"error: {cause}the training {ending}, see {args.folder}/train.log")
    for line in said:
        print(f"embinit run: {line}", file=sys.stderr)
    if args.json or not outcome.code:
        show(outcome.record, lambda record: _summary(Path(args.folder), record), args.json)
    return outcome.code


def _interrupted(folder: str, number: int) -> str:
    """Name the signal that has ended the training in a folder, and the effect of the same call."""
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    saved = any(Path(folder, "checkpoints").glob("*.pt"))
    then = "continues from the last checkpoint" if saved else "starts from the beginning: no checkpoint was saved"
    return f"{folder}: ended by {name}; the same call {then}"


def _summary(folder: Path, record: dict[str, Any]) -> str:
    best, time, parts = record.get("best") or {}, record.get("time") or {}, []
    if best:
        metric = record["metric"]
        unit = " bits" if metric == "valid_loss" and "valid_loss_bits" in best else ""
        epochs = max(map(int, record["epochs"]))
        parts.append(f"best {metric} {best[metric]:g}{unit} at epoch {best['epoch']} of {epochs}")
    for key, unit in (("wall_s", "s"), ("cpu_s", "s of processor time")):
        if time.get(key):
            parts.append(f"{time[key]:,.0f} {unit}")
    return "; ".join([*parts, shlex.quote(str(folder / "result.json"))])


class _Screen:
    """Show validations, warnings, the plugin's records and, on a terminal, the progress on standard error."""

    def __init__(self, verbose: bool, quiet: bool = False) -> None:
        self.verbose, self.quiet = verbose, quiet
        self.is_live = sys.stderr.isatty() and not verbose and not quiet
        self.validations = 0
        self.tail: list[str] = []
        self.has_failed = False  # True if a process of torchrun has failed

    def show(self, line: str, log: RunLog) -> None:
        """Show a new line of the log, or its values."""
        before, self.validations = self.validations, len(log.validations)
        # before the first record ("") is the help of argparse, or text that is shown at the end of a failed run
        is_wanted = log.level not in ("", "INFO", "DEBUG") or log.logger.startswith("embinit_fairseq")
        if self.verbose or (is_wanted and not self.quiet):
            self._print(line)
            if log.level == "ERROR":
                self.tail = [line.split(" | ", 3)[-1]]
            return
        if of_torchrun := _TORCHRUN.match(line):
            self.has_failed |= bool(of_torchrun[1])
        elif not self.has_failed:
            self.tail = [*self.tail[-_LAST:], line]
        if self.validations > before and not self.quiet:
            updates, values = list(log.validations.items())[-1]
            shown = ", ".join(f"{key} {value:g}" for key, value in values.items() if is_score(key))
            self._print(f"epoch {values['epoch']}, update {updates:,}: {shown}")
        elif self.is_live and log.inner:
            loss = f", loss {log.inner['loss']:g}" if "loss" in log.inner else ""
            text = f"epoch {log.inner['epoch']}, update {log.inner['num_updates']:,.0f}{loss}"
            print(f"\r{text[: shutil.get_terminal_size().columns - 1]}\033[K", end="", file=sys.stderr, flush=True)

    def _print(self, line: str) -> None:
        with contextlib.suppress(OSError):  # a closed terminal does not end a training
            self.clear()
            print(line, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Remove the line with the progress."""
        if self.is_live:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def show_last(self, has_plugin: bool) -> str:
        """Show the end of the log, without argparse's output; return the last line for the error: `CAUSE; `."""
        if self.verbose or not self.tail:
            return ""
        *before, cause = self.tail
        if before and not _USAGE_ERROR.match(cause):
            print(*before, sep="\n", file=sys.stderr)
        if "unrecognized arguments: --embed-init" in cause and not has_plugin:
            cause += (
                f" (--embed-init is an option of this plugin: add --user-dir {Path(__file__).resolve().parents[1]})"
            )
        return f"{cause.strip()}; "
