"""Which kernel is taken where, as a function of the situation; what is refused, and with which remedy."""

from __future__ import annotations

import contextlib

import pytest
import torch

from embinit_fairseq.errors import OptionError
from embinit_fairseq.modules import attention_kernels
from embinit_fairseq.modules.attention_kernels import Situation, check_trainable, choose_kernel, situation

NOW, TRITON = (2, 8), True


def at(device, needs_grad=True, dropout=0.0, version=NOW, dtype=torch.float32, head_dim=64, triton=TRITON):
    return Situation(device, dtype, head_dim, needs_grad, dropout, version, triton)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("triton", [True, False])
@pytest.mark.parametrize(
    ("device", "needs_grad", "version", "expected"),
    [
        ("cpu", True, NOW, "eager"),
        ("cpu", True, (2, 0), "eager"),
        ("cpu", False, NOW, "sdpa"),
        ("cpu", False, (2, 1), "sdpa"),
        ("cpu", False, (2, 0), "eager"),
        ("cuda", True, NOW, "sdpa"),
        ("cuda", False, NOW, "sdpa"),
        ("cuda", True, (2, 0), "eager"),
        ("mps", True, NOW, "sdpa"),
    ],
)
@pytest.mark.parametrize("head_dim", [8, 64])
def test_auto_never_takes_what_was_not_measured(device, needs_grad, version, expected, dropout, triton, head_dim):
    """flex is not among the results, whatever is there."""
    here = at(device, needs_grad, dropout, version, head_dim=head_dim, triton=triton)
    kernel, why = choose_kernel("auto", here)
    assert kernel == expected
    assert "asked for" not in why


@pytest.mark.parametrize(
    ("requested", "here"),
    [
        ("eager", at("cuda", dropout=0.1)),
        ("sdpa", at("cpu", dropout=0.1)),
        ("flex", at("cuda")),
        ("flex", at("cuda", needs_grad=False, dtype=torch.bfloat16)),
        ("flex", at("cuda", version=(2, 6))),
        ("flex", at("cuda", version=(2, 7), head_dim=96)),
        ("flex", at("cpu", needs_grad=False, head_dim=4, dtype=torch.float64, triton=False)),
    ],
)
def test_a_kernel_that_is_asked_for_is_taken(requested, here):
    assert choose_kernel(requested, here) == (requested, "asked for by --attention-kernel")


@pytest.mark.parametrize(
    ("requested", "here", "message"),
    [
        ("flex", at("cuda", dropout=0.1), "no dropout of attention weights: add --attention-dropout 0"),
        ("flex", at("cpu"), "no gradients on a CPU"),
        ("flex", at("cuda", triton=False), "compiled by Triton, which is not installed"),
        ("flex", at("cuda", version=(2, 5)), r"needs PyTorch 2\.6 or later for a bias that learns; this is 2\.5"),
        ("flex", at("cuda", version=(2, 6), head_dim=96), "needs a power of two as width in PyTorch 2.6"),
        ("flex", at("cuda", head_dim=15), "needs heads of width 16 or more, these have 15"),
        ("flex", at("cuda", dtype=torch.float64), "the model has double precision"),
        ("flex", at("mps"), "runs on CUDA, not on mps"),
        ("sdpa", at("cpu", version=(2, 0)), "needs PyTorch 2.1 or later: update it"),
    ],
)
def test_a_kernel_that_cannot_do_it_is_refused(requested, here, message):
    with pytest.raises(OptionError, match=f"--attention-kernel {requested} .*{message}.*choose auto"):
        choose_kernel(requested, here)


@pytest.mark.parametrize(
    ("gpu", "head_dim", "dropout", "message"),
    [
        (True, 64, 0.1, "add --attention-dropout 0"),
        (True, 8, 0.0, "these have 8"),
        (True, 64, 0.0, None),
        (False, 64, 0.0, "no gradients on a CPU"),
    ],
)
def test_what_is_known_before_a_training(gpu, head_dim, dropout, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(attention_kernels, "_installed", lambda: (NOW, TRITON))
    check_trainable("auto", head_dim, dropout)
    with pytest.raises(OptionError, match=message) if message else contextlib.nullcontext():
        check_trainable("flex", head_dim, dropout)


def test_the_situation_is_that_of_the_tensor():
    x = torch.zeros(2, dtype=torch.bfloat16)
    with torch.no_grad():
        here = situation(x, 32, 0.25)
    assert (here.device, here.dtype, here.head_dim, here.dropout) == ("cpu", torch.bfloat16, 32, 0.25)
    assert not here.needs_grad
    assert situation(x, 32, 0.25).needs_grad
    assert torch.__version__.startswith("{}.{}.".format(*here.torch_version))
