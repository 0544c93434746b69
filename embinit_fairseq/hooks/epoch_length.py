"""Tells a learning-rate schedule how many batches an epoch has.

fairseq builds the schedule from its options and the optimizer alone, before there is a training iterator, and hands it
no more than numbers of epochs and updates afterwards; the length of an epoch is known to the trainer only, and only
inside `Trainer.get_train_iterator`. A task could learn it, but a schedule must not need a certain task. So that method
is wrapped. Schedules without `set_batches_per_epoch` notice nothing.
"""

from __future__ import annotations

import functools
from typing import Any

from fairseq.optim.lr_scheduler import LR_SCHEDULER_REGISTRY
from fairseq.trainer import Trainer

from embinit_fairseq.errors import OptionError

_MARK = "_embinit_wrapped"


def install() -> None:
    """Wrap the method; calling it again is harmless."""
    inner = Trainer.get_train_iterator
    if getattr(inner, _MARK, False):
        return

    @functools.wraps(inner)
    def get_train_iterator(self: Trainer, *args: Any, **kwargs: Any) -> Any:
        """fairseq's iterator, after the schedule was told its length."""
        epoch_itr = inner(self, *args, **kwargs)
        name = getattr(self.cfg.lr_scheduler, "_name", None)
        # the class is asked, not the object: reading `lr_scheduler` builds the optimizer, for others too early
        if hasattr(LR_SCHEDULER_REGISTRY.get(name), "set_batches_per_epoch"):
            tell(self.lr_scheduler, epoch_itr, self)
        return epoch_itr

    setattr(get_train_iterator, _MARK, True)
    Trainer.get_train_iterator = get_train_iterator


def tell(schedule: Any, epoch_itr: Any, trainer: Trainer) -> None:
    """Give the schedule the length of an epoch; raises OptionError if it needs one and the data have none."""
    if not schedule.needs_epoch_length:
        return
    try:
        batches = len(epoch_itr)
    except (NotImplementedError, TypeError):
        raise OptionError(
            "the training data are a stream: an epoch has no known length; give --max-update instead of --max-epoch"
        ) from None
    if schedule.counted is not None and trainer.task.has_sharded_data("train"):
        batches = schedule.counted.batches  # shards differ; the first one's length counts
    schedule.set_batches_per_epoch(
        batches, lambda: (trainer.get_num_updates(), epoch_itr.epoch, epoch_itr.iterations_in_epoch)
    )
