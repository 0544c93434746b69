"""--adam-betas "'(0.9, 0.98)'", --update-freq "'12'", --lr 0,001: an error without an option, or [1, 2]; now refused.

Symptom: ``--adam-betas "'(0.9, 0.98)'"`` (quoted twice, as on Windows) ends at the first update with ``too many values
    to unpack``. ``--model-overrides {data:bin}``, ``--eval-bleu-args {beam:5}`` (quotes that the shell took): errors
    without an option. A list that is quoted twice is read character by character: ``--update-freq "'12'"`` is
    ``[1, 2]``; ``--left-pad-source "'False'"`` is true. ``--lr 0,001``: ``SyntaxError``. ``--epoch2lr "{1: 0.1}"``:
    ``argument of type 'int' is not iterable``.
Where: fairseq/dataclass/utils.py:25 and fairseq/utils.py:787 (``eval_str_list`` and others), fairseq/optim/adam.py:91,
    fairseq_cli/generate.py:92, fairseq/tasks/translation.py:371 and others like them.
Remedy: the values are evaluated when the configuration is made. An error names option, value and expected form.
Can go: with a fairseq whose options have types.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections.abc import Callable
from typing import Any

from fairseq_compat.patches import wrap

BROKEN = r"def eval_str_list\(|def convert_namespace_to_omegaconf\(|def main\(cfg"


class WrongValueError(ValueError, argparse.ArgumentTypeError):
    """Signal a value that an option cannot have; argparse adds the option."""


def evaluated(value: Any) -> Any:
    """Return the value of a literal; nothing is executed, because options may come from a checkpoint."""
    return ast.literal_eval(value.strip()) if isinstance(value, str) else value


def literal_of(value: Any) -> Any:
    """Return the value of a literal; None for other text, such as an expression."""
    try:
        return evaluated(value)
    except (ValueError, SyntaxError):
        return None


def is_pair(value: Any) -> bool:
    """Return True if the value is two numbers."""
    numbers = list(evaluated(value))
    return len(numbers) == 2 and all(isinstance(number, (int, float)) for number in numbers)


def is_dictionary(value: Any) -> bool:
    """Return True if the value is a dictionary of Python."""
    return hasattr(evaluated(value), "keys")


def is_schedule(value: Any) -> bool:
    """Return True if the value is a dictionary of Python whose keys are text."""
    return is_dictionary(value) and all(isinstance(key, str) for key in evaluated(value))


def is_json(value: str) -> bool:
    """Return True if the value is an object of JSON."""
    return isinstance(json.loads(value), dict)


def is_unquoted(value: Any) -> bool:
    """Return True unless the value is text in quotes: other values depend on the model."""
    return not (isinstance(value, str) and value.strip()[:1] in ("'", '"'))


PAIR, DICTIONARY, LIST = "two numbers", "a dictionary", "a list that is quoted once"
SCHEDULE = "a dictionary with quoted keys"
#: option -> check, expected value, example
CHECKS: dict[str, tuple[Callable[[Any], bool], str, str]] = {
    **dict.fromkeys(("adam_betas", "adamax_betas", "lamb_betas"), (is_pair, PAIR, '"(0.9, 0.98)"')),
    "adafactor_eps": (is_pair, PAIR, '"(1e-30, 1e-3)"'),
    "model_overrides": (is_dictionary, DICTIONARY, "\"{'data': 'DIR'}\""),
    "optimizer_overrides": (is_dictionary, DICTIONARY, "\"{'lr': 0.1}\""),
    **dict.fromkeys(("epoch2lr", "update2lr"), (is_schedule, SCHEDULE, "\"{'1-2': 0.1, '3': 0.01}\"")),
    **dict.fromkeys(("eval_bleu_args", "eval_bleu_detok_args"), (is_json, "JSON", r'"{\"beam\": 4}"')),
    **dict.fromkeys(("adaptive_softmax_cutoff", "adaptive_input_cutoff"), (is_unquoted, LIST, '"10000,20000"')),
    **dict.fromkeys(("encoder_layers_to_keep", "decoder_layers_to_keep"), (is_unquoted, LIST, '"0,2"')),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), (is_unquoted, LIST, '"[(512, 3)] * 20"')),
    **dict.fromkeys(("conv_feature_layers", "conv_aggregator_layers"), (is_unquoted, LIST, '"[(512, 10, 5)] * 2"')),
    "character_filters": (is_unquoted, LIST, '"[(1, 64), (2, 128)]"'),
}


def check(options: dict[str, Any]) -> None:
    """Raise ValueError for the first option whose value fairseq could not use."""
    for name, (is_right, expected, example) in CHECKS.items():
        value = options.get(name)
        if value in (None, "") or (isinstance(value, str) and value.startswith("${")):
            continue
        try:
            right = is_right(value)
        except (ValueError, SyntaxError, TypeError):
            right = False
        if not right:
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(f"{flag}: found {value!r}, expected {expected}; give {flag} {example}")


def patch_train(module) -> None:
    @wrap(module)
    def main(original, cfg, *args, **options):  # fairseq-hydra-train calls it, too
        from omegaconf import OmegaConf

        if not isinstance(cfg, argparse.Namespace):  # main converts a namespace, which checks it
            for section in dict(OmegaConf.to_container(cfg)).values():  # type: ignore[arg-type]  # of a mapping
                check(section if isinstance(section, dict) else getattr(section, "__dict__", {}))
        return original(cfg, *args, **options)


#: function -> the value that it expects
EXPECTED = {
    "eval_str_list": "values such as 1 or 1,2",
    "eval_str_dict": "a dictionary such as \"{'a': 1}\"",
    "eval_bool": "True or False",
}


def patch_function(module, name: str) -> None:
    """Let a function refuse text that is no value, and quoted text, whose characters would become a list."""

    @wrap(module, name)
    def evaluate(original, x, *args, **options):
        try:
            if isinstance(text := literal_of(x), str):
                if str not in (*args, *options.values()) or name != "eval_str_list":
                    raise ValueError(text)
                return [text]
            return original(x, *args, **options)
        except Exception as error:  # an expression may raise anything
            raise WrongValueError(f"found {x!r}, expected {EXPECTED[name]}, quoted once") from error


def patch_functions(module) -> None:
    for name in EXPECTED.keys() & vars(module).keys():
        patch_function(module, name)


def patch_dataclasses(module) -> None:
    patch_functions(module)

    @wrap(module)
    def convert_namespace_to_omegaconf(original, args):
        check(vars(args))
        return original(args)


PATCHES = {
    "fairseq.dataclass.utils": patch_dataclasses,
    "fairseq.utils": patch_functions,
    "fairseq_cli.train": patch_train,
}
