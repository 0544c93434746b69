"""`fairseq-train --help` lists the options of `--embed-init`.

fairseq reads a command line twice: first without the options of what is chosen, then with them. `--help` ends the first
reading, so that the options of a registry are never shown, with or without a choice. They are therefore appended to the
text of the help; the parser itself gets them from `EmbedInit.add_args`, once a strategy is chosen. Without one it calls
them unknown, and is made to say why.
"""

from __future__ import annotations

import functools
from argparse import SUPPRESS, ArgumentParser
from dataclasses import fields
from typing import Any

import fairseq.options

from embinit_fairseq.hooks.options import EmbedInitOptions
from embinit_fairseq.hooks.registry import EMBED_INIT_REGISTRY

_FLAGS = {"--" + option.name.replace("_", "-") for option in fields(EmbedInitOptions)}
_MARK = "_embinit_wrapped"


def install() -> None:
    """Wrap what completes the parser of a training; calling it again is harmless.

    Other parsers keep their help. `get_parser` would be too early: it is what imports `--user-dir`.
    """
    inner = fairseq.options.add_model_args
    if getattr(inner, _MARK, False):
        return

    @functools.wraps(inner)
    def add_model_args(parser: ArgumentParser) -> Any:
        """fairseq's function, after the options of `--embed-init` were added to the help."""
        describe(parser)
        return inner(parser)

    setattr(add_model_args, _MARK, True)
    fairseq.options.add_model_args = add_model_args


def describe(parser: ArgumentParser) -> None:
    """Say in the parser's help what `--embed-init` is, append its options, and say what they need."""
    for action in parser._actions:
        if action.dest == "embed_init":
            action.help = "how the token embeddings start; its options stand at the end of this help"
    own_help, own_error = parser.format_help, parser.error
    parser.format_help = lambda: f"{own_help()}\n{options_help(parser.formatter_class)}"
    parser.error = lambda message: own_error(with_remedy(message))


def with_remedy(message: str) -> str:
    """argparse's message; where it does not know options of ours, for want of --embed-init, with what to do."""
    flags = {word.partition("=")[0] for word in message.split()} & _FLAGS
    if not message.startswith("unrecognized arguments") or not flags:
        return message
    return f"{message} ({', '.join(sorted(flags))}: needs --embed-init {{{','.join(EMBED_INIT_REGISTRY)}}})"


def options_help(formatter: Any) -> str:
    """The options as a section of a help text, laid out by argparse's class `formatter`."""
    section = ArgumentParser(usage=SUPPRESS, add_help=False, formatter_class=formatter)
    EmbedInitOptions.add_args(
        section.add_argument_group(
            "options of --embed-init",
            "Known as soon as --embed-init STRATEGY is given. Strategies, formats and examples: docs/embed_init.md",
        )
    )
    return section.format_help()
