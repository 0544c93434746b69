"""A training that is paused or killed, and continued, is the uninterrupted one, with what fairseq forgets."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace

import pytest
from fairseq_commands import kill, logged, run, script, translation

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
checkpoint_utils = pytest.importorskip("fairseq.checkpoint_utils")
train = pytest.importorskip("fairseq_cli.train")
from fairseq.data import iterators  # noqa: E402
from fairseq.logging import metrics  # noqa: E402
from fairseq.tasks import FairseqTask  # noqa: E402
from fairseq_compat.fixes import paused_trainings  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402
from training_symptoms import OneLayer, trainer_of  # noqa: E402

PLATEAU = ["--lr-scheduler", "reduce_lr_on_plateau", "--lr-patience", "1", "--lr-shrink", "0.5", "--lr", "0.3"]
OPTIONS = ["--patience", "2", *PLATEAU, "--dropout", "0.1", "--keep-best-checkpoints", "2", "--num-workers", "0"]
OPTIONS += ["--log-interval", "3"]


def trained(data: Path, folder: Path, *options: str) -> str:
    return run([*script("fairseq-train"), *translation(data, folder, *OPTIONS, *options)]).stdout


def test_killed_and_continued(pairs, tmp_path):
    """By signal 9 in the third epoch: it continues from the end of the second one."""
    whole, paused = tmp_path / "whole", tmp_path / "paused"
    uninterrupted = trained(pairs, whole, "--max-epoch", "4")
    kill(translation(pairs, paused, *OPTIONS, "--max-epoch", "4"), at_update=9)
    continued = trained(pairs, paused, "--max-epoch", "4")
    # train_inner: means over three updates, which do not end with the epoch
    for kind, prefix in (("valid", "valid_"), ("train", "train_"), ("train_inner", "")):
        for name in ("num_updates", "loss", *(["lr", "gnorm"] if kind != "valid" else [])):
            numbers = logged(continued, kind, prefix + name)
            assert numbers, name
            assert numbers == logged(uninterrupted, kind, prefix + name)[-len(numbers) :], name
    assert logged(continued, "train_inner", "num_updates")[0] == "9"
    files = sorted(path.name for path in whole.iterdir())
    assert sorted(path.name for path in paused.iterdir()) == files
    for name in files:
        one, other = (checkpoint_utils.load_checkpoint_to_cpu(str(folder / name)) for folder in (whole, paused))
        assert all(torch.equal(weight, other["model"][key]) for key, weight in one["model"].items())
        assert one["extra_state"]["best"] == other["extra_state"]["best"]
        assert one["extra_state"]["paused"]["patience"] == other["extra_state"]["paused"]["patience"]


def trainer(scheduler: str = "fixed", **checkpoint):
    """Return a trainer of a tiny model; checkpoint: options such as patience."""
    model = trainer_of(OneLayer(), torch.nn.Identity(), FairseqTask(None))
    model.cfg.checkpoint.update(checkpoint)
    model.cfg.model, model.cfg.task = {"_name": None}, {}
    schedule = {"lr_patience": 1, "lr_shrink": 0.5, "lr_threshold": 1e-4, "warmup_init_lr": -1}
    schedule["maximize_best_checkpoint_metric"] = model.cfg.checkpoint.maximize_best_checkpoint_metric
    if scheduler != "fixed":
        model.cfg.lr_scheduler = {"_name": scheduler, "lr": [0.1], "warmup_updates": 0, **schedule}
    return model


def validate(model, epoch: int, loss: float, folder: Path, end_of_epoch: bool = True, updates: int = 1) -> bool:
    """Validate with this loss and save ``checkpoint.pt``; return whether the training ends, as fairseq-train does."""

    def save(*_):
        model.set_num_updates(updates)
        model.consolidate_optimizer()
        extra_state = {"train_iterator": position, "val_loss": loss, "best": loss}
        model.save_checkpoint(str(folder / "checkpoint.pt"), extra_state)

    position = {"version": 2, "epoch": epoch + end_of_epoch, "iterations_in_epoch": 0 if end_of_epoch else 1}
    epoch_itr = SimpleNamespace(epoch=epoch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "validate", lambda *_: [loss])
        patch.setattr(train.checkpoint_utils, "save_checkpoint", save)
        _, ends = train.validate_and_save(model.cfg, model, None, epoch_itr, ["valid"], end_of_epoch)
    if not ends and end_of_epoch:
        model.lr_step(epoch, loss)
    return ends


def continued(folder: Path, *resets, scheduler: str = "fixed", **checkpoint):
    """Return the trainer of a new process, and the extra state."""
    paused_trainings.clear_patience()
    model = trainer(scheduler, **checkpoint)
    return model, model.load_checkpoint(str(folder / "checkpoint.pt"), **dict.fromkeys(resets, True))


def runs() -> int | None:
    return getattr(train.should_stop_early, "num_runs", None)


@pytest.fixture(autouse=True)
def _fresh():
    yield
    paused_trainings.clear_patience()
    metrics.reset()


def test_patience_is_that_of_the_metric(tmp_path):
    model, _ = trainer(patience=3), paused_trainings.clear_patience()
    assert [validate(model, epoch, loss, tmp_path) for epoch, loss in ((1, 5.0), (2, 6.0), (3, 5.5))] == [False] * 3
    model, extra_state = continued(tmp_path, patience=3)
    assert (runs(), train.should_stop_early.best, extra_state["best"]) == (2, 5.0, 5.5)
    assert validate(model, 4, 5.1, tmp_path)
    for options in ({"best_checkpoint_metric": "bleu"}, {"maximize_best_checkpoint_metric": True}):
        _, extra_state = continued(tmp_path, patience=3, **options)
        assert runs() is None, options
        assert "best" not in extra_state, options
    for reset in ("reset_meters", "reset_optimizer"):
        continued(tmp_path, reset, patience=3)
        assert runs() is None, reset


def test_a_validation_at_a_pause_does_not_count(tmp_path):
    model, _ = trainer(patience=1), paused_trainings.clear_patience()
    validate(model, 1, 5.0, tmp_path)
    model.cfg.optimization.max_update = 1
    assert validate(model, 2, 9.0, tmp_path, end_of_epoch=False)
    continued(tmp_path, patience=1)
    assert runs() == 0
    model.cfg.dataset.validate_interval_updates = 1
    validate(model, 2, 9.0, tmp_path, end_of_epoch=False)
    assert runs() == 1


def test_learning_rate_of_a_plateau(tmp_path):
    """After each of seven epochs, a continued training has the rate and the count of the uninterrupted one."""
    model = trainer("reduce_lr_on_plateau")
    for epoch, loss in enumerate((5.0, 5.5, 5.2, 4.9, 5.0, 5.0, 5.0), 1):
        validate(model, epoch, loss, tmp_path)
        rates = [model.get_lr(), model.lr_scheduler.lr_scheduler.num_bad_epochs, model.lr_scheduler.lr_scheduler.best]
        other, _ = continued(tmp_path, scheduler="reduce_lr_on_plateau")
        scheduler = other.lr_scheduler.lr_scheduler
        assert [other.get_lr(), scheduler.num_bad_epochs, scheduler.best] == rates, epoch
    assert model.get_lr() == pytest.approx(0.025)
    other, _ = continued(tmp_path, "reset_lr_scheduler", scheduler="reduce_lr_on_plateau")
    assert other.lr_scheduler.lr_scheduler.best == float("inf")
    other, _ = continued(tmp_path, scheduler="reduce_lr_on_plateau", maximize_best_checkpoint_metric=True)
    assert other.lr_scheduler.lr_scheduler.best == -float("inf")


def test_checkpoint_of_fairseq_without_the_fix(tmp_path):
    model = trainer(patience=3)
    validate(model, 1, 5.0, tmp_path)
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=False)
    del state["extra_state"]["paused"]
    torch.save(state, tmp_path / "checkpoint.pt")
    _, extra_state = continued(tmp_path, patience=3)
    assert runs() is None
    assert extra_state["best"] == 5.0


def test_what_ends_a_training(monkeypatch):
    model = trainer(patience=2)
    model._num_updates, options = 7, model.cfg.optimization
    assert paused_trainings.reached(model.cfg, model, 2) is None
    for section, name, value in ((options, "max_update", 7), (options, "stop_time_hours", 1e-9)):
        before = section[name]
        section[name] = value
        assert f"--{name.replace('_', '-')}" in paused_trainings.reached(model.cfg, model, 2)
        section[name] = before
    train.should_stop_early.num_runs = 2
    assert "--patience" in paused_trainings.reached(model.cfg, model, 2)
    model._num_updates = 0  # fine-tuning
    assert paused_trainings.reached(model.cfg, model, 2) is None
    options["max_epoch"] = 1  # --reset-optimizer keeps the epoch
    assert "--max-epoch" in paused_trainings.reached(model.cfg, model, 2)
    monkeypatch.setattr(paused_trainings.State, "finished", "why")
    assert train.train(model.cfg, model, None, None) == ([None], True)


def test_random_numbers_continue(tmp_path):
    model = trainer()
    validate(model, 1, 5.0, tmp_path)
    draws = np.random.rand(), random.random(), torch.rand(1)
    continued(tmp_path)
    assert (np.random.rand(), random.random(), torch.rand(1)) == draws
    np.random.seed(5)
    first = np.random.rand()
    np.random.seed(5)
    continued(tmp_path, "reset_optimizer")  # fine-tuning
    assert np.random.rand() == first


def pause(folder: Path) -> None:
    """Write the checkpoint of a training that ends within its first epoch, after one update."""
    model = trainer()
    model.cfg.optimization.max_update = 1
    model.set_num_updates(1)
    assert validate(model, 1, 5.0, folder, end_of_epoch=False)


def loaded_by(model, path: Path):
    """Return the extra state after fairseq-train has read a checkpoint; its iterator reads an example, and draws."""

    def get_train_iterator(epoch, **_):
        np.random.rand(), random.random(), torch.rand(1)
        position = {"epoch": epoch, "next_epoch_idx": epoch, "iterations_in_epoch": 1}
        return SimpleNamespace(**position, load_state_dict=lambda state: None)

    model.get_train_iterator = get_train_iterator
    model.cfg.checkpoint.restore_file = str(path)
    return checkpoint_utils.load_checkpoint(model.cfg.checkpoint, model)[0]


def test_random_numbers_continue_after_an_example_was_read(tmp_path):
    """Unless the training continues with another seed."""
    pause(tmp_path)
    draws = np.random.rand(), random.random(), torch.rand(1)
    for seed in (1, 2):
        model = trainer()
        model.cfg.common.seed = seed
        np.random.seed(9), random.seed(9), torch.manual_seed(9)
        loaded_by(model, tmp_path / "checkpoint.pt")
        same = [one == other for one, other in zip((np.random.rand(), random.random(), torch.rand(1)), draws)]
        assert same == [seed == 1] * 3


def test_a_second_training_has_no_best_value(tmp_path):
    checkpoint_utils.save_checkpoint.best = 1.0
    model = trainer()
    model.cfg.checkpoint.save_dir = str(tmp_path)
    assert loaded_by(model, tmp_path / "checkpoint_last.pt") is None
    assert not hasattr(checkpoint_utils.save_checkpoint, "best")


def test_only_a_training_that_has_ended_makes_no_more_updates(tmp_path, monkeypatch):
    """A checkpoint of a stop by a signal is continued, also with the last update."""
    monkeypatch.setattr(paused_trainings.State, "finished", None)
    pause(tmp_path)
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=False)
    for stopped in (False, True):
        torch.save({**state, "extra_state": {**state["extra_state"], "stopped": stopped}}, tmp_path / "checkpoint.pt")
        model = trainer()
        model.cfg.optimization.max_update = 1
        loaded_by(model, tmp_path / "checkpoint.pt")
        assert (paused_trainings.State.finished is None) == stopped


def test_moving_average_counts_on(tmp_path):
    model = trainer()
    model.cfg.ema.update({"store_ema": True, "ema_update_freq": 3})
    model.ema.step(model.get_model(), 1)
    validate(model, 1, 5.0, tmp_path)
    other = trainer()
    other.cfg.ema = model.cfg.ema
    other.load_checkpoint(str(tmp_path / "checkpoint.pt"))
    assert other.ema.update_freq_counter == 1


def test_clock_of_the_process(tmp_path):
    pause(tmp_path)
    metrics.reset()
    assert continued(tmp_path)[1] is not None
    assert metrics.get_meter("default", "wall").elapsed_time > 0


class Cached(torch.utils.data.TensorDataset):
    """Ten examples, which fairseq can prefetch."""

    supports_prefetch = True

    def prefetch(self, indices) -> None:
        pass


@pytest.mark.parametrize("options", [{"skip_remainder_batch": True}, {"num_shards": 2, "shard_id": 1}])
def test_batches_of_a_continued_epoch(options, monkeypatch):
    """Without the last batch; and those of the second of two devices that keep their batches."""

    def batches():
        data = Cached(torch.arange(10))
        return iterators.EpochBatchIterator(data, torch.stack, [[at] for at in range(10)], buffer_size=2, **options)

    def rest(iterator) -> list[int]:
        return [int(batch[0]) for (batch,) in iterator]

    monkeypatch.setattr(paused_trainings.State, "fix_batches_to_gpus", True)
    first, second = batches(), batches()
    first.collate_fn = second.collate_fn = lambda samples: samples[0]
    epoch = iter(first.next_epoch_itr(fix_batches_to_gpus=True))
    for _ in range(3):
        next(epoch)
    second.load_state_dict(first.state_dict())
    assert [int(b[0]) for b in second.next_epoch_itr(fix_batches_to_gpus=True)] == [int(b[0]) for b in epoch]


class Sharded(FairseqTask):
    def has_sharded_data(self, split: str) -> bool:
        return False  # before the first load, as translation_multi_simple_epoch does


@pytest.mark.parametrize(("kind", "data", "epoch"), [(FairseqTask, "a", 1), (FairseqTask, "a:b", 3), (Sharded, "a", 3)])
def test_data_of_a_later_epoch(kind, data, epoch):
    """Data in one folder are those of the first epoch, whose shuffle lasts for all epochs."""
    model, loaded = trainer(), []
    model.task = kind(OmegaConf.create({"data": data}))
    model.task.load_dataset = lambda split, epoch, **options: loaded.append(epoch)
    with pytest.raises(KeyError):  # it has no data
        model.get_train_iterator(3)
    assert loaded == [epoch]
