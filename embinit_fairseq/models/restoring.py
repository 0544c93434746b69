"""Options that must be those of the checkpoint a training begins with: with others its weights are another function.

fairseq compares names and shapes of parameters only, and says what differs as a page of names. The number of heads, the
activation or the order of layer norms are in no shape. The configuration that every checkpoint carries has them all, so
it is compared, when a model is built for training and before weights are read. (In the state dict they would be unknown
for all checkpoints there are, and their format another.)
"""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

from fairseq.models import ARCH_MODEL_REGISTRY

from embinit_fairseq.errors import OptionError
from embinit_fairseq.models.ranges import flag


def check_restored(model: Any, checkpoint: str, saved: dict[str, Any] | Namespace) -> None:
    """Raises OptionError that names every flag with another value than the checkpoint's.

    model: with `cfg` and with `function_options`, a function of its options that picks those that decide what is
    computed with given weights, or which weights there are. saved: the options of the checkpoint's model.
    Options that one of the two does not have, or for which they do not matter, are not compared.
    """
    theirs = saved if isinstance(saved, dict) else vars(saved)
    arch = theirs.get("_name") or theirs.get("arch")
    if arch not in ARCH_MODEL_REGISTRY:
        return  # nobody knows what its options mean
    if ARCH_MODEL_REGISTRY[arch] is not type(model):
        raise OptionError(
            f"{checkpoint} holds a model of --arch {arch}, here one of --arch {model.cfg._name} is built: give --arch "
            f"{arch} and its options, or begin without that checkpoint"
        )
    defaults = vars(getattr(type(model), "__dataclass")())  # older checkpoints lack younger options
    before = model.function_options(SimpleNamespace(**{**defaults, **theirs}))
    now = model.function_options(model.cfg)
    different = [name for name in now if name in before and not _same(before[name], now[name])]
    if different:
        said = ", ".join(_said(name, before[name], now[name]) for name in different)
        raise OptionError(
            f"{checkpoint} was trained with other options: {said}. Give those of its training, or begin without that "
            "checkpoint (--restore-file, --finetune-from-model, or checkpoint_last.pt in --save-dir)"
        )


def _same(one: Any, other: Any) -> bool:
    return one == other or str(one) == str(other)  # a choice may be an enumeration or its name


def _said(name: str, before: Any, now: Any) -> str:
    if isinstance(before, bool):
        return f"{flag(name)} (here without)" if before else f"no {flag(name)} (here with it)"
    return f"{flag(name)} {before} (here {now})"
