"""fairseq's main branch leaves out sentences in training, validation and generation without a word.

Symptom: the last batch of a data set is left out where its length is no multiple of
    ``--required-batch-size-multiple`` (8 by default): ``fairseq-generate`` translates 16 of 20 sentences, BLEU and
    validation losses are of a part only, and a set of less than eight sentences is ``Exception: The dataset is
    empty``. No line says so.
Versions: fairseq's main branch.
Where: fairseq/data/data_utils.py:357 (``batch_by_size``).
Remedy: the sentences that no batch has become the last batch, as in all releases.
Upstream: fairseq issue 5036 (open); 5094, 5351.
"""

from __future__ import annotations

from fairseq_compat.patches import wrap

BROKEN = r"b = b\[:-1\]"
FIXED = r"def batch_by_size\("


def patch(module):
    numpy = module.np

    @wrap(module)
    def batch_by_size(original, indices, *args, **kwargs):
        if not isinstance(indices, numpy.ndarray):
            indices = numpy.fromiter(indices, dtype=numpy.int64, count=-1)
        if len(indices) == 0:
            return []  # the original would ask for its last batch
        batches = original(indices, *args, **kwargs)
        left_out = indices[sum(map(len, batches)) :]  # batches are slices in order; batches of fixed shapes hold all
        return [*batches, left_out] if len(left_out) else batches
