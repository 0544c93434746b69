"""A fairseq checkpoint as the parameters of its model and the options it was built with, without fairseq."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from embinit_fairseq.checkpoints.reading import load_checkpoint
from embinit_fairseq.errors import CheckpointError
from embinit_fairseq.vectors.fairseq_checkpoint import options_of

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class TrainedModel:
    """path: for messages. arch: name of the architecture. options: of the model. state: its parameters by name."""

    path: str
    arch: str
    options: dict[str, Any]
    state: dict[str, Tensor]

    def option(self, name: str) -> Any:
        """An option of the model; CheckpointError if the checkpoint does not tell it."""
        if name not in self.options:
            raise CheckpointError(
                f"{self.path}: the options of its {self.arch} lack {name}; was the checkpoint written by fairseq-train "
                "with this plugin?"
            )
        return self.options[name]

    def whole_number(self, name: str, least: int = 1) -> int:
        """An option of the model that is a number from `least`; CheckpointError otherwise."""
        value = self.option(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise CheckpointError(
                f"{self.path}: its option {name} is {value!r}, not a number from {least}; it is damaged"
            )
        return value

    def table(self, name: str) -> Tensor:
        """A matrix as it is stored; KeyError if it is missing, CheckpointError if it is none."""
        import torch

        value = self.state[name]
        if not isinstance(value, torch.Tensor) or value.dim() != 2:
            raise CheckpointError(f"{self.path}: {name} is not a matrix; it is damaged")
        return value

    def parameters(self, prefix: str) -> dict[str, Tensor]:
        """Parameters whose names begin with `prefix`, without it, in double precision.

        CheckpointError for one that is no tensor, or that holds NaN or infinity.
        """
        import torch

        state = {}
        for key, value in self.state.items():
            if not key.startswith(prefix):
                continue
            if not isinstance(value, torch.Tensor):
                raise CheckpointError(f"{self.path}: {key} is a {type(value).__name__}, not a tensor; it is damaged")
            state[key[len(prefix) :]] = value.double()
            if not torch.isfinite(value).all():
                raise CheckpointError(f"{self.path}: {key} holds NaN or infinity; take an earlier checkpoint")
        return state


def trained_model(checkpoint: dict[str, Any], path: str) -> TrainedModel:
    """What `load_checkpoint(path)` returned, checked; raises CheckpointError for anything but a fairseq checkpoint.

    Options stand in `cfg` (fairseq >= 0.10) or in `args` (before).
    """
    state, options = checkpoint.get("model"), options_of(checkpoint, "model")
    if not isinstance(state, dict) or not options:
        lacks = "the model's options" if isinstance(state, dict) else "a model"
        raise CheckpointError(
            f"{path}: not a fairseq checkpoint (it lacks {lacks}); name a checkpoint*.pt that fairseq-train wrote"
        )
    # an architecture of a dataclass is in `_name`; of a namespace, `arch` is more exact
    arch = options.get("arch") or options.get("_name") or "unknown architecture"
    return TrainedModel(path, str(arch), options, state)


def read_model(path: str) -> TrainedModel:
    """The model of --checkpoint; raises CheckpointError for any other file."""
    if not os.path.isfile(path):
        what = f"a folder; name a file in it, such as {os.path.join(path, 'checkpoint_best.pt')}"
        raise CheckpointError(f"--checkpoint {path}: {what if os.path.isdir(path) else 'no such file; check the path'}")
    return trained_model(load_checkpoint(path), path)
