"""Does a model with options of its own agree with them, and with the checkpoint its weights will come from?"""

from __future__ import annotations

from typing import Any

from torch import nn

from embinit_fairseq.checkpoints.reading import load_checkpoint
from embinit_fairseq.errors import CheckpointError, OptionError
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


def refuse_overrides(model: nn.Module, overrides: dict[str, Any]) -> None:
    """Where a checkpoint is loaded to be used: raises OptionError for overrides that decide what its weights mean."""
    if not hasattr(model, "function_options"):
        return
    decisive = set(model.function_options(model.cfg)) - {"max_positions"}  # the table's rows tell of that one
    changed = sorted(decisive & set(overrides))
    if changed:
        given = ", ".join(f"{name}={overrides[name]!r}" for name in changed)
        raise OptionError(
            f"{given} (from_pretrained, --model-overrides): the checkpoint's weights belong to the options of their "
            "training; drop these"
        )


def _saved_options(checkpoint: str) -> Any:
    try:
        state = load_checkpoint(checkpoint)
    except CheckpointError:
        return None  # fairseq will say so
    cfg = state.get("cfg")
    return cfg.get("model") if isinstance(cfg, dict) else state.get("args")  # args: fairseq before 0.10
