"""The Duo transformer in half precision: near single precision, finite everywhere, also with masks and step by step."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("fairseq", reason="this is an architecture of fairseq; install it with scripts/setup.sh")
from duo_reference import VARIANTS, built
from tupe_transformer_reference import EOS, PAD, batch_of

SOURCES, PREVIOUS = [[4, 5, 6, 7, EOS], [10, EOS]], [[EOS, 6, 9, 4], [EOS, 5]]
half_types = pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.1), (torch.float16, 0.01)], ids=str)
HALVES = {name: options for name, options in VARIANTS.items() if "sdpa" not in name}


@half_types
@pytest.mark.parametrize("options", HALVES.values(), ids=HALVES)
def test_half_precision_is_near_single_precision(options, dtype, tolerance):
    """Also with padding on both sides, where masked logits must not become infinite or NaN; and step by step."""
    model = built(**options).eval()
    inputs = batch_of(SOURCES, left=True), None, batch_of(PREVIOUS, left=True)
    real = inputs[2].ne(PAD)
    with torch.no_grad():
        expected, _ = model(*inputs)
        model.to(dtype)
        logits, extra = model(*inputs)
        encoder_out, state = model.encoder(inputs[0]), {}
        prefix = torch.tensor([[EOS, 6, 9]]).expand(2, 3)
        full = model(inputs[0], None, prefix)[0]
        steps = torch.cat([model.decoder(prefix[:, :n], encoder_out, state)[0] for n in (1, 2, 3)], dim=1)
    assert logits.dtype == dtype
    assert extra["attn"][0].dtype == torch.float32
    assert logits.isfinite().all()
    torch.testing.assert_close(logits[real].float(), expected[real], rtol=0, atol=tolerance * float(expected.std()) * 4)
    torch.testing.assert_close(steps.float(), full.float(), rtol=0, atol=tolerance * float(expected.std()) * 4)


@pytest.mark.parametrize("options", HALVES.values(), ids=HALVES)
def test_gradients_under_autocast_are_near_those_in_single_precision(options):
    model = built(**options).train()
    inputs = batch_of(SOURCES, left=True), None, batch_of(PREVIOUS)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    gradients = []
    for enabled in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            logits, _ = model(*inputs)
        logits.float()[inputs[2].ne(PAD)].log_softmax(-1)[:, 5].sum().backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
    for name, gradient in gradients[1].items():
        assert gradient.isfinite().all(), name
        error = (gradient - gradients[0][name]).norm() / gradients[0][name].norm().clamp(min=1e-3)
        assert error < 0.15, f"{name}: {error}"
