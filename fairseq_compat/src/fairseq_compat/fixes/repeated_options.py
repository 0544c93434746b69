"""Options that a task and a model both have.

Symptom: ``--task denoising --arch bart_base`` ends with ``ArgumentError: argument --max-source-positions: conflicting
    option string``; so do multilingual_denoising and tasks for speech with the models made for them.
Versions: all; where options come from dataclasses, fairseq itself lets the second one go.
Where: fairseq/options.py:156 (``parse_args_and_arch``), in which the task adds its options behind the model's.
Remedy: the model's option stands, and the task reads its value; a default of the task counts where the model has none.
Upstream: fairseq issue 4416 (open).
Can go: with a fairseq whose tasks all have dataclasses.
"""

from __future__ import annotations

import argparse
import functools
from contextlib import contextmanager

REASON = "a task and a model with the same option cannot be used together"
BROKEN = r"TASK_REGISTRY\[args\.task\]\.add_args\(parser\)"


def needed() -> bool:
    return True


def lenient(parser: argparse.ArgumentParser) -> dict[str, object]:
    """From now on options that the parser has already are left as they are. Returns their defaults, by name, as they
    are asked for."""
    defaults: dict[str, object] = {}
    strict = parser.add_argument

    def add_argument(*names, **options):
        try:
            return strict(*names, **options)
        except argparse.ArgumentError:
            known = next(parser._option_string_actions[name] for name in names if name in parser._option_string_actions)
            defaults[known.dest] = options.get("default")
            return known

    parser.add_argument = add_argument  # type: ignore[method-assign]
    return defaults


@contextmanager
def patching(module):
    yield
    original = module.parse_args_and_arch

    @functools.wraps(original)
    def parse_args_and_arch(parser, input_args=None, parse_known=False, suppress_defaults=False, modify_parser=None):
        if suppress_defaults:  # calls this function again
            return original(parser, input_args, parse_known, suppress_defaults, modify_parser)
        defaults = lenient(parser)
        try:
            parsed = original(parser, input_args, parse_known, suppress_defaults, modify_parser)
        finally:
            del parser.add_argument
        namespace = parsed[0] if parse_known else parsed
        for name, default in defaults.items():
            if not hasattr(namespace, name):
                setattr(namespace, name, default)
        return parsed

    module.parse_args_and_arch = parse_args_and_arch
