"""With workers masked_lm masks the same tokens in every epoch, and --curriculum never shuffles.

Symptom: with ``--num-workers`` 1 or more (the default is 1) the random draws of a dataset for each epoch are those of
    the first: masked_lm masks the same tokens in every epoch, denoising adds the same noise. A run that is resumed
    in a later epoch continues with other masks than the uninterrupted run.
    With ``--curriculum`` no epoch is shuffled, as the first one was not, also with ``--num-workers 0``.
    With sentence_prediction every validation starts workers that stay until the garbage collector finds them, which
    then waits five seconds for each: 37 seconds instead of 2 for a training of six short epochs.
Versions: all; fairseq 0.12.2 keeps the workers for all epochs, and ``set_epoch`` reaches the main process only. Its
    sampler has the shuffling of the first epoch.
Where: fairseq/data/iterators.py:480 and :506, fairseq/tasks/fairseq_task.py:302.
Remedy: a new data loader for every epoch, and no persistent workers.
"""

from __future__ import annotations

from fairseq_compat.patches import shadow, wrap

BROKEN = r"persistent_workers="
FIXED = r"class EpochBatchIterator\("


def patch(module):
    @wrap(module.EpochBatchIterator)
    def __init__(original, self, *args, **kwargs):
        original(self, *args, **kwargs)
        self.reuse_dataloader = False

    loader = module.torch.utils.data.DataLoader

    def data_loader(*args, **kwargs):
        return loader(*args, **{**kwargs, "persistent_workers": False})

    shadow(module, "torch.utils.data.DataLoader", data_loader)
