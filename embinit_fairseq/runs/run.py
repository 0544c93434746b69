"""One training as tables and curves see it, whatever it was read from (`folders`)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from embinit_fairseq.runs.command import DATA, FREE_OPTIONS, LIMITS, Command, joint_hash, parse_command
from embinit_fairseq.runs.logs import RunLog, best_place, nats
from embinit_fairseq.runs.metrics import higher_is_better

#: where translations of the test set are, and the reference they were scored with
TEXTS = (
    ("test.hypothesis.text", "test.reference.text"),
    ("test/hypothesis.text", "test/reference.text"),
    ("test.hypothesis.txt", "test.reference.txt"),
)
#: in every command, but no setting of the experiment
_PLACES = frozenset([DATA, *"--seed --seeds --save-dir --user-dir --output --data".split()])
#: of the validations and of the training, in this order; see `Validation`
CLOCKS = {"cpu_s": "processor seconds", "wall_s": "seconds"}


@dataclass(frozen=True)
class Validation:
    """updates: so far; None where the log does not tell. values: by their names in the log, such as valid_loss.

    wall_s, cpu_s: seconds and processor seconds of the training so far, None where they are not known.
    """

    epoch: int
    updates: int | None
    values: dict[str, float]
    wall_s: float | None = None
    cpu_s: float | None = None


@dataclass(frozen=True)
class Run:
    """name: for tables and messages. path: its folder, or its log. validations: in the order of the training.

    configuration: option -> value, as text, of a training that has left no command.
    """

    name: str
    path: Path
    record: dict[str, Any]
    validations: tuple[Validation, ...] = ()
    log: RunLog | None = None
    configuration: Mapping[str, str] = field(default_factory=dict)

    @property
    def labels(self) -> dict[str, str]:
        """What tables are sorted by, the seed among them."""
        return self.record["labels"]

    @property
    def seed(self) -> str:
        """ "-" if the run does not tell."""
        return str(self.labels.get("seed", "-"))

    @property
    def metric(self) -> str:
        """What chose the checkpoint."""
        return self.record.get("metric", "valid_loss")

    @property
    def by_updates(self) -> bool:
        """Was it validated more often than once an epoch?"""
        return len(self.validations) > len({each.epoch for each in self.validations})

    def higher_is_better(self, metric: str) -> bool:
        """As the run was told for its own metric; by name for others."""
        if metric == self.metric and "higher_is_better" in self.record:
            return bool(self.record["higher_is_better"])
        return higher_is_better(metric)

    def curve(self, metric: str, by_updates: bool | None = None) -> dict[int, float]:
        """Epoch or update -> value, where the log has one. by_updates: which; default: the run's own.

        metric: of the validations, or of the training, such as train_loss, which has one value an epoch.
        """
        if by_updates is None:
            by_updates = self.by_updates
        if metric.startswith("train_"):
            return self._training_curve(metric, by_updates)
        points = ((v.updates if by_updates else v.epoch, v.values.get(metric)) for v in self.validations)
        return {place: value for place, value in points if place is not None and value is not None}

    def _training_curve(self, metric: str, by_updates: bool) -> dict[int, float]:
        epochs = {int(epoch): values for epoch, values in self.record.get("epochs", {}).items()}
        points = (
            (values.get("train_num_updates") if by_updates else epoch, values.get(metric))
            for epoch, values in sorted(epochs.items())
        )
        return {int(place): value for place, value in points if place is not None and value is not None}

    def clock(self, kind: str) -> dict[int, float]:
        """Update -> seconds until its validation. kind: of CLOCKS."""
        clocks = ((each.updates, getattr(each, kind)) for each in self.validations)
        return {updates: seconds for updates, seconds in clocks if updates is not None and seconds is not None}

    def best(self, metric: str) -> dict[str, Any]:
        """{"epoch", "update", metric: its best value, "valid_loss_bits", "valid_loss_nats", "train_loss_bits"}.

        What is not known is absent; the last is the mean loss of that epoch's training. Of equal values the last one,
        as in fairseq. Without a curve it is what the record says; {} if that does not, and for a training that has
        diverged.
        """
        curve = {at: v.values[metric] for at, v in enumerate(self.validations) if metric in v.values}
        if not curve:
            recorded = self.record.get("best") or {}
            return dict(recorded) if metric == self.metric or metric in recorded else {}
        place = best_place(curve, self.higher_is_better(metric))
        if place is None:
            return {}
        at = self.validations[place]
        best = {"epoch": at.epoch, "update": at.updates, metric: at.values[metric]}
        if (bits := at.values.get("valid_loss")) is not None:
            best |= {"valid_loss_bits": bits, "valid_loss_nats": nats(bits)}
        best["train_loss_bits"] = self.curve("train_loss", by_updates=False).get(at.epoch)
        return {key: value for key, value in best.items() if value is not None}

    def option(self, flag: str) -> str | None:
        """The value of an option of fairseq-train, from the command or the configuration in the log."""
        if self.command is not None and (value := self.command.option(flag)) is not None:
            return value
        return self.log.option(flag.removeprefix("--").replace("-", "_")) if self.log else None

    @cached_property
    def command(self) -> Command | None:
        """The training's command line, from the record; None where it was not recorded."""
        words = shlex.split(self.record.get("command") or "")
        return parse_command(words, any_program=True) if words else None

    def settings(self) -> dict[str, str]:
        """Option -> values, without seed, places and what changes nothing; equal in a row. {} without a command."""
        options = self.command.options if self.command else {}
        passed = _PLACES | (FREE_OPTIONS - LIMITS)
        return {flag: shlex.join(values) for flag, values in options.items() if flag not in passed}

    def data_hash(self) -> str | None:
        """Of test set and dictionaries, where there is a test set, else of all data; None if it is not known."""
        hashes = self.record.get("data") or {}
        names = {name: name.rpartition("/")[2] for name in hashes}
        test = {name: hashes[name] for name, base in names.items() if base.startswith(("test", "dict."))}
        if any(names[name].startswith("test") for name in test):
            return joint_hash(dict(sorted(test.items())))
        return hashes.get("all")

    def data_sizes(self) -> dict[str, int]:
        """Symbols in the dictionaries and sentences that were not trained on, as the log tells; {} if it does not."""
        if self.log is None:
            return {}
        held_out = {name: size for name, size in self.log.examples.items() if not name.startswith("train")}
        return {**{f"dictionary {name}".strip(): size for name, size in self.log.dictionaries.items()}, **held_out}

    def data_folder(self) -> str | None:
        """Where the data were, as the training was told."""
        if self.command is not None and DATA in self.command.options:
            return self.command.option(DATA)
        return self.log.option("data") if self.log else None

    def texts(self) -> tuple[Path | None, Path | None]:
        """Translations of the test set and their reference, None for what is not there."""
        pairs = ((self.path / text, self.path / reference) for text, reference in TEXTS)
        for text, reference in pairs:
            if text.is_file():
                return text, reference if reference.is_file() else None
        return None, None
