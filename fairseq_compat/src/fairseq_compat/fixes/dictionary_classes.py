"""Dictionaries of a class of their own.

Symptom: loading one, as ``--task legacy_masked_lm`` and plugins do, ends with ``TypeError: ... __init__() got an
    unexpected keyword argument 'add_special_symbols'``.
Versions: fairseq's main branch, for classes written for a release.
Where: fairseq/data/dictionary.py:227 (``Dictionary.load``).
Remedy: a class that does not take the argument is made without it, as in all releases.
Upstream: not reported.
Can go: with a fairseq that does this.
"""

from __future__ import annotations

import functools
import inspect
from contextlib import contextmanager

REASON = "dictionaries of plugins and of legacy_masked_lm are given an argument that they do not take"
BROKEN = r"cls\(add_special_symbols="
MENDED = r"\bcls\(\)"


def needed() -> bool:
    return True


@contextmanager
def patching(module):
    yield
    original = module.Dictionary.load.__func__

    @functools.wraps(original)
    def load(cls, f, add_special_symbols=True):
        parameters = inspect.signature(cls.__init__).parameters.values()
        if any(one.name == "add_special_symbols" or one.kind is one.VAR_KEYWORD for one in parameters):
            return original(cls, f, add_special_symbols)
        dictionary = cls()
        dictionary.add_from_file(f)
        return dictionary

    module.Dictionary.load = classmethod(load)
