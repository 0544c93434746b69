"""Registries that a plugin adds with ``fairseq.registry.setup_registry("--name")``.

Symptom: every fairseq command of an environment with such a plugin stops with ``ConfigKeyError: Key 'name' not in
    'FairseqConfig'``, or with ``Could not override 'name'. No match in the defaults list`` when the chosen class was
    registered with a dataclass.
Versions: hydra >= 1.1, whose composed configuration admits known keys only; fairseq 0.12.2.
Where: fairseq/dataclass/utils.py:387 (``compose``) and :394 (``composed_cfg[k] = None``).
Remedy: hydra gets the plugin's dataclass choices as additions; all other values of such registries are set after
    composition. A plugin that extends hydra's schema itself is not disturbed.
Upstream: not reported.
Can go: with hydra < 1.1, or with a fairseq whose configuration admits registered keys.
"""

from __future__ import annotations

from contextlib import contextmanager

from fairseq_compat.versions import at_least

REASON = "hydra >= 1.1 refuses the keys of registries that plugins add"


def needed() -> bool:
    return at_least("hydra-core", 1, 1)


def split_overrides(overrides: list[str], registries: dict[str, dict]) -> tuple[list[str], dict[str, str | None]]:
    """Take the plain choices of ``registries`` out of hydra's overrides and mark the dataclass choices as additions.

    Returns the overrides for hydra, and the values to set afterwards (None: nothing chosen).
    """
    kept, values = [], {name: None for name in registries}
    for override in overrides:
        name, _, choice = override.partition("=")
        if name not in registries:
            kept.append(override)
        elif choice in registries[name]["dataclass_registry"]:
            kept.append("+" + override)
            del values[name]
        else:
            values[name] = choice
    return kept, values


@contextmanager
def patching(module):
    yield
    original = module.compose

    def compose(config_name, overrides=(), **options):
        from fairseq.registry import REGISTRIES

        known = module.FairseqConfig.__dataclass_fields__
        added = {name: registry for name, registry in REGISTRIES.items() if name not in known}
        kept, values = split_overrides(list(overrides), added)
        config = original(config_name, overrides=kept, **options)
        with module.open_dict(config):
            config.update(values)
        return config

    module.compose = compose
