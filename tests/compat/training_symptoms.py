"""Symptoms (see symptoms.py) of what goes wrong in a training: its data, devices, processes and workers."""

from __future__ import annotations

import io
import multiprocessing
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path


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
    """The optimizer of a run with --fp16 --cpu, and one with --bf16 --cpu."""
    import torch
    from fairseq.dataclass.configs import FairseqConfig
    from fairseq.trainer import Trainer
    from omegaconf import OmegaConf

    for flags in ({"fp16": True}, {"bf16": True}):
        config = OmegaConf.structured(FairseqConfig)
        config.common.update({"cpu": True, **flags})
        config.optimizer = {"_name": "sgd", "momentum": 0.0, "weight_decay": 0.0, "lr": [0.1]}
        with refused(f"--{next(iter(flags))}", "--amp"):
            _ = Trainer(config, None, torch.nn.Linear(2, 1), torch.nn.Identity()).optimizer


def bf16_on_gpus() -> None:
    """What --bf16 means, and that --tpu stays what it is."""
    from fairseq import options

    def is_tpu(*flags: str) -> bool:
        command = ["data", "--arch", "transformer", *flags]
        return options.parse_args_and_arch(options.get_training_parser(), command).tpu

    assert not is_tpu("--bf16")
    assert is_tpu("--bf16", "--tpu")
    assert is_tpu("--tpu")
    given, parser = ["data", "--task", "translation"], options.get_validation_parser()
    # as fairseq-validate asks for what was given
    assert not hasattr(options.parse_args_and_arch(parser, given, suppress_defaults=True), "tpu")


def cpu_autocast() -> None:
    """What a criterion computes with under --amp --cpu: bfloat16 in training, single precision in validation."""
    import torch
    from fairseq.criterions import FairseqCriterion
    from fairseq.dataclass.configs import FairseqConfig
    from fairseq.models import BaseFairseqModel
    from fairseq.tasks import FairseqTask
    from fairseq.trainer import Trainer
    from omegaconf import OmegaConf

    class Model(BaseFairseqModel):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(2, 1)

    class Task(FairseqTask):
        target_dictionary = None

    class Criterion(FairseqCriterion):
        def forward(self, model, sample, reduce=True):
            output = model.linear(torch.ones(1, 2))
            return output.float().sum(), 1, {"type": output.dtype, "flash": torch.backends.cuda.flash_sdp_enabled()}

    config = OmegaConf.structured(FairseqConfig)
    config.common.amp = config.common.cpu = True
    config.optimizer = {"_name": "sgd", "momentum": 0.0, "weight_decay": 0.0, "lr": [0.1]}
    config.lr_scheduler = {"_name": "fixed", "lr": [0.1], "force_anneal": None, "lr_shrink": 0.1, "warmup_updates": 0}
    task, model = Task(config.task), Model()
    trainer = Trainer(config, task, model, Criterion(task))
    criterion = trainer.criterion
    before = model.linear.weight.detach().clone()
    trainer.zero_grad()
    _, _, log = task.train_step({}, model, criterion.train(), trainer.optimizer, 0)
    trainer.optimizer.step()
    assert log["type"] == torch.bfloat16, f"--amp --cpu computes with {log['type']}"
    assert not torch.equal(before, model.linear.weight), "the step did nothing"
    for tokens in (14, 300):
        batch = {"net_input": {"src_tokens": torch.zeros(1, tokens)}}
        _, _, log = task.train_step(batch, model, criterion.train(), trainer.optimizer, 0)
        assert log["flash"] == (tokens == 300), f"{tokens} tokens in bfloat16 take the slower attention"
    _, _, log = task.valid_step({}, model, criterion.eval())
    assert log["type"] == torch.float32, f"validation computes with {log['type']}"


def cpu_data_parallel() -> None:
    import torch
    from fairseq.dataclass.configs import DistributedTrainingConfig
    from fairseq.models import DistributedFairseqModel

    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        group = torch.distributed.group.WORLD
        config = DistributedTrainingConfig(tpu=False)
        model = DistributedFairseqModel(config, torch.nn.Linear(2, 1), group, torch.device("cpu"))
        model(torch.ones(1, 2)).sum().backward()
        torch.distributed.destroy_process_group()


def broadcast_objects() -> None:
    """Play the receiving process: the group hands out the two messages that the sender would send."""
    import torch
    from fairseq.distributed import utils
    from omegaconf import OmegaConf

    sent = io.BytesIO()
    torch.save({"cfg": OmegaConf.create({"lr": 0.1})}, sent)
    content = torch.frombuffer(bytearray(sent.getvalue()), dtype=torch.uint8)
    messages = [torch.tensor([len(content)]), content]
    utils.get_rank = lambda group: 1
    utils.broadcast = lambda tensor, src, group: tensor.copy_(messages.pop(0))
    received = utils._broadcast_object_slow(None, 0, None, torch.device("cpu"))
    assert received["cfg"].lr == 0.1


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


def locked_seeds() -> None:
    """What two threads draw at the same time is what each would draw alone; also inside one another and after fork."""
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np
    from fairseq.data import data_utils

    def draw(seed: int) -> float:
        with data_utils.numpy_seed(seed):
            first = np.random.rand()
            time.sleep(0.0005)  # lets the other thread in, as reading an example does
            with data_utils.numpy_seed(seed, 1):
                second = np.random.rand()
            return first + second + np.random.rand()

    alone = [draw(seed) for seed in range(60)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(draw, range(60)))
    assert alone == together, f"{sum(a != b for a, b in zip(alone, together))} of 60 draws differ"


def fresh_workers() -> None:
    """A dataset whose examples are the number of the epoch, read by a worker; no more than the last is left."""
    import multiprocessing

    import torch
    from fairseq.data import FairseqDataset, iterators

    class Epochs(FairseqDataset):
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> int:
            return self.epoch

        def collater(self, samples: list) -> torch.Tensor:
            return torch.tensor(samples)

    data = Epochs()
    batches = iterators.EpochBatchIterator(data, data.collater, [[0], [1]], num_workers=1, reuse_dataloader=True)
    seen = [[batch.item() for batch in batches.next_epoch_itr(shuffle=False)] for _ in range(3)]
    assert seen == [[1, 1], [2, 2], [3, 3]], f"examples of epochs 1 to 3: {seen}"
    left = multiprocessing.active_children()
    assert len(left) <= 1, f"{len(left)} workers are left"
    loader = iterators.torch.utils.data.DataLoader(data, num_workers=1, persistent_workers=True)
    assert not loader.persistent_workers, "fairseq's workers are persistent"


def stopped_readers() -> None:
    """Programs that leave while fairseq's thread is reading ahead: forks of one, which has done the imports."""
    code = (
        "import os, sys, torch; from fairseq.data.iterators import BufferedIterator\n"
        "class Source:\n"
        "    def __len__(self): return 100000\n"
        "    def __iter__(self):\n"
        "        for _ in range(100000): yield torch.ones(400, 400) @ torch.ones(400, 400)\n"
        "for _ in range(3):\n"  # it is a race: without the fix nearly every run is lost
        "    if os.fork():\n"
        "        status = os.wait()[1]\n"
        "        if status: sys.exit(f'status {status}')\n"
        "    else:\n"
        "        reader = BufferedIterator(3, Source())\n"
        "        for _ in range(3): next(reader)\n"
        "        break\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"
