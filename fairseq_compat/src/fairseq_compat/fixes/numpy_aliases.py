"""numpy >= 1.24 has no np.int and np.float, numpy >= 2.0 no np.compat.

Symptom: ``AttributeError: module 'numpy' has no attribute 'int'`` (``float``, ``compat``), and ``TypeError:
    percentile() got an unexpected keyword argument 'interpolation'``; language models with ``--sample-break-mode eos``
    and ``--num-batch-buckets`` are hit first. In fairseq's main branch ``'numpy.random._generator.Generator' object has
    no attribute 'randint'`` with ``--mask-selection uniform`` (wav2vec 2.0, HuBERT).
Versions: ``np.int`` and ``np.float``: numpy >= 1.24; ``np.compat.long``: numpy >= 2.0; ``interpolation``: seen with
    numpy 2.4; fairseq 0.12.2.
Where: fairseq/data/data_utils.py:488 and :560, fairseq/modules/dynamic_crf_layer.py:108,
    fairseq/data/token_block_dataset.py:125, fairseq/data/language_pair_dataset.py:292.
Remedy: these four modules see a numpy that has the old names; numpy itself is untouched.
Upstream: numpy's release notes of 1.20 and 2.0.
Can go: with a fairseq that says ``int`` and ``float``.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from fairseq_compat.patches import shadow
from fairseq_compat.versions import at_least

BROKEN = r"\bnp\.(int|float|compat)\b|\binterpolation=|np\.random\.default_rng\([\s\S]*?\brng\.randint\("
FIXED = r""


def needed() -> bool:
    return at_least("numpy", 1, 24)


def patch(module):
    numpy: Any = module.np

    def percentile(values, percentages, interpolation="linear"):
        return numpy.percentile(values, percentages, method=interpolation)

    class Generator(numpy.random.Generator):
        """Add the name `randint` of numpy's older random state."""

        randint = numpy.random.Generator.integers

    def default_rng(seed=None):
        return Generator(numpy.random.default_rng(seed).bit_generator)

    shadow(module, "np.random.default_rng", default_rng)
    vars(module.np).update(int=int, float=float, compat=SimpleNamespace(long=int), percentile=percentile)
