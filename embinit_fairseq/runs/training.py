"""Start, continue or finish one training in one folder (`embinit run`); see `record` for the folder's files.

The same call again continues an interrupted training, and does nothing for a finished one.
"""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import platform
import re
import shlex
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

from embinit_fairseq.errors import DataError, EmbinitError, OptionError, counted
from embinit_fairseq.io import write_json
from embinit_fairseq.machine import hardware, versions
from embinit_fairseq.runs.command import (
    CHOOSING,
    FREE_OPTIONS,
    LIMITS,
    Command,
    data_hashes,
    differences,
    labels_of,
    parse_command,
)
from embinit_fairseq.runs.log import RunLog, read_log
from embinit_fairseq.runs.metrics import wrong_direction
from embinit_fairseq.runs.record import CHECKPOINTS, LOG, RESULT, TEXTS, TRAINING, read_record, result_of
from embinit_fairseq.vocab.preparation_record import FILE, Recorded, agreed, copy_preparation, records_of_data

#: seconds between two looks at the log
_LOOK = 0.2
#: launchers whose processes are not children of this one, so that their processor time is not known
_ELSEWHERE = frozenset("srun mpirun mpiexec ssh docker".split())
#: exit status of a training that was told to stop, has saved, and continues with the same command (`saved_stops` of
#: fairseq_compat)
STOPPED = 75
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_REMEDY = "give the same command, or choose another folder"

#: called with every line of the log, and with the log so far
Watch = Callable[[str, RunLog], None]


@dataclass(frozen=True)
class Outcome:
    """How a call ended.

    Attributes:
        code: exit status of the training; 128 + N after signal N; STOPPED; 1 if it ended before its
            training was done.
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
    """Train, or say why there is nothing left to do.

    Args:
        folder: the run.
        words: the command of the training.
        labels: what tables are sorted by.
        metric: logged value that chooses the best epoch; None: as in the command.
        higher: whether a higher value is better.
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
    with _locked_log(folder) as log_file:
        before = record_before(folder)
        log = read_log(folder / LOG)
        if before is None:
            log_file.truncate(0)  # the log of a start that failed
        else:
            check_same(folder, before, record)
            preparations = preparations_of_run(folder, preparations)
            record = continued_record(
                record, before, labels or {}, chooses=metric is not None or higher or lacks_metric(folder, before)
            )
            if not log.sessions and (folder / RESULT).is_file():  # the log is gone
                epochs = read_record(folder / RESULT).get("epochs", {})
                log = RunLog(epochs={int(epoch): values for epoch, values in epochs.items()}, finished=True)
            if reason := _reached(_command_of(before), command, log):
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
        command: of the training.
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
        record: of this call.
        before: of the earlier sessions.
        labels: given to this call.
        chooses: this call says what chooses the best epoch.
    """
    # a record of an earlier version counts as one session of unknown length
    unknown = {"command": before["command"], "wall_s": None, "cpu_s": None}
    kept = ("times", "wandb_run_id", *(() if chooses else ("metric", "higher_is_better")))
    return {
        **record,
        **{key: before[key] for key in kept if key in before},
        "labels": {**record["labels"], **before["labels"], **labels},
        "vector_files": {**(before.get("vector_files") or {}), **record["vector_files"]},  # some may be gone
        "sessions": before.get("sessions") or [unknown],
    }


# ---- The folder -----------------------------------------------------------------------------------------------------


def lock(file: IO[bytes]) -> bool:
    """Lock a file for this process and its children; return False if other processes have it.

    The lock ends with the last of these processes, also if this one is killed.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        pass
    return True


@contextlib.contextmanager
def _locked_log(folder: Path) -> Iterator[IO[bytes]]:
    """Yield the log, open for appending and locked; leave no empty log in a folder that is refused."""
    path = folder / LOG
    is_new = not path.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
    except OSError as error:
        raise OptionError(f"{folder}: cannot be written ({error.strerror}); choose another folder") from error
    with file:
        if not lock(file):
            raise OptionError(
                f"{folder}: another call is training in this folder{_training_process(folder)}; wait for its end, or "
                "choose another folder"
            )
        try:
            yield file
        except EmbinitError:
            if is_new and not path.stat().st_size:
                path.unlink()
            raise


def _training_process(folder: Path) -> str:
    """Return `, process NUMBER on HOST` of the training that is running in a folder; "" if its record has none."""
    with contextlib.suppress(EmbinitError, IndexError):
        session = read_record(folder / TRAINING)["sessions"][-1]
        if "process" in session and session["exit"] is None:
            return f", process {session['process']} on {session['host']}"
    return ""


def check_folder_of_run(folder: Path) -> None:
    """Raise DataError for a folder that has files but no run.

    A record, a folder `checkpoints`, or the file `settings` of a recipe make it the folder of a run. Empty files do
    not count: a shell makes them for redirected output. Nor does what a call that was killed at its start has written.
    """
    if not folder.is_dir() or any((folder / name).exists() for name in (TRAINING, RESULT, CHECKPOINTS, "settings")):
        return
    for path in sorted(folder.iterdir()):
        if path.is_dir() or (path.lstat().st_size and path.name != FILE):
            raise DataError(f"{folder}: has {path.name}, but no run ({TRAINING} is missing); name another folder")


def record_before(folder: Path) -> dict[str, Any] | None:
    """Return the record of the folder's run; None without a run, or if it failed before its first checkpoint."""
    file, result = folder / TRAINING, folder / RESULT
    has_checkpoints = any((folder / CHECKPOINTS).glob("*.pt"))
    if file.is_file():
        ended = result.is_file() or ((folder / LOG).is_file() and read_log(folder / LOG).finished)
        return read_record(file) if ended or has_checkpoints else None
    if has_checkpoints or result.is_file():
        raise DataError(
            f"{folder}: has checkpoints or a result, but no record of how they were made ({TRAINING} is missing); "
            "choose another folder, or remove them"
        )
    return None


def lacks_metric(folder: Path, before: Mapping[str, Any]) -> bool:
    """Return True if the folder's run was validated, but never with a value of its --best-checkpoint-metric."""
    log = folder / LOG
    validations = read_log(log).validations.values() if log.is_file() else ()
    metric = f"valid_{_command_of(before).option('--best-checkpoint-metric', 'loss')}"
    return bool(validations) and all(metric not in values for values in validations)


def check_same(folder: Path, before: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    """Raise OptionError or DataError if the folder's run has other options, data or vectors."""
    free = FREE_OPTIONS | CHOOSING if lacks_metric(folder, before) else FREE_OPTIONS
    if changed := differences(_command_of(before), _command_of(record), free):
        raise OptionError(f"{folder}: has a run with other options: {'; '.join(changed)}; {_REMEDY}")
    for key, kind in (("data", "data"), ("vector_files", "vectors")):
        old, new = before.get(key) or {}, record[key]
        changed = [name for name, value in new.items() if old.get(name, value) != value]
        if changed:
            name = next((name for name in changed if name != "all"), "DATA")
            raise DataError(f"{folder}: has a run with other {kind}: {name} has changed since; {_REMEDY}")


def check_last_checkpoint(folder: Path) -> None:
    """Raise DataError if a run has no last checkpoint: fairseq would train from scratch, into the same record.

    It is missing if it was removed, and with --no-save and --no-last-checkpoints.
    """
    checkpoints = folder / CHECKPOINTS
    if any(checkpoints.glob("checkpoint_last*.pt")):
        return
    others = sorted(checkpoints.glob("*.pt"), key=lambda path: path.stat().st_mtime)
    remedy = f"copy {others[-1].name} to this name, to continue from there, or " if others else ""
    raise DataError(
        f"{checkpoints / 'checkpoint_last.pt'}: missing, so that this run cannot be continued (--no-save, "
        f"--no-last-checkpoints, or removed); {remedy}choose another folder"
    )


def preparations_of_run(folder: Path, preparations: Mapping[str, Recorded]) -> dict[str, Recorded]:
    """Return the records of a run's text; those of a folder's run stay where the data have none any more.

    Raises:
        DataError: the text of the folder's run was prepared in another way than that of this call.
    """
    before = records_of_data([folder])
    both = {
        name: agreed(name, {"the data": preparations.get(name), f"the run in {folder}": before.get(name)}, _REMEDY)
        for name in {**before, **preparations}
    }
    return {name: recorded for name, recorded in both.items() if recorded is not None}


def _command_of(record: Mapping[str, Any]) -> Command:
    return parse_command(shlex.split(record["command"]), any_program=True)


def _reached(old: Command, new: Command, log: RunLog) -> str | None:
    """Return why there is nothing left to do; None if there is.

    A finished training does one update more if fairseq-train is started again.
    """

    def limit(flag: str) -> float:  # 0: none, as in fairseq
        with contextlib.suppress(ValueError):
            return float(new.option(flag) or 0)
        return 0.0

    most_updates, most_epochs, epochs = limit("--max-update"), limit("--max-epoch"), max(log.epochs, default=0)
    if 0 < most_updates <= log.saved_updates:
        return f"finished before: {counted(log.saved_updates, 'update')} done, --max-update {most_updates:.0f}"
    if log.finished and all(old.options.get(flag) == new.options.get(flag) for flag in LIMITS):
        return f"finished before, after epoch {epochs}"
    if log.finished and 0 < most_epochs <= epochs:
        return f"finished before: {counted(epochs, 'epoch')} done, --max-epoch {most_epochs:.0f}"
    return None


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

    It has a process group of its own, so that a signal of the terminal (Ctrl-C) reaches it once, by its parent.
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
    """Return PATH with this interpreter's folder at the end: its environment need not be activated."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])


# ---- The result -----------------------------------------------------------------------------------------------------


def _finish(folder: Path, record: Mapping[str, Any], log: RunLog, started: bool, notes: Sequence[str] = ()) -> Outcome:
    """Write result.json. Scores and texts of a checkpoint that was replaced are dropped."""
    file = folder / RESULT
    earlier: dict[str, Any] = {}
    if started:
        for text in TEXTS:
            (folder / text).unlink(missing_ok=True)
    else:
        earlier = read_record(file) if file.is_file() else {}
        write_json(folder / TRAINING, record)
    result = result_of(record, folder, log, earlier) if log.sessions else {**earlier, **record}
    write_json(file, result)
    metric = record["metric"]
    if log.best_epoch(metric, record["higher_is_better"]) is None:
        logged = sorted({key for values in log.epochs.values() for key in values if key.startswith("valid_")})
        reason = "it is NaN after every epoch" if metric in logged else f"logged are: {', '.join(logged) or 'none'}"
        notes = [*notes, f"no best epoch by {metric} ({reason})"]
    return Outcome(0, started, result, tuple(notes))
