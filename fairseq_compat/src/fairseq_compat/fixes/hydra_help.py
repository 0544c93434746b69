"""Python >= 3.14: fairseq-hydra-train ends with "badly formed help string".

Symptom: ``fairseq-hydra-train`` ends with ``ValueError: badly formed help string``.
Versions: Python >= 3.14, which formats the help of an option when it is added; hydra gives one that is no text.
Where: fairseq_cli/hydra_train.py:25 (``hydra.main``).
Remedy: hydra's parser makes a text of it.
Upstream: hydra issue 3121.
Can go: with a hydra whose help is text.
"""

from __future__ import annotations

import argparse
import importlib
import sys

from fairseq_compat.patches import shadow
from fairseq_compat.versions import at_least

BROKEN = r"hydra\.main"


def needed() -> bool:
    return sys.version_info >= (3, 14) and at_least("hydra-core", 1, 1)


class Parser(argparse.ArgumentParser):
    """Accept an object with a representation as help."""

    def add_argument(self, *names, **options):
        if "help" in options and not isinstance(options["help"], str):
            options["help"] = repr(options["help"]).replace("%", "%%")
        return super().add_argument(*names, **options)


def patch(module):
    shadow(importlib.import_module("hydra._internal.utils"), "argparse.ArgumentParser", Parser)
