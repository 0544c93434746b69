"""Symptoms (see symptoms.py) of what goes wrong with checkpoints: their reading, writing and numbering."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import resource
import signal
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

from training_symptoms import refused


def safe_checkpoints() -> None:
    """A checkpoint with the values that ``--eval-bleu`` adds, in today's and in the old file format."""
    import numpy as np
    import torch
    from fairseq.checkpoint_utils import load_checkpoint_to_cpu

    numbers = {"counts": np.array([1, 2], dtype=np.int64), "ratio": np.float32(0.5), "flag": np.bool_(True)}
    optimizer = [{"criterion_name": "CrossEntropyCriterion", "best_loss": None, "optimizer_name": "Adam"}]
    state = {"args": None, "cfg": None, "model": {"w": torch.ones(2)}, "optimizer_history": optimizer}
    state["extra_state"] = {"metrics": numbers, "train_iterator": {"epoch": 1}}
    state["anything"] = argparse.Namespace(lr=[0.1])
    with tempfile.TemporaryDirectory() as folder:
        for new_format in (True, False):
            path = os.path.join(folder, "checkpoint.pt")
            torch.save(state, path, _use_new_zipfile_serialization=new_format)
            loaded = load_checkpoint_to_cpu(path)
            assert loaded["anything"].lr == [0.1]
            assert loaded["extra_state"]["metrics"]["counts"].tolist() == [1, 2]


def complete_saves() -> None:
    """The first write of a save fails after some bytes; what is then saved must be a whole file."""
    import torch
    from fairseq import checkpoint_utils

    with tempfile.TemporaryFile() as file:
        write, failures = file.write, [OSError(errno.ENOSPC, "No space left on device")]

        class OnceFull:
            def write(self, content) -> int:
                if failures and file.tell() > 1000:
                    raise failures.pop()
                return write(content)

            def __getattr__(self, name):
                return getattr(file, name)

        checkpoint_utils._torch_persistent_save({"weights": torch.arange(1000)}, OnceFull())
        assert not failures
        file.seek(0)
        assert torch.load(file)["weights"].sum() == 999 * 500


def atomic_copies() -> None:
    """A copy that stops in the middle (here: at a limit of the file size) leaves the old file."""
    from fairseq.file_io import PathManager

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "new.pt").write_bytes(b"n" * 100_000)
        (folder / "last.pt").write_bytes(b"old")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
        try:
            with contextlib.suppress(OSError):
                PathManager.copy(str(folder / "new.pt"), str(folder / "last.pt"), overwrite=True)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        left = {path.name: path.stat().st_size for path in folder.iterdir()}
        assert left == {"new.pt": 100_000, "last.pt": 3}, f"files after the failed copy: {left}"
        assert PathManager.copy(str(folder / "new.pt"), str(folder / "last.pt"), overwrite=True)
        assert (folder / "last.pt").read_bytes() == (folder / "new.pt").read_bytes()


def unreadable_checkpoints() -> None:
    """A checkpoint that was cut short."""
    import torch
    from fairseq.checkpoint_utils import load_checkpoint_to_cpu

    with tempfile.TemporaryDirectory() as name:
        path = f"{name}/checkpoint_last.pt"
        torch.save({"model": {"weight": torch.ones(1000)}}, path)
        os.truncate(path, 2000)
        with refused(path, "cut short"):
            load_checkpoint_to_cpu(path)


def unknown_architectures() -> None:
    """A checkpoint of a plugin's model, with the plugin's folder in its options, for a task that fairseq has."""
    import torch
    from fairseq.checkpoint_utils import load_model_ensemble_and_task
    from fairseq.tasks.fairseq_task import FairseqTask

    model, common = {"_name": "of_a_plugin"}, {"user_dir": "plugins/mine"}
    history = {"num_updates": 0, "optimizer_name": "", "criterion_name": "", "lr_scheduler_state": {}}
    state = {"cfg": {"model": model, "common": common}, "model": {}, "optimizer_history": [history]}
    with tempfile.TemporaryDirectory() as name:
        path = f"{name}/best.pt"
        torch.save({**state, "extra_state": {"train_iterator": None}}, path)
        with refused(path, "--arch of_a_plugin", "--user-dir plugins/mine, as in its training"):
            load_model_ensemble_and_task([path], task=FairseqTask(None))


def checkpoint_config(folder: str, **options):
    """fairseq's options of checkpoints."""
    from fairseq.dataclass.configs import CheckpointConfig
    from omegaconf import OmegaConf

    return OmegaConf.structured(CheckpointConfig(save_dir=folder, **options))


def numbered_checkpoints() -> None:
    """Two epochs of four updates, saved every two updates; of the numbered ones the last and every fourth are kept."""
    import torch
    from fairseq import checkpoint_utils
    from fairseq.data import iterators

    states = {}

    def save(path: str, state: dict) -> None:
        Path(path).touch()
        states[os.path.basename(path)] = state["train_iterator"]

    data, updates = torch.utils.data.TensorDataset(torch.zeros(4)), 0
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
    seen = []
    with tempfile.TemporaryDirectory() as name:
        options = {"save_interval_updates": 2, "keep_interval_updates": 1, "keep_interval_updates_pattern": 4}
        config = checkpoint_config(name, no_epoch_checkpoints=True, **options)
        for _ in range(2):
            for _ in batches.next_epoch_itr():
                updates += 1
                if updates % 2 == 0:
                    checkpoint_utils.save_checkpoint(config, trainer, batches, None)
                    seen.append(sorted(path.stem for path in Path(name).glob("checkpoint_*_*.pt")))
    first, second = ["checkpoint_1_2"], ["checkpoint_1_2", "checkpoint_1_4"]
    third = ["checkpoint_1_4", "checkpoint_2_6"]
    assert seen == [first, second, third, [*third, "checkpoint_2_8"]], seen
    assert states["checkpoint_1_4.pt"] == {**states["checkpoint_1_2.pt"], "epoch": 2, "iterations_in_epoch": 0}
    assert not config.no_last_checkpoints, "the options of the run were changed"


def one_run_a_folder() -> None:
    """A process that trains in a folder, seen from another one; then it is killed."""
    from fairseq import checkpoint_utils

    def start(folder: str, **options):
        trainer = SimpleNamespace(
            cfg=SimpleNamespace(distributed_training=SimpleNamespace(distributed_rank=0)),
            checkpoint_suffix="",
            load_checkpoint=lambda *args, **kwargs: None,
            get_train_iterator=lambda **kwargs: SimpleNamespace(epoch=1),
            lr_step=lambda epoch: None,
        )
        checkpoint_utils.load_checkpoint(checkpoint_config(folder, **options), trainer)
        return trainer

    with tempfile.TemporaryDirectory() as name:
        ready, done = os.pipe()
        child = os.fork()
        if child == 0:
            trainer = start(name)
            if os.fork() == 0:  # a data-loader worker, which outlives its parent for a while
                time.sleep(3)
                os._exit(0)
            os.write(done, b"1")
            time.sleep(60)
            os._exit(id(trainer) % 2)
        try:
            os.read(ready, 1)
            start(name, no_save=True)
            with refused(f"--save-dir {name}", "another training"):
                start(name)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        first, second = start(name), start(name)  # one process may well train twice
        assert first.folder_lock is second.folder_lock
        assert list(Path(name).iterdir()) == []
