"""Runs on disk: folders of `embinit run`, and logs and save directories of plain `fairseq-train`.

A run's record has the keys of its result.json, whatever it was read from: labels, metric, higher_is_better, epochs,
best, parameters, scores, init, data, versions, hardware, command, time; what is not known is absent.
"""

from __future__ import annotations

import ast
import os
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

from embinit_fairseq.checkpoints.reading import load_checkpoint, updates_of
from embinit_fairseq.errors import DataError
from embinit_fairseq.files import check_is_file
from embinit_fairseq.runs.command import init_label
from embinit_fairseq.runs.logs import RunLog, read_log
from embinit_fairseq.runs.record import RESULT, TRAINING, read_record, so_far
from embinit_fairseq.runs.run import Run, Validation

#: no settings of the experiment: seeds, places, what is shown, how the processes find each other, and our own record of
#: how the tables were filled, which only checkpoints have
_NO_SETTINGS = frozenset(
    "seed save_dir user_dir log_file log_format log_interval no_progress_bar tensorboard_logdir wandb_project "
    "azureml_logging num_workers num_workers_valid data_buffer_size plasma_path suppress_crashes device_id "
    "distributed_port distributed_init_method distributed_rank distributed_num_procs embed_init_record".split()
)


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
    if not path.is_dir():
        check_is_file(str(path))
    runs = list(_runs_in(path))
    if not runs:
        raise DataError(
            f"{path}: no run in it: neither {RESULT} or {TRAINING} of embinit run, nor a log or checkpoints of "
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
    folders = {record.parent for name in (RESULT, TRAINING) for record in path.rglob(name)}
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
    recorded = [folder for folder in (beside, above) if any((folder / name).is_file() for name in records)]
    if not recorded and any(beside.glob("checkpoint*.pt")):
        recorded = [beside]
    remedy = f"the folder of its run, {recorded[0]}" if recorded else "a run folder, a log or a save directory"
    raise DataError(f"{file}: a checkpoint; give {remedy}")


def is_finished(run: Run) -> bool:
    """It has its result (of embinit run), or was trained to the end (a log). A save directory does not tell: yes."""
    if _has_record(run):
        return (run.path / RESULT).is_file()
    return run.log is None or run.log.finished


def read_run(folder: Path) -> Run:
    """A folder with result.json, or, of an unfinished run, training.json."""
    file = next(folder / name for name in (RESULT, TRAINING) if os.path.lexists(folder / name))
    record = read_record(file)
    log = read_log(folder / "train.log") if (folder / "train.log").exists() else None
    metric = record.get("metric", "valid_loss")
    if file.name == TRAINING and log is not None and any(metric in values for values in log.epochs.values()):
        record = {**record, **so_far(log, metric, record.get("higher_is_better", False))}
    return Run(folder.as_posix(), folder, record, _validations(record, log), log)


def _validations(record: dict[str, Any], log: RunLog | None) -> tuple[Validation, ...]:
    """Of the record, and from the log those within its epochs, if it has more of them.

    The log of a finished run that is being continued goes on behind the record.
    """
    epochs = {int(epoch): values for epoch, values in record.get("epochs", {}).items()}
    kept = [_validation(epoch, values.get("valid_num_updates"), values) for epoch, values in sorted(epochs.items())]
    last = max((each.updates for each in kept if each.updates is not None), default=0)
    logged = [] if log is None else [each for each in _logged(log) if (each.updates or 0) <= last]
    chosen = logged if len(logged) > len(kept) else kept
    times = record.get("times", {})
    return tuple(_timed(each, times.get(str(each.updates), {}), log) for each in chosen)


def _validation(epoch: float, updates: float | None, values: dict[str, float]) -> Validation:
    return Validation(int(epoch), None if updates is None else int(updates), values)


def _logged(log: RunLog) -> list[Validation]:
    return [
        _validation(values["epoch"], updates, {key: value for key, value in values.items() if key != "epoch"})
        for updates, values in log.validations.items()
    ]


def _timed(validation: Validation, measured: dict[str, float], log: RunLog | None) -> Validation:
    """With the times of the record, else with that of the log."""
    wall_s = measured.get("wall_s")
    if wall_s is None and log is not None and validation.updates is not None:
        wall_s = log.clock.get(validation.updates)
    return replace(validation, wall_s=wall_s, cpu_s=measured.get("cpu_s"))


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
    labels["init"] = init_label(labels["init"], log.option("embed_init_std"))
    metric = f"valid_{log.option('best_checkpoint_metric') or 'loss'}"
    higher = log.option("maximize_best_checkpoint_metric") == "True"
    record = {
        "labels": {label: value for label, value in labels.items() if value not in (None, "None")},
        "metric": metric,
        "higher_is_better": higher,
        **so_far(log, metric, higher),
        "scores": {},
    }
    if not log.wall_s:
        del record["time"]["wall_s"]  # --log-file has no times
    path = file.parent if file.name == "train.log" else file
    validations = tuple(_timed(each, {}, log) for each in _logged(log))
    return Run(path.as_posix(), path, record, validations, log, options_of_text(log.configuration))


def joined(runs: Sequence[Run]) -> list[Run]:
    """The same runs, but logs of one training that went on in another file each time as one."""
    trainings: list[list[Run]] = []
    for run in sorted(runs, key=lambda run: run.log.loaded_updates if run.log else 0):
        begun = next((parts for parts in trainings if _goes_on(run, parts[-1])), None)
        if begun is None:
            trainings.append([run])
        else:
            begun.append(run)
    places = {run.name: place for place, run in enumerate(runs)}
    return sorted((_one_run(parts) for parts in trainings), key=lambda run: places[run.name])


def _goes_on(run: Run, before: Run) -> bool:
    """Has it loaded a checkpoint that `before` has saved? (As fairseq says it in both logs.)"""
    if run.log is None or before.log is None or _has_record(run) or _has_record(before) or not run.log.loaded_updates:
        return False
    same = all(run.log.option(name) == before.log.option(name) for name in ("save_dir", "seed", "arch"))
    reached = max(before.log.saved_updates, *before.log.validations)
    return same and run.labels == before.labels and before.log.loaded_updates < run.log.loaded_updates <= reached


def _has_record(run: Run) -> bool:
    return any((run.path / name).is_file() for name in (RESULT, TRAINING))


def _one_run(parts: Sequence[Run]) -> Run:
    first, *further = parts
    if not further:
        return first
    files = [Path(part.log.path) for part in parts if part.log is not None]
    run = run_of_log(files[0], read_log(*files))
    return replace(run, name=first.name, path=first.path, record={**run.record, "labels": first.labels})


# ---- save directories: each checkpoint tells its epoch, updates and validation value --------------------------------


def run_of_checkpoints(folder: Path) -> Run | None:
    """The run that saved the checkpoints in `folder`, by the metric that chose the best; None if it has none.

    With --no-epoch-checkpoints only the best and the last validation are known.
    """
    states = {file: load_checkpoint(file) for file in _files(folder)}
    trainings = {file: state["extra_state"] for file, state in states.items() if _is_training(state)}
    if not trainings:
        return None
    last = states[next(reversed(trainings))]
    options, sections = _options(last), _configuration(last)
    metric = f"valid_{options.get('best_checkpoint_metric', 'loss')}"
    by_updates = {
        each.updates: each
        for file, extra in trainings.items()
        if (each := _saved_validation(states[file], extra, metric))
    }
    places = (("task", "task", "task"), ("arch", "arch", "model"), ("init", "embed_init", "embed_init"))
    labels = {label: options.get(name) or _name(sections.get(section)) for label, name, section in places}
    labels["init"] = init_label(labels["init"], options.get("embed_init_std"))
    record = {
        "labels": {
            label: str(value) for label, value in {**labels, "seed": options.get("seed")}.items() if value is not None
        },
        "metric": metric,
        "higher_is_better": bool(options.get("maximize_best_checkpoint_metric", False)),
        "scores": {},
    }
    validations = tuple(sorted(by_updates.values(), key=lambda each: each.updates or 0))
    configuration = options_of_sections(sections or {"args": last.get("args")})
    return Run(folder.as_posix(), folder, record, validations, configuration=configuration)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("checkpoint*.pt"))


def _is_training(state: Any) -> bool:
    extra = state.get("extra_state") if isinstance(state, dict) else None
    iterator = extra.get("train_iterator") if isinstance(extra, dict) else None
    return (
        isinstance(extra, dict)
        and isinstance(iterator, dict)
        and isinstance(iterator.get("epoch"), int)
        and isinstance(extra.get("val_loss"), (int, float))
    )


def _saved_validation(state: dict[str, Any], extra: dict[str, Any], metric: str) -> Validation | None:
    """fairseq writes the number of the next epoch at the end of one."""
    iterator, updates = extra["train_iterator"], updates_of(state)
    if updates is None:
        return None
    ended = iterator.get("iterations_in_epoch", 0) == 0
    return Validation(iterator["epoch"] - ended, updates, {metric: float(extra["val_loss"])})


def _name(section: Any) -> str | None:
    """Of a part of the configuration: a name, or options with a name among them."""
    name = section.get("_name") if isinstance(section, Mapping) else section
    return name if isinstance(name, str) else None


def _configuration(state: dict[str, Any]) -> Mapping[str, Any]:
    return state["cfg"] if isinstance(state.get("cfg"), Mapping) else {}


def _options(state: dict[str, Any]) -> dict[str, Any]:
    """Of `cfg` (fairseq >= 0.10) or `args`; the sections of a configuration are joined."""
    sections = [*_configuration(state).values(), state.get("args")]
    joined: dict[str, Any] = {}
    for section in sections:
        values = vars(section) if isinstance(section, Namespace) else section
        joined.update(
            {key: value for key, value in values.items() if value is not None} if isinstance(values, Mapping) else {}
        )
    return joined


# ---- the options of a training that has left no command, from its log or its checkpoints ----------------------------


def options_of_text(configuration: str) -> dict[str, str]:
    """Option -> value, as text, of what fairseq-train prints at its start; {} where that cannot be read."""
    try:
        tree = ast.parse(configuration, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # a log that was cut off, or of something else
        return {}
    return _settings(_leaves(tree))


def _leaves(node: ast.expr, name: str = "") -> Iterator[tuple[str, str]]:
    """Dictionaries and Namespace(...), one in the other."""
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values):
            yield from _leaves(value, str(key.value) if isinstance(key, ast.Constant) else name)
    elif isinstance(node, ast.Call):
        for keyword in node.keywords:
            yield from _leaves(keyword.value, keyword.arg or name)
    else:
        yield name, ast.unparse(node)


def options_of_sections(configuration: Mapping[str, Any]) -> dict[str, str]:
    """The same of the configuration in a checkpoint, a mapping of sections."""
    return _settings(_values(configuration))


def _values(node: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(node, Namespace):
        node = vars(node)
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _values(value, str(key))
    else:
        yield name, repr(node.value if isinstance(node, Enum) else node)


def _settings(pairs: Iterator[tuple[str, str]]) -> dict[str, str]:
    """Sections may say the same option; all of them count."""
    joined: dict[str, list[str]] = {}
    for name, value in pairs:
        if name not in _NO_SETTINGS and name != "_name":
            joined.setdefault(name, [])
            if value not in joined[name]:
                joined[name].append(value)
    return {name: ", ".join(sorted(values)) for name, values in joined.items()}
