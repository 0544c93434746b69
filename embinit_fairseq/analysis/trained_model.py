"""Read a fairseq checkpoint as the options and parameters of its model, without fairseq."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from embinit_fairseq.checkpoint_file import options_of
from embinit_fairseq.checkpoints.defaults import add_missing_options
from embinit_fairseq.checkpoints.loading import load_checkpoint
from embinit_fairseq.errors import CheckpointError
from embinit_fairseq.io import check_is_file

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class TrainedModel:
    """Hold the model of a checkpoint. arch: architecture. options: the model's options. state: name -> parameter."""

    path: str
    arch: str
    options: dict[str, Any]
    state: dict[str, Tensor]

    def parameters(self, prefix: str) -> dict[str, Tensor]:
        """Return, in double precision, the parameters whose names begin with `prefix`, by the rest of the name.

        Raises:
            CheckpointError: a parameter has diverged to NaN or infinity.
        """
        named = {key: value.double() for key, value in self.state.items() if key.startswith(prefix)}
        for key, value in named.items():
            if not value.isfinite().all():
                raise CheckpointError(f"{self.path}: {key} holds NaN or infinity; take an earlier checkpoint")
        return {key.removeprefix(prefix): value for key, value in named.items()}


def trained_model(checkpoint: dict[str, Any], path: str) -> TrainedModel:
    """Return the model of the checkpoint that was loaded from `path`.

    Raises:
        CheckpointError: the content is not a fairseq checkpoint.
    """
    state, options = checkpoint.get("model"), options_of(checkpoint, "model")
    if not isinstance(state, dict) or not options:
        lacks = "the model's options" if isinstance(state, dict) else "a model"
        raise CheckpointError(
            f"{path}: not a fairseq checkpoint (it lacks {lacks}); name a checkpoint*.pt that fairseq-train wrote"
        )
    add_missing_options(options)
    # a namespace has `arch`, an architecture that is a dataclass has `_name` only
    arch = options.get("arch") or options.get("_name") or "unknown architecture"
    return TrainedModel(path, str(arch), options, state)


def read_model(path: str) -> TrainedModel:
    """Return the model of --checkpoint; CheckpointError if the file is not a fairseq checkpoint."""
    check_is_file(path, "--checkpoint", CheckpointError)
    return trained_model(load_checkpoint(path), path)
