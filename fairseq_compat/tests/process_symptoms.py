"""Symptoms (see symptoms.py) of trainings in several processes, of their workers, and of stops."""

from __future__ import annotations

import contextlib
import importlib
import io
import multiprocessing
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from fairseq.data import FairseqDataset, data_utils, iterators
from fairseq.dataclass.configs import DistributedTrainingConfig, FairseqConfig
from fairseq.distributed import utils
from fairseq.models import DistributedFairseqModel
from fairseq.tasks import FairseqTask
from fairseq_compat.fixes.stopped_readers import stop
from omegaconf import OmegaConf
from training_symptoms import OneLayer, in_folder, trainer_of


@in_folder
def cpu_data_parallel(folder: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    config, group = DistributedTrainingConfig(tpu=False), torch.distributed.group.WORLD
    model = DistributedFairseqModel(config, torch.nn.Linear(2, 1), group, torch.device("cpu"))
    model(torch.ones(1, 2)).sum().backward()
    torch.distributed.destroy_process_group()


def broadcast_objects() -> None:
    """Play the receiving process: the group hands out the two messages that the sender would send."""
    sent = io.BytesIO()
    torch.save({"cfg": OmegaConf.create({"lr": 0.1})}, sent)
    content = torch.frombuffer(bytearray(sent.getvalue()), dtype=torch.uint8)
    messages = [torch.tensor([len(content)]), content]
    utils.get_rank = lambda group: 1
    utils.broadcast = lambda tensor, src, group: tensor.copy_(messages.pop(0))
    received = utils._broadcast_object_slow(None, 0, None, torch.device("cpu"))
    assert received["cfg"].lr == 0.1


def spawned_processes() -> None:
    """Two processes on the CPU are started, which talk through gloo, and fork their workers; GPUs are as before.

    (test_saved_stops.py trains in two processes.)
    """
    config = OmegaConf.create(OmegaConf.to_container(OmegaConf.structured(FairseqConfig), enum_to_str=True))
    training, before = config.distributed_training, utils.torch
    config.model, training.distributed_world_size = None, 1
    utils.call_main(config, lambda cfg: None)
    assert training.distributed_backend == "nccl"  # on GPUs nothing changes
    config.common.cpu, training.distributed_world_size = True, 2
    with mock.patch("torch.multiprocessing.spawn") as spawn:
        utils.call_main(config, train_nothing)
    assert spawn.call_args.kwargs["nprocs"] == 2, spawn.call_args
    assert (training.distributed_backend, utils.torch) == ("gloo", before)
    with mock.patch("multiprocessing.parent_process"), mock.patch("multiprocessing.set_start_method") as start:
        with contextlib.suppress(EOFError), mock.patch.object(utils, "distributed_init", side_effect=EOFError):
            utils.distributed_main(0, train_nothing, config, {})
    start.assert_called_once_with(multiprocessing.get_all_start_methods()[0], force=True)
    training.distributed_init_method = None
    launcher = {"MASTER_ADDR": "localhost", "MASTER_PORT": "1", "RANK": "0", "WORLD_SIZE": "3"}
    with mock.patch.dict("os.environ", launcher), mock.patch.object(utils, "infer_init_method"):
        with mock.patch.object(utils, "distributed_main"):
            utils.call_main(config, train_nothing)
    assert training.distributed_world_size == 3, "torchrun is not seen"
    _srun(training)


def _srun(training) -> None:
    """Several tasks on a machine are as many processes; one on each stands for its GPUs, another number is refused."""
    job = {"SLURM_JOB_NODELIST": "a,b", "SLURM_NNODES": "2", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    for tasks, given, devices, expected in ((4, 1, 0, 4), (2, 4, 2, 4), (2, 8, 8, 16), (2, 3, 1, None)):
        training.distributed_init_method, training.distributed_port, training.distributed_world_size = None, 1, given
        environment = {**job, "SLURM_NTASKS": str(tasks), "SLURM_NODEID": "0"}
        with (
            mock.patch.dict("os.environ", environment),
            mock.patch("subprocess.check_output", return_value=b"a\nb\n"),
            mock.patch("torch.cuda.device_count", return_value=devices),
            contextlib.nullcontext() if expected else contextlib.suppress(ValueError),
        ):
            utils._infer_slurm_init(training, None)
            assert expected == training.distributed_world_size, (tasks, given)


def train_nothing(cfg) -> None:
    """Takes the place of a training."""


def locked_seeds() -> None:
    """What two threads draw at the same time is what each would draw alone; also inside one another."""

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
    worker = multiprocessing.get_context("fork").Process(target=draw, args=(1,), daemon=True)
    with data_utils.numpy_seed(1):
        thread = threading.Thread(target=worker.start)  # another one than that which draws
        thread.start()
        thread.join()
        worker.join(600)
    assert worker.exitcode == 0, "a process that was forked meanwhile waits for ever"


class Epochs(FairseqDataset):
    """Its examples are the number of the epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return self.epoch

    def collater(self, samples: list[int]) -> torch.Tensor:
        return torch.tensor(samples)


def fresh_workers() -> None:
    """Each epoch is read by a worker that knows of it; no more than the last is left."""
    data = Epochs()
    batches = iterators.EpochBatchIterator(data, data.collater, [[0], [1]], num_workers=1, reuse_dataloader=True)
    seen = [[batch.item() for batch in batches.next_epoch_itr(shuffle=False)] for _ in range(3)]
    assert seen == [[1, 1], [2, 2], [3, 3]], f"examples of epochs 1 to 3: {seen}"
    numbers = torch.utils.data.TensorDataset(torch.arange(9))
    ordered = iterators.EpochBatchIterator(numbers, str, [[at] for at in range(9)], reuse_dataloader=True)
    epochs = [list(ordered.next_epoch_itr(shuffle=shuffle)) for shuffle in (False, True)]
    assert epochs[0] != epochs[1], "after the epochs of --curriculum nothing is shuffled"
    left = multiprocessing.active_children()
    assert len(left) <= 1, f"{len(left)} workers are left"
    loader = iterators.torch.utils.data.DataLoader(data, num_workers=1, persistent_workers=True)
    assert not loader.persistent_workers, "fairseq's workers are persistent"


class Products:
    """A source whose items take a while."""

    def __len__(self) -> int:
        return 100_000

    def __iter__(self):
        for _ in range(len(self)):
            yield torch.ones(800, 800) @ torch.ones(800, 800)


def stopped_readers() -> None:
    """Programs that leave while fairseq's thread is reading ahead: forks of this one."""
    for _ in range(2):  # without the fix the thread is nearly always in the middle of a product
        if child := os.fork():
            status = os.waitpid(child, 0)[1]
            assert status == 0, f"a program that left ended with status {status}"
            continue
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        reader = iterators.BufferedIterator(1000, Products())
        for _ in range(3):
            next(reader)
        sys.exit()
    reader = iterators.BufferedIterator(1, range(9))
    next(reader)
    stop([reader._consumer])
    assert not reader._consumer.is_alive(), "a reader that waits for room in its queue holds up the exit"


def paused_trainings() -> None:
    """A training that begins does not count the validations of another one (test_paused_trainings.py: the rest)."""
    stop = importlib.import_module("fairseq_cli.train").should_stop_early
    stop.best, stop.num_runs = 2.0, 2
    trainer_of(OneLayer(), torch.nn.Identity(), FairseqTask(None)).load_checkpoint("missing.pt")
    assert not hasattr(stop, "num_runs"), "--patience counts the validations of another training"


def saved_stops() -> None:
    train = importlib.import_module("fairseq_cli.train")
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)]
    try:
        with contextlib.suppress(Exception):
            train.main(OmegaConf.create({}))  # ends where it reads its options
        assert signal.SIG_DFL not in [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)]
    finally:
        for number, handler in zip((signal.SIGTERM, signal.SIGUSR1), before):
            signal.signal(number, handler)
