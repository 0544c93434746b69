"""The scorer of a fairseq that was installed without a compiler.

Symptom: ``fairseq-generate`` and ``fairseq-score`` end with ``OSError: ... invalid ELF header``, as they load a Python
    module with ctypes.
Versions: fairseq installed by ``python -m fairseq_compat install --no-compiler``.
Where: fairseq/scoring/bleu.py:95 (``ctypes.cdll.LoadLibrary``), the only one of that module.
Remedy: it loads what ``fairseq_compat.pure.libbleu`` states in Python.
Upstream: not reported.
Can go: with a fairseq that counts in Python.
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from types import SimpleNamespace

from fairseq_compat.shadow import shadow

REASON = "without a compiler there is no libbleu to load"
BROKEN = r"ctypes\.cdll\.LoadLibrary\("
MENDED = r"class Scorer\("


def needed() -> bool:
    return True


def load(path: str):
    """A library: a compiled one, or the functions of the module in its place."""
    if not path.endswith(".py"):
        return ctypes.cdll.LoadLibrary(path)
    from fairseq_compat.pure.libbleu import LIBRARY

    return LIBRARY


@contextmanager
def patching(module):
    yield
    module.ctypes = shadow(ctypes, cdll=SimpleNamespace(LoadLibrary=load))
