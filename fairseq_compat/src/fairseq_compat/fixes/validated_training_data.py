"""--valid-subset valid,train: every second epoch is not trained, the others without shuffling; now all are trained.

Symptom: with the training set among the sets of ``--valid-subset`` the log has ``begin training epoch 1``, ``3``, ...,
    and half of the updates of ``--max-epoch``. A checkpoint within an epoch continues with the next one.
Where: fairseq/trainer.py:728 (``get_valid_iterator``), fairseq/tasks/fairseq_task.py:275: a data set has one iterator,
    so that a validation moves the iterator of the training to the next epoch.
Remedy: the validation of the training set has an iterator of its own, and the data set keeps its epoch.
Upstream: facebookresearch/fairseq issue 1156 (a remark of 2019 on epoch numbers of validations).
"""

from __future__ import annotations

from fairseq_compat.patches import wrap

BROKEN = r"def get_valid_iterator\("


def patch(module):
    @wrap(module.Trainer)
    def get_valid_iterator(original, self, subset, disable_iterator_cache=False):
        dataset = self.task.dataset(subset)
        training = getattr(self.task, "dataset_to_epoch_iter", {}).get(dataset)
        if subset != self.cfg.dataset.train_subset or training is None:
            return original(self, subset, disable_iterator_cache)
        iterator = original(self, subset, True)
        dataset.set_epoch(training.epoch)
        return iterator
