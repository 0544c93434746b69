"""The batches of a training that goes on.

Symptom: a training that goes on in its second epoch or later has other batches, and other losses, than one that was
    never interrupted: the order of sentences of one length, from which batches are cut, is drawn with the number of
    the epoch in which the *process* began.
Versions: fairseq's main branch.
Where: fairseq/tasks/fairseq_task.py:290 (``numpy_seed(seed + epoch)`` in ``get_batch_iterator``).
Remedy: where batches serve all epochs, they are cut as in the first one, whenever that is. Where they are made anew
    for each (``rebuild_batches``, ``--update-epoch-batch-itr``, which ``--grouped-shuffling`` implies, data that change
    with the epoch) nothing changes.
Upstream: not reported.
Can go: with a fairseq that draws the batches of all epochs with one seed.
"""

from __future__ import annotations

import functools
import inspect
from contextlib import contextmanager

from fairseq_compat.shadow import shadow

REASON = "a training that goes on has other batches than one that was not interrupted"
BROKEN = r"numpy_seed\(seed \+ epoch\)"
MENDED = r"with data_utils\.numpy_seed\(seed\)"


def needed() -> bool:
    return True


@contextmanager
def patching(module):
    yield
    task, utils = module.FairseqTask, module.data_utils
    original = task.get_batch_iterator
    signature = inspect.signature(original)

    @functools.wraps(original)
    def get_batch_iterator(self, dataset, *args, **kwargs):
        given = signature.bind(self, dataset, *args, **kwargs)
        given.apply_defaults()
        anew = given.arguments["disable_iterator_cache"] or given.arguments.get("update_epoch_batch_itr")
        if anew or getattr(self.cfg, "rebuild_batches", False) or not self.can_reuse_epoch_itr(dataset):
            return original(self, dataset, *args, **kwargs)
        first = given.arguments["seed"] + 1
        module.data_utils = shadow(utils, numpy_seed=lambda *_: utils.numpy_seed(first))
        try:
            return original(self, dataset, *args, **kwargs)
        finally:
            module.data_utils = utils

    task.get_batch_iterator = get_batch_iterator
