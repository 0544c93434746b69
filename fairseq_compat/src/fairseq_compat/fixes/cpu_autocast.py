"""--amp --cpu trains in single precision; now in bfloat16.

Symptom: ``--amp --cpu`` trains in single precision, with two warnings that CUDA is not available.
Versions: all; fairseq 0.12.2 knows CUDA's autocast only.
Where: fairseq/tasks/fairseq_task.py:513, fairseq/optim/amp_optimizer.py:30.
Remedy: without a GPU the criterion (and in it the model) runs under ``torch.autocast("cpu", torch.bfloat16)`` while
    training, as it does under CUDA's autocast on a GPU; bfloat16 needs no scaling of the loss. Validation stays in
    single precision, as on a GPU. Short sentences take PyTorch's plain attention: its flash kernel for the CPU needs
    two to six times as long for them in bfloat16 (64 sentences of 14 tokens, 10 heads of 30: 31 ms, plain 5 ms).
"""

from __future__ import annotations

import logging
import warnings
from contextlib import nullcontext

from fairseq_compat.patches import wrap

BROKEN = r"def _build_optimizer\("

#: largest number of tokens for which plain attention is faster (measured at 64, 128, 256 and 512)
SHORT = 200

logger = logging.getLogger(__name__)


def patch(module):
    @wrap(module.Trainer)
    def _build_optimizer(original, self):
        on_cpu = self.cfg.common.amp and not self.cuda and not self.tpu
        if on_cpu:
            use_autocast(self._criterion)
            logger.info("--amp on the CPU: bfloat16 where PyTorch's autocast takes it, no scaling of the loss")
        with warnings.catch_warnings():
            if on_cpu:  # CUDA's scaler is built as well, and warns that it does nothing
                warnings.filterwarnings("ignore", message=".*GradScaler")
            return original(self)


def use_autocast(criterion) -> None:
    """Run the forward pass of a criterion under the CPU's autocast while it is training."""
    import torch

    @wrap(criterion)
    def forward(original, model, sample, *args, **kwargs):
        if not criterion.training:
            return original(model, sample, *args, **kwargs)
        with torch.autocast("cpu", torch.bfloat16), attention_for(sample):
            return original(model, sample, *args, **kwargs)

    # fairseq enters CUDA's autocast around it, which warns that there is no CUDA
    warnings.filterwarnings("ignore", message=".*CUDA is not available.*[Dd]isabling", module="torch.amp")


def attention_for(sample):
    """Return a context in which attention takes the faster kernel for the sentences of a batch."""
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:  # torch < 2.3
        return nullcontext()
    tokens = sample.get("net_input", {}).get("src_tokens")
    if tokens is None or tokens.size(-1) > SHORT:
        return nullcontext()
    return sdpa_kernel(SDPBackend.MATH)
