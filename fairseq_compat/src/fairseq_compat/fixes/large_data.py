"""numpy >= 2: data above 2 GB from several --workers end with OverflowError, or have negative offsets, or other text.

Symptom: ``fairseq-preprocess --workers 2`` (and more) of a text that becomes more than 2 GB prints ``RuntimeWarning:
    overflow encountered in scalar add`` or ends with ``OverflowError``. A training ends with ``ValueError: offset must
    be non-negative``; from 4 GB on it reads other sentences.
Versions: numpy >= 2.0, in which an int32 stays one when an ``int`` is added.
Where: fairseq/data/indexed_dataset.py:576 (lengths of the parts, which :415 adds).
Remedy: lengths are Python's integers. Data that were written without the fix have to be binarised again.
Upstream: fairseq issue 5532 (open).
"""

from __future__ import annotations

from fairseq_compat.patches import wrap
from fairseq_compat.versions import at_least

BROKEN = r"self\._sizes\.append\(size\)"


def needed() -> bool:
    return at_least("numpy", 2, 0)


def patch(module):
    @wrap(module.MMapIndexedDatasetBuilder)
    def finalize(original, self, index_file):
        self._sizes = list(map(int, self._sizes))
        return original(self, index_file)
