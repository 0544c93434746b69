"""Attention with a bias: naive loops, and every kernel against the plain one, forward and all gradients; which
kernel is taken where, what is refused, and with which remedy."""

from __future__ import annotations

import contextlib
import math

import pytest
import torch

from embinit_fairseq.errors import OptionError
from embinit_fairseq.modules import attention_kernels
from embinit_fairseq.modules.attention_kernels import (
    Situation,
    attend,
    attention_weights,
    check_trainable,
    choose_kernel,
    prepare,
    situation,
)

B, H, T, S, HEAD_DIM = 3, 2, 5, 5, 4
SCALE = 0.3
CASES = {
    "plain": (False, False),
    "bias": (True, False),
    "padding": (False, True),
    "bias and padding": (True, True),
}
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
each_case = pytest.mark.parametrize(("with_bias", "with_padding"), CASES.values(), ids=CASES.keys())


def inputs(dtype=torch.float64):
    """q, k, v (B, H, T, d) and a bias (H, T, S), leaves that want gradients."""
    generator = torch.Generator().manual_seed(1)
    shapes = [(B, H, T, HEAD_DIM), (B, H, S, HEAD_DIM), (B, H, S, HEAD_DIM), (H, T, S)]
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for s in shapes]


def padding():
    """Sentences of 5, 3 and 1 tokens."""
    return torch.arange(S)[None, :] >= torch.tensor([5, 3, 1])[:, None]


def loops(q, k, v, bias, padding_mask, scale):
    """One number at a time: sentence, head, query, key, component."""
    sentences = []
    for b in range(len(q)):
        heads = []
        for h in range(q.shape[1]):
            rows = []
            for i in range(q.shape[2]):
                keys = [j for j in range(k.shape[2]) if padding_mask is None or not padding_mask[b, j]]
                logits = []
                for j in keys:
                    product = sum(q[b, h, i, c] * k[b, h, j, c] for c in range(q.shape[3]))
                    logits.append(product * scale + (0 if bias is None else bias[h, i, j]))
                shares = [x.exp() / sum(y.exp() for y in logits) for x in logits]
                rows.append(sum(share * v[b, h, j] for share, j in zip(shares, keys)))
            heads.append(torch.stack(rows))
        sentences.append(torch.stack(heads))
    return torch.stack(sentences)


def outputs_and_gradients(kernel, with_bias, with_padding, dtype=torch.float64):
    """kernel: a name, or the loops."""
    q, k, v, bias = inputs(dtype)
    mask = padding() if with_padding else None
    used = bias if with_bias else None
    out = loops(q, k, v, used, mask, SCALE) if kernel is loops else attend(q, k, v, prepare(kernel, used, mask), SCALE)
    direction = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view_as(out).to(dtype)
    leaves = [q, k, v] + ([bias] if with_bias else [])
    return [out, *torch.autograd.grad((out * direction).sum(), leaves)]


@pytest.fixture
def flex_backward(monkeypatch):
    """PyTorch refuses flex's backward on a CPU although its plain statement of it runs there: let it."""
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None, raising=False)


@each_case
@pytest.mark.parametrize("kernel", ["eager", "sdpa", "flex"])
def test_every_kernel_equals_the_loops(flex_backward, kernel, with_bias, with_padding):
    ours = outputs_and_gradients(kernel, with_bias, with_padding)
    expected = outputs_and_gradients(loops, with_bias, with_padding)
    for name, one, other in zip(("output", "dq", "dk", "dv", "dbias"), ours, expected):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@each_case
def test_half_precision_stays_near_double_precision(flex_backward, with_bias, with_padding, dtype):
    """Rounding is the difference: a few units in the last place of numbers around 1."""
    tolerance = 30 * torch.finfo(dtype).eps
    exact = outputs_and_gradients("eager", with_bias, with_padding)
    for kernel in ("eager", "sdpa", "flex"):
        for one, other in zip(outputs_and_gradients(kernel, with_bias, with_padding, dtype), exact):
            assert one.dtype == dtype
            torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance)


def test_a_float_bias_is_added_to_half_precision_logits():
    """Under autocast the logits have half precision and the table of relative positions has not."""
    q, k, v, _ = inputs(torch.bfloat16)
    bias = inputs(torch.float32)[3]
    for kernel in ("eager", "sdpa"):
        out = attend(q, k, v, prepare(kernel, bias, padding()), SCALE)
        assert out.dtype == torch.bfloat16
        assert torch.autograd.grad(out.float().sum(), bias)[0].isfinite().all()


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("kernel", ["eager", "sdpa", "flex"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_a_sentence_of_padding_gives_no_nan_and_disturbs_no_other(flex_backward, kernel, with_bias, dtype):
    q, k, v, bias = inputs(dtype)
    mask = padding()
    mask[1] = True
    used = bias if with_bias else None
    out = attend(q, k, v, prepare(kernel, used, mask), SCALE)
    leaves = [q, k, v] + ([bias] if with_bias else [])
    for tensor in (out, *torch.autograd.grad(out.sum(), leaves)):
        assert tensor.isfinite().all()
    mask[1] = False
    others = attend(q, k, v, prepare(kernel, used, mask), SCALE)
    torch.testing.assert_close(out[[0, 2]], others[[0, 2]])


@each_case
def test_what_is_prepared_is_not_expanded_to_batch_times_heads(with_bias, with_padding):
    bias = inputs()[3] if with_bias else None
    mask = padding() if with_padding else None
    assert prepare("eager", bias, mask).prepared is None
    prepared = prepare("sdpa", bias, mask).prepared
    expected = {
        (False, False): None,
        (True, False): (1, H, T, S),
        (False, True): (B, 1, 1, S),
        (True, True): (B, H, T, S),  # the one case in which the kernel takes nothing smaller
    }[with_bias, with_padding]
    assert (None if prepared is None else tuple(prepared.shape)) == expected
    if expected == (1, H, T, S):
        assert prepared.data_ptr() == bias.data_ptr()


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_dropout_acts_on_probabilities(kernel):
    """With the values an identity matrix the output is the probabilities: each 0 or 1 / (1 - p) of what it was.

    A last column of ones has their sum: what is dropped is dropped for all components.
    """
    torch.manual_seed(0)
    size, p = 64, 0.3
    q, k = torch.randn(2, 4, 3, size, 8, dtype=torch.float64).unbind(0)
    v = torch.cat([torch.eye(size), torch.ones(size, 1)], dim=1).double().expand(4, 3, -1, -1)
    bias = torch.randn(3, size, size, dtype=torch.float64)
    whole = attend(q, k, v, prepare(kernel, bias, None), SCALE)[..., :-1]
    dropped, sums = attend(q, k, v, prepare(kernel, bias, None), SCALE, p).split([size, 1], dim=-1)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], whole[kept] / (1 - p))
    torch.testing.assert_close(dropped.sum(-1, keepdim=True), sums)
    share, count = float((~kept).double().mean()), kept.numel()
    assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / count)
    assert len({float(row.double().mean()) for row in kept.flatten(0, 2)}) > 5, "every entry has its own draw"
    again = attend(q, k, v, prepare(kernel, bias, None), SCALE, p)[..., :-1]
    assert not torch.equal(dropped, again)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_plain_softmax_is_not_computed_in_half_precision(dtype):
    """4,096 equal keys: in half precision the sum of their exponentials or each share would be off by more than one
    rounding. Weights before they are rounded to the values' type are exact to single precision."""
    size = 4096
    q, k = torch.zeros(1, 1, 1, 8, dtype=dtype), torch.zeros(1, 1, size, 8, dtype=dtype)
    bias = torch.linspace(-3, 3, size).to(dtype).expand(1, 1, size)
    weights = attention_weights(q, k, prepare("eager", bias, None), SCALE)
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights[0, 0, 0].double(), bias[0, 0].double().softmax(0), rtol=1e-5, atol=0)
    v = torch.ones(1, 1, size, 8, dtype=dtype)
    one = attend(q, k, v, prepare("eager", bias, None), SCALE)
    torch.testing.assert_close(one.double(), torch.ones_like(one).double(), rtol=0, atol=2 * torch.finfo(dtype).eps)


def test_batches_of_all_kinds_do_not_wear_out_the_compiled_kernel(flex_backward, monkeypatch):
    """PyTorch compiles a function eight times and then returns to an implementation that holds all logits in memory.

    Here: training and evaluation, many lengths and sizes of batches, two networks (ELECTRA's). There is always a
    padding mask, as the encoder makes one for flex.
    """
    import torch._dynamo

    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **options: compile_(f, **{**options, "backend": "aot_eager"}))
    attention_kernels._compiled_flex.cache_clear()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    kernel, generator = attention_kernels._compiled_flex(), torch.Generator().manual_seed(0)
    try:
        for step in range(12):
            (batch, length), heads = torch.randint(2, 30, (2,), generator=generator).tolist(), 2 + 2 * (step % 2)
            training = step % 6 < 4
            q = torch.randn(batch, heads, length, 8 * heads, requires_grad=training)
            padding_mask = torch.arange(length) >= torch.randint(1, length + 1, (batch, 1), generator=generator)
            attn_bias = prepare("flex", torch.randn(heads, length, length, requires_grad=training), padding_mask)
            with torch.set_grad_enabled(training):
                out = kernel(q, q, q, score_mod=attn_bias.prepared, scale=SCALE)
            expected = attend(q, q, q, prepare("eager", attn_bias.bias, padding_mask), SCALE)
            torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
            if training:
                out.sum().backward()
        frames = torch._dynamo.utils.counters["frames"]
        assert frames["total"] == frames["ok"] <= 8
    finally:
        attention_kernels._compiled_flex.cache_clear()
        torch._dynamo.reset()


# ---- The choice of a kernel -----------------------------------------------------------------------------------------

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
