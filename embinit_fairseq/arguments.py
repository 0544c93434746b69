"""Read a command line without losing a value: an option that is given twice adds up, or is an error.

argparse and fairseq let the last one count. Here the values add up if the option takes several (nargs + or *), and
replace its default; a second value of an option with one value is an error, also if it is equal.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from embinit_fairseq.errors import OptionError


class _Store(argparse._StoreAction):
    """Store the value of an option; a second one adds to it or is an error."""

    #: the namespace that has a value of this option; a parser that parses twice has two
    _filled: argparse.Namespace | None = None

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        """Store the value in the namespace; raise ArgumentError for a second value where one is expected."""
        if self._filled is namespace:
            before = getattr(namespace, self.dest)
            if self.nargs not in ("+", "*"):
                raise argparse.ArgumentError(self, f"given twice, {before} and {values}; give it once")
            values = [*before, *values]
        self._filled = namespace
        super().__call__(parser, namespace, values, option)


class ArgumentParser(argparse.ArgumentParser):
    """argparse's parser, with options that can be given twice only if they take several values."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for action in (None, "store"):
            self.register("action", action, _Store)


def add_up(parser: argparse.ArgumentParser, flags: set[str]) -> None:
    """Let these options of argparse's parser behave as options of `ArgumentParser`."""
    for action in parser._actions:
        if type(action) is argparse._StoreAction and flags.intersection(action.option_strings):
            action.__class__ = _Store


def split_at_dashes(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words before the first `--`, and the words after it, which are another program's."""
    at = words.index("--") if "--" in words else len(words)
    return list(words[:at]), list(words[at + 1 :])


def read_pairs(flag: str, texts: Iterable[str], form: str) -> dict[str, str]:
    """Return KEY -> VALUE of the values `KEY=VALUE` of an option.

    Args:
        flag: the option, for errors.
        texts: its values.
        form: form of a value, for errors: `KEY=VALUE, such as time=720`.

    Raises:
        OptionError: a text without key or `=`, or two with the same key.
    """
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise OptionError(f"{flag} {text}: give {form}")
        if key in pairs:
            raise OptionError(f"{flag} {key}={pairs[key]} and {text}: {key} has two values; give it once")
        pairs[key] = value
    return pairs
