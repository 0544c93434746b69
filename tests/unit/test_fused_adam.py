"""--optimizer fused_adam against fairseq's adam and the equation; states that pass from one to the other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

pytest.importorskip("fairseq", reason="this is an optimizer of fairseq; install it with scripts/setup.sh")
from fairseq.optim import FP16Optimizer, MemoryEfficientFP16Optimizer, build_optimizer
from fairseq.optim.adam import Adam, FairseqAdam, FairseqAdamConfig
from omegaconf import OmegaConf

import embinit_fairseq  # noqa: F401
from embinit_fairseq.errors import OptionError
from embinit_fairseq.optimizers import fused_adam
from embinit_fairseq.optimizers.fused_adam import FusedAdam, FusedAdamConfig

OPTIONS = {"lr": 0.01, "betas": (0.9, 0.98), "eps": 1e-3, "weight_decay": 0.1}
SHAPES = [(7, 5), (3,), (2, 2, 2), (64, 33)]


def parameters(dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    return [
        torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)) for shape in SHAPES
    ]


def give_gradients(params, update, late=()):
    """The same ones for the same update, small beside eps and large beside it; none for what is frozen until then."""
    generator = torch.Generator().manual_seed(update)
    for number, p in enumerate(params):
        gradient = torch.randn(p.shape, generator=generator, dtype=torch.float64) * 10.0 ** (number - 3)
        p.grad = None if number in late and update < 4 else gradient.to(p.dtype)


def trained(optimizer, params, updates, late=()):
    for update in updates:
        give_gradients(params, update, late)
        optimizer.step()
    return params


def by_hand(updates, late=(), lr=0.01, betas=(0.9, 0.98), eps=1e-3, weight_decay=0.1):
    """fairseq/optim/adam.py's equation in numpy, for parameters()."""
    params, finals = parameters(), []
    for number, p in enumerate(params):
        x, m, v, t = p.detach().numpy().copy(), 0.0, 0.0, 0
        for update in updates:
            give_gradients(params, update, late)
            if p.grad is None:
                continue
            g, t = params[number].grad.numpy(), t + 1
            m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g * g
            size = lr * math.sqrt(1 - betas[1] ** t) / (1 - betas[0] ** t)
            x = x - lr * weight_decay * x
            x = x - size * m / (np.sqrt(v) + eps)
        finals.append(x)
    return finals


@pytest.mark.parametrize("late", [(), (1, 3)], ids=["together", "some frozen for a while"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_steps_are_those_of_fairseqs_equation(late, weight_decay):
    options = {**OPTIONS, "weight_decay": weight_decay}
    params = parameters()
    trained(FusedAdam(params, **options), params, range(12), late)
    for found, expected in zip(params, by_hand(range(12), late, weight_decay=weight_decay), strict=True):
        np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-12)


def test_single_precision_is_equal_to_rounding():
    ours, theirs = parameters(torch.float32), parameters(torch.float32)
    trained(FusedAdam(ours, **OPTIONS), ours, range(20))
    trained(Adam(theirs, **OPTIONS), theirs, range(20))
    for found, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize(("first", "second"), [(Adam, FusedAdam), (FusedAdam, Adam)])
def test_a_state_is_continued_by_the_other_optimizer(first, second):
    params = parameters()
    state = first(params, **OPTIONS)
    trained(state, params, range(6), late=(1,))
    saved = state.state_dict()
    assert all(type(entry["step"]) is int for entry in saved["state"].values())
    assert {key for entry in saved["state"].values() for key in entry} == {"step", "exp_avg", "exp_avg_sq"}
    continued = second(params, **OPTIONS)
    continued.load_state_dict(saved)
    trained(continued, params, range(6, 12), late=(1,))
    for found, expected in zip(params, by_hand(range(12), late=(1,)), strict=True):
        np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("case", ["half", "transposed", "sparse"])
def test_what_the_kernel_does_not_take_is_left_to_fairseq(case):
    def made(optimizer):
        p = torch.nn.Parameter(parameters(torch.float32)[0].detach())
        if case == "half":
            p = torch.nn.Parameter(p.detach().bfloat16())
        elif case == "transposed":
            p = torch.nn.Parameter(p.detach().t())
        p.grad = torch.ones_like(p).to_sparse() if case == "sparse" else torch.ones_like(p)
        optimizer([p], **OPTIONS).step()
        return p

    if case == "sparse":
        with pytest.raises(RuntimeError, match="sparse"):
            made(FusedAdam)
    else:
        assert torch.equal(made(FusedAdam), made(Adam))


# ----- as an optimizer of fairseq


def configuration(name, **common):
    config = {"adam": FairseqAdamConfig, "fused_adam": FusedAdamConfig}[name]
    optimizer = OmegaConf.structured(config(adam_betas="(0.9, 0.98)", adam_eps=1e-3, weight_decay=0.1, lr=[0.01]))
    OmegaConf.set_struct(optimizer, False)
    optimizer["_name"], optimizer["tpu"] = name, False
    defaults = {
        "fp16": False,
        "bf16": False,
        "fp16_init_scale": 4,
        "fp16_scale_window": None,
        "min_loss_scale": 1e-4,
        "model_parallel_size": 1,
    }
    return OmegaConf.create(
        {
            "optimizer": optimizer,
            "common": {**defaults, "fp16_scale_tolerance": 0.0, "threshold_loss_scale": None, **common},
            "optimization": {"update_freq": [1]},
            "distributed_training": {"distributed_world_size": 1},
        }
    )


def test_fairseq_builds_it_and_continues_the_checkpoints_of_adam():
    ours = build_optimizer(configuration("fused_adam").optimizer, parameters(torch.float32))
    theirs = build_optimizer(configuration("adam").optimizer, parameters(torch.float32))
    assert isinstance(ours.optimizer, FusedAdam)
    assert ours.optimizer_config == theirs.optimizer_config
    assert type(ours).__name__ == type(theirs).__name__ == FairseqAdam.__name__  # what a checkpoint is compared by
    for name in ("supports_memory_efficient_fp16", "supports_flat_params", "supports_step_with_scale"):
        assert getattr(ours, name) == getattr(theirs, name)
    for optimizer in (ours, theirs):
        give_gradients(list(optimizer.params), 1)
        optimizer.multiply_grads(torch.tensor(0.25))
        optimizer.multiply_grads(0.5)
        optimizer.clip_grad_norm(0.1)
        optimizer.step()
    for found, expected in zip(ours.params, theirs.params, strict=True):
        assert torch.equal(found.grad, expected.grad)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("wrapper", [FP16Optimizer, MemoryEfficientFP16Optimizer])
def test_optimizers_in_half_precision_wrap_it(wrapper, monkeypatch):
    """Both keep bfloat16 parameters; the first one a copy in single precision, which it makes on a GPU."""
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
    results = {}
    for name in ("adam", "fused_adam"):
        params = parameters(torch.bfloat16)
        optimizer = wrapper.build_optimizer(configuration(name, bf16=True), params)
        for update in range(5):
            optimizer.zero_grad()
            give_gradients(params, update)
            optimizer.multiply_grads(1.0)
            optimizer.step()
        state = optimizer.state_dict()
        optimizer.load_state_dict(state)
        results[name] = params
    for found, expected in zip(results["fused_adam"], results["adam"], strict=True):
        torch.testing.assert_close(found, expected, rtol=2**-8, atol=0)


def test_without_a_kernel_the_error_names_the_other_optimizer(monkeypatch):
    def refusing(*args, **kwargs):
        raise RuntimeError("`fused=True` requires ...")

    monkeypatch.setattr(fused_adam.torch.optim, "AdamW", refusing)
    with pytest.raises(OptionError) as error:
        build_optimizer(configuration("fused_adam").optimizer, parameters())
    assert "--optimizer fused_adam" in str(error.value)
    assert "--optimizer adam" in str(error.value)
