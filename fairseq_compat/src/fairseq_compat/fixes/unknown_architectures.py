"""A plugin that is not loaded: KeyError: "'_name'", unrecognized arguments; now the remedy is named.

Symptom: ``fairseq-generate DATA --path CHECKPOINT`` without the ``--user-dir`` of the training, and ``from_pretrained``
    of another model's class, end with ``KeyError: "'_name'"`` or ``KeyError`` and the name of a task; and nothing says
    that an unrecognised argument or an invalid choice (``--arch``, ``--tokenizer``) may be a plugin's.
    ``--left-pad-source False``, as scripts of 2019 have it: the option alone means False now, and ``unrecognized
    arguments: False`` does not say so.
Where: fairseq/models/__init__.py:99 (its own message is formatted twice), fairseq/tasks/__init__.py:43 and
    fairseq/options.py:228.
Remedy: an error that names the option and ``--user-dir``, or the option that differs by a letter. It comes only
    after fairseq has failed, so nothing that works is refused.
"""

from __future__ import annotations

import re
import sys

from fairseq_compat.patches import wrap

BROKEN = r"^def (build_model|setup_task|get_parser)\("
#: argparse's error about a value that plugins may add
REGISTERED = re.compile(r"argument --(arch|task|criterion|optimizer|lr-scheduler|tokenizer|bpe)\b.*: invalid choice")


def unknown(option: str, name: str) -> ValueError:
    """Return the error about a model or task that is not registered."""
    return ValueError(
        f"{option} {name} is unknown to fairseq and to the plugins that are loaded: add --user-dir FOLDER with the "
        "folder of the plugin (from Python: import the plugin, or from_pretrained(..., user_dir='FOLDER'))"
    )


def is_slip(written: str, name: str) -> bool:
    """Return True if two options differ by one letter, by two exchanged letters, or by ``_`` for ``-``."""
    written = written.replace("_", "-")
    at = next((place for place, letters in enumerate(zip(written, name)) if len(set(letters)) > 1), len(written))
    at = min(at, len(name))
    exchanged = name[:at] + name[at : at + 2][::-1] + name[at + 2 :]
    return written == exchanged or name[at + 1 :] in (written[at:], written[at + 1 :]) or written[at + 1 :] == name[at:]


def alone(words: list[str], options, values: set[str]) -> str:
    """Return the remedy for a value after an option without values: ``--fp16 True``, ``--left-pad-source False``."""
    for option, value in zip(words, words[1:]):
        if value in values and getattr(options.get(option), "nargs", None) == 0:
            is_meant = value == str(options[option].const)
            advice = f"give it alone, which means {value}" if is_meant else f"leave it out, the default is {value}"
            return f"; {option} has no value: {advice}"
    return ""


def remedy(words, options) -> str:
    """Return the remedy for words that a command does not know: the likely option, or the plugin's folder."""
    if advice := alone(sys.argv, options, {"True", "False"} & {*words}):
        return advice
    flags = {word.partition("=")[0] for word in words if word.startswith("--")}
    if similar := [name for name in options if any(is_slip(flag, name) for flag in flags)]:
        return f"; did you mean {' '.join(similar)}?"
    return plugin("an option")


def plugin(what: str) -> str:
    """Return the remedy for a plugin's option if no plugin is loaded."""
    if any(word.startswith("--user-dir") for word in sys.argv):
        return ""
    return f"; for {what} of a plugin add --user-dir FOLDER with the folder of the plugin"


def patch_models(module) -> None:
    @wrap(module)
    def build_model(original, cfg, *args, **kwargs):
        try:
            return original(cfg, *args, **kwargs)
        except (KeyError, IndexError, ValueError, AssertionError) as error:  # errors for values of the options
            name = getattr(cfg, "_name", None) or getattr(cfg, "arch", None)
            if name in module.ARCH_MODEL_REGISTRY or name in module.MODEL_DATACLASS_REGISTRY or name is None:
                raise
            raise unknown("--arch", name) from error


def patch_tasks(module) -> None:
    @wrap(module)
    def setup_task(original, cfg, **kwargs):
        try:
            return original(cfg, **kwargs)
        except (KeyError, AssertionError) as error:
            name = getattr(cfg, "task", None) or getattr(cfg, "_name", None)
            if name in module.TASK_REGISTRY or name is None:
                raise
            raise unknown("--task", name) from error


def patch_options(module) -> None:
    @wrap(module)
    def get_parser(original, *args, **kwargs):
        parser = original(*args, **kwargs)
        said = parser.error

        def error(message):
            if message.startswith("unrecognized arguments"):
                message += remedy(message.split(), parser._option_string_actions)
            elif REGISTERED.match(message):
                message += plugin("one")
            said(message)

        parser.error = error
        return parser


PATCHES = {"fairseq.models": patch_models, "fairseq.tasks": patch_tasks, "fairseq.options": patch_options}
