"""A continued training differs from an uninterrupted one, as in --patience and --max-update.

Symptom: (a) ``--patience`` counts from the start of the process. (b) ``--lr-scheduler reduce_lr_on_plateau`` forgets
    the validation at the end of the last epoch, and the count of ``--lr-patience``. (c) A training that has reached
    ``--max-update``, ``--patience`` or ``--stop-time-hours`` makes one more update, or epoch, if it is started again.
    (d) The validation with which ``--max-update`` ends within an epoch counts for ``--patience``. (e) With
    ``--skip-remainder-batch`` an epoch that is continued loses as many batches as it had. (f) ``--ema-update-freq``
    counts from 0. (g) multilingual_masked_lm, multilingual_denoising and multilingual_language_modeling shuffle by the
    epoch of the start, and ``--fix-batches-to-gpus`` with cached data has other batches. (h) What is drawn by numpy,
    such as the layers that wav2vec 2.0 drops, differs. (i) In the log ``wall`` is 0, and ``train_inner`` averages over
    fewer updates. (j) With another ``--best-checkpoint-metric`` the best value is that of the old metric. (k) In a
    process that trains twice the second training has the best value of the first. (l) With ``--restore-file`` of a
    checkpoint that has ``--max-epoch`` epochs nothing is trained, without a word.
Where: fairseq_cli/train.py:217 (``should_stop_early``), :333 (``validate_and_save``); fairseq/checkpoint_utils.py:256;
    fairseq/trainer.py:386 (``state_dict``), :457 (``load_checkpoint``), :677; fairseq/data/iterators.py:449, :504;
    fairseq/optim/lr_scheduler/reduce_lr_on_plateau.py:114; fairseq/models/ema/ema.py:96.
Remedy: checkpoints hold this state in ``extra_state["paused"]``. It is used as the best value is: not with
    ``--reset-optimizer`` or ``--reset-meters``, that of the learning rate not with ``--reset-lr-scheduler``. fairseq
    without this fix ignores it; checkpoints without it are continued as before.
Upstream: fairseq issue 3531, pull request 4071 (both closed).
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable
from typing import Any

from fairseq_compat.patches import wrap

BROKEN = (
    r"should_stop_early\.num_runs|def load_checkpoint\(cfg|def cumulative_training_time\("
    r"|class EpochBatchIterator\("
)
#: name in the extra state of a checkpoint
KEY = "paused"
logger = logging.getLogger(__name__)


class State:
    """Hold the state of this process that fairseq does not save.

    Attributes:
        stop_early: fairseq's function, whose attributes are the state of ``--patience``.
        is_due: True if the validation after this update does not depend on the end of the training.
        end_of_epoch: True if this update is the last one of its epoch.
        epoch_loss: loss of the validation at the end of the epoch, while its checkpoint is written.
        finished: why the training has no more updates to make.
        fix_batches_to_gpus: the option, which fairseq ignores when it continues within an epoch.
    """

    stop_early: Callable | None = None
    is_due = end_of_epoch = True
    epoch_loss: float | None = None
    finished: str | None = None
    fix_batches_to_gpus = False


# ---- The training ---------------------------------------------------------------------------------------------------


def patch_training(module) -> None:
    """Let a validation count only if it was due, and a training that has ended make no more updates."""

    @wrap(module)
    def train(original, *args, **kwargs):
        if State.finished is None:
            return original(*args, **kwargs)
        return [None], True

    @wrap(module)
    def validate_and_save(original, cfg, trainer, task, epoch_itr, valid_subsets, end_of_epoch):
        State.is_due = is_due(cfg, trainer.get_num_updates(), epoch_itr.epoch, end_of_epoch)
        State.end_of_epoch = end_of_epoch
        try:
            return original(cfg, trainer, task, epoch_itr, valid_subsets, end_of_epoch)
        finally:
            State.epoch_loss = None

    @wrap(module)
    def should_stop_early(original, cfg, valid_loss):
        if not State.is_due:
            return False
        if State.end_of_epoch:
            State.epoch_loss = valid_loss
        return original(cfg, valid_loss)

    State.stop_early = should_stop_early


def is_due(cfg, updates: int, epoch: int, end_of_epoch: bool) -> bool:
    """Return True if fairseq validates after this update, whether or not the training ends with it."""
    save, data = cfg.checkpoint, cfg.dataset
    by_saves = (data.validate_interval, epoch) if end_of_epoch else (save.save_interval_updates, updates)
    return any(every > 0 and at % every == 0 for every, at in (by_saves, (data.validate_interval_updates, updates)))


def reached(cfg, trainer, next_epoch: int) -> str | None:
    """Return why a continued training has nothing to do; None if it has."""
    updates, options = trainer.get_num_updates(), cfg.optimization
    hours, runs = trainer.cumulative_training_time() / 3600, getattr(State.stop_early, "num_runs", 0)
    if 0 < (options.max_epoch or 0) < next_epoch:
        return f"the checkpoint has {next_epoch - 1} epochs, --max-epoch is {options.max_epoch}"
    if updates == 0:
        return None
    if 0 < (options.max_update or 0) <= updates:
        return f"the checkpoint has {updates} updates, --max-update is {options.max_update}"
    if 0 < options.stop_time_hours < hours:
        return f"the training took {hours:.2f} hours, --stop-time-hours is {options.stop_time_hours}"
    if 0 < cfg.checkpoint.patience <= runs:
        return f"the last {runs} validations were no improvement, --patience is {cfg.checkpoint.patience}"
    return None


def patch_checkpoints(module) -> None:
    """Decide whether the training of the loaded checkpoint has ended."""

    @wrap(module)
    def load_checkpoint(original, cfg, trainer, **kwargs):
        vars(module.save_checkpoint).pop("best", None)
        State.finished = None
        extra_state, epoch_itr = original(cfg, trainer, **kwargs)
        if extra_state is not None and not extra_state.get("stopped"):
            State.finished = reached(trainer.cfg, trainer, epoch_itr.next_epoch_idx)
        if State.finished is not None:
            logger.info(
                f"no more updates: {State.finished}; raise it to go on, or start a training from these parameters with "
                "--finetune-from-model CHECKPOINT and another --save-dir"
            )
        if extra_state is not None and epoch_itr.iterations_in_epoch > 0:
            restore_random(trainer, extra_state.get(KEY, {}))  # the example batch of the iterator may have drawn
        return extra_state, epoch_itr


# ---- The state ------------------------------------------------------------------------------------------------------


def patch_trainer(module) -> None:
    """Save the state with each checkpoint, and restore it."""
    metrics = module.metrics

    @wrap(module.Trainer)
    def state_dict(original, self):
        content = original(self)
        content["extra_state"][KEY] = state_of(self)
        return content

    @wrap(module.Trainer)
    def load_checkpoint(
        original, self, filename, reset_optimizer=False, reset_lr_scheduler=False, optimizer_overrides=None,
        reset_meters=False,
    ):  # fmt: skip
        default = metrics.get_meters("default")
        clear_patience()
        State.fix_batches_to_gpus = self.cfg.distributed_training.fix_batches_to_gpus
        extra_state = original(self, filename, reset_optimizer, reset_lr_scheduler, optimizer_overrides, reset_meters)
        metrics._aggregators["default"] = default  # with the time since the start of this process
        if extra_state is None:
            return None
        content = extra_state.get(KEY, {})
        if extra_state["train_iterator"].get("iterations_in_epoch") == 0 and not reset_meters:
            with contextlib.suppress(KeyError):  # kinds of meters that a plugin brings
                metrics.load_state_dict({"train_inner": extra_state["metrics"]["train_inner"]})
        if content and not reset_optimizer:
            restore(self, extra_state, reset_lr_scheduler, reset_meters)
        return extra_state

    @wrap(module.Trainer)
    def get_train_iterator(original, self, epoch, *args, **kwargs):
        if not is_loaded_once(self.task):
            return original(self, epoch, *args, **kwargs)
        load = self.task.load_dataset
        self.task.load_dataset = lambda *words, **options: load(*words, **{**options, "epoch": 1})
        try:
            return original(self, epoch, *args, **kwargs)
        finally:
            del self.task.load_dataset


def is_loaded_once(task) -> bool:
    """Return True if a training loads its data once, in the first epoch."""
    from fairseq.tasks import FairseqTask, LegacyFairseqTask

    plain = (FairseqTask.has_sharded_data, LegacyFairseqTask.has_sharded_data)
    return type(task).has_sharded_data in plain and not task.has_sharded_data("train")


def metric_of(trainer) -> list[Any]:
    """Return the metric of the best checkpoint, and whether more is better."""
    options = trainer.cfg.checkpoint
    return [options.best_checkpoint_metric, options.maximize_best_checkpoint_metric]


def plateau_of(trainer) -> Any:
    """Return PyTorch's scheduler of ``reduce_lr_on_plateau``; None with other schedules."""
    scheduler = getattr(trainer.lr_scheduler, "lr_scheduler", None)
    return scheduler if hasattr(scheduler, "num_bad_epochs") else None


def clear_patience() -> None:
    """Forget earlier validations, also of another training in this process."""
    if State.stop_early is not None:
        for name in ("best", "num_runs"):
            vars(State.stop_early).pop(name, None)


def state_of(trainer) -> dict[str, Any]:
    """Return the state that fairseq does not save."""
    stop = State.stop_early
    patience = {name: getattr(stop, name) for name in ("best", "num_runs") if hasattr(stop, name)}
    state: dict[str, Any] = {"metric": metric_of(trainer), "patience": patience, "epoch_loss": State.epoch_loss}
    state.update(updates=trainer.get_num_updates(), seed=trainer.cfg.common.seed, random=random_state(trainer))
    plateau = plateau_of(trainer)
    if plateau is not None:
        state["num_bad_epochs"] = plateau.num_bad_epochs
    if trainer.cfg.ema.store_ema:
        state["ema_updates"] = trainer.ema.update_freq_counter
    return state


def restore(trainer, extra_state: dict[str, Any], reset_lr_scheduler: bool, reset_meters: bool) -> None:
    """Restore the state of a checkpoint; the best value of another metric is dropped."""
    state, plateau = extra_state[KEY], plateau_of(trainer)
    is_same = state["metric"] == metric_of(trainer)
    if not is_same:
        logger.info(f"--best-checkpoint-metric was {state['metric'][0]}: its best value and --patience start again")
        extra_state.pop("best", None)
    if State.stop_early is not None and is_same and not reset_meters:
        vars(State.stop_early).update(state["patience"])
    if not reset_lr_scheduler and state["updates"] == trainer.get_num_updates():  # else it has no optimizer
        if plateau is not None and not is_same:
            plateau._reset()
        elif plateau is not None:
            plateau.num_bad_epochs = state["num_bad_epochs"]
        if state["epoch_loss"] is not None and is_same:
            trainer.lr_step(extra_state["train_iterator"]["epoch"] - 1, state["epoch_loss"])
    if trainer.cfg.ema.store_ema:
        trainer.ema.update_freq_counter = state.get("ema_updates", 0)
    restore_random(trainer, state)


def random_state(trainer) -> dict[str, Any]:
    """Return the states of the global random generators as plain data."""
    import numpy
    import torch

    state: Any = numpy.random.get_state()
    name, words, *rest = state
    numbers = {"python": random.getstate(), "numpy": (name, words.tolist(), *rest), "torch": torch.get_rng_state()}
    return {**numbers, "cuda": torch.cuda.get_rng_state()} if trainer.cuda else numbers


def restore_random(trainer, state: dict[str, Any]) -> None:
    """Continue the global random generators, unless the training continues with another seed."""
    import numpy
    import torch

    if state.get("seed") != trainer.cfg.common.seed:
        return
    numbers = state["random"]
    random.setstate(numbers["python"])
    numpy.random.set_state(numbers["numpy"])
    torch.set_rng_state(numbers["torch"])
    if trainer.cuda and "cuda" in numbers:
        torch.cuda.set_rng_state(numbers["cuda"])


# ---- The data -------------------------------------------------------------------------------------------------------


def patch_batches(module) -> None:
    """Let an epoch that is continued have the batches that it would have had."""

    @wrap(module.EpochBatchIterator)
    def _get_iterator_for_epoch(original, self, epoch, shuffle, fix_batches_to_gpus=False, offset=0):
        if offset == 0:
            return original(self, epoch, shuffle, fix_batches_to_gpus, offset)
        skips, self.skip_remainder_batch = self.skip_remainder_batch, False
        try:
            iterator = original(self, epoch, shuffle, State.fix_batches_to_gpus, offset)
        finally:
            self.skip_remainder_batch = skips
        if skips and iterator is not None:
            iterator.take(len(iterator) - 1)
        return iterator


PATCHES = {
    "fairseq_cli.train": patch_training,
    "fairseq.checkpoint_utils": patch_checkpoints,
    "fairseq.trainer": patch_trainer,
    "fairseq.data.iterators": patch_batches,
}
