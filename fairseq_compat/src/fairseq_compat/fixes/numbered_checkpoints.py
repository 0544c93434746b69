"""Checkpoints by the number of updates at the end of an epoch.

Symptom: with ``--save-interval-updates N`` the checkpoint ``checkpoint_EPOCH_UPDATES.pt`` is missing where the number
    of updates falls on the last one of an epoch, and older ones are not removed there.
Versions: all.
Where: fairseq/checkpoint_utils.py:65 and :136 (``not end_of_epoch and ...``).
Remedy: there fairseq's own function is called once more, as within an epoch and without its other checkpoints. The
    state of the data in the file is that of an epoch's end, so that a run goes on from it with the next epoch.
Upstream: not reported.
Can go: with a fairseq that saves by updates at every update.
"""

from __future__ import annotations

import copy
import functools
from contextlib import contextmanager

REASON = "--save-interval-updates skips the last update of an epoch"
BROKEN = r"not end_of_epoch\s+and cfg\.save_interval_updates"
MENDED = r"def save_checkpoint\("


def needed() -> bool:
    return True


class WithinEpoch:
    """An iterator that is at its end, but does not say so."""

    def __init__(self, epoch_itr) -> None:
        self._epoch_itr = epoch_itr

    def __getattr__(self, name):
        return getattr(self._epoch_itr, name)

    def end_of_epoch(self) -> bool:
        return False


@contextmanager
def patching(module):
    yield
    original = module.save_checkpoint

    @functools.wraps(original)
    def save_checkpoint(cfg, trainer, epoch_itr, val_loss):
        saved = original(cfg, trainer, epoch_itr, val_loss)
        every = cfg.save_interval_updates
        if every > 0 and epoch_itr.end_of_epoch() and trainer.get_num_updates() % every == 0:
            numbered_only = copy.deepcopy(cfg)
            numbered_only.no_last_checkpoints = True
            # without a loss it is no candidate for the best ones, which are written already
            original(numbered_only, trainer, WithinEpoch(epoch_itr), None)
        return saved

    module.save_checkpoint = save_checkpoint
