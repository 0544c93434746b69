"""One training as tables and curves see it, whatever it was read from (`runs.py`)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from embinit_fairseq.analysis.runs_log import RunLog, best_place, nats

#: where the scripts leave the translations of the test set and the reference they were scored with
_TEXTS = (
    ("test.hypothesis.text", "test.reference.text"),
    ("test/hypothesis.text", "test/reference.text"),
    ("test.hypothesis.txt", "test.reference.txt"),
)
_LOWER_IS_BETTER = ("loss", "ppl", "perplexity")
#: in every command, but no setting of the experiment; with the value that follows
_PLACES = ("--seed", "--seeds", "--save-dir", "--output", "--data", "--num-workers", "--log-interval", "--log-file")


@dataclass(frozen=True)
class Validation:
    """updates: so far; None where the log does not tell. values: by their names in the log, such as valid_loss."""

    epoch: int
    updates: int | None
    values: dict[str, float]


@dataclass(frozen=True)
class Run:
    """name: for tables and messages. path: its folder, or its log. validations: in the order of the training.

    configuration: option -> value, as text, of a training that has left no command (`runs_options`).
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
        """As the run was told for its own metric; losses and perplexities are better if they are lower."""
        if metric == self.metric and "higher_is_better" in self.record:
            return bool(self.record["higher_is_better"])
        return not any(word in metric for word in _LOWER_IS_BETTER)

    def curve(self, metric: str, by_updates: bool | None = None) -> dict[int, float]:
        """Epoch or update -> value, where the log has one. by_updates: which; default: the run's own."""
        if by_updates is None:
            by_updates = self.by_updates
        found = ((v.updates if by_updates else v.epoch, v.values.get(metric)) for v in self.validations)
        return {place: value for place, value in found if place is not None and value is not None}

    def best(self, metric: str) -> dict[str, Any]:
        """{"epoch": ..., "update": ... if known, metric: its best value, valid_loss_bits, valid_loss_nats}.

        By fairseq's rule, the last of equal values. What the record says if there is no curve; {} if that does not,
        and for a training that has diverged.
        """
        curve = {at: v.values[metric] for at, v in enumerate(self.validations) if metric in v.values}
        if not curve:
            recorded = self.record.get("best") or {}
            return dict(recorded) if metric == self.metric or metric in recorded else {}
        place = best_place(curve, self.higher_is_better(metric))
        if place is None:
            return {}
        at = self.validations[place]
        bits = at.values.get("valid_loss")
        losses = {} if bits is None else {"valid_loss_bits": bits, "valid_loss_nats": nats(bits)}
        update = {} if at.updates is None else {"update": at.updates}
        return {"epoch": at.epoch, **update, metric: at.values[metric], **losses}

    def option(self, flag: str) -> str | None:
        """The value of an option of fairseq-train, from the command or the configuration in the log."""
        words = self._words
        if flag in words[:-1]:
            return words[words.index(flag) + 1]
        return self.log.option(flag.removeprefix("--").replace("-", "_")) if self.log else None

    @cached_property
    def _words(self) -> list[str]:
        return shlex.split(self.record.get("command") or "")

    def settings(self) -> tuple[str, ...] | None:
        """The command without seed and places; equal for the runs of one row. None if there is none."""
        kept, skip = [], True
        for word in self._words[1:] if len(self._words) > 1 else ():
            if not skip and word not in _PLACES:
                kept.append(word)
            skip = word in _PLACES
        return tuple(kept) or None

    def texts(self) -> tuple[Path | None, Path | None]:
        """Translations of the test set and their reference, None for what is not there."""
        found = ((self.path / text, self.path / reference) for text, reference in _TEXTS)
        for text, reference in found:
            if text.is_file():
                return text, reference if reference.is_file() else None
        return None, None
