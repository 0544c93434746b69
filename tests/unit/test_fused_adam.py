"""--optimizer fused_adam against fairseq's adam and the equation; states that pass from one to the other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from fairseq.optim import build_optimizer
from fairseq.optim.adam import Adam, FairseqAdam, FairseqAdamConfig
from omegaconf import OmegaConf

from embinit_fairseq.errors import OptionError
from embinit_fairseq.optimizers.fused_adam import FusedAdam, FusedAdamConfig

OPTIONS = {"lr": 0.01, "betas": (0.9, 0.98), "eps": 1e-3, "weight_decay": 0.1}
SHAPES = [(7, 5), (3,), (2, 2, 2), (64, 33)]
LATE = (1, 3)  # frozen for four updates


def parameters(dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    drawn = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES)
    return [torch.nn.Parameter(values.to(dtype)) for values in drawn]


def give_gradients(params, update):
    """The same gradients for the same update, smaller than eps and larger."""
    generator = torch.Generator().manual_seed(update)
    for number, p in enumerate(params):
        gradient = torch.randn(p.shape, generator=generator, dtype=torch.float64) * 10.0 ** (number - 3)
        p.grad = None if number in LATE and update < 4 else gradient.to(p.dtype)


def by_hand(updates):
    """fairseq/optim/adam.py's equation in numpy, for parameters()."""
    (beta1, beta2), lr, params = OPTIONS["betas"], OPTIONS["lr"], parameters()
    for number, p in enumerate(params):
        x, m, v, t = p.detach().numpy().copy(), 0.0, 0.0, 0
        for update in range(updates):
            give_gradients(params, update)
            if p.grad is None:
                continue
            g, t = params[number].grad.numpy(), t + 1
            m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
            x = x - lr * OPTIONS["weight_decay"] * x
            x = x - lr * math.sqrt(1 - beta2**t) / (1 - beta1**t) * m / (np.sqrt(v) + OPTIONS["eps"])
        yield x


@pytest.mark.parametrize(("first", "second"), [(FusedAdam, FusedAdam), (Adam, FusedAdam), (FusedAdam, Adam)])
def test_steps_are_those_of_fairseqs_equation_and_either_optimizer_continues_the_other(first, second):
    params = parameters()
    optimizer, other = first(params, **OPTIONS), second(params, **OPTIONS)
    for update in range(12):
        if update == 6:
            saved = optimizer.state_dict()
            assert all(type(entry["step"]) is int for entry in saved["state"].values())
            assert {key for entry in saved["state"].values() for key in entry} == {"step", "exp_avg", "exp_avg_sq"}
            optimizer = other
            optimizer.load_state_dict(saved)
        give_gradients(params, update)
        optimizer.step()
    for found, expected in zip(params, by_hand(12), strict=True):
        np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-12)


# ----- as an optimizer of fairseq


def built(name, dtype=torch.float32):
    config = {"adam": FairseqAdamConfig, "fused_adam": FusedAdamConfig}[name]
    cfg = OmegaConf.structured(config(adam_betas="(0.9, 0.98)", adam_eps=1e-3, weight_decay=0.1, lr=[0.01]))
    OmegaConf.set_struct(cfg, False)
    cfg["_name"], cfg["tpu"] = name, False
    return build_optimizer(cfg, parameters(dtype))


def test_fairseq_builds_it_and_continues_the_checkpoints_of_adam():
    ours, theirs = built("fused_adam"), built("adam")
    assert isinstance(ours.optimizer, FusedAdam)
    assert ours.optimizer_config == theirs.optimizer_config
    assert type(ours).__name__ == FairseqAdam.__name__  # what a checkpoint is compared by
    for optimizer in (ours, theirs):
        give_gradients(list(optimizer.params), 1)
        optimizer.multiply_grads(torch.tensor(0.25))
        optimizer.multiply_grads(0.5)
        optimizer.clip_grad_norm(0.1)
        optimizer.step()
    torch.testing.assert_close([p.grad for p in ours.params], [p.grad for p in theirs.params], rtol=0, atol=0)
    torch.testing.assert_close(list(ours.params), list(theirs.params), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("which", ["parameter", "gradient"])
def test_memory_in_another_order_is_updated_as_it_stands(which):
    found = []
    for kind in (Adam, FusedAdam):
        values, gradient = torch.arange(12.0).view(3, 4), torch.linspace(-1, 2, 12).view(3, 4)
        p = torch.nn.Parameter(values.t().contiguous().t() if which == "parameter" else values)
        optimizer = kind([p], lr=0.1)
        for _ in range(3):
            p.grad = gradient.t().contiguous().t() if which == "gradient" else gradient.clone()
            optimizer.step()
        found.append(p.detach().clone())
    torch.testing.assert_close(*found)


# ----- a learning rate of their own (--embed-init-lr-scale)


def test_numbers_of_another_size_move_by_the_same_share():
    """Adam does not see the size of a gradient: numbers and rate a times as large give the same model."""
    found = []
    for size in (1.0, 8.0):  # a power of two: no rounding
        scaled, other = parameters(torch.float32)[:2]
        scaled.data *= size
        scaled.lr_scale = size
        optimizer = FusedAdam([scaled, other], lr=0.01, eps=0.0)
        for _ in range(4):
            optimizer.zero_grad()
            (scaled / size @ scaled.T[:, :3] / size * other).square().sum().backward()
            optimizer.step()
        found.append((scaled.detach() / size, other.detach()))
    torch.testing.assert_close(*found)
    assert (found[0][0] - parameters(torch.float32)[0]).abs().min() > 1e-3


def test_a_rate_that_the_other_computation_would_ignore_is_refused():
    p = torch.nn.Parameter(torch.ones(2, dtype=torch.float16))
    p.lr_scale, p.grad = 3.0, torch.ones(2, dtype=torch.float16)
    with pytest.raises(OptionError, match="--embed-init-lr-scale"):
        FusedAdam([p]).step()
