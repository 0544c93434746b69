"""`embinit run`: one training in one folder, from its record to its result.

    RUN/training.json   what it is: command, versions, hardware, hashes of data and vectors, its sessions
    RUN/train.log       all that the command prints
    RUN/checkpoints/    --save-dir
    RUN/result.json     written when the training has come to its end

The same call again continues what was interrupted, and leaves alone what is finished.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from embinit_fairseq import bounded, machine
from embinit_fairseq.errors import DataError, OptionError, counted
from embinit_fairseq.runs.command import Command, data_hashes, differences, labels_of, limits, parse_command
from embinit_fairseq.runs.logs import LogReader, RunLog, read_log
from embinit_fairseq.runs.process import lock, send, start
from embinit_fairseq.runs.record import (
    CHECKPOINTS,
    LOG,
    RESULT,
    TRAINING,
    UNITS,
    read_record,
    result_of,
    seconds_of,
    write_record,
)
from embinit_fairseq.runs.run import TEXTS

#: seconds between two looks at the log, and between two records of the time used so far
_LOOK, _NOTE = 0.2, 60.0
#: how long to wait for the processes of a call that was killed
_PATIENCE = 3.0
#: in result.json only
_OF_RESULT = ("parameters", "epochs", "best", "time", "init", "scores")
_FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
#: launchers whose processes are not ours, so that the system does not tell us their processor time
_ELSEWHERE = frozenset("srun mpirun mpiexec ssh docker".split())

#: called with every line of the log, and what has been read so far; where there is none, some times a second with ""
Watch = Callable[[str, LogReader], None]


@dataclass(frozen=True)
class TrainingRequest:
    """One call. metric: what chooses the checkpoint, as logged; None: what the command says. labels: for tables."""

    folder: Path
    words: Sequence[str]
    labels: Mapping[str, str] = field(default_factory=dict)
    metric: str | None = None
    higher: bool = False


@dataclass(frozen=True)
class Outcome:
    """code: the training's exit status, 128 + N if signal N has ended it; 1 if it ended without having come to its end.
    started: False if it was finished before.

    record: result.json; training.json where the training has failed.
    """

    code: int
    started: bool
    record: dict[str, Any]
    notes: tuple[str, ...] = ()


def run(request: TrainingRequest, watch: Watch = lambda line, log: None) -> Outcome:
    """Start, continue or finish a run. OptionError or DataError, before anything is written, for what cannot be run."""
    folder = request.folder
    command = parse_command(request.words).saving_to(folder / CHECKPOINTS)
    record = new_record(request, command, data_hashes(command.data()))
    _check_program(command)
    check_folder_of_run(folder)
    with _locked_log(folder) as log_file:
        before = record_before(folder)
        log = read_log(folder / LOG)
        if before is not None:
            check_same(folder, before, record)
            _inherit(record, before, request)
            if not log.sessions and (folder / RESULT).is_file():
                log = _log_of_result(read_record(folder / RESULT))
            if done := _reached(parse_command_of(before), command, log):
                return _finish(folder, {**before, **_chosen(record)}, log, started=False, notes=(done,))
            record["sessions"], record["times"] = _sessions_before(before, log), before.get("times", {})
        else:
            log_file.truncate(0)  # of a start that failed
        record["hardware"] = machine.hardware()
        code = _train(folder, command, record, log_file, watch)
        log = read_log(folder / LOG)
        if code != 0 or not log.finished:
            return Outcome(code or 1, True, record, _unfinished(code))
        return _finish(folder, record, log, started=True)


def new_record(request: TrainingRequest, command: Command, data: Mapping[str, str]) -> dict[str, Any]:
    """training.json of a run that is about to start; hardware and times are still missing. data: `data_hashes`."""
    metric = request.metric or command.option("--best-checkpoint-metric") or "loss"
    return {
        "labels": labels_of(command, request.labels),
        "command": str(command),
        "metric": metric if metric.startswith("valid_") else f"valid_{metric}",
        "higher_is_better": request.higher or "--maximize-best-checkpoint-metric" in command.options,
        "versions": machine.versions(),
        "hardware": None,
        "data": dict(data),
        "vector_files": command.vector_hashes(),
        "sessions": [],
        "times": {},
    }


def _inherit(record: dict[str, Any], before: Mapping[str, Any], request: TrainingRequest) -> None:
    """What this call does not say stays as it was."""
    record["labels"] = {**record["labels"], **before["labels"], **request.labels}
    record["vector_files"] = {**(before.get("vector_files") or {}), **record["vector_files"]}  # some may be gone by now
    if request.metric is None and not request.higher:
        record.update({key: before[key] for key in ("metric", "higher_is_better") if key in before})


def _chosen(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a further call may say differently about a finished run."""
    return {key: record[key] for key in ("labels", "metric", "higher_is_better")}


def _check_program(command: Command) -> None:
    if shutil.which(command.words[0], path=_search_path()) is None:
        raise OptionError(f"{command.words[0]}: no such program; install it, or activate the environment that has it")


def _search_path() -> str:
    """That of the environment, and at last the folder of this interpreter, whose environment need not be activated."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])


# ---- what is in the folder ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _locked_log(folder: Path) -> Iterator[IO[bytes]]:
    """The log, open for appending and locked, as long as this process or one of the training's holds it open."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOG).open("ab")
    except OSError as error:
        raise OptionError(f"{folder}: cannot be written ({error.strerror}); choose another folder") from error
    with file:
        deadline = time.monotonic() + _PATIENCE
        while not lock(file):
            if time.monotonic() > deadline:
                raise OptionError(
                    f"{folder}: another call is training in this folder; wait for its end, or choose another folder"
                )
            time.sleep(0.1)
        yield file


def check_folder_of_run(folder: Path) -> None:
    """DataError for a folder with files, but without a run: what is in it might be overwritten, or taken for a run's.

    A record, or the `settings` of our recipes (scripts/env.sh), make it a run's; so does a folder `checkpoints`. Empty
    files are no content: a shell makes them for what is printed.
    """
    if not folder.is_dir() or any((folder / name).exists() for name in (TRAINING, RESULT, CHECKPOINTS, "settings")):
        return
    for path in sorted(folder.iterdir()):
        if path.is_dir() or path.lstat().st_size:
            raise DataError(
                f"{folder}: holds {path.name}, but no run ({TRAINING} is missing); name another folder, which need not "
                "be there yet"
            )


def record_before(folder: Path) -> dict[str, Any] | None:
    """The record of the run that is there; None if there is none, or one that failed before it saved anything."""
    file = folder / TRAINING
    if not file.is_file():
        if (folder / RESULT).is_file():  # which holds all that was in it
            result = read_record(folder / RESULT)
            return {key: value for key, value in result.items() if key not in _OF_RESULT}
        if any((folder / CHECKPOINTS).glob("*.pt")):
            raise DataError(
                f"{folder}: holds checkpoints of which no record says how they were made ({TRAINING} is missing); "
                "choose another folder, or remove them"
            )
        return None
    ended = (folder / RESULT).is_file() or ((folder / LOG).is_file() and read_log(folder / LOG).finished)
    return read_record(file) if ended or any((folder / CHECKPOINTS).glob("*.pt")) else None


def parse_command_of(record: Mapping[str, Any]) -> Command:
    """The command in a record."""
    return parse_command(shlex.split(record["command"]), any_program=True)


def check_same(folder: Path, before: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    """OptionError or DataError if the run that is there is another one."""
    remedy = "give the same command, or choose another folder"
    if changed := differences(parse_command_of(before), parse_command_of(record)):
        raise OptionError(f"{folder}: holds a run with other options: {'; '.join(changed)}; {remedy}")
    for key, what in (("data", "data"), ("vector_files", "vectors")):
        old, new = before.get(key) or {}, record[key]
        names = [name for name, value in new.items() if old.get(name, value) != value and name != "all"]
        if names or (key == "data" and old.get("all", new["all"]) != new["all"]):
            name = names[0] if names else "DATA"
            raise DataError(f"{folder}: holds a run with other {what}: {name} has changed since; {remedy}")


def _reached(old: Command, new: Command, log: RunLog) -> str | None:
    """Why there is nothing left to do; None if there is.

    A training that has saved its last checkpoint would do one update more if it were started again.
    """
    limit = _number(new.option("--max-update"))
    if 0 < limit <= log.saved_updates:
        return f"finished before: {counted(log.saved_updates, 'update')} done, --max-update {limit:.0f}"
    if not log.finished:
        return None
    epochs = max(log.epochs, default=0)
    if limits(old) == limits(new):
        return f"finished before, after epoch {epochs}"
    limit = _number(new.option("--max-epoch"))
    return f"finished before: {counted(epochs, 'epoch')} done, --max-epoch {limit:.0f}" if 0 < limit <= epochs else None


def _log_of_result(result: Mapping[str, Any]) -> RunLog:
    """What a log would say that is no longer there."""
    epochs = {int(epoch): values for epoch, values in result.get("epochs", {}).items()}
    return RunLog(epochs=epochs, finished=True)


def _number(value: str | None) -> float:
    """0: no limit, as fairseq has it; also of what is none, which fairseq will refuse."""
    try:
        return float(value or 0)
    except ValueError:
        return 0.0


def _sessions_before(before: Mapping[str, Any], log: RunLog) -> list[dict[str, Any]]:
    """Records of earlier versions have none: all that was done then counts as one."""
    if "sessions" in before:
        return list(before["sessions"])
    return [{"command": before["command"], "wall_s": log.wall_s or None, "cpu_s": None}]


# ---- the training ---------------------------------------------------------------------------------------------------


def _train(folder: Path, command: Command, record: dict[str, Any], log_file: IO[bytes], watch: Watch) -> int:
    """Run the command to its end; returns its exit status. `record` gets the session's times and is written."""
    earlier = list(record["sessions"])
    session = {
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": record["command"],
        "revision": record["versions"]["revision"],
        "hardware": record["hardware"],
        "wall_s": 0.0,
        "cpu_s": 0.0,
        "exit": None,
    }
    record["sessions"] = [*earlier, session]
    write_record(folder / TRAINING, record)
    begin, reader, place = time.monotonic(), LogReader(folder / LOG), log_file.seek(0, os.SEEK_END)
    child = _start(command, log_file)
    counted = not _ELSEWHERE.intersection(Path(word).name for word in command.launcher)

    def note(cpu_s: float | None) -> None:
        session["wall_s"] = round(time.monotonic() - begin, 3)
        session["cpu_s"] = round(cpu_s, 3) if counted and cpu_s is not None else None

    noted = begin
    timed: set[int] = set()
    with (folder / LOG).open("rb") as lines, _signals_go_to(child):
        lines.seek(place)
        ended = False
        while not ended:
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            ended = pid != 0
            known = len(reader.log.validations)
            _read(lines, reader, watch, to_end=ended)
            if ended:
                note(usage.ru_utime + usage.ru_stime)
                child.returncode = session["exit"] = _exit_code(status)
            elif len(reader.log.validations) > known or time.monotonic() - noted > _NOTE:
                noted = time.monotonic()
                note(machine.processor_seconds(child.pid))
            else:
                watch("", reader)
                time.sleep(_LOOK)
                continue
            _note_validations(record, reader.log, timed)
            write_record(folder / TRAINING, record)
    return session["exit"]


def _start(command: Command, log_file: IO[bytes]) -> subprocess.Popen:
    """In a process group of its own, so that a signal of the terminal comes once: by `_signals_go_to`."""
    program = shutil.which(command.words[0], path=_search_path())
    assert program is not None  # it was looked for before the record was written
    environment = {**os.environ, "PATH": _search_path()}
    return start([program, *command.words[1:]], log_file, environment)


@contextlib.contextmanager
def _signals_go_to(child: subprocess.Popen) -> Iterator[None]:
    """What ends this process ends the training first; what stops it (Ctrl-Z) stops the training, too."""

    def forward(number: int, frame: Any) -> None:
        send(child, number)

    def stop(number: int, frame: Any) -> None:
        forward(signal.SIGSTOP, frame)
        os.kill(os.getpid(), signal.SIGSTOP)
        forward(signal.SIGCONT, frame)

    handlers = {getattr(signal, name): forward for name in _FORWARDED} | {signal.SIGTSTP: stop}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _read(lines: IO[bytes], reader: LogReader, watch: Watch, to_end: bool) -> None:
    """Whole lines that are new, in parts where they are endless; at the end also one without a line feed."""
    while line := lines.readline(bounded.LONGEST_LINE):
        if not line.endswith(b"\n") and len(line) < bounded.LONGEST_LINE and not to_end:
            lines.seek(-len(line), os.SEEK_CUR)
            return
        text = line.decode("utf-8", errors="replace").rstrip("\n")
        reader.take(text)
        watch(text, reader)


def _note_validations(record: dict[str, Any], log: RunLog, timed: set[int]) -> None:
    """Seconds of all sessions at the validations that this session has made since the last call."""
    now = {unit: seconds_of(record["sessions"], unit) for unit in UNITS}
    record["times"].update({str(updates): now for updates in log.validations if updates not in timed})
    timed.update(log.validations)


def _exit_code(status: int) -> int:
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


# ---- the result -----------------------------------------------------------------------------------------------------


def _finish(folder: Path, record: Mapping[str, Any], log: RunLog, started: bool, notes: Sequence[str] = ()) -> Outcome:
    """Write result.json, or what is new about it.

    Scores of a training that has gone on since are dropped, and the texts that `embinit compare` would count them on.
    """
    file = folder / RESULT
    if started:
        for text in itertools.chain(*TEXTS):
            (folder / text).unlink(missing_ok=True)
    earlier = read_record(file) if file.is_file() and not started else {}
    if not started:
        _update(folder / TRAINING, record)
    result = result_of(record, folder, log, earlier) if log.sessions else {**earlier, **_chosen(record)}
    _update(file, result)
    return Outcome(0, started, result, (*notes, *_doubts(record, log)))


def _update(file: Path, record: Mapping[str, Any]) -> None:
    """Write a record unless it stands there: a second call for a finished run changes nothing."""
    if not file.is_file() or read_record(file) != json.loads(json.dumps(record)):
        write_record(file, record)


def _doubts(record: Mapping[str, Any], log: RunLog) -> list[str]:
    metric = record["metric"]
    if log.has_numbers(metric):
        return []
    if not log.validations:
        return [f"no validation in the log: no best epoch by {metric}"]
    logged = sorted({key for values in log.epochs.values() for key in values if key.startswith("valid_")})
    if metric not in logged:
        return [f"--metric {metric}: not logged, so that there is no best epoch; logged are {', '.join(logged)}"]
    return [f"{metric} is NaN after every epoch: training has diverged, there is no best epoch"]


def _unfinished(code: int) -> tuple[str, ...]:
    if code:
        return ()
    return ("the command ended without an error, but its log does not say that training is done: not finished",)
