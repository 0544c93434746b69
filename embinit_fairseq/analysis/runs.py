"""Runs on disk: the folders that scripts/run_result.py keeps, and logs and save directories of plain `fairseq-train`.

A run's record has the keys of its result.json, whatever it was read from: labels, metric, higher_is_better, epochs,
best, parameters, scores, init, data, versions, hardware, command, time; what is not known is absent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from embinit_fairseq.analysis.run import Run, Validation
from embinit_fairseq.analysis.run_record import check_record
from embinit_fairseq.analysis.runs_checkpoints import run_of_checkpoints
from embinit_fairseq.analysis.runs_log import RunLog, nats, read_log
from embinit_fairseq.analysis.runs_options import options_of_text
from embinit_fairseq.errors import DataError

RESULT, TRAINING = "result.json", "training.json"


def find_runs(argument: str) -> list[Run]:
    """The runs that one argument names: a run folder, a log, a save directory, or a folder that holds any of them.

    NAME=PATH gives them the label `run`. Unfinished ones are among them (`is_finished`). Raises DataError if there is
    none, or one that cannot be read.
    """
    name, separator, rest = argument.partition("=")
    named = bool(separator) and bool(name) and not Path(argument).exists()
    path = Path(rest if named else argument)
    if not path.exists():
        raise DataError(f"{path}: no such folder or log; check the path")
    runs = list(_runs_in(path))
    if not runs:
        raise DataError(
            f"{path}: no run in it: neither {RESULT} or {TRAINING} of the scripts, nor a log or checkpoints of "
            "fairseq-train; check the path, or train first"
        )
    return (
        [replace(run, record={**run.record, "labels": {"run": name, **run.labels}}) for run in runs] if named else runs
    )


def _runs_in(path: Path) -> Iterator[Run]:
    if path.is_file():
        _check_is_log(path)
        yield run_of_log(path)
        return
    folders = {found.parent for name in (RESULT, TRAINING) for found in path.rglob(name)}
    if folders:
        yield from map(read_run, sorted(folders))
        return
    logs = [(log, read_log(log)) for log in sorted(path.rglob("*.log"))]
    trainings = [(file, log) for file, log in logs if log.validations]
    if trainings:
        yield from (run_of_log(file, log) for file, log in trainings)
        return
    yield from filter(None, map(run_of_checkpoints, sorted({file.parent for file in path.rglob("*.pt")})))


def _check_is_log(file: Path) -> None:
    """DataError for a checkpoint, naming the folder that holds its run, if there is one."""
    if file.suffix != ".pt":
        return
    beside, above = file.absolute().parent, file.absolute().parent.parent  # RUN/checkpoints is not all of a run
    records = (RESULT, TRAINING, "train.log")
    found = [folder for folder in (beside, above) if any((folder / name).is_file() for name in records)]
    if not found and any(beside.glob("checkpoint*.pt")):
        found = [beside]
    remedy = f"the folder of its run, {found[0]}" if found else "a run folder, a log or a save directory"
    raise DataError(f"{file}: a checkpoint; give {remedy}")


def is_finished(run: Run) -> bool:
    """Scored (a run of the scripts), or trained to the end (a log). A save directory does not tell: yes."""
    if (run.path / TRAINING).is_file() or (run.path / RESULT).is_file():
        return (run.path / RESULT).is_file()
    return run.log is None or run.log.finished


def read_run(folder: Path) -> Run:
    """A folder with result.json, or, of an unfinished run, training.json."""
    file = next(folder / name for name in (RESULT, TRAINING) if (folder / name).is_file())
    record = read_record(file)
    log = read_log(folder / "train.log") if (folder / "train.log").is_file() else None
    metric = record.get("metric", "valid_loss")
    if file.name == TRAINING and log is not None and any(metric in values for values in log.epochs.values()):
        record = {**record, **_so_far(log, metric, record.get("higher_is_better", False))}
    return Run(folder.as_posix(), folder, record, _validations(record, log), log)


def read_record(file: Path) -> dict[str, Any]:
    """result.json or training.json; DataError for a file that is none (`run_record`)."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{file}: not JSON ({error}); remove it and start the run again, which writes it anew"
        ) from error
    check_record(record, file)
    return {**record, "labels": {label: str(value) for label, value in record["labels"].items()}}


def _validations(record: dict[str, Any], log: RunLog | None) -> tuple[Validation, ...]:
    """Of the record, and from the log those within its epochs, if it has more of them.

    The log of a finished run that is being continued goes on behind the record.
    """
    epochs = {int(epoch): values for epoch, values in record.get("epochs", {}).items()}
    kept = [
        Validation(epoch, _whole(values.get("valid_num_updates")), values) for epoch, values in sorted(epochs.items())
    ]
    last = max((each.updates for each in kept if each.updates is not None), default=0)
    logged = [] if log is None else [_logged(u, values) for u, values in log.validations.items() if u <= last]
    return tuple(logged if len(logged) > len(kept) else kept)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _logged(updates: int, values: dict[str, float]) -> Validation:
    return Validation(int(values["epoch"]), updates, {key: value for key, value in values.items() if key != "epoch"})


def summary(log: RunLog, metric: str, higher: bool) -> dict[str, Any]:
    """The part of result.json that comes from the log; DataError if no epoch has the metric, or none but NaN."""
    return _summary(log, _best(log, metric, higher))


def _so_far(log: RunLog, metric: str, higher: bool) -> dict[str, Any]:
    """As `summary`, also of a training that has diverged: it has no best epoch."""
    return _summary(log, {} if log.has_diverged(metric) else _best(log, metric, higher))


def _summary(log: RunLog, best: dict[str, Any]) -> dict[str, Any]:
    return {
        "parameters": {"all": log.parameters, "trained": log.trained_parameters},
        "epochs": {str(epoch): values for epoch, values in sorted(log.epochs.items())},
        "best": best,
        "time": {"wall_s": log.wall_s, "train_s": log.train_s, "sessions": log.sessions},
    }


def _best(log: RunLog, metric: str, higher: bool) -> dict[str, Any]:
    epoch = log.best_epoch(metric, higher)
    loss_bits = log.epochs[epoch].get("valid_loss")
    return {
        "epoch": epoch,
        metric: log.epochs[epoch][metric],
        "valid_loss_bits": loss_bits,
        "valid_loss_nats": nats(loss_bits) if loss_bits is not None else None,
    }


def run_of_log(file: Path, log: RunLog | None = None) -> Run:
    """What fairseq-train printed, as a run; its labels come from the configuration in the log.

    With a log called train.log the folder is the run: translations may lie beside it.
    """
    log = log or read_log(file)
    if not log.validations:
        raise DataError(
            f"{file}: no validation of fairseq-train in it; name a log of --log-format json, simple or tqdm, with at "
            "least one validation"
        )
    options = {"task": "task", "arch": "arch", "init": "embed_init", "seed": "seed"}
    labels = {label: log.option(option) for label, option in options.items()}
    labels["arch"] = labels["arch"] or log.option("model")  # architectures with a dataclass are a section
    metric = f"valid_{log.option('best_checkpoint_metric') or 'loss'}"
    higher = log.option("maximize_best_checkpoint_metric") == "True"
    record = {
        "labels": {label: value for label, value in labels.items() if value not in (None, "None")},
        "metric": metric,
        "higher_is_better": higher,
        **_so_far(log, metric, higher),
        "scores": {},
    }
    if not log.wall_s:
        del record["time"]["wall_s"]  # --log-file has no times
    path = file.parent if file.name == "train.log" else file
    validations = tuple(_logged(*each) for each in log.validations.items())
    return Run(path.as_posix(), path, record, validations, log, options_of_text(log.configuration))
