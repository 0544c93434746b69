"""--task denoising --arch bart_base and other pairs: conflicting option string.

Symptom: ``--task denoising --arch bart_base`` ends with ``ArgumentError: argument --max-source-positions: conflicting
    option string``; so do multilingual_denoising and tasks for speech with the models made for them.
Versions: all; where options come from dataclasses, fairseq itself lets the second one go.
Where: fairseq/options.py:156 (``parse_args_and_arch``), in which the task adds its options after the model's.
Remedy: the model's option counts, and the task reads its value; a default of the task counts where the model has none.
Upstream: fairseq issue 4416 (open).
Can go: with a fairseq whose tasks all have dataclasses.
"""

from __future__ import annotations

import argparse

from fairseq_compat.patches import wrap

BROKEN = r"TASK_REGISTRY\[args\.task\]\.add_args\(parser\)"


def ignore_repeated(parser: argparse.ArgumentParser) -> dict[str, object]:
    """Let a parser ignore options that it has already; return name -> default of these, which is filled later."""
    defaults: dict[str, object] = {}

    @wrap(parser)
    def add_argument(strict, *names, **options):
        try:
            return strict(*names, **options)
        except argparse.ArgumentError:
            actions = parser._option_string_actions
            action = next(actions[name] for name in names if name in actions)
            defaults[action.dest] = options.get("default")
            return action

    return defaults


def patch(module):
    @wrap(module)
    def parse_args_and_arch(
        original, parser, input_args=None, parse_known=False, suppress_defaults=False, modify_parser=None
    ):
        if suppress_defaults:  # calls this function again
            return original(parser, input_args, parse_known, suppress_defaults, modify_parser)
        defaults = ignore_repeated(parser)
        try:
            parsed = original(parser, input_args, parse_known, suppress_defaults, modify_parser)
        finally:
            del parser.add_argument
        namespace = parsed[0] if parse_known else parsed
        for name, default in defaults.items():
            if not hasattr(namespace, name):
                setattr(namespace, name, default)
        return parsed
