"""A fairseq checkpoint as the parameters of its model and the options it was built with, without fairseq."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from embinit_fairseq.errors import CheckpointError

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

    def parameters(self, prefix: str) -> dict[str, Tensor]:
        """Parameters whose names begin with `prefix`, without it, in double precision."""
        return {key[len(prefix) :]: value.double() for key, value in self.state.items() if key.startswith(prefix)}


def trained_model(checkpoint: dict[str, Any], path: str) -> TrainedModel:
    """What `load_checkpoint(path)` returned, checked; raises CheckpointError for anything but a fairseq checkpoint.

    Options stand in `cfg` (fairseq >= 0.10) or in `args` (before).
    """
    state, cfg = checkpoint.get("model"), checkpoint.get("cfg")
    options = _mapping(cfg.get("model") if isinstance(cfg, dict) else None) or _mapping(checkpoint.get("args"))
    if not isinstance(state, dict) or not options:
        lacks = "the model's options" if isinstance(state, dict) else "a model"
        raise CheckpointError(
            f"{path}: not a fairseq checkpoint (it lacks {lacks}); name a checkpoint*.pt that fairseq-train wrote"
        )
    # an architecture of a dataclass is in `_name`; of a namespace, `arch` is more exact
    arch = options.get("arch") or options.get("_name") or "unknown architecture"
    return TrainedModel(path, str(arch), options, state)


def _mapping(settings: Any) -> dict[str, Any]:
    if isinstance(settings, Namespace):
        return vars(settings)
    return settings if isinstance(settings, dict) else {}
