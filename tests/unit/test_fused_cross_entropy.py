"""The fused cross-entropy against the equation in double precision, and its criterions against fairseq's."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("fairseq", reason="these are criterions of fairseq; install it with scripts/setup.sh")
from fairseq.criterions import CRITERION_DATACLASS_REGISTRY, CRITERION_REGISTRY
from fairseq.models.transformer import TransformerModel, base_architecture
from small_models import ARCHITECTURES, EOS, PAD, batch_of, task_of

from embinit_fairseq.errors import OptionError
from embinit_fairseq.modules import fused_cross_entropy as module
from embinit_fairseq.modules.fused_cross_entropy import fused_cross_entropy

WORDS = 12


def by_hand(logits, target, ignore, smoothing):
    """Losses, negative log-likelihoods (N) and the gradient (N, V) of the losses' sum: one row at a time."""
    x = logits.detach().double()
    losses, nlls, gradient = torch.zeros(len(x)).double(), torch.zeros(len(x)).double(), torch.zeros_like(x)
    symbols = x.size(1)
    for row, wanted in enumerate(target.tolist()):
        if wanted == ignore:
            continue
        p = x[row].sub(x[row].max()).exp()
        p = p / p.sum()
        logs = x[row] - x[row].max() - x[row].sub(x[row].max()).exp().sum().log()
        q = torch.full((symbols,), smoothing / (symbols - 1) if smoothing else 0.0).double()
        q[wanted] = 1 - smoothing
        losses[row], nlls[row] = -(q * logs).sum(), -logs[wanted]
        gradient[row] = p - q
    return losses, nlls, gradient


def drawn(rows, symbols, dtype=torch.float64, seed=1, size=3.0):
    generator = torch.Generator().manual_seed(seed)
    logits = (size * torch.randn(rows, symbols, generator=generator, dtype=torch.float64)).to(dtype)
    return logits.requires_grad_(), torch.randint(symbols, (rows,), generator=generator)


@settings(deadline=None, max_examples=40)
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
    logits, target = drawn(rows, symbols, seed=seed, size=size)
    if ignore < 0:
        target[::3] = ignore
    before, module.BLOCK_NUMBERS["cpu"] = module.BLOCK_NUMBERS["cpu"], block
    try:
        loss, nll = fused_cross_entropy(logits, target, ignore, smoothing, reduce=False)
        weights = torch.linspace(-1, 2, rows, dtype=torch.float64)
        (loss * weights).sum().backward()
        total = fused_cross_entropy(logits.detach(), target, ignore, smoothing)
    finally:
        module.BLOCK_NUMBERS["cpu"] = before
    losses, nlls, gradient = by_hand(logits, target, ignore, smoothing)
    torch.testing.assert_close(loss, losses)
    torch.testing.assert_close(nll, nlls)
    torch.testing.assert_close(logits.grad, gradient * weights[:, None])
    torch.testing.assert_close(torch.stack(total), torch.stack([losses.sum(), nlls.sum()]))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    ("dtype", "rounding"), [(torch.float32, 2**-22), (torch.bfloat16, 2**-8), (torch.float16, 2**-10)]
)
def test_half_precision_rounds_the_gradient_once_and_the_loss_not_at_all(dtype, rounding, smoothing):
    """Every gradient is the exact one, rounded to the type of the logits: also for a target that is nearly sure."""
    logits, target = drawn(40, 300, dtype)
    with torch.no_grad():
        logits[:5].scatter_(1, target[:5, None], 18.0)
    loss, nll = fused_cross_entropy(logits, target, 7, smoothing)
    loss.backward()
    losses, nlls, gradient = by_hand(logits, target, 7, smoothing)
    assert (loss.dtype, nll.dtype, logits.grad.dtype) == (torch.float32, torch.float32, dtype)
    torch.testing.assert_close(loss.double(), losses.sum(), rtol=1e-6, atol=0)
    torch.testing.assert_close(nll.double(), nlls.sum(), rtol=1e-6, atol=0)
    # beside the rounding of the result: that of the exponential and of p - 1 in single precision
    torch.testing.assert_close(logits.grad.double(), gradient, rtol=2 * rounding, atol=2e-7)


def test_small_probabilities_survive_the_scaled_loss_of_half_precision():
    """Probabilities of 1e-9 underflow in float16; fairseq's loss scale keeps them, and so must we."""
    logits = torch.tensor([[20.0, 0.0, -0.5]], dtype=torch.float16, requires_grad=True)
    loss, _ = fused_cross_entropy(logits, torch.tensor([0]), -1)
    (loss * 2.0**14).backward()
    _, _, gradient = by_hand(logits, torch.tensor([0]), -1, 0.0)
    torch.testing.assert_close(logits.grad[:, 1:].double(), gradient[:, 1:] * 2**14, rtol=2e-2, atol=0)


def test_a_loss_beyond_the_range_of_the_exponential_is_finite():
    logits = torch.tensor([[0.0, 300.0], [-3e4, 3e4]], requires_grad=True)
    loss, _ = fused_cross_entropy(logits, torch.tensor([0, 0]), -1, reduce=False)
    loss.sum().backward()
    assert loss.tolist() == [300.0, 6e4]
    assert logits.grad.tolist() == [[-1.0, 1.0], [-1.0, 1.0]]


def test_a_graph_that_is_kept_gives_the_same_gradient_again():
    logits, target = drawn(4, 5)
    loss, _ = fused_cross_entropy(logits, target, -1)
    first = torch.autograd.grad(loss, logits, retain_graph=True)[0].clone()
    second = torch.autograd.grad(3 * loss, logits, retain_graph=True)[0]
    torch.testing.assert_close(second, 3 * first)
    torch.testing.assert_close(torch.autograd.grad(loss, logits)[0], first)


# ----- as criterions


def criterion_of(name, **options):
    task = SimpleNamespace(target_dictionary=task_of(WORDS).target_dictionary)
    cfg = CRITERION_DATACLASS_REGISTRY[name](sentence_avg=False, **options)
    return CRITERION_REGISTRY[name].build_criterion(cfg, task)


def model_of(name="transformer", **options):
    """fairseq's transformer or one of ours, without dropout."""
    torch.manual_seed(1)
    if name != "transformer":
        return ARCHITECTURES[name].build(task_of(WORDS), **options, dropout=0.0).train()
    sizes = {f"{side}_{key}": 8 for side in ("encoder", "decoder") for key in ("embed_dim", "ffn_embed_dim")}
    sizes |= {f"{side}_{key}": 1 for side in ("encoder", "decoder") for key in ("layers", "attention_heads")}
    args = Namespace(**sizes, **options, dropout=0.0, max_source_positions=20, max_target_positions=20)
    base_architecture(args)
    return TransformerModel.build_model(args, task_of(WORDS)).train()


def sample_of():
    target = batch_of([[4, 5, 6, EOS], [7, EOS], [8, 9, EOS]])
    net_input = {
        "src_tokens": batch_of([[4, 5, 6, 7, EOS], [10, EOS], [5, 5, EOS]], left=True),
        "src_lengths": torch.tensor([5, 2, 3]),
        "prev_output_tokens": batch_of([[EOS, 4, 5, 6], [EOS, 7], [EOS, 8, 9]]),
    }
    return {"net_input": net_input, "target": target, "ntokens": int(target.ne(PAD).sum()), "nsentences": 3}


def outcome(criterion, model, sample, reduce=True):
    model.zero_grad()
    loss, size, logged = criterion(model, sample, reduce=reduce)
    loss.sum().backward()
    return loss, size, logged, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


CASES = {
    "plain": ("cross_entropy", {}),
    "smoothed": ("label_smoothed_cross_entropy", {"label_smoothing": 0.1, "report_accuracy": True}),
    "prefix": ("label_smoothed_cross_entropy", {"label_smoothing": 0.1, "ignore_prefix_size": 1}),
    "not smoothed": ("label_smoothed_cross_entropy", {"report_accuracy": True}),
}


@pytest.mark.parametrize("reduce", [True, False], ids=["sum", "each"])
@pytest.mark.parametrize(("name", "options"), CASES.values(), ids=CASES)
@pytest.mark.parametrize(
    ("arch", "ties"),
    [("transformer", {}), ("duo_transformer", {"share_all_embeddings": True}), ("tupe_transformer", {})],
)
def test_criterions_are_those_of_fairseq(arch, ties, name, options, reduce):
    model, sample = model_of(arch, **ties), sample_of()
    expected = outcome(criterion_of(name, **options), model, sample, reduce)
    criterion = criterion_of(f"fused_{name}", **options)
    found = outcome(criterion, model, sample, reduce)
    torch.testing.assert_close(found[0], expected[0])
    assert found[1] == expected[1]
    assert {key: float(value.sum()) if torch.is_tensor(value) else value for key, value in found[2].items()} == {
        key: pytest.approx(float(value.sum())) if torch.is_tensor(value) else value
        for key, value in expected[2].items()
    }
    assert set(found[3]) == set(expected[3])
    for key, gradient in expected[3].items():
        torch.testing.assert_close(found[3][key], gradient, rtol=1e-5, atol=1e-6, msg=lambda text, key=key: key + text)


@pytest.mark.parametrize("name", ["cross_entropy", "label_smoothed_cross_entropy"])
def test_checkpoints_of_fairseqs_criterion_are_continued(name):
    """fairseq compares the names of the classes, and sums what is logged likewise."""
    assert type(criterion_of(f"fused_{name}")).__name__ == type(criterion_of(name)).__name__
    assert criterion_of(f"fused_{name}").logging_outputs_can_be_summed()
    assert type(criterion_of(f"fused_{name}")).reduce_metrics == type(criterion_of(name)).reduce_metrics or (
        type(criterion_of(f"fused_{name}")).reduce_metrics.__func__ is type(criterion_of(name)).reduce_metrics.__func__
    )


def test_under_autocast_only_the_matrix_of_logits_is_in_half_precision():
    model, sample = model_of(), sample_of()
    found = []
    for name in ("cross_entropy", "fused_cross_entropy"):
        with torch.autocast("cpu", torch.bfloat16):
            found.append(outcome(criterion_of(name), model, sample))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-6, atol=0)
    for key, gradient in found[0][3].items():
        torch.testing.assert_close(found[1][3][key], gradient, rtol=2**-7, atol=2**-9)


@pytest.mark.parametrize("name", ["cross_entropy", "label_smoothed_cross_entropy"])
def test_a_model_without_logits_is_refused(name):
    model = model_of(adaptive_softmax_cutoff="6,8", adaptive_softmax_dropout=0.0)
    with pytest.raises(OptionError) as error:
        criterion_of(f"fused_{name}")(model, sample_of())
    assert "--adaptive-softmax-cutoff" in str(error.value)
    assert f"--criterion {name}" in str(error.value)


def test_a_model_with_probabilities_of_its_own_is_refused():
    model = model_of()
    plain = model.get_normalized_probs
    model.get_normalized_probs = lambda net_output, *args, **kwargs: plain((net_output[0] / 2,), *args, **kwargs)
    with pytest.raises(OptionError) as error:
        criterion_of("fused_cross_entropy")(model, sample_of())
    assert "TransformerModel" in str(error.value)
    assert "--criterion cross_entropy" in str(error.value)
