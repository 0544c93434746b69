"""With --num-workers 0 equal trainings differ.

Symptom: with ``--num-workers 0`` equal trainings differ: an example is masked, say, as another one should be. fairseq
    reads ahead in a thread, and ``numpy_seed`` there and in the main thread (validation, shuffling) set, use and put
    back numpy's one global state at the same time. Inputs and targets of masked_lm, which are drawn one after the
    other from the same seed, can even contradict each other.
Where: fairseq/data/data_utils.py:101, fairseq/data/iterators.py:595.
Remedy: one thread at a time between ``numpy_seed``'s beginning and end. A process that is forked meanwhile has a
    lock that is free. Without this fix: ``--data-buffer-size 0``, or workers.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager

from fairseq_compat.patches import wrap

BROKEN = r"def numpy_seed\("

_lock = threading.RLock()  # numpy_seed may be entered again inside itself


def _new_lock() -> None:
    global _lock
    _lock = threading.RLock()


def patch(module):
    @wrap(module)
    @contextmanager
    def numpy_seed(original, seed, *addl_seeds):
        with _lock, original(seed, *addl_seeds):
            yield

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_new_lock)
