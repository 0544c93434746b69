"""Average checkpoints of one training, parameter by parameter, into one checkpoint (`embinit average`).

The newest checkpoint provides everything except the parameters; the optimizer's state is left out.
"""

from __future__ import annotations

import filecmp
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embinit_fairseq.checkpoint_file import options_of, updates_of
from embinit_fairseq.checkpoints.loading import load_checkpoint
from embinit_fairseq.checkpoints.trained_preparation import check_same_preparation
from embinit_fairseq.errors import CheckpointError, OptionError, counted
from embinit_fairseq.io import check_file, whole_file

if TYPE_CHECKING:
    import torch

#: fairseq's names: checkpoint_1_500.pt after 500 updates, checkpoint3.pt at the end of epoch 3
_NAMES = {
    "updates": re.compile(r"checkpoint_\d+_(\d+)\.pt"),
    "epochs": re.compile(r"checkpoint(\d+)\.pt"),
}
_EXAMPLES = {"updates": "checkpoint_1_500.pt", "epochs": "checkpoint3.pt"}
_KEEPING = {
    "updates": "--save-interval-updates and a larger --keep-interval-updates",
    "epochs": "a larger --keep-last-epochs, without --no-epoch-checkpoints",
}
#: fairseq's names with --keep-best-checkpoints: metric and value
_BEST = re.compile(r"checkpoint\.best_.+\.pt")


def checkpoints_in(run: Path) -> Path:
    """Return the folder with a run's checkpoints: `run`, or `checkpoints` in it; CheckpointError if there are none."""
    inner = run / "checkpoints"
    folder = inner if inner.is_dir() else run
    if not any(folder.glob("*.pt")):
        raise CheckpointError(f"{folder}: no checkpoint (*.pt) in it; name the folder of a training, or its --save-dir")
    return folder


def last_checkpoints(folder: Path, number: int, by: str | None = None) -> list[Path]:
    """Return the newest of the numbered checkpoints, oldest first; raise CheckpointError if there are fewer.

    Args:
        folder: the folder with the checkpoints.
        number: number of checkpoints.
        by: "updates" or "epochs"; None: updates if there are any.
    """
    checkpoints = _numbered(folder, by)
    if len(checkpoints) < number:
        kind = by or ("updates" if _numbered(folder, "updates") else "epochs")
        remedies = [f"give --by {other}" for other in _NAMES if len(_numbered(folder, other)) >= number]
        remedies.append(
            f"give --last {len(checkpoints)}" if len(checkpoints) > 1 else "take checkpoint_best.pt as it is"
        )
        raise CheckpointError(
            f"{folder}: {counted(len(checkpoints), 'checkpoint')} numbered by {kind} (such as {_EXAMPLES[kind]}), "
            f"{number} to be averaged; {remedies[0]}, or train with {_KEEPING[kind]}"
        )
    return checkpoints[-number:]


def best_checkpoints(
    folder: Path, number: int, wrong: Callable[[str, bool], str | None] = lambda metric, higher: None
) -> list[Path]:
    """Return the checkpoints with the best validation values, the best first.

    They are chosen among the checkpoints of --keep-best-checkpoints, or among the numbered ones if there are none.

    Args:
        folder: the folder with the checkpoints.
        number: number of checkpoints.
        wrong: called with the metric and whether its highest value is the best; returns a fault or None.

    Raises:
        CheckpointError: there are fewer, one was saved without a validation, or the worst ones were kept as the best.
    """
    paths = sorted(path for path in folder.glob("*.pt") if _BEST.fullmatch(path.name)) or _numbered(folder, None)
    if len(paths) < number:
        raise CheckpointError(
            f"{folder}: {counted(len(paths), 'checkpoint')} to choose from (such as checkpoint.best_loss_2.5120.pt or "
            f"checkpoint3.pt), {number} to be averaged; give a smaller --best, or train with --keep-best-checkpoints "
            f"{number}"
        )
    values: dict[Path, float] = {}
    sign = 1
    for path in paths:
        state = load_checkpoint(path)
        value = (state.get("extra_state") or {}).get("val_loss")
        if value is None or math.isnan(value):
            raise CheckpointError(f"{path}: saved without a validation value, which --best needs; give --last")
        values[path] = value
        options = options_of(state, "checkpoint")
        higher = bool(options.get("maximize_best_checkpoint_metric", False))
        if reason := wrong(options.get("best_checkpoint_metric", ""), higher):
            raise CheckpointError(f"{path}: in its training {reason}. Give --last, or name the checkpoints")
        sign = -1 if higher else 1
    return sorted(values, key=lambda path: sign * values[path])[:number]


def _numbered(folder: Path, by: str | None) -> list[Path]:
    """Return the checkpoints with a number in their name, oldest first."""
    for kind, pattern in _NAMES.items():
        places = {path: int(match[1]) for path in folder.glob("*.pt") if (match := pattern.fullmatch(path.name))}
        if by in (None, kind) and places:
            return sorted(places, key=places.__getitem__)
    return []


def average(paths: Sequence[Path], output: Path, force: bool = False) -> None:
    """Write the mean of checkpoints to `output`, complete or not at all; one checkpoint is in memory at a time.

    Sums are in double precision. As in fairseq's scripts/average_checkpoints.py half precision becomes single, and
    integers are divided without remainder. Booleans are the last checkpoint's. Parameters that share their memory in
    the last checkpoint share it in the mean. The moving average of --store-ema is left out.

    Args:
        paths: the checkpoints.
        output: the file to write.
        force: replace a file of that name.

    Raises:
        CheckpointError: a checkpoint cannot be read, or is of another model.
        DataError: the texts of their trainings were prepared in different ways.
        OptionError: a checkpoint is named twice, or with its copy.
        OutputError: `output` cannot be written.
    """
    import torch

    real = [path.resolve() for path in paths]
    twice = next((path for at, path in enumerate(paths) if real[at] in real[:at]), None)
    if twice is not None:
        raise OptionError(f"{twice}: given twice; name each checkpoint once")
    check_file(output, force, paths)
    _check_no_copies(paths)
    newest: dict[str, Any] = {}
    states: dict[str, dict[str, Any]] = {}
    first: dict[str, torch.Tensor] = {}
    sums: dict[str, torch.Tensor] = {}
    for path in paths:
        state = load_checkpoint(path)
        model = state.pop("model", None)
        if not model or not isinstance(model, dict):
            raise CheckpointError(f"{path}: holds no model; give checkpoints of fairseq-train")
        first = first or model
        if (difference := _difference(first, model)) is not None:
            raise CheckpointError(
                f"{paths[0]} and {path} are of different models: {difference}; average the checkpoints of one training"
            )
        for name, value in model.items():
            if value.dtype != torch.bool:
                precise = torch.float64 if value.is_floating_point() else torch.int64
                sums[name] = sums[name].add_(value) if name in sums else value.to(precise, copy=True)
        states[str(path)] = {name: state.get(name) for name in ("cfg", "args")}
        check_same_preparation(states)
        if not newest or (updates_of(state) or 0) >= (updates_of(newest) or 0):
            newest = state
    means = _means(model, sums, len(paths))
    extra = {name: value for name, value in (newest.get("extra_state") or {}).items() if not name.startswith("ema")}
    with whole_file(output, option="--output") as file:
        torch.save({**newest, "extra_state": extra, "model": means, "last_optimizer_state": None}, file)


def _check_no_copies(paths: Sequence[Path]) -> None:
    """Raise OptionError if a checkpoint would count twice, as with checkpoints/*.pt."""
    for at, path in enumerate(paths):
        for other in paths[:at]:
            if path.is_file() and other.is_file() and filecmp.cmp(other, path, shallow=False):
                raise OptionError(
                    f"{path}: a copy of {other}, as fairseq makes one of the best and of the last checkpoint; name one "
                    "of them, or give the run with --last N or --best N"
                )


def _means(model: dict[str, torch.Tensor], sums: dict[str, torch.Tensor], count: int) -> dict[str, torch.Tensor]:
    """Return the means of the parameters, which share memory as in `model`; empties `sums`."""
    import torch

    shared: dict[tuple, torch.Tensor] = {}
    means = {}
    for name, value in model.items():
        place = (value.data_ptr(), value.shape, value.stride(), value.dtype)
        if value.numel() == 0 or place not in shared:
            total = sums.pop(name) if name in sums else value.clone()  # booleans have no sum
            if total.is_floating_point():
                total = (total / count).to(torch.promote_types(value.dtype, torch.float32))
            elif value.dtype != torch.bool:
                total = (total // count).to(value.dtype)
            shared[place] = total
        means[name] = shared[place]
    return means


def _difference(first: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> str | None:
    """Describe the first parameter that is not in both models with one shape and dtype; None if all are."""
    for name in dict.fromkeys((*first, *other)):
        if name not in first or name not in other:
            return f"{name} is only in the {'first' if name in first else 'second'}"
        one, two = first[name], other[name]
        if one.shape != two.shape or one.is_floating_point() != two.is_floating_point():
            return f"{name} is {one.dtype} {tuple(one.shape)} and {two.dtype} {tuple(two.shape)}"
    return None
