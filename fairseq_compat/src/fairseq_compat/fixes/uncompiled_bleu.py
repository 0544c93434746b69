"""Without a compiler BLEU ends with OSError: ... invalid ELF header.

Symptom: ``fairseq-generate`` and ``fairseq-score`` end with ``OSError: ... invalid ELF header``, as they load a Python
    module with ctypes.
Versions: fairseq installed by ``python -m fairseq_compat install --no-compiler``.
Where: fairseq/scoring/bleu.py:95 (``ctypes.cdll.LoadLibrary``), the only one of that module.
Remedy: it loads the functions of ``fairseq_compat.pure.libbleu``.
Can go: with a fairseq that counts in Python.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

from fairseq_compat.patches import shadow
from fairseq_compat.pure.libbleu import LIBRARY

BROKEN = r"ctypes\.cdll\.LoadLibrary\("
FIXED = r"class Scorer\("


def patch(module):
    def load(path: str):
        return LIBRARY if path.endswith(".py") else ctypes.cdll.LoadLibrary(path)

    shadow(module, "ctypes.cdll", SimpleNamespace(LoadLibrary=load))
