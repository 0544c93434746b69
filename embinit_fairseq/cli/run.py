"""Train in a folder of its own: the checkpoints, a log, a record of what is run (command, versions, hardware, hashes of
data and vectors) and, at the end, result.json with the losses of all epochs. The same call again continues what was
interrupted; another command in a used folder, and a folder of something else, are refused. Behind -- stands the command
of the training."""

from __future__ import annotations

import argparse
import contextlib
import re
import shlex
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embinit_fairseq.errors import OptionError
from embinit_fairseq.runs.metrics import is_score
from embinit_fairseq.runs.process import Pulse

if TYPE_CHECKING:
    from embinit_fairseq.runs.launch import Outcome
    from embinit_fairseq.runs.logs import LogReader

#: lines shown of a training that has failed
_LAST = 30
#: exit statuses above are signals
_SIGNALS = 128
_USAGE_ERROR = re.compile(r"\S+: error: ")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.usage = (
        "embinit run DIR [--metric NAME] [--higher] [--label KEY=VALUE ...] [-q] [-v] [--json] "
        "-- [LAUNCHER ...] fairseq-train DATA ..."
    )
    add = parser.add_argument
    add("folder", metavar="DIR", help="train.log, training.json, result.json and checkpoints/ go here")
    add(
        "--metric",
        metavar="NAME",
        help="what chooses the best epoch, as logged; default: valid_loss, or what --best-checkpoint-metric says",
    )
    add("--higher", action="store_true", help="a higher metric is better")
    add(
        "--label",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="what `embinit compare` sorts by; arch, init and seed are taken from the command",
    )
    add("-v", "--verbose", action="store_true", help="show the whole log, not only validations, warnings and progress")
    add("--json", action="store_true", help="print the record as one JSON object at the end")


def run(args: argparse.Namespace) -> int:
    """Train; the exit status is that of the training."""
    from embinit_fairseq.cli.records import print_json
    from embinit_fairseq.runs.launch import TrainingRequest, run

    if not args.folder.strip():
        raise OptionError("the folder of the run is empty; name one (is a variable of the shell unset?)")
    request = TrainingRequest(Path(args.folder), args.training, _labels(args.label), args.metric, args.higher)
    screen = _Screen(args.verbose, args.quiet)
    outcome = run(request, screen.show)
    screen.clear()
    for note in outcome.notes:
        print(f"embinit run: {args.folder}: {note}", file=sys.stderr)
    if outcome.code > _SIGNALS:
        name = _signal_name(outcome.code - _SIGNALS)
        print(
            f"embinit run: {args.folder}: ended by {name}; the same call {_next(args.folder)}",
            file=sys.stderr,
        )
    elif outcome.code:
        screen.show_last()
        what = "came to no end" if outcome.notes else f"ended with exit status {outcome.code}"
        print(f"embinit run: error: the training {what}; see {args.folder}/train.log", file=sys.stderr)
    if args.json:
        print_json(outcome.record)
    elif not outcome.code:
        print(_summary(args.folder, outcome))
    return outcome.code


def _next(folder: str) -> str:
    from embinit_fairseq.runs.launch import CHECKPOINTS

    saved = any((Path(folder) / CHECKPOINTS).glob("*.pt"))
    return "goes on from the last checkpoint" if saved else "begins anew, as no checkpoint was saved yet"


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def _labels(given: list[str]) -> dict[str, str]:
    labels = {}
    for text in given:
        label, equals, value = text.partition("=")
        if not label or not equals:
            raise OptionError(f"--label {text}: give KEY=VALUE, such as direction=de-en")
        labels[label] = value
    return labels


def _summary(folder: str, outcome: Outcome) -> str:
    record = outcome.record
    best, time = record.get("best") or {}, record.get("time") or {}
    parts = []
    if best:
        metric = record["metric"]
        unit = " bits" if metric == "valid_loss" else ""
        parts.append(
            f"best {metric} {best[metric]:g}{unit} at epoch {best['epoch']} of {max(map(int, record['epochs']))}"
        )
    if time.get("wall_s"):
        parts.append(f"{time['wall_s']:,.0f} s")
    if time.get("cpu_s"):
        parts.append(f"{time['cpu_s']:,.0f} s of processor time")
    parts.append(shlex.join([str(Path(folder) / ("result.json" if "epochs" in record else "training.json"))]))
    return "; ".join(parts)


class _Screen:
    """What of a log is shown, on standard error: validations, warnings, the plugin's own records, and on a terminal a
    line with the progress."""

    def __init__(self, verbose: bool, quiet: bool = False) -> None:
        self.verbose, self.quiet = verbose, quiet
        self.live = sys.stderr.isatty() and not verbose and not quiet
        self.validations = 0
        self.tail: list[str] = []
        self.pulse = Pulse()

    def show(self, line: str, reader: LogReader) -> None:
        """Called with every new line, and with "" where there is none."""
        if not line:
            if self.pulse.due():
                self._print(f"embinit run: {_progress(reader)}, {self.pulse.seconds}")
            return
        known, self.validations = self.validations, len(reader.log.validations)
        if self.verbose or (_is_wanted(reader) and not self.quiet):
            self._print(line)
            return
        self.tail = [*self.tail[-_LAST:], line]
        if self.validations > known and not self.quiet:
            self._print(_validation(reader))
        elif self.live and reader.inner:
            text = _progress(reader)[: shutil.get_terminal_size().columns - 1]
            print(f"\r{text}\033[K", end="", file=sys.stderr, flush=True)
            self.pulse.beat()

    def _print(self, line: str) -> None:
        self.pulse.beat()
        with contextlib.suppress(OSError):  # a screen that is gone or full ends no training
            self.clear()
            print(line, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Remove the line with the progress."""
        if self.live:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def show_last(self) -> None:
        """The end of the log, if it was not shown; of what argparse says the error only."""
        if not self.verbose and self.tail:
            shown = self.tail[-1:] if _USAGE_ERROR.match(self.tail[-1]) else self.tail
            print(*shown, sep="\n", file=sys.stderr)
            if "unrecognized arguments: --embed-init" in shown[-1] and "needs --embed-init" not in shown[-1]:
                plugin = Path(__file__).resolve().parents[1]
                print(f"--embed-init is an option of this plugin: add --user-dir {plugin}", file=sys.stderr)


def _progress(reader: LogReader) -> str:
    """How far the training is."""
    inner: dict[str, Any] = reader.inner
    if not inner:
        return "the training starts" if not reader.level else "the training has begun"
    loss = f", loss {inner['loss']:g}" if "loss" in inner else ""
    return f"epoch {inner['epoch']}, update {inner['num_updates']:,.0f}{loss}"


def _is_wanted(reader: LogReader) -> bool:
    """What comes before the first record ("") is the help of argparse, or comes with the end of a failed run."""
    return reader.level not in ("", "INFO", "DEBUG") or reader.logger.startswith("embinit_fairseq")


def _validation(reader: LogReader) -> str:
    updates, values = list(reader.log.validations.items())[-1]
    shown = {key: value for key, value in values.items() if is_score(key)}
    return f"epoch {values['epoch']}, update {updates:,}: " + ", ".join(f"{k} {v:g}" for k, v in shown.items())
