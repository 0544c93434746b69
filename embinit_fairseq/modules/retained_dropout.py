"""Dropout that stays on when a trained model is used (fairseq's `--retain-dropout`: Monte Carlo dropout)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from embinit_fairseq.errors import OptionError


def retain_dropout_(model: nn.Module, classes: Sequence[str] | None = None) -> None:
    """Puts the dropouts of `model`, and nothing else, into training mode; they stay so until `model.train` is called.

    classes: names of the classes of modules whose own dropouts are meant (default: all). Raises OptionError for a name
    that stands for none, and for no name at all.
    """
    holders = [module for module in model.modules() if _dropouts(module)]
    known = sorted({type(holder).__name__ for holder in holders})
    if classes is not None and not classes:
        raise OptionError(f"--retain-dropout-modules names none; there are {', '.join(known)}")
    for name in classes or ():
        if name not in known:
            raise OptionError(
                f"--retain-dropout-modules {name}: no module with dropout is called so; there are {', '.join(known)}"
            )
    for holder in holders:
        if classes is None or type(holder).__name__ in classes:
            for dropout in _dropouts(holder):
                dropout.training = True


def _dropouts(module: nn.Module) -> list[nn.Module]:
    """What asks its own `training` whether to drop: dropout modules within it, and attention, which keeps a rate."""
    inner = [child for child in module.children() if isinstance(child, nn.Dropout)]
    return [*inner, *([module] if isinstance(getattr(module, "dropout", None), (int, float)) else [])]
