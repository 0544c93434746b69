"""The fused cross-entropy against the equation in double precision, and its criterions against fairseq's."""

from __future__ import annotations

from argparse import Namespace
from unittest import mock

import pytest
import torch
from fairseq.criterions import CRITERION_DATACLASS_REGISTRY, CRITERION_REGISTRY
from fairseq.models.transformer import TransformerModel, base_architecture
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import ARCHITECTURES, EOS, TIED, batch_of, task_of

from embinit_fairseq.errors import OptionError
from embinit_fairseq.modules import blockwise_cross_entropy as module
from embinit_fairseq.modules.blockwise_cross_entropy import fused_cross_entropy

WORDS = 12


def by_hand(logits, target, ignore, smoothing):
    """Losses, negative log-likelihoods (N) and the gradient (N, V) of the losses' sum: one row at a time."""
    x = logits.detach().double()
    losses, nlls, gradient = torch.zeros(len(x)).double(), torch.zeros(len(x)).double(), torch.zeros_like(x)
    for row, wanted in enumerate(target.tolist()):
        if wanted == ignore:
            continue
        above = x[row] - x[row].max()
        logs = above - above.exp().sum().log()
        q = torch.full_like(logs, smoothing / (len(logs) - 1))
        q[wanted] = 1 - smoothing
        losses[row], nlls[row] = -(q * logs).sum(), -logs[wanted]
        gradient[row] = above.exp() / above.exp().sum() - q
    return losses, nlls, gradient


def drawn(rows, symbols, dtype=torch.float64, seed=1, size=3.0):
    generator = torch.Generator().manual_seed(seed)
    logits = (size * torch.randn(rows, symbols, generator=generator, dtype=torch.float64)).to(dtype)
    return logits.requires_grad_(), torch.randint(symbols, (rows,), generator=generator)


@settings(max_examples=25)
@given(
    rows=st.integers(0, 9),
    symbols=st.integers(2, 11),
    seed=st.integers(0, 1000),
    smoothing=st.sampled_from([0.0, 0.1, 0.7]),
    block=st.sampled_from([1, 10, 25, 1000]),
    ignore=st.sampled_from([0, 1, -100]),
    size=st.sampled_from([0.0, 3.0, 400.0]),
)
def test_losses_and_gradients_are_those_of_the_equation(rows, symbols, seed, smoothing, block, ignore, size):
    """Also where the graph is kept and gives its gradient again."""
    logits, target = drawn(rows, symbols, seed=seed, size=size)
    if ignore < 0:
        target[::3] = ignore
    with mock.patch.dict(module.BLOCK_NUMBERS, cpu=block):
        loss, nll = fused_cross_entropy(logits, target, ignore, smoothing, reduce=False)
        total = fused_cross_entropy(logits.detach(), target, ignore, smoothing)
    losses, nlls, gradient = by_hand(logits, target, ignore, smoothing)
    assert (loss.requires_grad, nll.requires_grad) == (True, False)
    torch.testing.assert_close(loss, losses)
    torch.testing.assert_close(nll, nlls)
    torch.testing.assert_close(torch.stack(total), torch.stack([losses.sum(), nlls.sum()]))
    for weights in (torch.ones(rows), torch.linspace(-1, 2, rows), torch.ones(rows)):
        (found,) = torch.autograd.grad((loss * weights).sum(), logits, retain_graph=True)
        torch.testing.assert_close(found, gradient * weights[:, None])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_half_precision_rounds_the_gradient_once_and_the_loss_not_at_all(dtype):
    """Every gradient is the exact one, rounded to the type of the logits: also for a target that is nearly sure."""
    logits, target = drawn(40, 300, dtype)
    with torch.no_grad():
        logits[:5].scatter_(1, target[:5, None], 18.0)
    loss, nll = fused_cross_entropy(logits, target, 7, 0.1)
    loss.backward()
    losses, nlls, gradient = by_hand(logits, target, 7, 0.1)
    rounding = max(torch.finfo(dtype).eps, 2**-21)
    assert (loss.dtype, nll.dtype, logits.grad.dtype) == (torch.float32, torch.float32, dtype)
    torch.testing.assert_close(loss.double(), losses.sum(), rtol=1e-6, atol=0)
    torch.testing.assert_close(nll.double(), nlls.sum(), rtol=1e-6, atol=0)
    # in addition to the rounding of the result: that of the exponential and of p - 1 in single precision
    torch.testing.assert_close(logits.grad.double(), gradient, rtol=rounding, atol=2e-7)


def test_small_probabilities_have_a_gradient_in_half_precision():
    """Smaller ones than any number of float16, in a loss that --fp16 has scaled."""
    logits = torch.tensor([[0.0, -18.0, -1.0]], dtype=torch.float16, requires_grad=True)
    loss, _ = fused_cross_entropy(logits, torch.tensor([0]), 9)
    (loss * 2.0**14).backward()
    expected = torch.softmax(logits.detach().float(), 1)[0, 1] * 2.0**14
    torch.testing.assert_close(logits.grad[0, 1].float(), expected, rtol=1e-2, atol=0)


def test_no_matrix_is_made_but_the_two_gradients():
    """In bfloat16, and with another factor than 1: nothing of the logits' size in single precision."""
    logits, target = drawn(240, 200, torch.bfloat16)
    size = logits.nbytes
    with (
        mock.patch.dict(module.BLOCK_NUMBERS, cpu=4000),
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiled,
    ):
        loss, _ = fused_cross_entropy(logits, target, -100)
        (loss * 0.5).backward()
    made = sorted(event.self_cpu_memory_usage for event in profiled.events())
    assert [nbytes for nbytes in made if nbytes > 0.6 * size] == [size, size]  # the stored one, and the result
    expected = by_hand(logits, target, -100, 0.0)[2] / 2
    torch.testing.assert_close(logits.grad.double(), expected, rtol=2**-7, atol=2e-7)


# ----- as criterions


def criterion_of(name, **options):
    cfg = CRITERION_DATACLASS_REGISTRY[name](sentence_avg=False, **options)
    return CRITERION_REGISTRY[name].build_criterion(cfg, task_of(WORDS))


def model_of(arch="tupe_transformer", **options):
    """Without dropout."""
    if arch != "transformer":
        return ARCHITECTURES[arch].build(task_of(WORDS), **options, dropout=0.0).train()
    sizes = {f"{side}_{key}": 8 for side in ("encoder", "decoder") for key in ("embed_dim", "ffn_embed_dim")}
    sizes |= {f"{side}_{key}": 1 for side in ("encoder", "decoder") for key in ("layers", "attention_heads")}
    args = Namespace(**sizes, **options, dropout=0.0, max_source_positions=20, max_target_positions=20)
    base_architecture(args)
    return TransformerModel.build_model(args, task_of(WORDS)).train()


def outcome(criterion, model, reduce=True):
    """Loss, sample size, logged values, gradients."""
    target = batch_of([[4, 5, 6, EOS], [7, EOS], [8, 9, EOS]])
    net_input = {
        "src_tokens": batch_of([[4, 5, 6, 7, EOS], [10, EOS], [5, 5, EOS]], left=True),
        "src_lengths": torch.tensor([5, 2, 3]),
        "prev_output_tokens": batch_of([[EOS, 4, 5, 6], [EOS, 7], [EOS, 8, 9]]),
    }
    model.zero_grad()
    sample = {"net_input": net_input, "target": target, "ntokens": 9, "nsentences": 3}
    loss, size, logged = criterion(model, sample, reduce)
    loss.sum().backward()
    logged = {key: torch.as_tensor(value).detach().sum().double() for key, value in logged.items()}
    return loss, size, logged, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


SMOOTHED = {"label_smoothing": 0.1, "report_accuracy": True}


@pytest.mark.parametrize("options", [{}, SMOOTHED, {**SMOOTHED, "ignore_prefix_size": 1}], ids=str)
@pytest.mark.parametrize(("arch", "ties"), [("transformer", {}), ("duo_transformer", TIED)])
def test_criterions_are_those_of_fairseq(arch, ties, options):
    """Also by name: fairseq compares that of a checkpoint's criterion."""
    model, name = model_of(arch, **ties), f"{'label_smoothed_' * bool(options)}cross_entropy"
    stock, ours = criterion_of(name, **options), criterion_of(f"fused_{name}", **options)
    for reduce in (True, False):
        torch.testing.assert_close(outcome(ours, model, reduce), outcome(stock, model, reduce), rtol=1e-5, atol=1e-6)
    assert type(ours).__name__ == type(stock).__name__


@pytest.mark.parametrize("name", ["cross_entropy", "label_smoothed_cross_entropy"])
def test_models_without_logits_or_with_probabilities_of_their_own_are_refused(name):
    adaptive, own = model_of("transformer", adaptive_softmax_cutoff="6,8", adaptive_softmax_dropout=0.0), model_of()
    plain = own.get_normalized_probs
    own.get_normalized_probs = lambda net_output, *args, **kwargs: plain((net_output[0] / 2,), *args, **kwargs)
    criterion = criterion_of(f"fused_{name}")
    outcome(criterion, model_of())  # another model is checked again
    for model, reason in ((adaptive, "--adaptive-softmax-cutoff"), (own, "TupeTransformerModel")):
        with pytest.raises(OptionError, match=f"{reason}.*--criterion {name}"):
            outcome(criterion, model)
