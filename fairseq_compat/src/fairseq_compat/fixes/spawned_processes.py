"""--cpu with several processes trains nothing; with srun --distributed-world-size is ignored.

Symptom: (a) ``--distributed-world-size 2 --cpu`` ends with ``AssertionError: world size is 2 but have 0 available
    devices``; with ``--distributed-init-method`` as well it starts nothing at all, and the exit status is 0. (b) With
    ``--cpu`` several processes need ``--distributed-backend gloo``: the default is for GPUs only. (c) Each
    data-loader worker of such a process is a new interpreter that imports torch and fairseq: seconds for every epoch
    and validation. (d) fairseq's main branch does not see torchrun where a process sees one GPU or none: each process
    trains for itself, and all write the same checkpoints. (e) With srun and one task on each machine,
    ``--distributed-world-size`` is not looked at: all GPUs of all machines train. With several tasks on each, another
    number than theirs ends in an ``AssertionError`` without a word.
Versions: all; fairseq 0.12.2 starts one process for each GPU, also with ``--cpu``.
Where: fairseq/distributed/utils.py:72, :142, :315 (``distributed_main``) and :347; (d) :54 of main; (e) :106, :130.
Remedy: with ``--cpu`` as many processes as ``--distributed-world-size`` says, which talk through gloo; the workers of
    all processes start as with a single process, on Linux by a fork. Under torchrun, and under srun with several tasks
    on each machine, the number of processes is theirs. With one task on each machine a number that is not that of all
    GPUs is refused; with --cpu the processes are divided among the machines, and a single one of a machine is the task.
    Without this fix: torchrun, and ``--distributed-backend gloo``.
Can go: with a fairseq that counts no GPUs with ``--cpu``.
"""

from __future__ import annotations

import multiprocessing
import os

from fairseq_compat.patches import shadow, wrap

BROKEN = r"torch\.cuda\.device_count\(\)"


def launched() -> int:
    """Return the number of processes that torchrun, or a launcher with its variables, has started; 0 without one."""
    if not all(name in os.environ for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")):
        return 0
    return int(os.environ["WORLD_SIZE"])


def machines(training) -> int:
    """Return the number of machines if each has one task of srun, which starts the machine's processes; else 1."""
    nodes, tasks = (int(os.environ.get(name, 0)) for name in ("SLURM_NNODES", "SLURM_NTASKS"))
    by_srun = training.distributed_port > 0 and training.distributed_init_method is None and not launched()
    return nodes if by_srun and nodes == tasks > 1 else 1


def patch(module):
    @wrap(module)
    def _infer_slurm_init(original, cfg, *args):
        size, devices, count = cfg.distributed_world_size, module.torch.cuda.device_count(), machines(cfg)
        if count == 1:
            cfg.distributed_world_size = int(os.environ.get("SLURM_NTASKS", size))
        original(cfg, *args)
        world = cfg.distributed_world_size
        if count > 1 and world != size and size != devices:  # the default: the devices of one machine
            raise ValueError(
                f"srun started one task on each of {count} machines, which train on {world} devices together, not on "
                f"--distributed-world-size {size}: give {world or count}, or let srun start a task for each device"
            )

    @wrap(module)
    def call_main(original, cfg, main, **kwargs):
        training, processes = cfg.distributed_training, launched()
        if processes > 1 and training.distributed_init_method is None:
            training.distributed_world_size = processes
        if not cfg.common.cpu or cfg.common.tpu:
            return original(cfg, main, **kwargs)
        if training.distributed_backend == "nccl":
            training.distributed_backend = "gloo"
        count = training.distributed_world_size // machines(training)
        if training.distributed_no_spawn or training.distributed_world_size == machines(training) == 1:
            return original(cfg, main, **kwargs)
        if machines(training) > 1 and count == 1:
            training.distributed_no_spawn = True
        if processes > 1:
            count = 1  # the main branch numbers devices and asks for those above 0
        torch = module.torch
        shadow(module, "torch.cuda.device_count", lambda: count)
        try:
            return original(cfg, main, **kwargs)
        finally:
            module.torch = torch

    @wrap(module)
    def distributed_main(original, i, main, cfg, kwargs):
        if multiprocessing.parent_process() is not None:  # the default is the start method of this process
            multiprocessing.set_start_method(multiprocessing.get_all_start_methods()[0], force=True)
        return original(i, main, cfg, kwargs)
