"""--save-interval-updates skips the last update of an epoch.

Symptom: with ``--save-interval-updates N`` the checkpoint ``checkpoint_EPOCH_UPDATES.pt`` is missing where the number
    of updates falls on the last one of an epoch, and older ones are not removed there.
Where: fairseq/checkpoint_utils.py:65 and :136 (``not end_of_epoch and ...``).
Remedy: there fairseq's own function is called once more, as within an epoch and without its other checkpoints. The
    state of the data in the file is that of an epoch's end, so that a run continues from it with the next epoch.
"""

from __future__ import annotations

import copy

from fairseq_compat.patches import wrap

BROKEN = r"not end_of_epoch\s+and cfg\.save_interval_updates"
FIXED = r"def save_checkpoint\("


class WithinEpoch:
    """Replace an iterator at its end, and say that the epoch continues."""

    def __init__(self, epoch_itr) -> None:
        self._epoch_itr = epoch_itr

    def __getattr__(self, name):
        return getattr(self._epoch_itr, name)

    def end_of_epoch(self) -> bool:
        return False


def patch(module):
    @wrap(module)
    def save_checkpoint(original, cfg, trainer, epoch_itr, val_loss):
        saved = original(cfg, trainer, epoch_itr, val_loss)
        every = cfg.save_interval_updates
        if every > 0 and epoch_itr.end_of_epoch() and trainer.get_num_updates() % every == 0:
            numbered_only = copy.deepcopy(cfg)
            numbered_only.no_last_checkpoints = True
            # without a loss it is no candidate for the best ones, which are written already
            original(numbered_only, trainer, WithinEpoch(epoch_itr), None)
        return saved
