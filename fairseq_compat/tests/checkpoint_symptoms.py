"""Symptoms (see symptoms.py) of what goes wrong with checkpoints: their reading, writing and numbering."""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import itertools
import multiprocessing
import os
import resource
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch
from fairseq import checkpoint_utils, models, options, tasks
from fairseq.data import iterators
from fairseq.dataclass.configs import CheckpointConfig
from fairseq.file_io import PathManager
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.translation_from_pretrained_bart import TranslationFromPretrainedBARTTask
from fairseq.tasks.translation_multi_simple_epoch import TranslationMultiSimpleEpochTask
from omegaconf import OmegaConf
from training_symptoms import in_folder, refused

HISTORY = [{"criterion_name": "", "best_loss": None, "optimizer_name": "", "num_updates": 0, "lr_scheduler_state": {}}]
STATE = {"args": None, "cfg": None, "model": {}, "optimizer_history": HISTORY}


class Executed:
    """Unpickling it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


@in_folder
def safe_checkpoints(folder: Path) -> None:
    """A checkpoint with the values that ``--eval-bleu`` adds."""
    numbers = {"counts": np.array([1, 2]), "ratio": np.float32(0.5), "train_iterator": {"epoch": 1}}
    torch.save({**STATE, "extra_state": numbers, "any": argparse.Namespace(lr=[0.1])}, folder / "checkpoint.pt")
    loaded = checkpoint_utils.load_checkpoint_to_cpu(str(folder / "checkpoint.pt"))
    assert loaded["any"].lr == [0.1]
    assert loaded["extra_state"]["counts"].tolist() == [1, 2]
    torch.save({**STATE, "any": Executed(folder / "made")}, folder / "hostile.pt")
    with contextlib.suppress(Exception):
        checkpoint_utils.load_checkpoint_to_cpu(str(folder / "hostile.pt"))
    assert not (folder / "made").exists(), "what the file says was executed"


@in_folder
def complete_saves(folder: Path) -> None:
    """The first write of a save fails after some bytes; what is then saved must be a whole file; Ctrl-C ends it."""
    failures: list[BaseException] = [OSError(errno.ENOSPC, "No space left on device")]

    class OnceFull(io.BytesIO):
        def write(self, content) -> int:
            if failures and self.tell() > 1000:
                raise failures.pop()
            return super().write(content)

    file = OnceFull()
    checkpoint_utils._torch_persistent_save({"weights": torch.arange(1000)}, file)
    assert not failures
    file.seek(0)
    assert torch.load(file)["weights"].sum() == 999 * 500
    failures.append(KeyboardInterrupt())
    with contextlib.suppress(KeyboardInterrupt):
        checkpoint_utils._torch_persistent_save({"weights": torch.arange(1000)}, OnceFull())
        raise AssertionError("Ctrl-C was lost")

    class Interrupting:
        def __reduce__(self):
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        checkpoint_utils.torch_persistent_save({"weights": Interrupting()}, str(folder / "checkpoint1.pt"))
    assert not list(folder.iterdir()), "an unfinished file stays"


@in_folder
def atomic_copies(folder: Path) -> None:
    """A copy that stops in the middle (here: at a limit of the file size) leaves the old file."""
    new, last = folder / "new.pt", folder / "last.pt"
    new.write_bytes(b"n" * 100_000)
    last.write_bytes(b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with contextlib.suppress(OSError):
            PathManager.copy(str(new), str(last), overwrite=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    left = {path.name: path.stat().st_size for path in folder.iterdir()}
    assert left == {"new.pt": 100_000, "last.pt": 3}, f"files after the failed copy: {left}"
    (folder / "link.pt").symlink_to("last.pt")
    assert PathManager.copy(str(new), str(folder / "link.pt"), overwrite=True)
    assert last.read_bytes() == new.read_bytes()


@in_folder
def unreadable_checkpoints(folder: Path) -> None:
    """A checkpoint that was cut short."""
    path = str(folder / "checkpoint_last.pt")
    torch.save({"model": {"weight": torch.ones(1000)}}, path)
    os.truncate(path, 2000)
    with refused(path, "cut short"):
        checkpoint_utils.load_checkpoint_to_cpu(path)


@in_folder
def partial_checkpoints(folder: Path) -> None:
    """Files of other programs: the model with its options, an emptied optimizer, an epoch of their own."""
    path = str(folder / "model.pt")
    options = {"args": argparse.Namespace(arch="transformer", max_positions=9)}, {"cfg": {"model": {"size": 1}}}
    others = {}, {}, {"optimizer": None}, {"optimizer_history": []}, {"epoch": 3}, {"extra_state": {}}
    for cfg, more in zip(itertools.cycle(options), others):
        torch.save({**cfg, "model": {"weight": torch.ones(2)}, **more}, path)
        state = checkpoint_utils.load_checkpoint_to_cpu(path)
        begun = {"epoch": more.get("epoch", 1), "iterations_in_epoch": 0}
        assert state["extra_state"]["train_iterator"] == begun, state["extra_state"]
        assert state["optimizer_history"][-1]["num_updates"] == 0
        assert state["last_optimizer_state"] is None
        assert state["cfg"] is not None
    torch.save({**STATE, "extra_state": {"train_iterator": {"epoch": 7}}, "last_optimizer_state": {"a": 1}}, path)
    state = checkpoint_utils.load_checkpoint_to_cpu(path)
    assert state["extra_state"] == {"train_iterator": {"epoch": 7}}
    assert state["last_optimizer_state"] == {"a": 1}


def unknown_architectures() -> None:
    """A model and a task of a plugin, as a checkpoint names them."""
    with refused("--arch of_a_plugin", "--user-dir"):
        models.build_model(OmegaConf.create({"_name": "of_a_plugin", "size": 1}), None)
    with refused("--task of_a_plugin", "--user-dir"):
        tasks.setup_task(OmegaConf.create({"_name": "of_a_plugin", "size": 1}))
    parser = options.get_training_parser()
    tasks.TASK_REGISTRY["translation"].add_args(parser)
    given, advice = ["--user-dir=of/the/plugin"], "--user-dir FOLDER"
    for argv, word, expected in (
        ([], "--of-a-plugin", advice),
        (given, "--of-a-plugin", ""),
        ([], "--arch=of_a_plugin", advice),
        (given, "--arch=of_a_plugin", ""),
        ([], "--log-format=of_nobody", ""),
        ([], "--max-epochs=3", "did you mean --max-epoch?"),
        (given, "--max_epoch", "did you mean --max-epoch?"),
        (given, "--max-epohc", "did you mean --max-epoch?"),
        (given, "--ddp-backend-max-epoch", ""),
        (["--left-pad-source", "False"], "False", "give it alone, which means False"),
        (["--left-pad-source", "True"], "True", "leave it out, the default is True"),
        (["--cpu", "False"], "False", "leave it out, the default is False"),
        (["--of-a-plugin", "False"], "False", advice),
    ):
        errors = io.StringIO()
        with mock.patch.object(sys, "argv", argv), contextlib.redirect_stderr(errors), contextlib.suppress(SystemExit):
            parser.parse_args(["data", word])
        said = errors.getvalue().splitlines()[-1]
        assert expected in said, said
        assert ("; " in said) == bool(expected), said


@in_folder
def other_languages(folder: Path) -> None:
    """Tokens of languages, and of the beginning of a text, that a model was not trained with."""

    def said(task, **trained: object) -> str:
        """Load a checkpoint for a task; return what is printed."""
        name = next(name for name, kind in tasks.TASK_REGISTRY.items() if kind is type(task))
        torch.save({**STATE, "cfg": {"task": {"_name": name, **trained}, "model": {}}}, folder / "model.pt")
        lines = io.StringIO()
        with contextlib.redirect_stderr(lines), mock.patch.object(type(task), "build_model"):
            checkpoint_utils.load_model_ensemble_and_task([str(folder / "model.pt")], task=task)
        return lines.getvalue()

    pairs, langtok = ["fr-en", "de-en"], {"encoder_langtok": "src", "decoder_langtok": True}
    for kind, given, trained, expected in (
        (LanguageModelingTask, {"add_bos_token": False}, {"add_bos_token": True}, ["--add-bos-token True", "False"]),
        (LanguageModelingTask, {"add_bos_token": True}, {"add_bos_token": True}, []),
        (LanguageModelingTask, {"add_bos_token": True}, {}, []),  # of a fairseq without the option
        (TranslationFromPretrainedBARTTask, {"langs": "de,fr"}, {"langs": "fr,de"}, ["--langs fr,de", "de,fr"]),
        (
            TranslationMultiSimpleEpochTask,
            {"langs": None, "lang_dict": None, "lang_pairs": pairs, **langtok},
            {"langs": ["de", "en", "fr"], "lang_dict": None, "lang_pairs": pairs[::-1], **langtok},
            [],
        ),
        (
            TranslationMultiSimpleEpochTask,
            {"langs": None, "lang_dict": None, "lang_pairs": pairs[:1], **langtok, "decoder_langtok": False},
            {"langs": None, "lang_dict": None, "lang_pairs": pairs, **langtok},
            ["--langs de,en,fr, here it is en,fr", "--decoder-langtok True"],
        ),
    ):
        task = kind.__new__(kind)
        task.args, task.state = argparse.Namespace(**given), tasks.fairseq_task.StatefulContainer()
        lines = said(task, **trained)
        assert bool(lines) == bool(expected), lines
        assert not [part for part in expected if part not in lines], lines


@in_folder
def numbered_checkpoints(folder: Path) -> None:
    """Two epochs of four updates, saved every two updates; of the numbered ones the last and every fourth are kept."""
    states, names, seen, copies, updates = {}, [], [], [], 0

    def save(path: str, state: dict) -> None:
        Path(path).touch()
        names.append(os.path.basename(path))
        states[os.path.basename(path)] = state["train_iterator"]

    data = torch.utils.data.TensorDataset(torch.zeros(4))
    batches = iterators.EpochBatchIterator(data, list, [[at] for at in range(4)])
    trainer = SimpleNamespace(
        task=None,
        data_parallel_rank=0,
        checkpoint_suffix="",
        should_save_checkpoint_on_current_rank=True,
        consolidate_optimizer=lambda: None,
        get_num_updates=lambda: updates,
        save_checkpoint=save,
    )
    options = {"save_interval_updates": 2, "keep_interval_updates": 1, "keep_interval_updates_pattern": 4}
    config = OmegaConf.structured(CheckpointConfig(save_dir=str(folder), no_epoch_checkpoints=True, **options))
    for _ in range(2):
        for _ in batches.next_epoch_itr():
            updates += 1
            if updates % 2 == 0:
                with mock.patch.object(PathManager, "copy") as copy:
                    checkpoint_utils.save_checkpoint(config, trainer, batches, None)
                copies.append(copy.call_count)
                seen.append(" ".join(sorted(path.stem[11:] for path in folder.glob("checkpoint_*_*.pt"))))
    assert seen == ["1_2", "1_2 1_4", "1_4 2_6", "1_4 2_6 2_8"], seen
    numbered = [f"checkpoint_{name}.pt" for name in ("1_2", "1_4", "2_6", "2_8")]
    assert [name for name in names if name.count("_") == 2] == numbered, names  # none twice
    assert states["checkpoint_1_4.pt"] == {**states["checkpoint_1_2.pt"], "epoch": 2, "iterations_in_epoch": 0}
    assert copies == [1, 0, 1, 0], "the last checkpoint is written twice"
    assert not config.no_last_checkpoints, "the options of the run were changed"


@in_folder
def best_checkpoints(folder: Path) -> None:
    """The three best of five, in any order, below zero, and of shards."""
    metrics = (
        ("loss", False, [2.0, 2.5, 2.4, 2.6, 2.1]),
        ("bleu", True, [2.0, 6.0, 4.0, 5.0, 3.0]),
        ("score", True, [-5.0, -1.0, -4.0, -2.0, -3.0]),
        ("cost", False, [-1.0, 1.0, -3.0, 0.0, -2.0]),
    )
    iterator = SimpleNamespace(epoch=1, end_of_epoch=lambda: True, state_dict=dict)
    for suffix in ("", "-shard0"):
        for metric, highest, values in metrics:
            vars(checkpoint_utils.save_checkpoint).pop("best", None)
            keep = {"keep_best_checkpoints": 3, "best_checkpoint_metric": metric, "no_epoch_checkpoints": True}
            config = CheckpointConfig(save_dir=str(folder), maximize_best_checkpoint_metric=highest, **keep)
            for value in values:
                trainer = SimpleNamespace(
                    data_parallel_rank=0,
                    checkpoint_suffix=suffix,
                    should_save_checkpoint_on_current_rank=True,
                    consolidate_optimizer=lambda: None,
                    get_num_updates=lambda: 1,
                    save_checkpoint=lambda path, state: Path(path).write_text(str(state["val_loss"])),
                )
                checkpoint_utils.save_checkpoint(config, trainer, iterator, value)
            files = folder.glob(f"checkpoint.best_{metric}_*[0-9]{suffix}.pt")
            kept, right = sorted(float(file.read_text()) for file in files), sorted(values, reverse=highest)[:3]
            assert kept == sorted(right), f"{metric}{suffix}: {kept}"
    vars(checkpoint_utils.save_checkpoint).pop("best", None)


def begin(folder: Path, rank: int = 0, **options) -> SimpleNamespace:
    """The trainer of a run that has just begun."""
    trainer = SimpleNamespace(
        cfg=SimpleNamespace(distributed_training=SimpleNamespace(distributed_rank=rank)),
        checkpoint_suffix="",
        load_checkpoint=lambda *args, **kwargs: None,
        get_train_iterator=lambda **kwargs: SimpleNamespace(epoch=1),
        lr_step=lambda epoch: None,
    )
    checkpoint_utils.load_checkpoint(OmegaConf.structured(CheckpointConfig(save_dir=str(folder), **options)), trainer)
    return trainer


@in_folder
def missing_checkpoints(folder: Path) -> None:
    """Named checkpoints that do not exist, outside of --save-dir and inside of it."""
    run, other = folder / "run", folder / "other.pt"
    run.mkdir()
    for option in ("restore_file", "continue_once"):
        if option in CheckpointConfig.__dataclass_fields__:
            with refused(f"--{option.replace('_', '-')} {other}: no such file", "from the working directory"):
                begin(run, **{option: str(other)})
    begin(run, restore_file=str(run / "checkpoint_last.pt"))  # the first start of a command that a queue repeats
    (run / "checkpoint1.pt").touch()
    with refused("no such file", "from scratch"):
        begin(run, restore_file=str(run / "checkpoint2.pt"))
    with refused(f"give {run}/checkpoint1.pt"):
        begin(run, restore_file="checkpoint1.pt")
    begin(run, restore_file=str(run / "checkpoint1.pt"))
    begin(run)
    other.touch()
    begin(run, continue_once=str(other))


def train(folder: Path, ready) -> None:
    trainer = begin(folder)
    if os.fork() == 0:  # a data-loader worker, which outlives its parent for a while
        time.sleep(3)
        os._exit(0)
    ready.set()
    time.sleep(600)
    del trainer


@in_folder
def one_run_a_folder(folder: Path) -> None:
    """A process that trains in a folder, seen from another one; then it is killed."""
    forks = multiprocessing.get_context("fork")
    ready = forks.Event()
    other = forks.Process(target=train, args=(folder, ready))
    other.start()
    assert ready.wait(600)
    begin(folder, no_save=True)
    begin(folder, checkpoint_suffix="-shard1")
    begin(folder, rank=1)
    try:
        with refused(f"--save-dir {folder}", f"another training is running in this folder, process {other.pid}, "):
            begin(folder)
    finally:
        other.kill()
        other.join()
    with mock.patch("fcntl.flock", side_effect=OSError(errno.ENOLCK, "No locks available")):
        assert begin(folder).folder_lock is None  # some network drives
    first, second = begin(folder), begin(folder)  # one process may well train twice
    assert first.folder_lock is second.folder_lock
    assert list(folder.iterdir()) == []
