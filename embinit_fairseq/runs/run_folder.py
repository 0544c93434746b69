"""Check the folder of a run: is it of this run, may a call continue it, is its training finished?

The module `record` lists the files of the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from embinit_fairseq.errors import DataError, EmbinitError, OptionError, counted
from embinit_fairseq.runs.command import CHOOSING, FREE_OPTIONS, LIMITS, Command, differences, parse_command
from embinit_fairseq.runs.log import RunLog, read_log
from embinit_fairseq.runs.record import CHECKPOINTS, LOG, RESULT, TRAINING, read_record
from embinit_fairseq.vocab.preparation_record import FILE, Recorded, agreed, records_of_data

_REMEDY = "give the same command, or choose another folder"


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
def locked_log(folder: Path) -> Iterator[IO[bytes]]:
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
    not count: a shell makes them for redirected output. Files of a call that was killed at its start do not count.
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


def log_before(folder: Path) -> RunLog:
    """Return the log of the folder's run; without a log, its values in the result."""
    log = read_log(folder / LOG)
    if log.sessions or not (folder / RESULT).is_file():
        return log
    epochs = read_record(folder / RESULT).get("epochs", {})
    return RunLog(epochs={int(epoch): values for epoch, values in epochs.items()}, finished=True)


def lacks_metric(folder: Path, before: Mapping[str, Any]) -> bool:
    """Return True if the folder's run was validated, but never with a value of its --best-checkpoint-metric."""
    log = folder / LOG
    validations = read_log(log).validations.values() if log.is_file() else ()
    metric = f"valid_{command_of(before).option('--best-checkpoint-metric', 'loss')}"
    return bool(validations) and all(metric not in values for values in validations)


def check_same(folder: Path, before: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    """Raise OptionError or DataError if the folder's run has other options, data or vectors."""
    free = FREE_OPTIONS | CHOOSING if lacks_metric(folder, before) else FREE_OPTIONS
    if changed := differences(command_of(before), command_of(record), free):
        raise OptionError(f"{folder}: has a run with other options: {'; '.join(changed)}; {_REMEDY}")
    for key, kind in (("data", "data"), ("vector_files", "vectors")):
        old, new = before.get(key) or {}, record[key]
        changed = [name for name, value in new.items() if old.get(name, value) != value]
        if changed:
            name = next((name for name in changed if name != "all"), "DATA")
            raise DataError(f"{folder}: has a run with other {kind}: {name} has changed since; {_REMEDY}")


def check_last_checkpoint(folder: Path) -> None:
    """Raise DataError if a run has no last checkpoint: fairseq would train from scratch, into the same record.

    The checkpoint is missing if it was removed, and with --no-save and --no-last-checkpoints.
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
    """Return the preparation records of a run; a record of the folder stays if the data have lost theirs.

    Raises:
        DataError: the text of the folder's run and the text of this call were prepared in different ways.
    """
    before = records_of_data([folder])
    both = {
        name: agreed(name, {"the data": preparations.get(name), f"the run in {folder}": before.get(name)}, _REMEDY)
        for name in {**before, **preparations}
    }
    return {name: recorded for name, recorded in both.items() if recorded is not None}


def command_of(record: Mapping[str, Any]) -> Command:
    """Return the command of a record."""
    return parse_command(shlex.split(record["command"]), any_program=True)


def reached(old: Command, new: Command, log: RunLog) -> str | None:
    """Return the reason why the training is finished; None if it is not.

    A finished training would do one more update if fairseq-train was started again.
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
