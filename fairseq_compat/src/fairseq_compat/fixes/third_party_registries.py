"""Registries that a plugin adds with ``fairseq.registry.setup_registry("--name")``.

Symptom: every fairseq command of an environment with such a plugin stops with ``ConfigKeyError: Key 'name' not in
    'FairseqConfig'``, or with ``Could not override 'name'. No match in the defaults list`` when the chosen class was
    registered with a dataclass.
Versions: hydra >= 1.1, whose composed configuration admits known keys only; fairseq 0.12.2.
Where: fairseq/dataclass/utils.py:387 (``compose``) and :394 (``composed_cfg[k] = None``).
Remedy: hydra composes without such registries; their values are set afterwards. A plugin that extends hydra's schema
    itself is not disturbed. ``fairseq-hydra-train`` composes before it imports plugins and is not covered.
Upstream: not reported.
Can go: with hydra < 1.1, or with a fairseq whose configuration admits registered keys.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

from fairseq_compat.versions import at_least

REASON = "hydra >= 1.1 refuses the keys of registries that plugins add"


def needed() -> bool:
    return at_least("hydra-core", 1, 1)


def split_overrides(overrides: list[str], names: set[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Separate hydra's overrides ``key=value`` of the registries ``names`` (values and sub-keys) from the others."""
    others: list[str] = []
    ours: dict[str, list[str]] = {name: [] for name in names}
    for override in overrides:
        name = override.partition("=")[0].partition(".")[0]
        (ours[name] if name in names else others).append(override)
    return others, ours


def chosen_value(name: str, overrides: list[str], dataclasses: dict[str, type]):
    """What belongs under the key ``name``: None, the chosen word, or the filled configuration of its dataclass."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    values = {one.key_or_group: one.value() for one in OverridesParser.create().parse_overrides(overrides)}
    choice: Any = values.pop(name, None)
    if choice not in dataclasses:
        return choice
    node = OmegaConf.structured(dataclasses[choice]())
    for key, value in values.items():
        OmegaConf.update(node, key[len(name) + 1 :], value)
    return node


@contextmanager
def patching(module):
    yield
    original = module.compose

    def compose(config_name, overrides=(), **options):
        from fairseq.registry import REGISTRIES

        names = set(REGISTRIES) - set(module.FairseqConfig.__dataclass_fields__)
        others, ours = split_overrides(list(overrides), names)
        config = original(config_name, overrides=others, **options)
        with module.open_dict(config):
            for name in names:
                config[name] = chosen_value(name, ours[name], REGISTRIES[name]["dataclass_registry"])
        return config

    module.compose = compose
