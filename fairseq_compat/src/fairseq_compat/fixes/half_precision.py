"""Half precision where fairseq cannot compute with it.

Symptom: ``--fp16`` or ``--bf16`` without a GPU ends with ``AssertionError: Torch not compiled with CUDA enabled``; with
    ``--cpu`` on a machine that has one the gradients of the CPU do not reach the optimizer. ``--tpu`` without torch_xla
    ends with ``AttributeError: 'NoneType' object has no attribute 'xla_device'``.
Versions: all; fairseq 0.12.2 keeps its single-precision copy on a GPU.
Where: fairseq/optim/fp16_optimizer.py:38, fairseq/trainer.py:65.
Remedy: an error that names the flag and ``--amp``, which computes in bfloat16 on a CPU (``cpu_autocast``) and in half
    precision on a GPU. ``--memory-efficient-fp16``, ``--memory-efficient-bf16`` and ``--fp16-no-flatten-grads`` are let
    through: they keep no such copy.
Upstream: not reported.
Can go: with a fairseq that checks this.
"""

from __future__ import annotations

import functools
import importlib.util
from contextlib import contextmanager

REASON = "--fp16 and --bf16 without a GPU end with an error that names no flag, or train nothing"
BROKEN = r"class Trainer\("


def needed() -> bool:
    return True


def obstacle(common, cuda: bool) -> str | None:
    """Why this run cannot compute in half precision, and what to give instead; common: the section of fairseq's
    configuration. None if it can."""
    if common.tpu and importlib.util.find_spec("torch_xla") is None:
        return (
            "--tpu: there is no torch_xla; leave it out. Half precision on a GPU is --fp16 or --bf16, on a CPU give "
            "--amp, which computes in bfloat16"
        )
    flag = "--fp16" if common.fp16 else "--bf16"
    whole_copy = not (common.memory_efficient_fp16 or common.memory_efficient_bf16 or common.fp16_no_flatten_grads)
    if (common.fp16 or common.bf16) and whole_copy and (common.cpu or not cuda):
        place = f"{flag} with --cpu" if common.cpu else f"{flag}, but PyTorch finds no GPU"
        return f"{place}: half precision needs a GPU; give --amp instead, which computes in bfloat16 on a CPU"
    return None


@contextmanager
def patching(module):
    yield
    original = module.Trainer.__init__

    @functools.wraps(original)
    def __init__(self, cfg, *args, **kwargs):
        problem = obstacle(cfg.common, module.torch.cuda.is_available())
        if problem:
            raise ValueError(problem)
        original(self, cfg, *args, **kwargs)

    module.Trainer.__init__ = __init__
