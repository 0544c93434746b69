"""hydra >= 1.1: a plugin's registry, --bpe bytes: Key 'x' not in 'FairseqConfig', Could not find 'bpe/x'.

Symptom: every fairseq command of an environment with a plugin that calls ``fairseq.registry.setup_registry("--name")``
    stops with ``ConfigKeyError: Key 'name' not in 'FairseqConfig'``, or with ``Could not override 'name'. No match in
    the defaults list`` when the chosen class was registered with a dataclass. ``fairseq-hydra-train`` with such a
    plugin: ``Could not override 'name'``. fairseq's own ``--bpe characters`` and ``bytes``, and segmenters, tokenizers
    and metrics of plugins that are registered without a dataclass: ``Could not find 'bpe/characters'``.
Versions: hydra >= 1.1, whose composed configuration admits known keys only; fairseq 0.12.2.
Where: fairseq/dataclass/utils.py:387 (``compose``) and :394 (``composed_cfg[k] = None``);
    fairseq_cli/hydra_train.py:76, which composes before it imports plugins, and fairseq/dataclass/initialize.py:45.
Remedy: hydra composes without such registries; their values are set afterwards. A plugin that extends hydra's schema
    itself is not disturbed. ``fairseq-hydra-train`` imports the plugin of ``common.user_dir`` first, takes
    ``name=choice name.option=value`` as for fairseq's own registries, and fills in the options that are not given.
    The value of a choice without a dataclass is its name, or all options if its class has options, as for criterions.
Can go: with hydra < 1.1, or with a fairseq whose configuration admits registered keys.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from pathlib import Path
from typing import Any

from fairseq_compat.patches import wrap
from fairseq_compat.versions import at_least

BROKEN = r"composed_cfg\[k\] = None|def _hydra_main\(cfg"


def needed() -> bool:
    return at_least("hydra-core", 1, 1)


def split_overrides(overrides: list[str], names: set[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Separate hydra's overrides ``key=value`` of the registries `names` (values and sub-keys) from the others."""
    others: list[str] = []
    of_registries: dict[str, list[str]] = {name: [] for name in names}
    for override in overrides:
        name = override.partition("=")[0].partition(".")[0]
        of_registries.get(name, others).append(override)
    return others, of_registries


def chosen_value(name: str, overrides: list[str], dataclasses: dict[str, type]):
    """Return the value of the key `name`: None, the chosen word, or the filled configuration of its dataclass."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    values = {item.key_or_group: item.value() for item in OverridesParser.create().parse_overrides(overrides)}
    choice: Any = values.pop(name, None)
    if choice not in dataclasses:
        return choice
    node = OmegaConf.structured(dataclasses[choice]())
    for key, value in values.items():
        OmegaConf.update(node, key[len(name) + 1 :], value)
    return node


def as_new_key(word: str, names: set[str]) -> str:
    """Return a word of hydra's command line; a key of the registries `names` becomes new to its configuration."""
    key, equals, value = word.partition("=")
    if not equals or key.partition(".")[0] not in names:
        return word
    return f"+{key}._name={value}" if key in names else f"+{word}"


def third_party() -> dict[str, dict]:
    """Return the registries of plugins that were imported."""
    from fairseq.dataclass.configs import FairseqConfig
    from fairseq.registry import REGISTRIES

    return {name: REGISTRIES[name] for name in set(REGISTRIES) - set(FairseqConfig.__dataclass_fields__)}


def unknown_to_hydra(overrides: list[str]) -> dict[str, dict]:
    """Return the registries of plugins, and those whose chosen class has no dataclass."""
    from fairseq.registry import REGISTRIES

    choices = dict(override.partition("=")[::2] for override in overrides)
    plain = (
        name
        for name, registry in REGISTRIES.items()
        if choices.get(name) in registry["registry"].keys() - registry["dataclass_registry"].keys()
    )
    return third_party() | {name: REGISTRIES[name] for name in plain}


def fill(config) -> None:
    """Give a configuration that hydra composed the values of these registries, as fairseq does with its own."""
    from omegaconf import OmegaConf, open_dict

    for name, registry in third_party().items():
        value = config.get(name)
        has_options = hasattr(value, "get")
        choice = value.get("_name") if has_options else value
        with open_dict(config):
            if choice in registry["dataclass_registry"]:
                node = OmegaConf.structured(registry["dataclass_registry"][choice]())
                config[name] = OmegaConf.merge(node, value if has_options else {"_name": choice})
            elif not has_options or len(value) == 1:  # else its options stay for the plugin to read
                config[name] = choice if choice is not None else registry["default"]


def user_dir(words: list[str]) -> str | None:
    """Return ``common.user_dir`` on a command line of hydra, or in the file of --config-dir and --config-name."""
    values = [word.partition("=")[2] for word in words if re.match(r"\+{0,2}common\.user_dir=", word)]
    if values:
        return values[-1].strip("'\"")
    from hydra._internal.utils import get_args_parser
    from omegaconf import OmegaConf

    options, _ = get_args_parser().parse_known_args(words)
    file = Path(options.config_dir or "", options.config_name or "")
    file = file if file.suffix in (".yaml", ".yml") else Path(f"{file}.yaml")
    if not options.config_dir or not file.is_file():
        return None
    with contextlib.suppress(Exception):  # hydra names the fault of the file
        return OmegaConf.select(OmegaConf.load(file), "common.user_dir")
    return None


def patch_hydra_train(module) -> None:
    @wrap(module)
    def cli_main(original):
        from fairseq.utils import import_user_module

        folder = user_dir(sys.argv[1:])
        if folder:
            import_user_module(argparse.Namespace(user_dir=folder))
        names = set(third_party())
        sys.argv[1:] = [as_new_key(word, names) for word in sys.argv[1:]]  # in place: --config-dir may come between
        return original()

    @wrap(module)
    def _hydra_main(original, cfg, **kwargs):
        fill(cfg)
        try:
            return original(cfg, **kwargs)
        except FileNotFoundError as error:  # fairseq's has no filename if data lack a split
            if os.path.isabs(error.filename or cfg.task.data):
                raise
            place = f"looked for in {os.getcwd()}, hydra's folder of this run; give absolute paths, or hydra.run.dir=."
            raise FileNotFoundError(f"{error}; {place}") from error


def patch_compose(module) -> None:
    @wrap(module)
    def compose(original, config_name, overrides=(), **options):
        registries = unknown_to_hydra(list(overrides))
        others, of_registries = split_overrides(list(overrides), set(registries))
        config = original(config_name, overrides=others, **options)
        with module.open_dict(config):
            for name, registry in registries.items():
                config[name] = chosen_value(name, of_registries[name], registry["dataclass_registry"])
        return config

    @wrap(module)
    def convert_namespace_to_omegaconf(original, args):
        from fairseq.registry import REGISTRIES

        config = original(args)
        with module.open_dict(config), module.omegaconf_no_object_check():
            for name in REGISTRIES.keys() - third_party():  # a plugin's registry builds from the name
                choice, own = config.get(name), argparse.Namespace()
                if isinstance(choice, str) and choice in REGISTRIES[name]["registry"]:  # it has no dataclass
                    module._set_legacy_defaults(own, REGISTRIES[name]["registry"][choice])
                    if vars(own):
                        config[name] = argparse.Namespace(**vars(own) | vars(args), _name=choice)
        return config


PATCHES = {"fairseq.dataclass.utils": patch_compose, "fairseq_cli.hydra_train": patch_hydra_train}
