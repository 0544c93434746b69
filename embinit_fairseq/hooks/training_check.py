"""Before a training: does a model with options of its own agree with them, and with what will be restored over it?"""

from __future__ import annotations

from typing import Any

from torch import nn

from embinit_fairseq.checkpoints.reading import load_checkpoint
from embinit_fairseq.errors import CheckpointError
from embinit_fairseq.hooks.options import Request
from embinit_fairseq.hooks.resume import checkpoint_to_restore


def check_training(model: nn.Module, request: Request) -> None:
    """Calls `model.check_training(checkpoint, saved)`, if there is such a method.

    checkpoint: the file that fairseq will load over the model, None for a fresh start; saved: the options of the model
    in it, None if it does not say or cannot be read safely. Not called for models that are built to be used.
    """
    check = getattr(model, "check_training", None)
    if check is None:
        return
    checkpoint = checkpoint_to_restore(request)
    check(checkpoint, None if checkpoint is None else _saved_options(checkpoint))


def _saved_options(checkpoint: str) -> Any:
    try:
        state = load_checkpoint(checkpoint)
    except CheckpointError:
        return None  # fairseq will say so
    cfg = state.get("cfg")
    return cfg.get("model") if isinstance(cfg, dict) else state.get("args")  # args: fairseq before 0.10
