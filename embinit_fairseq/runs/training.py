"""Start, continue or finish one training in one folder (`embinit run`); see `record` for the folder's files.

The same call again continues an interrupted training, and does nothing for a finished one.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from embinit_fairseq.errors import OptionError
from embinit_fairseq.io import write_json
from embinit_fairseq.machine import hardware, versions
from embinit_fairseq.runs.command import Command, data_hashes, labels_of, parse_command
from embinit_fairseq.runs.log import RunLog, read_log
from embinit_fairseq.runs.metrics import wrong_direction
from embinit_fairseq.runs.record import CHECKPOINTS, LOG, RESULT, TEXTS, TRAINING, read_record, result_of
from embinit_fairseq.runs.run_folder import (
    check_folder_of_run,
    check_last_checkpoint,
    check_same,
    command_of,
    lacks_metric,
    locked_log,
    log_before,
    preparations_of_run,
    reached,
    record_before,
)
from embinit_fairseq.vocab.preparation_record import copy_preparation, records_of_data

#: seconds between two looks at the log
_LOOK = 0.2
#: launchers whose processes are not children of this one, so that their processor time is not known
_ELSEWHERE = frozenset("srun mpirun mpiexec ssh docker".split())
#: exit status of a training that was stopped, has saved, and continues with the same command (`saved_stops` of
#: fairseq_compat)
STOPPED = 75
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

#: called with every line of the log, and with the log so far
Watch = Callable[[str, RunLog], None]


@dataclass(frozen=True)
class Outcome:
    """Describe the end of a call.

    Attributes:
        code: exit status of the training; 128 + N after signal N; STOPPED; 1 if it ended too early.
        started: False if the training was finished before.
        record: result.json; training.json if the training has failed.
        notes: lines for the user.
    """

    code: int
    started: bool
    record: dict[str, Any]
    notes: tuple[str, ...] = ()


def run(
    folder: Path,
    words: Sequence[str],
    labels: Mapping[str, str] | None = None,
    metric: str | None = None,
    higher: bool = False,
    watch: Watch = lambda line, log: None,
) -> Outcome:
    """Train, or describe why the training is finished.

    Args:
        folder: the run.
        words: the command of the training.
        labels: labels by which tables have rows.
        metric: logged value that chooses the best epoch; None: as in the command.
        higher: True if a higher value is better.
        watch: called with the lines of the log.

    Raises:
        OptionError, DataError: the command cannot be run in this folder; nothing is written then.
    """
    command = parse_command(words).for_run(folder / CHECKPOINTS)
    preparations = records_of_data(command.data())
    record = new_record(command, data_hashes(command.data()), labels or {}, metric, higher)
    program = _program(command.words[0])
    check_folder_of_run(folder)
    reason = wrong_direction(record["metric"], record["higher_is_better"])
    # a training that has begun is continued
    if reason and (metric is not None or (before := record_before(folder)) is None or lacks_metric(folder, before)):
        raise OptionError(reason)
    with locked_log(folder) as log_file:
        before = record_before(folder)
        if before is None:
            log_file.truncate(0)  # the log of a start that failed
        else:
            check_same(folder, before, record)
            preparations = preparations_of_run(folder, preparations)
            record = continued_record(
                record, before, labels or {}, chooses=metric is not None or higher or lacks_metric(folder, before)
            )
            log = log_before(folder)
            if reason := reached(command_of(before), command, log):
                chosen = {key: record[key] for key in ("labels", "metric", "higher_is_better")}
                return _finish(folder, {**before, **chosen}, log, started=False, notes=(reason,))
            check_last_checkpoint(folder)
            command = command.continuing()
        copy_preparation(preparations, folder)
        code = _train(folder, command, program, record, log_file, watch)
        log = read_log(folder / LOG)
        if code == 0 and log.finished:
            return _finish(folder, record, log, started=True)
        notes = {
            0: ("the command ended without an error, but its log does not say that training is done: not finished",),
            STOPPED: ("the training was stopped; the same call continues",),
        }
        return Outcome(code or 1, True, record, notes.get(code, ()))


def new_record(
    command: Command,
    data: Mapping[str, str],
    labels: Mapping[str, str],
    metric: str | None = None,
    higher: bool = False,
) -> dict[str, Any]:
    """Return the content of training.json of a run that is about to start.

    Args:
        command: the training's command.
        data: file -> hash, see `data_hashes`.
        labels, metric, higher: as for `run`.
    """
    metric = metric or command.option("--best-checkpoint-metric") or "loss"
    return {
        "labels": labels_of(command, labels),
        "command": str(command),
        "metric": metric if metric.startswith("valid_") else f"valid_{metric}",
        "higher_is_better": higher or "--maximize-best-checkpoint-metric" in command.options,
        "versions": versions(),
        "hardware": None,
        "data": dict(data),
        "vector_files": command.vector_hashes(),
        "sessions": [],
    }


def continued_record(
    record: Mapping[str, Any], before: Mapping[str, Any], labels: Mapping[str, str], chooses: bool
) -> dict[str, Any]:
    """Return this call's record, completed by the record of the run's earlier sessions.

    Args:
        record: record of this call.
        before: record of the earlier sessions.
        labels: labels of this call.
        chooses: True if this call names the metric of the best epoch.
    """
    # a record of an earlier version counts as one session of unknown length
    unknown = {"command": before["command"], "wall_s": None, "cpu_s": None}
    kept_keys = ("times", "wandb_run_id", *(() if chooses else ("metric", "higher_is_better")))
    return {
        **record,
        **{key: before[key] for key in kept_keys if key in before},
        "labels": {**record["labels"], **before["labels"], **labels},
        "vector_files": {**(before.get("vector_files") or {}), **record["vector_files"]},  # some may be gone
        "sessions": before.get("sessions") or [unknown],
    }


# ---- The training ---------------------------------------------------------------------------------------------------


def _train(
    folder: Path, command: Command, program: str, record: dict[str, Any], log_file: IO[bytes], watch: Watch
) -> int:
    """Run the command to its end and return its exit status; `record` is written before and after."""
    record["hardware"] = hardware()
    session: dict[str, Any] = {
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": record["command"],
        "revision": record["versions"]["revision"],
        "hardware": record["hardware"],
        "wall_s": None,
        "cpu_s": None,
        "exit": None,
    }
    record["sessions"] = [*record["sessions"], session]
    environment = {**os.environ, "PATH": _search_path(), **_wandb_variables(folder, command, record)}
    write_json(folder / TRAINING, record)
    began, used, end = time.monotonic(), _processor_seconds(), log_file.seek(0, os.SEEK_END)
    child = start([program, *command.words[1:]], log_file, environment)
    session |= {"process": child.pid, "host": platform.node()}
    write_json(folder / TRAINING, record)
    log, rest, decode = RunLog(), "", codecs.getincrementaldecoder("utf-8")("replace").decode
    with (folder / LOG).open("rb") as file, _signals_go_to(child):
        file.seek(end)
        while True:
            code = child.poll()
            *lines, rest = (rest + decode(file.read())).split("\n")  # `rest` has no end yet
            for line in lines:
                log.take(line)
                watch(line, log)
            if code is not None:
                break
            time.sleep(_LOOK)
    del session["process"], session["host"]
    session["exit"] = code if code >= 0 else 128 - code
    session["wall_s"] = round(time.monotonic() - began, 3)
    if not _ELSEWHERE.intersection(Path(word).name for word in command.words[: command.at]):
        session["cpu_s"] = round(_processor_seconds() - used, 3)
    write_json(folder / TRAINING, record)
    return session["exit"]


def _wandb_variables(folder: Path, command: Command, record: dict[str, Any]) -> dict[str, str]:
    """Return variables that make all sessions of a folder one run of Weights & Biases, whose id is in the record.

    Variables that are set stay as they are.
    """
    if "--wandb-project" not in command.options:
        return {}
    variables = {
        "WANDB_RUN_ID": record.setdefault("wandb_run_id", uuid.uuid4().hex[:12]),
        "WANDB_RESUME": "allow",
        "WANDB_DIR": str(folder.resolve()),
        "WANDB_NAME": folder.resolve().name,  # fairseq takes that of --save-dir: checkpoints
    }
    return {name: os.environ.get(name, value) for name, value in variables.items()}


def start(command: Sequence[str], log: IO[bytes], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a command that prints to `log`, whose lock it inherits, and reads nothing.

    The command has its own process group, so that a signal of the terminal (Ctrl-C) reaches it once, by its parent.
    """
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )


def send(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a process of `start` and to all that it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


@contextlib.contextmanager
def _signals_go_to(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Forward the signals that would end this process to the training, whose end ends this process."""
    before = {number: signal.signal(number, lambda number, _: send(child, number)) for number in _FORWARDED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _processor_seconds() -> float:
    """Return the seconds of all child processes that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def _program(name: str) -> str:
    """Return the path of a program; raise OptionError if there is none."""
    path = shutil.which(name, path=_search_path())
    if path is None and re.match(r"\w+=", name):
        raise OptionError(
            f"{name}: a variable, expected a program; write env before it: -- env {name} fairseq-train ..."
        )
    if path is None:
        raise OptionError(f"{name}: no such program; install it, or activate the environment that has it")
    return path


def _search_path() -> str:
    """Return PATH with this interpreter's folder at the end, for environments that are not activated."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])


# ---- The result -----------------------------------------------------------------------------------------------------


def _updates(epochs: Mapping[Any, Mapping[str, float]]) -> float:
    """Return the number of updates until the last value of the epochs."""
    return max((values.get("valid_num_updates", 0.0) for values in epochs.values()), default=0.0)


def _finish(folder: Path, record: Mapping[str, Any], log: RunLog, started: bool, notes: Sequence[str] = ()) -> Outcome:
    """Write result.json. Scores and texts of a checkpoint that was replaced are dropped.

    A training whose call was killed may have reached its end alone: its log has more updates than result.json.
    """
    file = folder / RESULT
    earlier = read_record(file) if file.is_file() and not started else {}
    if started or (earlier and _updates(log.epochs) > _updates(earlier.get("epochs", {}))):
        earlier = {}
        for text in TEXTS:
            (folder / text).unlink(missing_ok=True)
    if not started:
        write_json(folder / TRAINING, record)
    result = result_of(record, folder, log, earlier) if log.sessions else {**earlier, **record}
    write_json(file, result)
    metric = record["metric"]
    if log.best_epoch(metric, record["higher_is_better"]) is None:
        logged = sorted({key for values in log.epochs.values() for key in values if key.startswith("valid_")})
        reason = "it is NaN after every epoch" if metric in logged else f"logged are: {', '.join(logged) or 'none'}"
        notes = [*notes, f"no best epoch by {metric} ({reason})"]
    return Outcome(0, started, result, tuple(notes))
