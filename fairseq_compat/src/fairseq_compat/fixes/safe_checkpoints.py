"""Checkpoints through torch's allow-list.

Symptom: resuming and ``fairseq-generate`` raise ``UnpicklingError: Weights only load failed`` for
    ``argparse.Namespace`` (every legacy architecture) or ``numpy._core.multiarray._reconstruct`` (``--eval-bleu``).
Versions: torch >= 2.6, where ``torch.load`` has ``weights_only=True`` as default; fairseq 0.12.2.
Where: fairseq/checkpoint_utils.py:315 and :878.
Remedy: the plain data types of a fairseq checkpoint join the allow-list. Loading stays safe: a pickle that names any
    other global is refused, as torch does.
Upstream: fairseq issue 5603 (open); pytorch pull request 137602 (the change of the default).
Can go: with a fairseq that stores plain containers only; old checkpoints need it for ever.
"""

from __future__ import annotations

import argparse
from contextlib import contextmanager

from fairseq_compat.versions import at_least

REASON = "torch >= 2.6 refuses Namespace and numpy values in checkpoints"

# dtype classes that numbers in a checkpoint can have: bool, integers, floats (half to long double)
NUMBER_CODES = "?bBhHiIlLqQefdg"


def needed() -> bool:
    return at_least("torch", 2, 6)


def allowed_types() -> list:
    """What a fairseq checkpoint holds beside tensors and built-in containers; harmless to construct."""
    import numpy as np

    try:
        from numpy._core import multiarray
    except ImportError:  # numpy 1
        from numpy.core import multiarray
    allowed = [argparse.Namespace, np.ndarray, np.dtype]
    allowed += sorted({type(np.dtype(code)) for code in NUMBER_CODES}, key=lambda cls: cls.__name__)
    for name in ("_reconstruct", "scalar"):
        for package in ("numpy.core", "numpy._core"):  # as written by numpy 1 and by numpy 2
            allowed.append((getattr(multiarray, name), f"{package}.multiarray.{name}"))
    return allowed


@contextmanager
def patching(module):
    yield
    module.torch.serialization.add_safe_globals(allowed_types())
