"""What `fairseq-train` printed: the values of every epoch and validation, time, parameters, options.

Read are `--log-format json`, `simple` and `tqdm` (what was printed, or what `--log-file` wrote, which has no times). A
run that was stopped and resumed has several sessions in one log; where an epoch or a validation occurs twice, the
later counts.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path, PurePath
from typing import TypeVar

from embinit_fairseq.bounded import read_lines
from embinit_fairseq.errors import DataError
from embinit_fairseq.files import check_is_file

_RECORD = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) \| (\w+) \| (\S+) \| (.*)$")
_PARAMETERS = re.compile(r"num\. shared model params: (\d[\d,]{0,19}) \(num\. trained: (\d[\d,]{0,19})\)")
_PIPES = re.compile(r"epoch (\d{1,15}) \| (?:valid on '([^']+)' subset \| )?(.*num_updates .*)$")
_INNER = re.compile(r"epoch (\d{1,15}):\s+\d+ / \d+ (.*\bnum_updates=.*)$")
_JSON_TAG = re.compile(r'"(?:(\w+)_)?num_updates": ')
_DICTIONARY = re.compile(r"(?:\[([^\]]*)\] )?[dD]ictionary: (\d[\d,]{0,19}) types$")
_EXAMPLES = re.compile(r"loaded (\d[\d,]{0,19}) examples from: (\S+)$")
_SAVED_BEGINS = "Saved checkpoint "
_LOADED = re.compile(r"Loaded checkpoint .*\(epoch \d{1,15} @ (\d{1,15}) updates\)$")
_SAVED = re.compile(_SAVED_BEGINS + r".* @ (\d{1,15}) updates, score")
#: how the options begin that fairseq's programs print
CONFIGURATION = "{'_name': None, 'common': "


@dataclass
class RunLog:
    """Values have the names of `--log-format json`: valid_loss and train_loss (to base 2), valid_accuracy (percent).

    path: for messages. epochs: number -> the epoch's last values. validations: updates so far -> values.
    configuration: as printed. dictionaries: symbols in each, by language ("" if there is one). examples: sentences in
    each file of the data. clock: updates at a validation -> seconds from line to line so far, all sessions.
    """

    path: str = "the log"
    epochs: dict[int, dict[str, float]] = field(default_factory=dict)
    validations: dict[int, dict[str, float]] = field(default_factory=dict)
    parameters: int | None = None
    trained_parameters: int | None = None
    sessions: int = 0
    wall_s: float = 0.0  # first to last line of each session, summed: includes validation and checkpoints
    train_s: float = 0.0  # forward, backward and update only, as fairseq counts it
    saved_updates: int = 0  # the largest number of updates of a checkpoint that was written completely
    loaded_updates: int = 0  # of the checkpoint with which the first session went on
    finished: bool = False  # fairseq-train came to its end
    configuration: str = ""
    dictionaries: dict[str, int] = field(default_factory=dict)
    examples: dict[str, int] = field(default_factory=dict)
    clock: dict[int, float] = field(default_factory=dict)

    def best_epoch(self, metric: str, higher: bool) -> int:
        """The epoch that checkpoint_best.pt is of; raises DataError if no epoch was validated, or none but with NaN.

        fairseq compares the rounded values that it logs and takes the last of equal ones.
        """
        values = self._values(metric)
        if not values:
            raise DataError(f"{self.path} has no {metric}: no epoch was finished; start the training again")
        best = best_place(values, higher)
        if best is None:
            raise DataError(
                f"{self.path}: {metric} is NaN after every epoch: training has diverged, there is no best checkpoint; "
                "remove the run's folder and train again with a lower --lr, a longer warm-up or without --fp16"
            )
        return best

    def has_numbers(self, metric: str) -> bool:
        """Was it anything but NaN after an epoch? (Else nothing was validated, or training has diverged.)"""
        return any(not math.isnan(value) for value in self._values(metric).values())

    def _values(self, metric: str) -> dict[int, float]:
        return {epoch: record[metric] for epoch, record in self.epochs.items() if metric in record}

    def option(self, name: str) -> str | None:
        """An option of the training, as text, from the configuration that fairseq prints; None if it is not there.

        Of a section with options of its own, such as `task`, its name.
        """
        return option_in(self.configuration, name)


def option_in(configuration: str, name: str) -> str | None:
    """An option's value, as text, in a configuration that fairseq has printed; None if it is not there."""
    match = re.search(rf"\b{name}'?(?:=|: )(?:\{{'_name': '([^']*)'|'([^']*)'|([^,)}}]+))", configuration)
    return match and next(group for group in match.groups() if group is not None)


Place = TypeVar("Place", bound=float)  # an epoch, a number of updates or hours


def best_place(values: Mapping[Place, float], higher: bool) -> Place | None:
    """Key of the value that checkpoint_best.pt is of, the last of equal ones; None without a number.

    NaN is never the best, and fairseq forgets at a NaN what was the best before: it takes the minimum of the two.
    """
    best = math.nan
    best_at: Place | None = None
    for place, value in sorted(values.items()):
        if not (best > value if higher else best < value):  # true, too, where one of them is NaN
            best, best_at = value, best_at if math.isnan(value) else place
    return best_at


def nats(bits: float) -> float:
    """fairseq reports losses to base 2; papers mostly to base e."""
    return bits * math.log(2)


def read_log(path: Path, *further: Path) -> RunLog:
    """Parse the log of a training, and further files in which it went on; DataError if there is no such file."""
    reader = LogReader(path)
    for file in (path, *further):
        check_is_file(str(file))
        if not file.is_file():
            raise DataError(f"{file} is missing: train first (embinit run writes it)")
        for _, line in read_lines(file, DataError, newline=None, errors="replace"):  # progress bars end theirs with CR
            reader.take(line)
    return reader.end()


class LogReader:
    """Collects a RunLog line by line.

    level, logger: of the record that the last line belongs to; "" before the first. inner: the values that were last
    logged within an epoch.
    """

    def __init__(self, path: Path) -> None:
        self.log = RunLog(str(path))
        self.level = self.logger = ""
        self.inner: dict[str, float] = {}
        self.first: datetime | None = None
        self.last: datetime | None = None
        self.subset = "valid"

    def take(self, line: str) -> None:
        """Read one line, without its end; what is no record of fairseq-train is passed over."""
        match = _RECORD.search(line)
        message = match.group(4) if match else line
        if message.startswith(CONFIGURATION):
            self._start_session(message)
            self.first = None
        if match:
            self.level, self.logger = match.group(2), match.group(3)
            with contextlib.suppress(ValueError):  # of a damaged log
                self.last = datetime.fromisoformat(match.group(1))
            self.first = self.first or (self.last if self.log.sessions else None)
        # from the last place: tried at each of many, the pattern would take quadratic time
        if " @ " in message and (saved := _SAVED.match(message, max(0, message.rfind(_SAVED_BEGINS)))):
            self.log.saved_updates = max(self.log.saved_updates, int(saved.group(1)))
        elif message.startswith("num. shared") and (fields := _PARAMETERS.search(message)):
            self.log.parameters, self.log.trained_parameters = (int(n.replace(",", "")) for n in fields.groups())
        elif message.endswith(" types") and (fields := _DICTIONARY.match(message)):
            self.log.dictionaries[fields.group(1) or ""] = int(fields.group(2).replace(",", ""))
        elif message.startswith("Loaded ") and (fields := _LOADED.match(message)):
            if self.log.sessions <= 1:
                self.log.loaded_updates = int(fields.group(1))
        elif message.startswith("loaded ") and (fields := _EXAMPLES.match(message)):
            self.log.examples[PurePath(fields.group(2)).name] = int(fields.group(1).replace(",", ""))
        elif message.startswith("done training in "):
            self.log.finished = True
        elif "num_updates" in message:
            self._take_values(message)

    def _start_session(self, configuration: str) -> None:
        self._end_session()
        self.log.sessions += 1
        self.log.finished = False
        self.log.configuration = configuration
        self.subset = (self.log.option("valid_subset") or "valid").split(",")[0]

    def _end_session(self) -> None:
        if self.first is not None and self.last is not None:
            self.log.wall_s += (self.last - self.first).total_seconds()

    def _take_values(self, message: str) -> None:
        logged = _json_values(message) if message.startswith("{") else _piped_values(message)
        if logged is None:
            return
        tag, epoch, values = logged
        tag = "valid" if tag == self.subset else tag
        if tag == "train_inner":
            self.inner = {"epoch": epoch, **values}
        if tag not in ("train", "valid"):
            return
        named = {f"{tag}_{key}": value for key, value in values.items()}
        self.log.epochs.setdefault(epoch, {}).update(named)
        if tag == "valid":
            updates = int(values["num_updates"])
            self.log.validations[updates] = {"epoch": epoch, **named}
            if self.first is not None and self.last is not None:
                self.log.clock[updates] = self.log.wall_s + (self.last - self.first).total_seconds()

    def end(self) -> RunLog:
        """All that was read, when there are no more lines."""
        self._end_session()
        log = self.log
        if not log.clock:
            log.clock = self._clock_of_values()
        log.train_s = sum(record.get("train_train_wall", 0.0) for record in log.epochs.values())
        log.validations = dict(sorted(log.validations.items()))
        return log

    def _clock_of_values(self) -> dict[int, float]:
        """By what fairseq has counted at the ends of epochs, for logs without times (--log-file)."""
        ends = ((values.get("train_num_updates"), values.get("train_wall")) for values in self.log.epochs.values())
        return {int(updates): wall for updates, wall in ends if updates is not None and wall is not None}


def _json_values(message: str) -> tuple[str, int, dict[str, float]] | None:
    """(tag, epoch, values by their names without the tag); None for other records and lines that were cut off."""
    match = _JSON_TAG.search(message)
    if match is None:
        return None
    try:
        record = json.loads(message)
        tag = match.group(1) or "train_inner"
        epoch, prefix = int(record["epoch"]), f"{tag}_" if match.group(1) else ""
        numbers = {k: v for k, v in record.items() if isinstance(v, (int, float, str))}  # not a confusion matrix
        values = {k[len(prefix) :]: float(v) for k, v in numbers.items() if k.startswith(prefix)}
    except (ValueError, KeyError, AttributeError, TypeError, OverflowError, RecursionError):
        return None
    whole = 0 <= epoch < 10**15 and math.isfinite(values.get("num_updates", math.nan))
    return (tag, epoch, values) if whole else None


def _piped_values(message: str) -> tuple[str, int, dict[str, float]] | None:
    """The same of `--log-format simple` and `tqdm`."""
    if match := _PIPES.match(message):
        tag, words = match.group(2) or "train", [word.partition(" ") for word in match.group(3).split(" | ")]
    elif match := _INNER.match(message):
        tag, words = "train_inner", [word.partition("=") for word in match.group(2).split(", ")]
    else:
        return None
    values = {}
    for key, _, value in words:
        with contextlib.suppress(ValueError):
            values[key] = float(value)
    return (tag, int(match.group(1)), values) if math.isfinite(values.get("num_updates", math.nan)) else None
