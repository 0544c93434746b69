"""The record of a run: RUN/training.json, written when it starts, and RUN/result.json, which holds all of it and what
came out: losses of all epochs, the best one, the initialisation's report, time, scores.

`KINDS` says what a record may hold, and is checked whenever one is read or written. Absent keys are fine, and so are
keys that are not in the table: nothing here reads them.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from embinit_fairseq.bounded import read_json
from embinit_fairseq.errors import DataError
from embinit_fairseq.files import check_is_file, write_json
from embinit_fairseq.runs.logs import RunLog, nats
from embinit_fairseq.runs.metrics import FIGURES, SCORES, Score

RESULT, TRAINING = "result.json", "training.json"
#: inside a run's folder
LOG, CHECKPOINTS = "train.log", "checkpoints"
#: seconds of a session: by the clock, of the processors
UNITS = ("wall_s", "cpu_s")


class Kind(NamedTuple):
    """A kind of value: its test, and what a message calls it."""

    test: Callable[[Any], bool]
    name: str


def _or_null(kind: Kind) -> Kind:
    return Kind(lambda value: value is None or kind.test(value), f"{kind.name} or null")


def _is_number(value: Any) -> bool:
    """NaN and infinity are: trainings diverge. Not true and false, and not what no float can hold."""
    return isinstance(value, float) or (type(value) is int and abs(value) <= sys.float_info.max)


def _is_whole(value: Any) -> bool:
    return _is_number(value) and 0 <= value < float("inf") and value == int(value)


def _is_command(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(shlex.split(value) or True)
    except ValueError:
        return False


def _kind_of(score: Score) -> Kind:
    return Kind(lambda value: _is_number(value) and score.in_range(value), score.range)


OBJECT = Kind(lambda value: isinstance(value, dict), "an object")
OBJECTS = Kind(lambda value: isinstance(value, list) and all(map(OBJECT.test, value)), "a list of objects")
TEXT = Kind(lambda value: isinstance(value, str), "text")
TEXTS = Kind(lambda value: isinstance(value, list) and all(map(TEXT.test, value)), "a list of texts")
NUMBER = Kind(_is_number, "a number")
WHOLE = Kind(_is_whole, "a whole number from 0")
COMMAND = Kind(_is_command, "text that a shell can read (quotes in pairs)")
SCORE_KINDS = {name: _kind_of(score) for name, score in SCORES.items()}

#: key, with "*" for any -> its kind
KINDS = {
    "labels": OBJECT,
    "labels/*": Kind(lambda value: TEXT.test(value) or _is_number(value), "text or a number"),
    "command": _or_null(COMMAND),
    "metric": TEXT,
    "higher_is_better": Kind(lambda value: isinstance(value, bool), "true or false"),
    "data": _or_null(OBJECT),
    "data/*": TEXT,
    "vector_files": _or_null(OBJECT),
    "vector_files/*": TEXT,
    "versions": _or_null(OBJECT),
    "versions/*": _or_null(TEXT),
    "hardware": _or_null(OBJECT),
    "hardware/cpu": _or_null(TEXT),
    "hardware/cores": _or_null(WHOLE),
    "hardware/threads": _or_null(WHOLE),
    "hardware/gpus": _or_null(TEXTS),
    "sessions": OBJECTS,
    "sessions/*/wall_s": _or_null(NUMBER),
    "sessions/*/cpu_s": _or_null(NUMBER),
    "times": OBJECT,
    "times/*": OBJECT,
    "times/*/wall_s": _or_null(NUMBER),
    "times/*/cpu_s": _or_null(NUMBER),
    "parameters": _or_null(OBJECT),
    "parameters/*": _or_null(WHOLE),
    "time": _or_null(OBJECT),
    "time/wall_s": _or_null(NUMBER),
    "time/cpu_s": _or_null(NUMBER),
    "epochs": OBJECT,
    "epochs/*": OBJECT,
    "epochs/*/*": NUMBER,
    "epochs/*/valid_num_updates": WHOLE,
    "best": OBJECT,
    "best/*": _or_null(NUMBER),
    "scores": OBJECT,
    **{f"scores/{score}": _or_null(OBJECT) for score in SCORES},
    **{f"scores/{name.partition('/')[0]}": _or_null(OBJECT) for name in FIGURES if "/" in name},
    **{f"scores/{name}": _or_null(NUMBER) for name in FIGURES},
    **{f"scores/{name}/score": _or_null(kind) for name, kind in SCORE_KINDS.items()},
    **{f"scores/{score}/signature": _or_null(TEXT) for score in SCORES},
    "init": _or_null(OBJECT),
    "init/slots": _or_null(OBJECT),
    "init/slots/*": OBJECT,
    "init/slots/*/matched_absorption_ratio": _or_null(NUMBER),
    "init/slots/*/absorption_ratio": _or_null(NUMBER),
    "init/slots/*/signature": _or_null(TEXT),
}
#: keys of objects that must be whole numbers, as text: "3", but not "03" beside it
NUMBERED = {"epochs": "an epoch", "times": "a number of updates"}
_NUMBER_KEY = re.compile(r"0|[1-9][0-9]{0,14}")
_REMEDY = "correct the file, or remove it and start the run again, which writes it anew"
_REMEDY_TRAINING = f"correct the file; or, if there is a {RESULT}, remove this one and start the run again"


def _remedy(file: Path) -> str:
    return _REMEDY_TRAINING if file.name == TRAINING else _REMEDY


def read_record(file: Path) -> dict[str, Any]:
    """result.json or training.json; DataError for a file that is none."""
    check_is_file(str(file))
    record = read_json(file, DataError, remedy=_remedy(file))
    check_record(record, file)
    if file.name == TRAINING and not record.get("command"):
        raise DataError(f"{file}: command is missing; {_remedy(file)}")
    return {**record, "labels": {label: str(value) for label, value in record["labels"].items()}}


def write_record(file: Path, record: Mapping[str, Any]) -> None:
    """The same, complete or not there. DataError for what `read_record` would refuse."""
    check_record(record, file)
    write_json(file, record)


def check_record(record: Any, file: Path) -> None:
    """DataError, with the key, what it holds and what it should, for the first value that is not of its kind."""
    if not isinstance(record, dict) or not isinstance(record.get("labels"), dict):
        raise DataError(
            f"{file}: not the record of a run (labels missing or of another kind); name a run, or {_remedy(file)}"
        )
    for key, kind in KINDS.items():
        for path, value in _values(record, key.split("/")):
            if not kind.test(value):
                raise DataError(f"{file}: {'.'.join(path)} is {_shown(value)}, not {kind.name}; {_remedy(file)}")
    for name, what in NUMBERED.items():
        for key in record.get(name, {}):
            if not _NUMBER_KEY.fullmatch(key):
                raise DataError(
                    f'{file}: {name} has the key {_shown(key)}, not that of {what}, such as "3"; {_remedy(file)}'
                )


def _values(node: Any, key: list[str], before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(path, value) of all that is there under a key of KINDS. What should be an object and is not, is not ours."""
    if not key:
        yield before, node
    elif isinstance(node, dict):
        for name in node if key[0] == "*" else {key[0]} & node.keys():
            yield from _values(node[name], key[1:], (*before, name))
    elif isinstance(node, list) and key[0] == "*":
        for number, item in enumerate(node):
            yield from _values(item, key[1:], (*before, str(number)))


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def result_of(record: Mapping[str, Any], folder: Path, log: RunLog, earlier: Mapping[str, Any]) -> dict[str, Any]:
    """result.json from training.json and what the training left in `folder`. earlier: the one that is there, or {}: its
    scores stay, and its report of the initialisation where the checkpoints have been removed.

    Without a best epoch (`best` is {}) where nothing was validated, or the metric was NaN after every epoch.
    """
    report = folder / CHECKPOINTS / "embed_init.json"
    result = {
        **record,
        **so_far(log, record["metric"], record["higher_is_better"]),
        "init": json.loads(report.read_text(encoding="utf-8")) if report.is_file() else earlier.get("init"),
        "scores": dict(earlier.get("scores", {})),
    }
    totals = {unit: seconds_of(record.get("sessions", []), unit) for unit in UNITS}
    result["time"].update({unit: total for unit, total in totals.items() if total is not None})
    return result


def seconds_of(sessions: Sequence[Mapping[str, Any]], unit: str) -> float | None:
    """Of all sessions together, in one of UNITS; None where there is none, or one does not know."""
    known = [value for session in sessions if (value := session.get(unit)) is not None]
    return round(sum(known), 3) if known and len(known) == len(sessions) else None


def summary(log: RunLog, metric: str, higher: bool) -> dict[str, Any]:
    """The part of result.json that comes from the log; DataError if no epoch has the metric, or none but NaN."""
    return _summary(log, _best(log, metric, higher))


def so_far(log: RunLog, metric: str, higher: bool) -> dict[str, Any]:
    """As `summary`, also of a training that has diverged or was not validated: it has no best epoch."""
    return _summary(log, _best(log, metric, higher) if log.has_numbers(metric) else {})


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
