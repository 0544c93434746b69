"""--fp16 and --bf16 without a GPU fail or learn nothing; now an error names --amp.

Symptom: ``--fp16`` or ``--bf16`` without a GPU ends with ``AssertionError: Torch not compiled with CUDA enabled``; with
    ``--cpu`` on a machine that has one the gradients of the CPU do not reach the optimizer.
Versions: all; fairseq 0.12.2 has its single-precision copy on a GPU.
Where: fairseq/optim/fp16_optimizer.py:38.
Remedy: an error that names the flag and ``--amp``, which computes in bfloat16 on a CPU (``cpu_autocast``) and in half
    precision on a GPU. ``--memory-efficient-fp16``, ``--memory-efficient-bf16`` and ``--fp16-no-flatten-grads`` pass:
    they have no such copy.
"""

from __future__ import annotations

from fairseq_compat.patches import wrap

BROKEN = r"class Trainer\("


def obstacle(common, cuda: bool) -> str | None:
    """Return why a run cannot compute in half precision, with the remedy; None if it can.

    Args:
        common: the section of fairseq's configuration.
        cuda: True if PyTorch can use a GPU.
    """
    has_copy = not (common.memory_efficient_fp16 or common.memory_efficient_bf16 or common.fp16_no_flatten_grads)
    if not (common.fp16 or common.bf16) or not has_copy or (cuda and not common.cpu):
        return None
    flag = "--fp16" if common.fp16 else "--bf16"
    place = f"{flag} with --cpu" if common.cpu else f"{flag}, but PyTorch finds no GPU"
    return f"{place}: half precision needs a GPU; give --amp instead, which computes in bfloat16 on a CPU"


def patch(module):
    @wrap(module.Trainer)
    def __init__(original, self, cfg, *args, **kwargs):
        problem = obstacle(cfg.common, module.torch.cuda.is_available())
        if problem:
            raise ValueError(problem)
        original(self, cfg, *args, **kwargs)
