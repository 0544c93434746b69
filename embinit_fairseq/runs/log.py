"""Read the log of `fairseq-train`: the values of every epoch and validation, time, parameters.

`embinit run` adds `--log-format json`. A run that was stopped and continued has several sessions in one log. If an
epoch or a validation occurs twice, the later one counts.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from embinit_fairseq.io import read_lines

_RECORD = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) \| (\w+) \| (\S+) \| (.*)$")
_PARAMETERS = re.compile(r"num\. shared model params: ([\d,]+) \(num\. trained: ([\d,]+)\)")
_SAVED = re.compile(r"Saved checkpoint .* @ (\d+) updates, score")
_TAG = re.compile(r'"(?:(\w+)_)?num_updates": ')
#: codes that a terminal does not show: colours, the end of a line erased, modes, the character set, titles and links
_UNSEEN = re.compile(r"\x1b(?:\[[\d;:]*m|\[0?K|\[\?[\d;]*[hl]|\(B|\][^\x07\x1b]*(?:\x07|\x1b\\))")
#: beginning of the options that fairseq's programs print
CONFIGURATION = "{'_name': None, 'common': "


@dataclass
class RunLog:
    """Hold the content of a log. Values have fairseq's names: `valid_loss` (to base 2), `valid_accuracy` (percent).

    Attributes:
        epochs: number of the epoch -> its last values.
        validations: number of updates -> values, with `epoch`.
        parameters: number of the model's parameters.
        trained_parameters: number of the trained parameters.
        sessions: number of starts of the training.
        wall_s: seconds from the first to the last line of each session, summed.
        clock: number of updates at a validation -> seconds until then, of all sessions.
        saved_updates: updates of the last checkpoint that was written completely.
        finished: True if fairseq-train has ended its training.
        level, logger: level and logger of the last line that has them; "" before the first.
        inner: the values that were last logged within an epoch.
    """

    epochs: dict[int, dict[str, float]] = field(default_factory=dict)
    validations: dict[int, dict[str, float]] = field(default_factory=dict)
    parameters: int | None = None
    trained_parameters: int | None = None
    sessions: int = 0
    wall_s: float = 0.0
    clock: dict[int, float] = field(default_factory=dict)
    saved_updates: int = 0
    finished: bool = False
    level: str = ""
    logger: str = ""
    inner: dict[str, float] = field(default_factory=dict)
    _started: datetime | None = None
    _seconds_before: float = 0.0  # of the earlier sessions
    _seconds_of_work: float = 0.0  # until the last line about updates: a session may print before its options
    _subset: str = "valid"

    @property
    def train_s(self) -> float:
        """Return the seconds of forward, backward and update, as fairseq counts them."""
        return sum(values.get("train_train_wall", 0.0) for values in self.epochs.values())

    def best_epoch(self, metric: str, higher: bool) -> int | None:
        """Return the epoch of `checkpoint_best.pt`; None without a value that is a number."""
        return best_place({epoch: values[metric] for epoch, values in self.epochs.items() if metric in values}, higher)

    def take(self, line: str) -> None:
        """Read one line, without its end."""
        line = without_colours(line)
        match = _RECORD.search(line)
        message = match.group(4) if match else line
        if message.startswith(CONFIGURATION):
            self.sessions += 1
            self.finished = False
            self._started, self._seconds_before = None, self._seconds_of_work
            self._subset = (option_in(message, "valid_subset") or "valid").split(",")[0]
        if match:
            self.level, self.logger = match.group(2), match.group(3)
            if self.sessions:
                now = datetime.fromisoformat(match.group(1))
                self._started = self._started or now
                self.wall_s = self._seconds_before + (now - self._started).total_seconds()
        is_end = message.startswith("done training in ")
        if "updates" in message or is_end:
            self._seconds_of_work = self.wall_s
        if saved := _SAVED.match(message):
            self.saved_updates = max(self.saved_updates, int(saved[1]))
        elif sizes := _PARAMETERS.match(message):
            self.parameters, self.trained_parameters = (int(size.replace(",", "")) for size in sizes.groups())
        elif is_end:
            self.finished = True
        elif tag := _TAG.search(message):
            with contextlib.suppress(ValueError, KeyError):  # a line that was cut off
                self._take_values(tag.group(1), json.loads(message))

    def _take_values(self, tag: str | None, record: dict[str, Any]) -> None:
        prefix = f"{tag}_" if tag else ""  # the values within an epoch have no tag
        numbers = {key: value for key, value in record.items() if isinstance(value, (int, float, str))}
        values = {key[len(prefix) :]: float(value) for key, value in numbers.items() if key.startswith(prefix)}
        epoch = int(record["epoch"])
        # the text of the training may be validated, too
        is_training = tag == "train" and (self._subset != "train" or "train_wall" in values)
        if tag is None:
            self.inner = {**values, "epoch": epoch}
        elif is_training or tag == self._subset:
            tag = "train" if is_training else "valid"
            named = {f"{tag}_{key}": value for key, value in values.items()}
            self.epochs.setdefault(epoch, {}).update(named)
            if tag == "valid":
                updates = int(values["num_updates"])
                self.validations[updates] = {"epoch": epoch, **named}
                self.clock[updates] = self.wall_s


Place = TypeVar("Place", bound=float)  # an epoch, a number of updates or seconds


def best_place(values: Mapping[Place, float], higher: bool) -> Place | None:
    """Return the key of the value of `checkpoint_best.pt` (the last of equal values); None without a number.

    fairseq compares rounded values. After NaN fairseq has lost the best value so far: the minimum of the two is NaN.
    """
    best = math.nan
    best_at: Place | None = None
    for place, value in sorted(values.items()):
        if not (best > value if higher else best < value):  # also true if one of them is NaN
            best, best_at = value, best_at if math.isnan(value) else place
    return best_at


def without_colours(line: str) -> str:
    """Return a line without the codes of a terminal that change no character: launchers colour what they print."""
    return _UNSEEN.sub("", line) if "\x1b" in line else line


def nats(bits: float) -> float:
    """Convert a loss to base 2, which fairseq logs, into a loss to base e, which most papers report."""
    return bits * math.log(2)


def option_in(configuration: str, name: str) -> str | None:
    """Return an option's value as text from a configuration that fairseq has printed; None if it is not there.

    fairseq prints `'beam': 5`, `data='bin'`, and `'task': {'_name': 'translation', ...}`, where the name counts.
    """
    match = re.search(rf"\b{name}'?(?:=|: )(?:\{{'_name': '([^']*)'|'([^']*)'|([^,)}}]+))", configuration)
    return match and next(group for group in match.groups() if group is not None)


def logged(path: Path, tag: str) -> list[dict[str, Any]]:
    """Return the values that fairseq has logged under a tag (`valid1`, `test`), with its names; [] without a log."""
    if not path.is_file():
        return []
    lines = (_RECORD.search(without_colours(line)) for _, line in read_lines(path, errors="replace"))
    messages = [line[4] for line in lines if line and line[3] == tag]
    return [json.loads(message) for message in messages if message.startswith("{") and message.endswith("}")]


def read_log(path: Path) -> RunLog:
    """Return the content of a log; raise DataError if there is no such file."""
    log = RunLog()
    for _, line in read_lines(path, errors="replace"):
        log.take(line)
    return log
