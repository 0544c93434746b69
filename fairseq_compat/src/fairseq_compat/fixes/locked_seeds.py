"""Random numbers of datasets that are read in a thread.

Symptom: with ``--num-workers 0`` equal trainings differ: an example is masked, say, as another one should be. fairseq
    reads ahead in a thread, and ``numpy_seed`` there and in the main thread (validation, shuffling) set, use and put
    back numpy's one global state at the same time. Inputs and targets of masked_lm, which are drawn one after the
    other from the same seed, can even contradict each other.
Versions: all.
Where: fairseq/data/data_utils.py:101, fairseq/data/iterators.py:595.
Remedy: one thread at a time between ``numpy_seed``'s beginning and end. A process that is forked meanwhile gets a
    lock that is free.
Upstream: not reported. Without this fix: ``--data-buffer-size 0``, or workers.
Can go: with a fairseq that draws from generators of its own.
"""

from __future__ import annotations

import functools
import os
import threading
from contextlib import contextmanager

REASON = "with --num-workers 0 two threads share numpy's global random state"
BROKEN = r"def numpy_seed\("

_lock = threading.RLock()  # numpy_seed may be entered again inside itself


def needed() -> bool:
    return True


def _new_lock() -> None:
    global _lock
    _lock = threading.RLock()


@contextmanager
def patching(module):
    yield
    original = module.numpy_seed

    @functools.wraps(original)
    @contextmanager
    def numpy_seed(seed, *addl_seeds):
        with _lock, original(seed, *addl_seeds):
            yield

    module.numpy_seed = numpy_seed
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_new_lock)
