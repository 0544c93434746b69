"""Read what `fairseq-train --log-format json` printed: losses of every epoch, time, parameters.

A run that was stopped and resumed has several sessions in one log. Where an epoch occurs twice, the later counts.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

_RECORD = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) \| INFO \| (\S+) \| (.*)$")
_PARAMETERS = re.compile(r"num\. shared model params: ([\d,]+) \(num\. trained: ([\d,]+)\)")


@dataclass
class RunLog:
    """epochs: number -> values as logged, such as valid_loss, train_loss (base 2), valid_accuracy (percent)."""

    epochs: dict[int, dict[str, float]] = field(default_factory=dict)
    parameters: int | None = None
    trained_parameters: int | None = None
    sessions: int = 0
    wall_s: float = 0.0  # first to last line of each session, summed: includes validation and checkpoints
    train_s: float = 0.0  # forward, backward and update only, as fairseq counts it

    def best_epoch(self, metric: str, higher: bool) -> int:
        """The epoch that checkpoint_best.pt is of; raises SystemExit if no epoch was validated.

        fairseq compares the rounded values that it logs and takes the last of equal ones.
        """
        values = {epoch: record[metric] for epoch, record in self.epochs.items() if metric in record}
        if not values:
            raise SystemExit(f"error: the log has no {metric}: no epoch was finished; start the training again")
        best = max(values.values()) if higher else min(values.values())
        return max(epoch for epoch, value in values.items() if value == best)


def nats(bits: float) -> float:
    """fairseq reports losses to base 2; papers mostly to base e."""
    return bits * math.log(2)


def read_log(path: Path) -> RunLog:
    """Parse RUN/train.log."""
    if not path.is_file():
        raise SystemExit(f"error: {path} is missing: train first (train.sh writes it)")
    log = RunLog()
    first = last = None
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        match = _RECORD.match(line)
        if match is None:
            continue
        time, name, message = datetime.fromisoformat(match.group(1)), match.group(2), match.group(3)
        if name == "fairseq_cli.train" and message.startswith("{'_name'"):  # the configuration: a session starts
            log.wall_s += (last - first).total_seconds() if first else 0.0
            log.sessions += 1
            first = time
        last = time
        _take(log, name, message)
    log.wall_s += (last - first).total_seconds() if first else 0.0
    log.train_s = sum(record.get("train_train_wall", 0.0) for record in log.epochs.values())
    return log


def _take(log: RunLog, name: str, message: str) -> None:
    parameters = _PARAMETERS.search(message)
    if parameters:
        log.parameters, log.trained_parameters = (int(count.replace(",", "")) for count in parameters.groups())
    if name not in ("train", "valid") or not message.startswith("{"):
        return
    record = json.loads(message)
    values = {key: float(value) for key, value in record.items() if key != "epoch" and value is not None}
    log.epochs.setdefault(int(record["epoch"]), {}).update(values)
