"""The task translation_from_pretrained_bart.

Symptom: ``AttributeError: 'TranslationFromPretrainedBARTTask' object has no attribute 'args'``.
Versions: fairseq 0.12.2 and later: the task that it extends keeps its options as ``cfg``.
Where: fairseq/tasks/translation_from_pretrained_bart.py:66 and on.
Remedy: ``args`` is what ``cfg`` is; where a task was made from older options, what they lack has its default.
Upstream: fairseq issue 4479 (open).
Can go: with a fairseq whose task reads ``cfg``.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager

REASON = "the task translation_from_pretrained_bart reads options that it does not have"
BROKEN = r"self\.args\."
MENDED = r"class TranslationFromPretrainedBARTTask\("


def needed() -> bool:
    return True


@contextmanager
def patching(module):
    yield
    task = module.TranslationFromPretrainedBARTTask
    original = task.__init__

    @functools.wraps(original)
    def __init__(self, args, *others):
        original(self, args, *others)
        self.args = args

    task.__init__ = __init__
