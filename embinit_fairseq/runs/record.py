"""Read and write the folder of a run: its record, its result, and their values for tables and curves.

RUN/training.json     the command, versions, hardware, hashes of data and vectors, sessions; written at the start
RUN/preparation.json  the preparation of the data's text, if it is recorded
RUN/train.log         the output of the training
RUN/checkpoints/      the training's --save-dir
RUN/result.json       the record, losses of all epochs, the best epoch, the initialisation's report, time, scores
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from embinit_fairseq.errors import DataError
from embinit_fairseq.io import files_below, read_json, write_json
from embinit_fairseq.runs.command import DATA, FREE_OPTIONS, LIMITS, PLACES, Command, joint_hash, parse_command
from embinit_fairseq.runs.log import RunLog, best_place, nats, read_log
from embinit_fairseq.runs.metrics import higher_is_better

RESULT, TRAINING = "result.json", "training.json"
LOG, CHECKPOINTS = "train.log", "checkpoints"
#: translations of the test set in the folder of a run, and the reference of their scores
TEXTS = ("test.hypothesis.text", "test.reference.text")
#: flags of every command that are no settings of the experiment
_NO_SETTINGS = (FREE_OPTIONS - LIMITS) | PLACES | {DATA, "--seed", "--seeds", "--output", "--data"}

#: inputs of a training among its settings -> the option that names them
INPUTS = {"hash of training data": DATA, "hash of vectors": "--embed-init-path"}


# ---- Records --------------------------------------------------------------------------------------------------------


def read_record(file: Path) -> dict[str, Any]:
    """Return the content of result.json or training.json; raise DataError for a file that is not a record."""
    remedy = "copy the file again, or remove it and start the run again, which writes it"
    record = read_json(file, remedy=remedy)
    if not isinstance(record, dict) or not isinstance(record.get("labels"), dict):
        raise DataError(f"{file}: not the record of a run (labels are missing); name a run, or {remedy}")
    if file.name == TRAINING and not record.get("command"):
        raise DataError(f"{file}: command is missing; {remedy}")
    return {**record, "labels": {label: str(value) for label, value in record["labels"].items()}}


def result_of(record: Mapping[str, Any], folder: Path, log: RunLog, earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of result.json.

    Args:
        record: content of training.json.
        folder: the run; its checkpoints have the report of the initialisation.
        log: content of train.log.
        earlier: the existing result.json, or {}. Its scores stay, and its report if there are no checkpoints.
    """
    report = folder / CHECKPOINTS / "embed_init.json"
    clock = {str(updates): {"wall_s": seconds, "cpu_s": None} for updates, seconds in log.clock.items()}
    result = {
        **record,
        "times": {**clock, **record.get("times", {})},
        **summary(log, record),
        "init": json.loads(report.read_text(encoding="utf-8")) if report.is_file() else earlier.get("init"),
        "scores": dict(earlier.get("scores", {})),
    }
    for unit in ("wall_s", "cpu_s"):
        seconds = [session.get(unit) for session in record.get("sessions", [])]
        if seconds and None not in seconds:  # the seconds of a killed session are unknown
            result["time"][unit] = round(sum(seconds), 3)
    return result


def add_scores(run: Path, scores: Mapping[str, Any], **more: Any) -> None:
    """Write scores, and other entries, into the result.json of a finished run; its other scores stay."""
    record = read_record(run / RESULT)
    result = {**record, "scores": {**(record.get("scores") or {}), **scores}, **more}
    if result != record:
        write_json(run / RESULT, result)


def last_start(run: Path) -> str:
    """Return the local time at which the training of a run was last started, as logs have it; "" if it is unknown."""
    sessions = (read_record(run / TRAINING).get("sessions") if (run / TRAINING).is_file() else None) or [{}]
    return str(sessions[-1].get("started") or "")[:19].replace("T", " ")


def is_regression(record: Mapping[str, Any]) -> bool:
    """Return True if the losses of a run are squared errors, which have no unit and are no logarithms."""
    return "--regression-target" in shlex.split(record.get("command") or "")


def _loss(record: Mapping[str, Any], loss: float | None) -> dict[str, float | None]:
    """Return the loss of a validation under its names in `best`."""
    if is_regression(record):
        return {"valid_loss": loss}
    return {"valid_loss_bits": loss, "valid_loss_nats": None if loss is None else nats(loss)}


def summary(log: RunLog, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of result.json that is in the log. `best` is {} if no epoch has a value that is a number."""
    best: dict[str, Any] = {}
    metric = record.get("metric", "valid_loss")
    if (epoch := log.best_epoch(metric, record.get("higher_is_better", False))) is not None:
        values = log.epochs[epoch]
        best = {"epoch": epoch, metric: values[metric], **_loss(record, values.get("valid_loss"))}
    return {
        "parameters": {"all": log.parameters, "trained": log.trained_parameters},
        "epochs": {str(epoch): values for epoch, values in sorted(log.epochs.items())},
        "best": best,
        "time": {"wall_s": log.wall_s, "train_s": log.train_s, "sessions": log.sessions},
    }


# ---- Runs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """Describe one training.

    Attributes:
        name: the path, as text.
        path: the folder.
        record: result.json, or the part of it that an unfinished run has.
        validations: per validation the logged values by name, `epoch`, and `updates` and `wall_s` (seconds of the
            training until then), which are None if they were not recorded.
    """

    name: str
    path: Path
    record: dict[str, Any]
    validations: tuple[dict[str, Any], ...] = ()

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels, including the seed."""
        return self.record["labels"]

    @property
    def seed(self) -> str:
        """Return the seed; "-" if the record does not have it."""
        return self.labels.get("seed", "-")

    @property
    def metric(self) -> str:
        """Return the name of the value that chose the checkpoint."""
        return self.record.get("metric", "valid_loss")

    @property
    def is_finished(self) -> bool:
        """Return True if the training has its result."""
        return (self.path / RESULT).is_file()

    @property
    def by_updates(self) -> bool:
        """Return True if the run was validated more often than once per epoch."""
        return len(self.validations) > len({validation["epoch"] for validation in self.validations})

    @cached_property
    def command(self) -> Command | None:
        """Return the command line; None if the record has none."""
        words = shlex.split(self.record.get("command") or "")
        return parse_command(words, any_program=True) if words else None

    @property
    def settings(self) -> dict[str, str]:
        """Return flag -> values of the command, without the seed, places and options that change no number; `INPUTS`.

        Without a command there are none.
        """
        options = self.command.options if self.command else {}
        settings = {flag: shlex.join(values) for flag, values in options.items() if flag not in _NO_SETTINGS}
        return settings | self.inputs if options else {}

    @property
    def inputs(self) -> dict[str, str]:
        """Return the recorded ones of `INPUTS` -> beginning of the hash of their content, wherever the files are."""
        data, vectors = self.record.get("data") or {}, self.record.get("vector_files") or {}
        training = [value for name, value in data.items() if Path(name).name.startswith("train")]
        contents = zip(INPUTS, (training, [*vectors.values()]))
        return {key: joint_hash(dict(zip(map(str, count()), values)))[:8] for key, values in contents if values}

    def higher_is_better(self, metric: str) -> bool:
        """Return the direction of a metric: the recorded one for the run's metric, by name for others."""
        if metric == self.metric and "higher_is_better" in self.record:
            return bool(self.record["higher_is_better"])
        return higher_is_better(metric)

    def curve(self, metric: str, by_updates: bool) -> dict[int, float]:
        """Return epoch or number of updates -> value; a metric of the training has one value per epoch."""
        points: Iterable[Mapping[str, Any]] = self.validations
        if metric.startswith("train_"):
            epochs = self.record.get("epochs", {}).items()
            points = (
                {"epoch": int(epoch), "updates": values.get("train_num_updates"), **values} for epoch, values in epochs
            )
        axis = "updates" if by_updates else "epoch"
        curve: dict[float, Any] = {point[axis]: point.get(metric) for point in points if point[axis] is not None}
        return {int(place): curve[place] for place in sorted(curve) if curve[place] is not None}

    def clock(self) -> dict[int, float]:
        """Return number of updates -> seconds until the validation."""
        return {point["updates"]: point["wall_s"] for point in self.validations if point["wall_s"] is not None}

    def best(self, metric: str) -> dict[str, Any]:
        """Return the best validation: `epoch`, `update`, the metric, losses; {} if no value is a number.

        The last of equal values is taken, as in fairseq. `train_loss_bits` is the mean loss of that epoch's training.
        Without validations the result comes from the record.
        """
        values = {number: point[metric] for number, point in enumerate(self.validations) if metric in point}
        if not values:
            recorded = self.record.get("best") or {}
            return dict(recorded) if metric == self.metric or metric in recorded else {}
        number = best_place(values, self.higher_is_better(metric))
        if number is None:
            return {}
        point = self.validations[number]
        best = {"epoch": point["epoch"], "update": point["updates"], metric: point[metric]}
        best |= _loss(self.record, point.get("valid_loss"))
        if not is_regression(self.record):
            best["train_loss_bits"] = self.curve("train_loss", by_updates=False).get(point["epoch"])
        return {key: value for key, value in best.items() if value is not None}

    def data_hash(self) -> str | None:
        """Return the joint hash of test set and dictionaries, or of all data without a test set."""
        hashes = self.record.get("data") or {}
        names = sorted(name for name in hashes if Path(name).name.startswith(("test", "dict.")))
        if any(Path(name).name.startswith("test") for name in names):
            return joint_hash({name: hashes[name] for name in names})
        return hashes.get("all")

    def texts(self) -> tuple[Path | None, list[Path]]:
        """Return the translations of the test set, None without a file, and their references."""
        text = self.path / TEXTS[0]
        return text if text.is_file() else None, reference_files(self.path, "test")


def reference_files(run: Path, subset: str, number: int | None = None) -> list[Path]:
    """Return the references of a subset in the folder of a run: existing files, or the names of `number` files.

    The first file is SUBSET.reference.text, the second SUBSET.reference.2.text.
    """
    files = [run / f"{subset}.reference{f'.{at}' if at > 1 else ''}.text" for at in range(1, (number or 99) + 1)]
    return files if number is not None else list(takewhile(Path.is_file, files))


def find_runs(argument: str) -> list[Run]:
    """Return the runs at a path, also unfinished ones: a run's folder, or a folder with several at any depth.

    Args:
        argument: PATH, or NAME=PATH, which gives these runs the label `run`.

    Raises:
        DataError: there is no run, or a record cannot be read.
    """
    name, _, rest = argument.partition("=")
    is_named = bool(rest) and bool(name) and not Path(argument).exists()
    path = Path(rest if is_named else argument)
    folders = {file.parent for file in files_below(path) if file.name in (RESULT, TRAINING)}
    if not folders:
        reason = "no run in it" if path.is_dir() else "not a folder" if path.exists() else "no such folder"
        raise DataError(f"{path}: {reason}; name the folder of a run of `embinit run`, or one that has several")
    runs = list(map(read_run, sorted(folders)))
    if not is_named:
        return runs
    return [replace(run, record={**run.record, "labels": {"run": name, **run.labels}}) for run in runs]


def read_run(folder: Path) -> Run:
    """Return the run of a folder with result.json or, if it is unfinished, training.json."""
    file = folder / RESULT if (folder / RESULT).exists() else folder / TRAINING
    record = read_record(file)
    log = read_log(folder / LOG) if (folder / LOG).is_file() else RunLog()
    metric = record.get("metric", "valid_loss")
    if file.name == TRAINING and any(metric in values for values in log.epochs.values()):
        record = {**record, **summary(log, record)}
    return Run(folder.as_posix(), folder, record, tuple(_validations(record, log)))


def _validations(record: Mapping[str, Any], log: RunLog) -> list[dict[str, Any]]:
    """Return the validations of the record, or of the log if it has more: the record has one per epoch.

    The log of a finished run that is being continued has validations after the end of the record.
    """
    epochs = sorted((int(epoch), values) for epoch, values in record.get("epochs", {}).items())
    recorded = [{**values, "epoch": epoch, "updates": values.get("valid_num_updates")} for epoch, values in epochs]
    last = max((point["updates"] or 0 for point in recorded), default=0)
    logged = [{**values, "updates": updates} for updates, values in sorted(log.validations.items()) if updates <= last]
    times = record.get("times", {})
    validations = logged if len(logged) > len(recorded) else recorded
    for point in validations:
        updates = None if point["updates"] is None else int(point["updates"])
        seconds = times.get(str(updates), {}).get("wall_s")
        point |= {"updates": updates, "wall_s": log.clock.get(updates or 0) if seconds is None else seconds}
    return validations
