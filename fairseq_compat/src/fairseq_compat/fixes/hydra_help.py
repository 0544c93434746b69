"""hydra's command line on Python 3.14.

Symptom: ``fairseq-hydra-train`` ends with ``ValueError: badly formed help string``.
Versions: Python >= 3.14, which formats the help of an option when it is added; hydra gives one that is no text.
Where: fairseq_cli/hydra_train.py:25 (``hydra.main``).
Remedy: the parser that hydra makes for it makes a text of it.
Upstream: hydra issue 3121.
Can go: with a hydra whose help is text.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from contextlib import contextmanager

from fairseq_compat.shadow import shadow
from fairseq_compat.versions import at_least

REASON = "Python >= 3.14 refuses the help of hydra's command line"
BROKEN = r"hydra\.main"


def needed() -> bool:
    return sys.version_info >= (3, 14) and at_least("hydra-core", 1, 1)


class Parser(argparse.ArgumentParser):
    """Takes what only has a representation as help."""

    def add_argument(self, *names, **options):
        if "help" in options and not isinstance(options["help"], str):
            options["help"] = repr(options["help"]).replace("%", "%%")
        return super().add_argument(*names, **options)


@contextmanager
def patching(module):
    utils = importlib.import_module("hydra._internal.utils")
    utils.argparse = shadow(argparse, ArgumentParser=Parser)  # type: ignore[attr-defined]
    yield
