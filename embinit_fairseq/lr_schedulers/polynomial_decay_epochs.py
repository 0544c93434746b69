"""`--lr-scheduler polynomial_decay_epochs`: fairseq's polynomial_decay for a training whose length is given in epochs.

polynomial_decay must be told the number of updates and of warm-up updates. Here they follow from `--max-epoch` (or
`--max-update`) and `--warmup-ratio`: with U updates in all, int(U * ratio) of them, at least 1, are warm-up. Ke et al.
2021 fine-tune with `--warmup-ratio 0.06`. Their fork of fairseq forgets --update-freq when it counts updates.

The length of an epoch becomes known when fairseq has made the first training iterator (hooks/wraps.py). It is
kept in the checkpoint: a run that is continued follows the schedule it began with. If an epoch has another length by
then (--batch-size, --update-freq, workers, data), the updates that are left are counted anew from where the run is.
"""

# no `from __future__ import annotations`: fairseq reads the types of the fields, not their names
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, List, Optional  # noqa: UP035  fairseq recognises lists by the name of typing's

from fairseq.dataclass import FairseqDataclass
from fairseq.optim.lr_scheduler import FairseqLRScheduler, register_lr_scheduler
from fairseq.optim.lr_scheduler.polynomial_decay_schedule import (
    PolynomialDecayLRSchedule,
    PolynomialDecayLRScheduleConfig,
)
from omegaconf import II

from embinit_fairseq.errors import OptionError
from embinit_fairseq.hooks import wraps

logger = logging.getLogger(__name__)


@dataclass
class PolynomialDecayEpochsConfig(FairseqDataclass):
    """Options of the schedule; the fields without a help text are fairseq's own options."""

    warmup_ratio: Optional[float] = field(
        default=None, metadata={"help": "share of all updates, from 0 to below 1, in which the learning rate rises"}
    )
    warmup_updates: int = field(default=0, metadata={"help": "number of such updates, instead of --warmup-ratio"})
    end_learning_rate: float = field(default=0.0, metadata={"help": "learning rate at the end of the training"})
    power: float = field(default=1.0, metadata={"help": "exponent of the decay; 1: linear"})
    lr: List[float] = II("optimization.lr")  # noqa: UP006
    max_epoch: int = II("optimization.max_epoch")
    max_update: int = II("optimization.max_update")
    update_freq: List[int] = II("optimization.update_freq")  # noqa: UP006
    skip_remainder_batch: Optional[bool] = II("optimization.skip_remainder_batch")


@dataclass
class Counted:
    """From what the number of updates of a training follows: what was done when it was counted, and the epochs after.

    batches: of one worker in an epoch. update_freq: one value per epoch, the last for all further ones. updates, epoch,
    used: updates made before, the epoch they ended in (from 1), and how many of its batches were used.
    """

    batches: int
    update_freq: Sequence[int]
    updates: int = 0
    epoch: int = 1
    used: int = 0

    def updates_in_training(self, max_epoch: int, max_update: int, skip_remainder_batch: bool) -> int:
        """The number of updates after which fairseq stops.

        max_update: 0: none. skip_remainder_batch: fairseq leaves out an epoch's last batch, and groups that are not
        full; where it continues within an epoch, as many batches again as were used. As it does there, groups that were
        begun count as used.
        """
        updates, used = self.updates, self.used
        for epoch in range(self.epoch, max_epoch + 1):
            group = self.update_freq[min(epoch, len(self.update_freq)) - 1]
            groups = (self.batches - used - 1) // group if skip_remainder_batch else math.ceil(self.batches / group)
            updates += max(0, groups - math.ceil(used / group))
            used = 0
        return max(1, min(updates, max_update) if max_update > 0 else updates)


@register_lr_scheduler("polynomial_decay_epochs", dataclass=PolynomialDecayEpochsConfig)
class PolynomialDecayEpochs(FairseqLRScheduler):
    """Hands over to fairseq's PolynomialDecayLRSchedule as soon as the number of updates is known."""

    def __init__(self, cfg: PolynomialDecayEpochsConfig, optimizer: Any) -> None:
        super().__init__(cfg, optimizer)
        check_options(cfg)
        self.counted: Optional[Counted] = None  # the count that holds; before the start that of a checkpoint
        self.schedule: Optional[PolynomialDecayLRSchedule] = None
        self._told: Optional[tuple[int, Callable[[], tuple[int, int, int]]]] = None
        if not self.needs_epoch_length:
            self._start(cfg.max_update)

    @property
    def needs_epoch_length(self) -> bool:
        """Whether --max-epoch decides about the number of updates, maybe together with --max-update."""
        return self.cfg.max_epoch > 0

    def set_batches_per_epoch(
        self, batches: int, position: Callable[[], tuple[int, int, int]] = lambda: (0, 1, 0)
    ) -> None:
        """The batches of each worker in an epoch, before --update-freq groups them. The first number holds.

        position: (updates made, epoch from 1, batches of it that were used); it is asked when the rate is next needed,
        since fairseq restores the place in an epoch after it has made the iterator.
        """
        if self.schedule is None and self.needs_epoch_length:
            self._told = (batches, position)

    def _plan(self) -> None:
        """Count the updates, once the length of an epoch is known."""
        if self._told is None:
            return
        (batches, position), self._told = self._told, None
        update_freq, before = list(self.cfg.update_freq), self.counted
        counted = before
        if counted is None or (counted.batches, counted.update_freq) != (batches, update_freq):
            counted = self.counted = Counted(batches, update_freq, *position())
        updates = counted.updates_in_training(
            self.cfg.max_epoch, self.cfg.max_update, bool(self.cfg.skip_remainder_batch)
        )
        if before is not None and before != counted:
            logger.warning(
                "the learning rates were planned for epochs of %d batches and --update-freq %s; now it is %d and %s: "
                "the updates that are left were counted anew, the training ends after %d",
                *(before.batches, ",".join(map(str, before.update_freq))),
                *(batches, ",".join(map(str, update_freq)), updates),
            )
        self._start(updates)

    def _start(self, updates: int) -> None:
        warmup = self.cfg.warmup_updates
        if self.cfg.warmup_ratio:
            # the rate of the first warm-up update is 0: a training of one update must not have one
            warmup = min(max(1, int(updates * self.cfg.warmup_ratio)), updates - 1)
        logger.info("learning rate: %d updates, %d of them warm-up", updates, warmup)
        self.schedule = PolynomialDecayLRSchedule(
            PolynomialDecayLRScheduleConfig(
                warmup_updates=warmup,
                end_learning_rate=self.cfg.end_learning_rate,
                power=self.cfg.power,
                total_num_update=updates,
                lr=list(self.cfg.lr),
            ),
            self.optimizer,
        )

    def state_dict(self) -> dict[str, Any]:
        """What a continued run needs."""
        return {**super().state_dict(), "counted": None if self.counted is None else dict(vars(self.counted))}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the state; that of another schedule lacks the length of the epoch, which is then measured."""
        super().load_state_dict(state_dict)
        if state_dict.get("counted"):
            self.counted = Counted(**state_dict["counted"])
        elif state_dict.get("batches_per_epoch"):  # earlier checkpoints hold no more
            self.counted = Counted(state_dict["batches_per_epoch"], list(self.cfg.update_freq))

    def step(self, epoch: int, val_loss: Optional[float] = None) -> None:
        """An epoch has ended, or a checkpoint was loaded."""
        self._plan()
        super().step(epoch, val_loss)

    def step_begin_epoch(self, epoch: int) -> float:
        """The rate at the beginning of an epoch."""
        self._plan()
        if self.schedule is None:
            raise OptionError(
                "--lr-scheduler polynomial_decay_epochs was not told how many batches an epoch has; it works with "
                "fairseq-train. Elsewhere call its set_batches_per_epoch, or give --max-update instead of --max-epoch"
            )
        return self.schedule.step_begin_epoch(epoch)

    def step_update(self, num_updates: int) -> float:
        """The rate after `num_updates` updates; left as it is as long as the length of the epoch is unknown."""
        return self.optimizer.get_lr() if self.schedule is None else self.schedule.step_update(num_updates)


def check_options(cfg: PolynomialDecayEpochsConfig) -> None:
    """Raise OptionError for options that make no schedule."""
    if cfg.warmup_ratio is not None and not 0 <= cfg.warmup_ratio < 1:
        raise OptionError(f"--warmup-ratio {cfg.warmup_ratio}: must be at least 0 and below 1, such as 0.06")
    if cfg.warmup_ratio is not None and cfg.warmup_updates > 0:
        raise OptionError(
            f"--warmup-ratio {cfg.warmup_ratio} and --warmup-updates {cfg.warmup_updates} say the same twice: drop one"
        )
    for name in ("warmup_updates", "end_learning_rate", "power"):
        if not 0 <= getattr(cfg, name) < math.inf:
            raise OptionError(f"--{name.replace('_', '-')} {getattr(cfg, name)}: must be 0 or a positive number")
    if cfg.max_epoch <= 0 and cfg.max_update <= 0:
        raise OptionError(
            "--lr-scheduler polynomial_decay_epochs needs the length of the training: give --max-epoch or --max-update"
        )


wraps.tell_epoch_lengths()
