"""--lr-scheduler polynomial_decay_epochs: the number of updates, the rates, what is refused."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch
from fairseq.data.iterators import EpochBatchIterator, GroupedIterator
from fairseq.optim import FairseqOptimizer
from hypothesis import given, settings
from hypothesis import strategies as st

from embinit_fairseq.errors import OptionError
from embinit_fairseq.hooks.wraps import tell
from embinit_fairseq.lr_schedulers.polynomial_decay_epochs import (
    Counted,
    PolynomialDecayEpochs,
    PolynomialDecayEpochsConfig,
)


class Optimizer(FairseqOptimizer):
    """Remembers its rate."""

    def __init__(self, lr):
        self.lr = lr

    def get_lr(self):
        return self.lr

    def set_lr(self, lr):
        self.lr = lr


def warnings_in(caplog):
    """A test before may have left a logger that also takes what is told."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def schedule_with(lr=(0.5,), **options):
    values = {"max_epoch": 0, "max_update": 0, "update_freq": [1], "skip_remainder_batch": False, **options}
    cfg = PolynomialDecayEpochsConfig(lr=list(lr), **values)
    return PolynomialDecayEpochs(cfg, Optimizer(123.0))


def at(updates, epoch=1, used=0, batches=7, sharded=False):
    """What fairseq has made of the iterator and the trainer, `used` batches into an epoch."""
    epoch_itr = EpochBatchIterator(Numbers(), list, [[n] for n in range(batches)], epoch=epoch)
    if used:
        epoch_itr.load_state_dict({"epoch": epoch, "iterations_in_epoch": used})
    task = SimpleNamespace(has_sharded_data=lambda split: sharded)
    return epoch_itr, SimpleNamespace(get_num_updates=lambda: updates, task=task)


def rates(schedule, updates):
    """The rate with which each update is made: set after the update before it."""
    schedule.step_begin_epoch(1)
    return [schedule.step_update(update) for update in range(updates)]


def expected_rates(peak, warmup, updates, end=0.0, power=1.0):
    """Linear from 0 to the peak, then down to the end."""
    up = [peak * update / warmup for update in range(warmup)]
    return up + [end + (peak - end) * (1 - (n - warmup) / (updates - warmup)) ** power for n in range(warmup, updates)]


@pytest.mark.parametrize(("end", "power"), [(0.0, 1.0), (0.1, 2.0)])
def test_rates_rise_and_fall_as_said(end, power):
    schedule = schedule_with(max_epoch=3, warmup_ratio=0.25, end_learning_rate=end, power=power)
    schedule.set_batches_per_epoch(7)
    assert rates(schedule, 21) == pytest.approx(expected_rates(0.5, 5, 21, end, power))  # int(21 * 0.25)
    assert schedule.step_update(21) == end
    assert schedule.optimizer.get_lr() == end


def test_length_from_updates_epochs_or_whichever_ends_first():
    for options, updates in (
        ({"max_update": 10}, 10),
        ({"max_epoch": 3}, 21),
        ({"max_epoch": 3, "max_update": 10}, 10),
        ({"max_epoch": 3, "max_update": 100}, 21),
        ({"max_epoch": 3, "update_freq": [2]}, 12),
        ({"max_epoch": 3, "update_freq": [1, 4]}, 11),
    ):
        schedule = schedule_with(warmup_ratio=0.2, **options)
        tell(schedule, *at(0))
        assert rates(schedule, updates) == pytest.approx(expected_rates(0.5, int(0.2 * updates), updates)), options


def test_warm_up_is_one_update_at_least_and_none_only_if_asked_for():
    for options, warmup in (
        ({"warmup_ratio": 0.06}, 1),
        ({"warmup_ratio": 0.0}, 0),
        ({"warmup_updates": 4}, 4),
        ({}, 0),
    ):
        schedule = schedule_with(max_update=10, **options)
        assert rates(schedule, 10) == pytest.approx(expected_rates(0.5, warmup, 10))
    assert rates(schedule_with(max_update=1, warmup_ratio=0.5), 1) == [0.5]  # the only update must not have the rate 0


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        return index


@settings(deadline=None, max_examples=30)
@given(
    batches=st.integers(2, 30),
    epochs=st.integers(1, 3),
    update_freq=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    workers=st.integers(1, 3),
    skip=st.booleans(),
)
def test_as_many_updates_as_fairseq_makes(batches, epochs, update_freq, workers, skip):
    """Counted with fairseq's own iterators, as its training loop uses them."""
    made = 0
    for epoch in range(1, epochs + 1):
        itr = EpochBatchIterator(
            Numbers(), list, [[n] for n in range(batches)], num_shards=workers, epoch=epoch, skip_remainder_batch=skip
        )
        length = len(itr)
        group = update_freq[min(epoch, len(update_freq)) - 1]
        groups = GroupedIterator(itr.next_epoch_itr(shuffle=False), group, skip_remainder_batch=skip)
        made += sum(1 for _ in groups)
    assert Counted(length, update_freq).updates_in_training(epochs, 0, skip) == max(made, 1)


@settings(deadline=None, max_examples=30)
@given(
    batches=st.integers(2, 20),
    workers=st.integers(1, 2),
    epoch=st.integers(1, 3),
    used=st.integers(0, 19),
    group=st.integers(1, 5),
    skip=st.booleans(),
)
def test_as_many_updates_as_are_left_within_an_epoch(batches, workers, epoch, used, group, skip):
    """The same, from a place within an epoch to the end of the third."""

    def iterator(epoch):
        numbers = [[n] for n in range(batches)]
        return EpochBatchIterator(Numbers(), list, numbers, num_shards=workers, epoch=epoch, skip_remainder_batch=skip)

    first, left = iterator(epoch), 0
    used = min(used, len(first) - 1)
    first.load_state_dict({"epoch": epoch, "iterations_in_epoch": used})
    for itr in (first, *map(iterator, range(epoch + 1, 4))):
        groups = GroupedIterator(itr.next_epoch_itr(shuffle=False), group, skip_remainder_batch=skip)
        left += sum(1 for _ in groups)
    counted = Counted(len(first), [group], updates=100, epoch=epoch, used=used)
    assert counted.updates_in_training(3, 0, skip) == 100 + left


def started(**options):
    """A schedule of two epochs of ten batches, and the rates it planned."""
    schedule = schedule_with(max_epoch=2, warmup_ratio=0.2, **options)
    schedule.set_batches_per_epoch(10)
    return schedule, rates(schedule, 20)


def continued(first, **options):
    """A new process's schedule with the state of `first`; the rate is unknown as yet, the optimizer's stays."""
    second = schedule_with(**{"max_epoch": 2, "warmup_ratio": 0.2, **options})
    assert second.step_update(0) == 123.0
    second.load_state_dict(first.state_dict())
    second.step(2)
    assert second.step_update(15) == 123.0
    return second


@pytest.mark.parametrize("used", [0, 5])
def test_a_continued_run_keeps_its_plan(used, caplog):
    first, planned = started()
    second = continued(first)
    with caplog.at_level(logging.WARNING):
        tell(second, *at(10 + used, 2, used, batches=10))
        second.step(2)
        tell(second, *at(12, 3, batches=12))  # later epochs change nothing
    assert rates(second, 20) == planned
    assert second.state_dict() == first.state_dict()
    assert not warnings_in(caplog)


def test_another_epoch_is_counted_from_where_the_run_is(caplog):
    """15 updates were made; of the second epoch 5 of 10 batches, or of 20 that are half as large.

    Of five groups of two fairseq takes three for used.
    """
    for options, batches, left, told in (
        ({"update_freq": [2]}, 10, 2, "10 batches and --update-freq 1; now it is 10 and 2"),
        ({}, 20, 15, "10 batches and --update-freq 1; now it is 20 and 1"),
        ({"max_update": 17}, 20, 2, "the training ends after 17"),
    ):
        second = continued(started()[0], **options)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            tell(second, *at(15, 2, 5, batches=batches))
            second.step(2)
        assert told in caplog.text
        updates = 15 + left
        expected = expected_rates(0.5, int(0.2 * updates), updates)
        assert second.step_update(15) == pytest.approx(expected[15])
        assert rates(second, updates) == pytest.approx(expected)
        third = continued(second, **options)  # keeps the new plan, without a warning
        caplog.clear()
        tell(third, *at(16, 2, 6, batches=batches))
        assert rates(third, updates) == pytest.approx(expected)
        assert "anew" not in caplog.text


def test_shards_of_another_length_change_nothing(caplog):
    first, planned = started()
    second = continued(first)
    tell(second, *at(10, 2, batches=14, sharded=True))
    assert rates(second, 20) == planned
    assert not warnings_in(caplog)


def test_a_new_schedule_counts_from_where_the_run_is():
    """As with --reset-lr-scheduler, or after another schedule: 15 updates were made, one epoch of ten is left."""
    schedule = schedule_with(max_epoch=2, warmup_ratio=0.2)
    tell(schedule, *at(15, 2, batches=10))
    assert rates(schedule, 25) == pytest.approx(expected_rates(0.5, 5, 25))


def test_the_state_of_an_earlier_version_is_taken():
    planned = started()[1]
    second = schedule_with(max_epoch=2, warmup_ratio=0.2)
    second.load_state_dict({"best": None, "batches_per_epoch": 10})
    tell(second, *at(15, 2, 5, batches=10))
    assert rates(second, 20) == planned


def test_the_state_of_another_schedule_is_taken():
    schedule = schedule_with(max_epoch=2)
    schedule.load_state_dict({"best": 3.0})
    schedule.set_batches_per_epoch(10)
    assert schedule.best == 3.0
    assert rates(schedule, 20) == pytest.approx(expected_rates(0.5, 0, 20))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"warmup_ratio": 1.0, "max_epoch": 1}, "--warmup-ratio 1.0: must be at least 0 and below 1"),
        ({"warmup_ratio": -0.1, "max_epoch": 1}, "--warmup-ratio -0.1"),
        ({"warmup_ratio": float("nan"), "max_epoch": 1}, "--warmup-ratio nan"),
        ({"warmup_updates": -1, "max_epoch": 1}, "--warmup-updates -1: must be 0 or a positive number"),
        ({"power": -1.0, "max_epoch": 1}, "--power -1.0: must be 0 or a positive number"),
        ({"power": float("inf"), "max_epoch": 1}, "--power inf"),
        ({"end_learning_rate": -1e-5, "max_epoch": 1}, "--end-learning-rate -1e-05: must be 0 or a positive number"),
        ({"end_learning_rate": float("nan"), "max_epoch": 1}, "--end-learning-rate nan"),
        ({"warmup_ratio": 0.1}, "give --max-epoch or --max-update"),
        ({"warmup_ratio": 0.1, "warmup_updates": 5, "max_epoch": 1}, "--warmup-updates 5 say the same twice: drop one"),
    ],
    ids=str,
)
def test_bad_options_are_named(options, message):
    with pytest.raises(OptionError, match=message):
        schedule_with(**options)


def test_data_without_a_length():
    stream = SimpleNamespace()
    with pytest.raises(OptionError, match="give --max-update instead of --max-epoch"):
        tell(schedule_with(max_epoch=2), stream, None)
    tell(schedule_with(max_update=2), stream, None)
    with pytest.raises(OptionError, match="was not told how many batches"):
        schedule_with(max_epoch=2).step_begin_epoch(1)
