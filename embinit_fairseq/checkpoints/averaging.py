"""`embinit average`: the mean of checkpoints of one training, parameter by parameter, as one checkpoint.

Everything but the parameters is the newest checkpoint's; the optimizer's state is left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embinit_fairseq.checkpoints.reading import load_checkpoint, options_of, updates_of
from embinit_fairseq.errors import CheckpointError, OptionError, counted
from embinit_fairseq.io import check_file, whole_file

if TYPE_CHECKING:
    import torch

#: fairseq's names: checkpoint_1_500.pt after 500 updates, checkpoint3.pt at the end of epoch 3
_NAMES = {
    "updates": re.compile(r"checkpoint_\d+_(\d+)\.pt"),
    "epochs": re.compile(r"checkpoint(\d+)\.pt"),
}
#: of --keep-best-checkpoints, with metric and value
_BEST = re.compile(r"checkpoint\.best_.+\.pt")


def checkpoints_in(run: Path) -> Path:
    """Return the folder with a run's checkpoints: `run`, or `checkpoints` in it."""
    inner = run / "checkpoints"
    return inner if inner.is_dir() else run


def last_checkpoints(folder: Path, number: int, by: str | None = None) -> list[Path]:
    """Return the newest of the numbered checkpoints, oldest first; raise CheckpointError if there are fewer.

    Args:
        folder: the folder with the checkpoints.
        number: how many.
        by: "updates" or "epochs"; None: updates if there are any.
    """
    checkpoints = _numbered(folder, by)
    if len(checkpoints) < number:
        raise CheckpointError(
            f"{folder}: {counted(len(checkpoints), 'numbered checkpoint')}{f' by {by}' if by else ''} (such as "
            f"checkpoint_1_500.pt or checkpoint3.pt), {number} to be averaged; give a smaller --last, or train with "
            "--save-interval-updates and a larger --keep-interval-updates, or without --no-epoch-checkpoints"
        )
    return checkpoints[-number:]


def best_checkpoints(folder: Path, number: int) -> list[Path]:
    """Return the checkpoints with the best validation values, the best first.

    They are chosen among those of --keep-best-checkpoints, or among the numbered ones if there are none of these.

    Raises:
        CheckpointError: there are fewer, or one was saved without a validation.
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
        sign = -1 if options_of(state, "checkpoint").get("maximize_best_checkpoint_metric", False) else 1
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

    Args:
        paths: the checkpoints.
        output: the file to write.
        force: replace a file of that name.

    Raises:
        CheckpointError: a checkpoint cannot be read, or is of another model.
        OptionError: a checkpoint is named twice.
        OutputError: `output` cannot be written.
    """
    import torch

    real = [path.resolve() for path in paths]
    twice = next((path for at, path in enumerate(paths) if real[at] in real[:at]), None)
    if twice is not None:
        raise OptionError(f"{twice}: given twice; name each checkpoint once")
    check_file(output, force, paths)
    newest: dict[str, Any] = {}

    def models() -> Iterator[tuple[Path, dict[str, torch.Tensor]]]:
        for path in paths:
            state = load_checkpoint(path)
            model = state.pop("model", None)
            if not model or not isinstance(model, dict):
                raise CheckpointError(f"{path}: holds no model; give checkpoints of fairseq-train")
            if not newest or (updates_of(state) or 0) >= (updates_of(newest) or 0):
                newest.clear()
                newest.update(state)
            yield path, model

    means = mean_of(models())
    with whole_file(output, option="--output") as file:
        torch.save({**newest, "model": means, "last_optimizer_state": None}, file)


def mean_of(models: Iterable[tuple[Path, dict[str, torch.Tensor]]]) -> dict[str, torch.Tensor]:
    """Return the mean of state dicts by name, with sums in double precision.

    As in fairseq's scripts/average_checkpoints.py half precision becomes single, and integers are divided without
    remainder. Booleans are those of the last state dict. Parameters that share their memory there share it in the mean.

    Raises:
        CheckpointError: the state dicts are of different models; names the first parameter that differs.
    """
    import torch

    sums: dict[str, torch.Tensor] = {}
    first: tuple[Path, dict[str, torch.Tensor]] | None = None
    last: dict[str, torch.Tensor] = {}
    count = 0
    for path, parameters in models:
        first = first or (path, parameters)
        _check_same(parameters, first[1], (first[0], path))
        last, count = parameters, count + 1
        for name, value in parameters.items():
            if value.dtype != torch.bool:
                precise = torch.float64 if value.is_floating_point() else torch.int64
                sums[name] = sums[name].add_(value) if name in sums else value.to(precise, copy=True)
    shared: dict[tuple, torch.Tensor] = {}
    means = {}
    for name, value in last.items():
        place = (value.data_ptr(), value.shape, value.stride(), value.dtype)
        if value.numel() == 0 or place not in shared:
            shared[place] = _mean(sums.pop(name), count, value.dtype) if name in sums else value.clone()
        means[name] = shared[place]
    return means


def _mean(total: torch.Tensor, count: int, dtype: torch.dtype) -> torch.Tensor:
    import torch

    if not total.is_floating_point():
        return (total // count).to(dtype)
    return (total / count).to(torch.promote_types(dtype, torch.float32))


def _check_same(parameters: dict[str, torch.Tensor], first: dict[str, torch.Tensor], paths: tuple[Path, Path]) -> None:
    for name in dict.fromkeys((*first, *parameters)):
        if name not in parameters or name not in first:
            has, lacks = paths if name in first else reversed(paths)
            what = f"{name} is in {has}, but not in {lacks}"
        elif parameters[name].shape != first[name].shape:
            shapes = " and ".join(str(tuple(model[name].shape)) for model in (first, parameters))
            what = f"{name} has the shapes {shapes}"
        elif parameters[name].is_floating_point() != first[name].is_floating_point():
            what = f"{name} has the types {first[name].dtype} and {parameters[name].dtype}"
        else:
            continue
        raise CheckpointError(
            f"{paths[0]} and {paths[1]} are of different models: {what}; average the checkpoints of one training"
        )
