"""Save directories of `fairseq-train` without a log: each checkpoint tells its epoch, updates and validation value."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embinit_fairseq.analysis.run import Run, Validation
from embinit_fairseq.analysis.runs_options import options_of_sections
from embinit_fairseq.errors import CheckpointError
from embinit_fairseq.vectors.torch_file import load_safely, plain_types


def run_of_checkpoints(folder: Path) -> Run | None:
    """The run that saved the checkpoints in `folder`, by the metric that chose the best; None if it has none.

    With --no-epoch-checkpoints only the best and the last validation are known.
    """
    states = {
        file: load_safely(file, CheckpointError, "a fairseq checkpoint", plain_types()) for file in _files(folder)
    }
    found = {file: state["extra_state"] for file, state in states.items() if _is_training(state)}
    if not found:
        return None
    last = states[next(reversed(found))]
    options, sections = _options(last), _configuration(last)
    metric = f"valid_{options.get('best_checkpoint_metric', 'loss')}"
    by_updates = {
        each.updates: each for file, extra in found.items() if (each := _validation(states[file], extra, metric))
    }
    places = (("task", "task", "task"), ("arch", "arch", "model"), ("init", "embed_init", "embed_init"))
    labels = {label: options.get(name) or _name(sections.get(section)) for label, name, section in places}
    record = {
        "labels": {
            label: str(value) for label, value in {**labels, "seed": options.get("seed")}.items() if value is not None
        },
        "metric": metric,
        "higher_is_better": bool(options.get("maximize_best_checkpoint_metric", False)),
        "scores": {},
    }
    validations = tuple(by_updates[update] for update in sorted(by_updates))
    configuration = options_of_sections(sections or {"args": last.get("args")})
    return Run(folder.as_posix(), folder, record, validations, configuration=configuration)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("checkpoint*.pt"))


def _is_training(state: Any) -> bool:
    extra = state.get("extra_state") if isinstance(state, dict) else None
    iterator = extra.get("train_iterator") if isinstance(extra, dict) else None
    return (
        isinstance(iterator, dict)
        and isinstance(iterator.get("epoch"), int)
        and isinstance(extra.get("val_loss"), (int, float))
    )


def _validation(state: dict[str, Any], extra: dict[str, Any], metric: str) -> Validation | None:
    """fairseq writes the number of the next epoch at the end of one."""
    iterator, history = extra["train_iterator"], state.get("optimizer_history")
    last = history[-1] if isinstance(history, list) and history else None
    updates = last.get("num_updates") if isinstance(last, dict) else None
    if not isinstance(updates, int):
        return None
    ended = iterator.get("iterations_in_epoch", 0) == 0
    return Validation(iterator["epoch"] - ended, updates, {metric: float(extra["val_loss"])})


def _name(section: Any) -> str | None:
    """Of a part of the configuration: a name, or options with a name among them."""
    found = section.get("_name") if isinstance(section, Mapping) else section
    return found if isinstance(found, str) else None


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
