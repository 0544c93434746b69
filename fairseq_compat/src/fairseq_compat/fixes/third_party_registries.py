"""Registries that a plugin adds with ``fairseq.registry.setup_registry("--name")``.

Symptom: every fairseq command of an environment with such a plugin stops with ``ConfigKeyError: Key 'name' not in
    'FairseqConfig'``, or with ``Could not override 'name'. No match in the defaults list`` when the chosen class was
    registered with a dataclass. ``fairseq-hydra-train`` with such a plugin: ``Could not override 'name'``.
Versions: hydra >= 1.1, whose composed configuration admits known keys only; fairseq 0.12.2.
Where: fairseq/dataclass/utils.py:387 (``compose``) and :394 (``composed_cfg[k] = None``);
    fairseq_cli/hydra_train.py:76, which composes before it imports plugins, and fairseq/dataclass/initialize.py:45.
Remedy: hydra composes without such registries; their values are set afterwards. A plugin that extends hydra's schema
    itself is not disturbed. ``fairseq-hydra-train`` imports the plugin of ``common.user_dir`` first, takes
    ``name=choice name.option=value`` as for fairseq's own registries, and fills in the options that are not given.
Upstream: not reported.
Can go: with hydra < 1.1, or with a fairseq whose configuration admits registered keys.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairseq_compat.versions import at_least

REASON = "hydra >= 1.1 refuses the keys of registries that plugins add"
BROKEN = r"composed_cfg\[k\] = None|def _hydra_main\(cfg"


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


def added(overrides: list[str], names: set[str]) -> list[str]:
    """hydra's overrides, in which what concerns the registries ``names`` is new to its configuration."""
    others, ours = split_overrides(overrides, names)
    for name, given in ours.items():
        others += ["+" + re.sub(f"^{name}=", f"{name}._name=", one) for one in given]
    return others


def third_party() -> dict[str, dict]:
    """The registries of plugins that were imported."""
    from fairseq.dataclass.configs import FairseqConfig
    from fairseq.registry import REGISTRIES

    return {name: REGISTRIES[name] for name in set(REGISTRIES) - set(FairseqConfig.__dataclass_fields__)}


def fill(config) -> None:
    """Give a configuration that hydra composed the values of these registries, as fairseq does with its own."""
    from omegaconf import OmegaConf, open_dict

    for name, registry in third_party().items():
        given = config.get(name)
        choice = given.get("_name") if hasattr(given, "get") else given
        with open_dict(config):
            if choice in registry["dataclass_registry"]:
                node = OmegaConf.structured(registry["dataclass_registry"][choice]())
                config[name] = OmegaConf.merge(node, given if hasattr(given, "get") else {"_name": choice})
            elif not hasattr(given, "get") or len(given) == 1:  # else its options are kept for the plugin to read
                config[name] = choice if choice is not None else registry["default"]


def user_dir(words: list[str]) -> str | None:
    """``common.user_dir`` on a command line of hydra, or in the file of ``--config-dir`` and ``--config-name``."""
    given = [word.partition("=")[2] for word in words if re.match(r"\+{0,2}common\.user_dir=", word)]
    if given:
        return given[-1].strip("'\"")
    from hydra._internal.utils import get_args_parser
    from omegaconf import OmegaConf

    options, _ = get_args_parser().parse_known_args(words)
    file = Path(options.config_dir or "", options.config_name or "")
    file = file if file.suffix in (".yaml", ".yml") else Path(f"{file}.yaml")
    if not options.config_dir or not file.is_file():
        return None
    with contextlib.suppress(Exception):  # hydra will say what is wrong with the file
        return OmegaConf.select(OmegaConf.load(file), "common.user_dir")
    return None


def _patch_hydra_train(module) -> None:
    original_cli, original_main = module.cli_main, module._hydra_main

    @functools.wraps(original_cli)
    def cli_main():
        from fairseq.utils import import_user_module

        folder = user_dir(sys.argv[1:])
        if folder:
            import_user_module(argparse.Namespace(user_dir=folder))
        sys.argv[1:] = added(sys.argv[1:], set(third_party()))
        return original_cli()

    @functools.wraps(original_main)
    def _hydra_main(cfg, **kwargs):
        fill(cfg)
        return original_main(cfg, **kwargs)

    module.cli_main, module._hydra_main = cli_main, _hydra_main


@contextmanager
def patching(module):
    yield
    if hasattr(module, "_hydra_main"):
        _patch_hydra_train(module)
    else:
        _patch_compose(module)


def _patch_compose(module) -> None:
    original = module.compose

    def compose(config_name, overrides=(), **options):
        registries = third_party()
        others, ours = split_overrides(list(overrides), set(registries))
        config = original(config_name, overrides=others, **options)
        with module.open_dict(config):
            for name, registry in registries.items():
                config[name] = chosen_value(name, ours[name], registry["dataclass_registry"])
        return config

    module.compose = compose
