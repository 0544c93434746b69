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
from embinit_fairseq.lr_schedulers import polynomial_decay_epochs as module


class Optimizer(FairseqOptimizer):
    def __init__(self):
        self.set_lr(123.0)

    def get_lr(self):
        return self.lr

    def set_lr(self, lr):
        self.lr = lr


def schedule_with(**options):
    values = {"max_epoch": 0, "max_update": 0, "update_freq": [1], "skip_remainder_batch": False, **options}
    return module.PolynomialDecayEpochs(module.PolynomialDecayEpochsConfig(lr=[0.5], **values), Optimizer())


def iterator(batches, epoch=1, workers=1, used=0, skip=False):
    """fairseq's, `used` batches into an epoch."""
    numbers, dataset = [[n] for n in range(batches)], torch.utils.data.TensorDataset(torch.arange(100))
    found = EpochBatchIterator(dataset, list, numbers, num_shards=workers, epoch=epoch, skip_remainder_batch=skip)
    if used:
        found.load_state_dict({"epoch": epoch, "iterations_in_epoch": used})
    return found


def told(schedule, updates, epoch=1, used=0, batches=10, sharded=False):
    """The schedule, told what fairseq has made of the iterator and the trainer."""
    task = SimpleNamespace(has_sharded_data=lambda split: sharded)
    tell(schedule, iterator(batches, epoch, used=used), SimpleNamespace(get_num_updates=lambda: updates, task=task))
    return schedule


def rates(schedule, updates):
    """The rate with which each update is made: set after the update before it."""
    schedule.step_begin_epoch(1)
    return [schedule.step_update(update) for update in range(updates)]


def planned(warmup, updates, end=0.0, power=1.0, peak=0.5):
    """Linear from 0 to the peak, then down to the end."""
    up = [peak * update / warmup for update in range(warmup)]
    down = [(1 - (n - warmup) / (updates - warmup)) ** power for n in range(warmup, updates)]
    return pytest.approx(up + [end + (peak - end) * share for share in down])


@pytest.mark.parametrize(
    ("warmup", "updates", "options"),
    [
        (5, 21, {"max_epoch": 3, "warmup_ratio": 0.25, "end_learning_rate": 0.1, "power": 2.0}),  # int(21 * 0.25)
        (4, 21, {"max_epoch": 3, "warmup_ratio": 0.2, "max_update": 100}),
        (2, 11, {"max_epoch": 3, "warmup_ratio": 0.2, "update_freq": [1, 4]}),
        (1, 10, {"max_update": 10, "warmup_ratio": 0.06}),
        (4, 10, {"max_update": 10, "warmup_updates": 4}),
        (0, 1, {"max_update": 1, "warmup_ratio": 0.5}),  # the only update must not have the rate 0
    ],
    ids=str,
)
def test_rates_rise_and_fall_over_all_updates_whichever_ends_first(warmup, updates, options):
    schedule, end = told(schedule_with(**options), 0, batches=7), options.get("end_learning_rate", 0.0)
    assert rates(schedule, updates) == planned(warmup, updates, end, options.get("power", 1.0))
    assert schedule.step_update(updates) == schedule.optimizer.get_lr() == end


@settings(deadline=None, max_examples=60)
@given(
    batches=st.integers(2, 30),
    workers=st.integers(1, 3),
    start=st.tuples(st.integers(1, 3), st.integers(0, 19)) | st.none(),
    update_freq=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    skip=st.booleans(),
)
def test_as_many_updates_as_fairseq_makes(batches, workers, start, update_freq, skip):
    """Of three epochs, or from a place within one; counted with fairseq's own iterators, as its training uses them."""
    length = len(iterator(batches, workers=workers, skip=skip))
    epoch, used = start or (1, 0)
    used, update_freq = min(used, length - 1), update_freq[:1] if used else update_freq
    made = 0
    for number in range(epoch, 4):
        itr = iterator(batches, number, workers, used if number == epoch else 0, skip)
        group = update_freq[min(number, len(update_freq)) - 1]
        groups = GroupedIterator(itr.next_epoch_itr(shuffle=False), group, skip_remainder_batch=skip)
        made += sum(1 for _ in groups)
    before = 100 * bool(start)
    counted = module.Counted(length, update_freq, before, epoch, used)
    assert counted.updates_in_training(3, 0, skip) == max(before + made, 1)


def started(state=None, **options):
    """A schedule of two epochs of ten batches; with a state, that of a new process, whose rate is unknown."""
    schedule = schedule_with(**{"max_epoch": 2, "warmup_ratio": 0.2, **options})
    if state is None:
        schedule.set_batches_per_epoch(10)
        schedule.step_begin_epoch(1)
    else:
        schedule.load_state_dict(state)
        schedule.step(2)
        assert schedule.step_update(15) == 123.0  # the optimizer's stays
    return schedule


@pytest.mark.parametrize("used", [0, 5])
@pytest.mark.parametrize("kind", ["", "of an earlier version", "of shards of several lengths"])
def test_a_continued_run_keeps_its_plan(used, kind, caplog):
    state = {"best": None, "batches_per_epoch": 10} if "earlier" in kind else started().state_dict()
    second = told(started(state), 10 + used, 2, used, *((14, True) if "shards" in kind else (10, False)))
    second.step(2)
    told(second, 12, 3, batches=12)  # later epochs change nothing
    assert rates(second, 20) == planned(4, 20)
    assert second.state_dict()["counted"] == started().state_dict()["counted"]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("options", "batches", "left", "said"),
    [
        # of five groups of two fairseq takes three for used
        ({"update_freq": [2]}, 10, 2, "10 batches and --update-freq 1; now it is 10 and 2"),
        ({}, 20, 15, "10 batches and --update-freq 1; now it is 20 and 1"),
        ({"max_update": 17}, 20, 2, "the training ends after 17"),
    ],
)
def test_another_epoch_is_counted_from_where_the_run_is(options, batches, left, said, caplog):
    """15 updates were made; of the second epoch 5 of 10 batches, or of 20 that are half as large."""
    second = told(started(started().state_dict(), **options), 15, 2, 5, batches)
    second.step(2)
    assert said in caplog.text
    assert second.step_update(15) == planned(int(0.2 * (15 + left)), 15 + left).expected[15]
    third = told(started(second.state_dict(), **options), 16, 2, 6, batches)  # keeps the new plan
    assert rates(third, 15 + left) == rates(second, 15 + left) == planned(int(0.2 * (15 + left)), 15 + left)


def test_bad_options_and_data_without_a_length_are_named():
    for options, message in (
        ({"warmup_ratio": 1.0}, "--warmup-ratio 1.0: must be at least 0 and below 1"),
        ({"warmup_updates": -1}, "--warmup-updates -1: must be 0 or a positive number"),
        ({"power": float("inf")}, "--power inf"),
        ({"end_learning_rate": -1e-5}, "--end-learning-rate -1e-05"),
        ({"max_epoch": 0}, "give --max-epoch or --max-update"),
        ({"warmup_ratio": 0.1, "warmup_updates": 5}, "--warmup-updates 5 say the same twice: drop one"),
    ):
        with pytest.raises(OptionError, match=message):
            schedule_with(**{"max_epoch": 1, **options})
    tell(schedule_with(max_update=2), SimpleNamespace(), None)
    with pytest.raises(OptionError, match="--max-update instead of --max-epoch"):
        tell(schedule_with(max_epoch=2), SimpleNamespace(), None)
