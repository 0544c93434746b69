"""Attention with a bias: every kernel against the equation, with all gradients; which kernel is taken."""

import math

import pytest
import torch

from embinit_fairseq.modules import attention_kernels
from embinit_fairseq.modules.attention_kernels import attend, attention_weights, choose_kernel, prepare

B, H, T, HEAD_DIM = 3, 2, 5, 4
SCALE = 0.3
each_kernel = pytest.mark.parametrize("kernel", ["eager", "sdpa"])


def inputs(dtype=torch.float64):
    """q, k, v (B, H, T, d) and a bias (H, T, T) that want gradients; padding of sentences of 5, 3 and 1 tokens."""
    generator = torch.Generator().manual_seed(1)
    shapes = [(B, H, T, HEAD_DIM)] * 3 + [(H, T, T)]
    leaves = [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for s in shapes]
    return leaves, torch.arange(T)[None, :] >= torch.tensor([5, 3, 1])[:, None]


def plain(q, k, v, bias, padding_mask):
    """Sentence by sentence and head by head, without padding."""
    rows = []
    for b in range(B):
        real = slice(None) if padding_mask is None else ~padding_mask[b]
        for h in range(H):
            scores = q[b, h] @ k[b, h, real].T * SCALE + (0 if bias is None else bias[h][:, real])
            rows.append(scores.exp() / scores.exp().sum(1, keepdim=True) @ v[b, h, real])
    return torch.stack(rows).view(B, H, T, HEAD_DIM)


CASES = [(torch.float64, bias, padding) for bias in (False, True) for padding in (False, True)]
CASES += [(torch.bfloat16, True, True), (torch.float16, True, True)]


@pytest.mark.parametrize(("dtype", "with_bias", "with_padding"), CASES, ids=str)
@each_kernel
def test_every_kernel_equals_the_equation(kernel, dtype, with_bias, with_padding):
    """In half precision up to rounding: a few units in the last place of numbers around 1."""
    results = []
    for name, numbers in ((kernel, dtype), ("plain", torch.float64)):
        (q, k, v, bias), mask = inputs(numbers)
        given = (bias if with_bias else None), (mask if with_padding else None)
        out = plain(q, k, v, *given) if name == "plain" else attend(q, k, v, prepare(kernel, *given), SCALE)
        direction = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view_as(out).to(numbers)
        leaves = [q, k, v, bias] if with_bias else [q, k, v]
        results.append([out, *torch.autograd.grad((out * direction).sum(), leaves)])
    tolerance = 1e-11 if dtype == torch.float64 else 30 * torch.finfo(dtype).eps
    for one, other in zip(*results):
        assert one.dtype == dtype
        torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance)


@each_kernel
def test_a_sentence_of_padding_gives_no_nan_and_disturbs_no_other(kernel):
    for with_bias in (False, True):
        (q, k, v, bias), mask = inputs(torch.float16)
        given, leaves = (bias, [q, k, v, bias]) if with_bias else (None, [q, k, v])
        others = attend(q, k, v, prepare(kernel, given, mask), SCALE)
        mask[1] = True
        out = attend(q, k, v, prepare(kernel, given, mask), SCALE)
        assert all(tensor.isfinite().all() for tensor in (out, *torch.autograd.grad(out.sum(), leaves)))
        torch.testing.assert_close(out[[0, 2]], others[[0, 2]])


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_dropout_acts_on_probabilities(kernel):
    """The values are an identity matrix, for the output to be them, and a column of ones, for their sum."""
    torch.manual_seed(0)
    size, p = 64, 0.3
    q, k = torch.randn(2, 4, 3, size, 8, dtype=torch.float64).unbind(0)
    v = torch.cat([torch.eye(size), torch.ones(size, 1)], dim=1).double().expand(4, 3, -1, -1)
    prepared = prepare(kernel, torch.randn(3, size, size, dtype=torch.float64), None)
    whole = attend(q, k, v, prepared, SCALE)[..., :-1]
    dropped, sums = attend(q, k, v, prepared, SCALE, p).split([size, 1], dim=-1)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], whole[kept] / (1 - p))
    torch.testing.assert_close(dropped.sum(-1, keepdim=True), sums)
    assert abs(float((~kept).double().mean()) - p) < 5 * math.sqrt(p * (1 - p) / kept.numel())
    assert len({float(row.double().mean()) for row in kept.flatten(0, 2)}) > 5, "every entry has its own draw"


def test_the_plain_softmax_is_not_computed_in_half_precision():
    """Of 4,096 keys the sum of the exponentials or each share would be off by more than one rounding."""
    q, k = torch.zeros(1, 1, 1, 8).half(), torch.zeros(1, 1, 4096, 8).half()
    bias = torch.linspace(-3, 3, 4096).half().expand(1, 1, 4096)
    weights = attention_weights(q, k, prepare("eager", bias, None), SCALE)
    torch.testing.assert_close(weights[0, 0, 0].double(), bias[0, 0].double().softmax(0), rtol=1e-5, atol=0)


NOW = (2, 8)


@pytest.mark.parametrize(
    ("requested", "version", "here", "expected"),
    [
        ("auto", NOW, ("cpu", True), "eager"),
        ("auto", (2, 1), ("cpu", False), "sdpa"),
        ("auto", NOW, ("cuda", True), "sdpa"),
        ("auto", (2, 0), ("cuda", False), "eager"),
        ("eager", NOW, ("cuda", True), "eager"),
        ("sdpa", NOW, ("cpu", True), "sdpa"),
        ("flex", NOW, ("cuda", True), "sdpa"),  # earlier checkpoints may have it
        ("flex", NOW, ("cpu", True), "eager"),
    ],
)
def test_what_is_chosen(requested, version, here, expected, monkeypatch):
    """auto never takes what was not measured."""
    monkeypatch.setattr(attention_kernels, "TORCH", version)
    kernel, why = choose_kernel(requested, *here)
    assert kernel == expected
    assert ("asked for" in why) == (requested in ("eager", "sdpa"))
