"""Several processes that fairseq starts itself.

Symptom: (a) ``--distributed-world-size 2 --cpu`` ends with ``AssertionError: world size is 2 but have 0 available
    devices``; with ``--distributed-init-method`` as well it starts nothing at all, and the exit status is 0. (b) With
    ``--cpu`` several processes need ``--distributed-backend gloo``: the default is for GPUs only. (c) Each
    data-loader worker of such a process is a new interpreter that imports torch and fairseq: seconds for every epoch
    and validation. (d) fairseq's main branch does not see torchrun where a process sees one GPU or none: each process
    trains for itself, and all write the same checkpoints.
Versions: all; fairseq 0.12.2 starts one process for each GPU, also with ``--cpu``.
Where: fairseq/distributed/utils.py:72, :142, :315 (``distributed_main``) and :347; (d) :54 of main.
Remedy: with ``--cpu`` as many processes as ``--distributed-world-size`` says, which talk through gloo; the workers of
    all processes start as those of a single one do, on Linux by a fork. Under torchrun the number of processes is its
    own.
Upstream: not reported. Without this fix: torchrun, and ``--distributed-backend gloo``.
Can go: with a fairseq that counts no GPUs with ``--cpu``.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
from contextlib import contextmanager

from fairseq_compat.shadow import shadow

REASON = "with --cpu fairseq counts GPUs and starts no process; workers of processes start slowly"
BROKEN = r"torch\.cuda\.device_count\(\)"


def needed() -> bool:
    return True


def launched() -> int:
    """The number of processes that torchrun, or another launcher with its variables, has started; 0 without one."""
    if not all(name in os.environ for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")):
        return 0
    for name in ("WORLD_SIZE", "RANK"):
        if not os.environ[name].strip().isdecimal():
            raise ValueError(f"{name}={os.environ[name]} in the environment is no number: use torchrun, or unset it")
    return int(os.environ["WORLD_SIZE"])


@contextmanager
def patching(module):
    yield
    original_call, original_main = module.call_main, module.distributed_main

    @functools.wraps(original_call)
    def call_main(cfg, main, **kwargs):
        training, others = cfg.distributed_training, launched()
        if others > 1 and training.distributed_init_method is None:
            training.distributed_world_size = others
        if not cfg.common.cpu or cfg.common.tpu:
            return original_call(cfg, main, **kwargs)
        if training.distributed_backend == "nccl":
            training.distributed_backend = "gloo"
        count = training.distributed_world_size
        if training.distributed_no_spawn or count == 1:
            return original_call(cfg, main, **kwargs)
        if others > 1:
            count = 1  # the main branch numbers devices and asks for those above 0
        torch = module.torch
        module.torch = shadow(torch, cuda=shadow(torch.cuda, device_count=lambda: count))
        try:
            return original_call(cfg, main, **kwargs)
        finally:
            module.torch = torch

    @functools.wraps(original_main)
    def distributed_main(i, main, cfg, kwargs):
        if multiprocessing.parent_process() is not None:  # its default is how it was started itself
            multiprocessing.set_start_method(multiprocessing.get_all_start_methods()[0], force=True)
        return original_main(i, main, cfg, kwargs)

    module.call_main, module.distributed_main = call_main, distributed_main
