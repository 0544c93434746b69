"""Add options that are newer than a checkpoint to its options, with the defaults of its architecture.

fairseq does so for an architecture with the name of its dataclass (`tupe`). For another name (`tupe_tiny`) fairseq
calls only the function of the architecture, which sets the values that differ from the dataclass.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import MutableMapping
from typing import Any, cast

logger = logging.getLogger(__name__)


def add_missing_options(options: Any) -> None:
    """Add the missing options of a model of this plugin, or of a model derived from one, with their defaults.

    The default is the architecture's, else the dataclass's. An option that takes its value from another section, as
    `max_source_positions` from the task, is added only to a configuration, which has that section.

    Args:
        options: a Namespace, a dict or a DictConfig, changed in place; options of other models stay as they are.
    """
    from fairseq.models import ARCH_CONFIG_REGISTRY
    from omegaconf import DictConfig, OmegaConf, open_dict

    if not isinstance(options, (Namespace, MutableMapping)) or (model := _our_model(options)) is None:
        return
    is_node = isinstance(options, DictConfig)
    present: dict[str, Any] = {**(cast(Any, OmegaConf.to_container(options)) if is_node else _as_dict(options))}
    of_architecture = Namespace(**present)
    ARCH_CONFIG_REGISTRY[_arch_of(options)](of_architecture)
    defaults = {**vars(getattr(model, "__dataclass")()), **vars(of_architecture)}
    missing = {
        name: value
        for name, value in defaults.items()
        if name not in present and not name.startswith("_") and (is_node or not str(value).startswith("${"))
    }
    if isinstance(options, DictConfig):
        with open_dict(options):
            options.update(missing)
    else:
        _as_dict(options).update(missing)


def warn_of_unknown_options(options: Any) -> None:
    """Log the options of a checkpoint that this revision does not know, unless they are off: fairseq ignores them.

    A later revision has written them; its weights may belong to another function.
    """
    model = _our_model(options) if isinstance(options, MutableMapping) else None
    if model is None or not model.__module__.startswith("embinit_fairseq."):  # others may have options of their own
        return
    option_names = {*getattr(model, "__dataclass").__dataclass_fields__, "arch"}
    unknown = [f"{name}={options[name]}" for name in options if name not in option_names and options[name]]
    if unknown:
        logger.warning(
            "this revision of embinit_fairseq does not know options that the checkpoint of %s was trained with, and "
            "ignores them: %s; use the revision of its training, or a later one",
            *(_arch_of(options), ", ".join(unknown)),
        )


def _as_dict(options: Any) -> Any:
    return vars(options) if isinstance(options, Namespace) else options


def _arch_of(options: Any) -> str | None:
    """Return the name of the architecture, as fairseq finds it."""
    return _as_dict(options).get("_name") or _as_dict(options).get("arch")


def _our_model(options: Any) -> Any:
    """Return the class of the model if this plugin defines it or a base of it; else None."""
    from fairseq.models import ARCH_MODEL_REGISTRY

    model = ARCH_MODEL_REGISTRY.get(_arch_of(options))
    is_ours = any(base.__module__.startswith("embinit_fairseq.") for base in getattr(model, "__mro__", ()))
    return model if is_ours and getattr(model, "__dataclass", None) else None
