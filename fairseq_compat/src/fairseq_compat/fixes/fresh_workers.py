"""Data-loader workers that learn of a new epoch, and go when their work is done.

Symptom: with ``--num-workers`` 1 or more (the default is 1) what a dataset draws anew in every epoch stays as it was
    in the first: masked_lm masks the same tokens in every epoch, denoising adds the same noise. A run that is resumed
    in a later epoch continues with other masks than the uninterrupted one.
    With sentence_prediction every validation starts workers that stay until the garbage collector finds them, which
    then waits five seconds for each: 37 seconds instead of 2 for a training of six short epochs.
Versions: all; fairseq 0.12.2 keeps the workers for all epochs, and ``set_epoch`` reaches the main process only.
Where: fairseq/data/iterators.py:480 and :506, fairseq/tasks/fairseq_task.py:302.
Remedy: new workers for every epoch, none of them persistent.
Upstream: not reported. Without this fix: ``--num-workers 0``.
Can go: with a fairseq that tells its workers the epoch.
"""

from __future__ import annotations

from contextlib import contextmanager

from fairseq_compat.shadow import shadow

REASON = "data-loader workers stay in the first epoch: masks and noise never change"
BROKEN = r"persistent_workers="
MENDED = r"class EpochBatchIterator\("


def needed() -> bool:
    return True


@contextmanager
def patching(module):
    yield
    original = module.EpochBatchIterator.__init__

    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        if self.num_workers > 0:
            self.reuse_dataloader = False

    def data_loader(*args, **kwargs):
        return torch.utils.data.DataLoader(*args, **{**kwargs, "persistent_workers": False})

    torch = module.torch
    data = shadow(torch.utils.data, DataLoader=data_loader)
    module.torch = shadow(torch, utils=shadow(torch.utils, data=data))
    module.EpochBatchIterator.__init__ = __init__
