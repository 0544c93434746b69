"""fairseq's main branch: a resumed training has other batches than an uninterrupted one.

Symptom: a training that is resumed in its second epoch or later has other batches, and other losses, than one that was
    never interrupted: the order of sentences of one length, from which batches are cut, is drawn with the number of
    the epoch in which the *process* began.
Versions: fairseq's main branch.
Where: fairseq/tasks/fairseq_task.py:290 (``numpy_seed(seed + epoch)`` in ``get_batch_iterator``).
Remedy: batches that serve all epochs are made as in the first epoch. Batches that are made again for each epoch
    (``rebuild_batches``, ``--update-epoch-batch-itr``, which ``--grouped-shuffling`` implies, data that change with the
    epoch) do not change.
"""

from __future__ import annotations

import inspect

from fairseq_compat.patches import shadow, wrap

BROKEN = r"numpy_seed\(seed \+ epoch\)"
FIXED = r"with data_utils\.numpy_seed\(seed\)"


def patch(module):
    utils = module.data_utils

    @wrap(module.FairseqTask)
    def get_batch_iterator(original, self, dataset, *args, **kwargs):
        call = inspect.signature(original).bind(self, dataset, *args, **kwargs)
        call.apply_defaults()
        options = call.arguments
        changing = options["disable_iterator_cache"] or options.get("update_epoch_batch_itr")
        if changing or getattr(self.cfg, "rebuild_batches", False) or not self.can_reuse_epoch_itr(dataset):
            return original(self, dataset, *args, **kwargs)
        shadow(module, "data_utils.numpy_seed", lambda *_: utils.numpy_seed(options["seed"] + 1))
        try:
            return original(self, dataset, *args, **kwargs)
        finally:
            module.data_utils = utils
