"""Compute fairseq's `adam` by PyTorch's fused kernel (`--optimizer fused_adam`): one pass over the memory, not ten.

fairseq divides by sqrt(v) + eps before it corrects the bias, PyTorch after:

    fairseq   p - lr sqrt(b2) / b1  m / (sqrt(v) + eps)              b1 = 1 - beta1^t, b2 = 1 - beta2^t
    PyTorch   p - lr / b1  m / (sqrt(v) / sqrt(b2) + eps')           the same with eps' = eps / sqrt(b2)

So the kernel takes eps', and the results are equal up to rounding. Weight decay is decoupled in both. The state has
fairseq's format: either optimizer continues a training of the other.

A parameter with an attribute `lr_scale` (`--embed-init-lr-scale`) has that multiple of the learning rate.
"""

# no `from __future__ import annotations`: fairseq reads the types of the fields, not their names
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, List, Optional, cast  # noqa: UP035  fairseq recognises lists by the name of typing's

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.adam import Adam, FairseqAdam
from omegaconf import II
from torch import Tensor
from torch.optim.adamw import adamw

from embinit_fairseq.errors import OptionError


@dataclass
class FusedAdamConfig(FairseqDataclass):
    """Hold fairseq's options of `adam`, except the choice of an implementation."""

    adam_betas: Any = field(default=(0.9, 0.999), metadata={"help": "betas for Adam optimizer"})
    adam_eps: float = field(default=1e-8, metadata={"help": "epsilon for Adam optimizer"})
    weight_decay: float = field(default=0.0, metadata={"help": "weight decay"})
    lr: List[float] = II("optimization.lr")  # noqa: UP006


@register_optimizer("fused_adam", dataclass=FusedAdamConfig)
class FusedFairseqAdam(FairseqAdam):
    """Replace the implementation of the step of fairseq's optimizer."""

    def __init__(self, cfg: FusedAdamConfig, params: Any) -> None:
        FairseqOptimizer.__init__(self, cfg)
        params = list(params)
        check_kernel(params)
        self._optimizer = FusedAdam(params, **self.optimizer_config)

    def multiply_grads(self, c: Any) -> None:
        """Multiply all gradients by a number, or by a tensor with one number."""
        gradients = [p.grad for p in self.params if p.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, c.to(gradients[0].device) if torch.is_tensor(c) else c)


# A checkpoint names the class of its optimizer, and fairseq continues a training only with this class.
FusedFairseqAdam.__name__ = FairseqAdam.__name__


class FusedAdam(Adam):
    """Update by the kernel, or by fairseq's Adam where the kernel cannot (half precision, sparse gradients)."""

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Update all parameters that have a gradient."""
        if not all(is_taken(p, group) for group in self.param_groups for p in group["params"]):
            check_unscaled(p for group in self.param_groups for p in group["params"])
            return super().step(closure)
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            alike = defaultdict(list)  # a parameter that was frozen for some time has had fewer updates
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    if not state:
                        state.update(step=0, exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
                    state["step"] += 1
                    alike[state["step"], getattr(p, "lr_scale", 1.0)].append(p)
            for (step, lr_scale), parameters in alike.items():
                self._update(group, step, group["lr"] * lr_scale, parameters)
        return loss

    @torch.no_grad()
    def _update(self, group: dict[str, Any], step: int, lr: float, parameters: list[Tensor]) -> None:
        """Compute the update number `step` of these parameters."""
        states = [self.state[p] for p in parameters]
        beta1, beta2 = group["betas"]
        adamw(
            parameters,
            [cast(Tensor, p.grad).contiguous() for p in parameters],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [torch.tensor(step - 1.0, device=p.device) for p in parameters],
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=lr,
            weight_decay=group["weight_decay"],
            eps=group["eps"] / math.sqrt(1 - beta2**step),
            maximize=False,
        )


def is_taken(p: Tensor, group: dict[str, Any]) -> bool:
    """Return True if the kernel takes this parameter and its gradient."""
    if p.grad is None:
        return True
    plain = not p.grad.is_sparse and p.is_contiguous() and not group.get("amsgrad", False)
    return plain and p.dtype == p.grad.dtype and p.dtype in (torch.float32, torch.float64)


def check_unscaled(params: Iterable[Any]) -> None:
    """Raise OptionError if a parameter has a learning rate of its own."""
    if any(hasattr(p, "lr_scale") for p in params):
        raise OptionError("--embed-init-lr-scale: needs dense gradients in single precision; drop the option")


def check_kernel(params: list[Any]) -> None:
    """Raise OptionError if this PyTorch has no fused kernel for the device of the parameters."""
    for device in {p.device for p in params if torch.is_tensor(p)}:
        try:
            torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1, device=device))], fused=True)
        except RuntimeError as error:
            raise OptionError(
                f"--optimizer fused_adam: PyTorch {torch.__version__} has no fused Adam for {device.type}; give "
                "--optimizer adam"
            ) from error
