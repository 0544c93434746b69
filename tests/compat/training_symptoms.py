"""More of symptoms.py: what goes wrong around a training: its data, devices, processes and checkpoints."""

import multiprocessing
import os
import signal
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace


@contextmanager
def refused(*parts: str):
    """What happens inside must raise an error that says all of this."""
    try:
        yield
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    else:
        text = "no error"
    missing = [part for part in parts if part not in text]
    assert not missing, f"{missing} not in {text}"


def write_split(folder: Path, split: str, rows: list, dictionary) -> None:
    """Binarise lines (texts) as ``fairseq-preprocess --only-source`` does."""
    from fairseq.data import indexed_dataset

    folder.mkdir(parents=True, exist_ok=True)
    dictionary.save(str(folder / "dict.txt"))
    builder = indexed_dataset.make_builder(str(folder / f"{split}.bin"), "mmap", vocab_size=len(dictionary))
    for row in rows:
        builder.add_item(dictionary.encode_line(row, add_if_not_exist=False).long())
    builder.finalize(str(folder / f"{split}.idx"))


def dictionary_of(words: list):
    """A dictionary of these words in this order, with counts that keep it."""
    from fairseq.data import Dictionary

    dictionary = Dictionary()
    for rank, word in enumerate(words):
        dictionary.add_symbol(word, n=100 - rank)
    return dictionary


def sentence_task(folder: Path, labels: list, inputs: int, num_classes: int = 2, regression: bool = False):
    """A sentence_prediction task whose split ``valid`` has these labels, and so many inputs."""
    from fairseq.tasks.sentence_prediction import SentencePredictionConfig, SentencePredictionTask

    write_split(folder / "input0", "valid", ["a b"] * inputs, dictionary_of(["a", "b"]))
    if regression:
        (folder / "label").mkdir()
        (folder / "label" / "valid.label").write_text("".join(f"{label}\n" for label in labels))
    else:
        write_split(folder / "label", "valid", labels, dictionary_of(["no", "yes", "maybe"]))
    config = SentencePredictionConfig(data=str(folder), num_classes=num_classes, regression_target=regression, seed=1)
    return SentencePredictionTask.setup_task(config)


def checked_labels() -> None:
    """A class too many, in the first batch that has it; a number that is none."""
    import torch

    with tempfile.TemporaryDirectory() as name, refused("label/valid, line 2", "'maybe'", "--num-classes"):
        dataset = sentence_task(Path(name), ["yes", "maybe"], 2).load_dataset("valid")
        targets = dataset.collater([dataset[0], dataset[1]])["target"]
        torch.nn.functional.nll_loss(torch.zeros(2, 2), targets.view(-1))
    with tempfile.TemporaryDirectory() as name, refused("label/valid.label, line 2", "'nan'"):
        sentence_task(Path(name), ["0.5", "nan"], 2, 1, True).load_dataset("valid")


def empty_data() -> None:
    """A split that was made of an empty file."""
    from fairseq.data import data_utils

    with tempfile.TemporaryDirectory() as name:
        write_split(Path(name), "valid", [], dictionary_of(["a"]))
        with refused("valid.bin: no sentence"):
            data_utils.load_indexed_dataset(f"{name}/valid", dictionary_of(["a"]))


def half_precision() -> None:
    """The optimizer of a run with --fp16 --cpu, and one with --bf16."""
    import torch
    from fairseq.dataclass.configs import FairseqConfig
    from fairseq.trainer import Trainer
    from omegaconf import OmegaConf

    for flags in ({"fp16": True}, {"bf16": True, "tpu": True}):
        config = OmegaConf.structured(FairseqConfig)
        config.common.update({"cpu": True, **flags})
        config.optimizer = {"_name": "sgd", "momentum": 0.0, "weight_decay": 0.0, "lr": [0.1]}
        with refused(f"--{next(iter(flags))}", "--amp"):
            _ = Trainer(config, None, torch.nn.Linear(2, 1), torch.nn.Identity()).optimizer


def say_hello(config, folder: str) -> None:
    """What each of several processes does here: adds up its number, and says how its workers would start."""
    import torch

    total = torch.tensor([torch.distributed.get_rank() + 1])
    torch.distributed.all_reduce(total)
    Path(folder, str(torch.distributed.get_rank())).write_text(f"{total.item()} {multiprocessing.get_start_method()}")


def spawned_processes() -> None:
    """Two processes on the CPU."""
    from fairseq.dataclass.configs import FairseqConfig
    from fairseq.distributed import utils
    from omegaconf import OmegaConf

    config = OmegaConf.create(OmegaConf.to_container(OmegaConf.structured(FairseqConfig), enum_to_str=True))
    config.model, config.common.cpu, config.distributed_training.distributed_world_size = None, True, 2
    with tempfile.TemporaryDirectory() as name:
        utils.call_main(config, say_hello, folder=name)
        said = {path.name: path.read_text() for path in Path(name).iterdir()}
    expected = f"3 {multiprocessing.get_all_start_methods()[0]}"
    assert said == {"0": expected, "1": expected}, said


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
