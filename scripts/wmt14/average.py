"""The mean of a run's last checkpoints, parameter by parameter, as one checkpoint for fairseq-generate.

Everything but the model's parameters is that of the newest one; the optimizer's state is left out.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embinit_fairseq.checkpoints.reading import load_checkpoint
from embinit_fairseq.errors import CheckpointError

if TYPE_CHECKING:
    import torch

_NUMBERED = re.compile(r"^checkpoint_\d+_(\d+)\.pt$")


def last_checkpoints(folder: Path, number: int) -> list[Path]:
    """The newest checkpoints named by their updates, oldest first. CheckpointError if there are fewer."""
    updates = {path: int(match[1]) for path in folder.glob("*.pt") if (match := _NUMBERED.match(path.name))}
    found = sorted(updates, key=updates.__getitem__)[-number:]
    if len(found) < number:
        raise CheckpointError(
            f"{folder}: checkpoints by number of updates: {len(found)}, to be averaged: {number}; give a smaller "
            "--average, or train longer, with a larger --keep or a smaller --save-every"
        )
    return found


def _check_same(parameters: dict[str, torch.Tensor], first: dict[str, torch.Tensor], paths: tuple[Path, Path]) -> None:
    differ = sorted(parameters.keys() ^ first.keys())
    differ += [name for name in first if name in parameters and parameters[name].shape != first[name].shape]
    if differ:
        raise CheckpointError(
            f"{paths[0]} and {paths[1]} are of different models: {differ[0]} is in one of them only, or has another "
            "shape; average the checkpoints of one run"
        )


def mean_of(models: Iterable[tuple[Path, dict[str, torch.Tensor]]]) -> dict[str, torch.Tensor]:
    """Mean of state dicts; CheckpointError if they are of different models.

    Sums are in double precision, means in single precision (in double for parameters that are). Tensors that are not
    floating point numbers, such as versions and counters, are those of the last state dict. Parameters that share
    their memory there do so in the mean.
    """
    import torch

    sums: dict[str, torch.Tensor] = {}
    first = last = None
    count = 0
    for path, parameters in models:
        first = first or (path, parameters)
        _check_same(parameters, first[1], (first[0], path))
        last, count = parameters, count + 1
        for name, value in parameters.items():
            if value.is_floating_point():
                sums[name] = sums[name].add_(value) if name in sums else value.to(torch.float64, copy=True)
    if last is None:
        raise CheckpointError("nothing to average: give at least one checkpoint")
    shared: dict[tuple, torch.Tensor] = {}
    means = {}
    for name, value in last.items():
        place = (value.data_ptr(), value.shape, value.stride(), value.dtype)
        if value.numel() == 0 or place not in shared:
            precision = torch.promote_types(value.dtype, torch.float32)
            shared[place] = (sums.pop(name) / count).to(precision) if name in sums else value.clone()
        means[name] = shared[place]
    return means


def average(paths: list[Path], output: Path) -> None:
    """Write the mean of checkpoints, of which the last is the newest; one is in memory at a time."""
    import torch

    newest: dict[str, Any] = {}

    def models() -> Iterable[tuple[Path, dict[str, torch.Tensor]]]:
        for path in paths:
            newest.clear()
            newest.update(load_checkpoint(path))
            if not isinstance(newest.get("model"), dict):
                raise CheckpointError(f"{path}: holds no model: not a checkpoint of fairseq-train")
            yield path, newest["model"]

    means = mean_of(models())
    torch.save({**newest, "model": means, "last_optimizer_state": None}, output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoints", type=Path, required=True, help="folder checkpoints of a run")
    parser.add_argument("--number", type=int, required=True, help="how many, the newest ones")
    parser.add_argument("--list", action="store_true", help="print which ones they are; write nothing")
    parser.add_argument("output", type=Path, nargs="?", help="file to write")
    args = parser.parse_args()
    if not args.list and args.output is None:
        parser.error("give a file to write, or --list")
    try:
        paths = last_checkpoints(args.checkpoints, args.number)
        if args.list:
            print("\n".join(path.name for path in paths))
        else:
            average(paths, args.output)
    except CheckpointError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
