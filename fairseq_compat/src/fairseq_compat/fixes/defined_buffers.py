"""A number of uninitialised memory in every checkpoint with sinusoidal positions.

Symptom: two trainings with the same seed write checkpoints that differ in ``*.embed_positions._float_tensor``; the
    number can also be NaN, which tools that look for broken checkpoints report.
Versions: all.
Where: fairseq/modules/sinusoidal_positional_embedding.py:29 (``torch.FloatTensor(1)``; only its type is used).
Remedy: the buffer is zero.
Upstream: not reported.
Can go: with a fairseq that initialises the buffer or has none.
"""

from __future__ import annotations

from contextlib import contextmanager

from fairseq_compat.versions import at_least

REASON = "uninitialised memory in checkpoints makes equal trainings differ"


def needed() -> bool:
    return at_least("fairseq", 0, 12)


@contextmanager
def patching(module):
    yield
    embedding = module.SinusoidalPositionalEmbedding
    original_init = embedding.__init__

    def __init__(self, *args, **kwargs):
        original_init(self, *args, **kwargs)
        self._float_tensor.zero_()

    embedding.__init__ = __init__
