"""A GPU computes what the processor computes: kernels, models with their gradients, the fused loss and optimizer."""

import copy

import pytest
import test_architectures
import torch
from small_models import VARIANTS, batch_of
from test_architectures import outputs, ready

from embinit_fairseq.modules.attention_kernels import attend, prepare
from embinit_fairseq.modules.blockwise_cross_entropy import fused_cross_entropy
from embinit_fairseq.optimizers.fused_adam import FusedAdam

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
B, H, T, HEAD_DIM, SCALE = 3, 2, 40, 16, 0.3
#: kernel -> types in which it has gradients on a GPU
TYPES = {"eager": (torch.float64, torch.bfloat16), "sdpa": (torch.float64, torch.float16, torch.bfloat16)}


def attention(kernel, dtype, device, padded):
    """Return the output and the gradients of q, k, v (B, H, T, d) and the bias (H, T, T), in double precision."""
    generator = torch.Generator().manual_seed(1)
    shapes = [(B, H, T, HEAD_DIM)] * 3 + [(H, T, T)]
    numbers = [torch.randn(shape, generator=generator, dtype=torch.float64).to(torch.bfloat16) for shape in shapes]
    q, k, v, bias = [x.to(device, dtype).requires_grad_() for x in numbers]
    padding = (torch.arange(T) >= torch.tensor([T, 30, 1])[:, None]).to(device) if padded else None
    out = attend(q, k, v, prepare(kernel, bias, padding), SCALE)
    direction = torch.linspace(-1, 1, out.numel(), device=device).view_as(out).to(dtype)
    return [x.double().cpu() for x in (out, *torch.autograd.grad((out * direction).sum(), [q, k, v, bias]))]


@pytest.mark.parametrize("padded", [False, True], ids=["", "padding"])
@pytest.mark.parametrize(("kernel", "dtype"), [(k, dtype) for k, types in TYPES.items() for dtype in types])
def test_every_kernel_has_the_gradients_of_double_precision(kernel, dtype, padded):
    expected = attention("eager", torch.float64, "cpu", padded)
    for found, right in zip(attention(kernel, dtype, "cuda", padded), expected):
        error = (found - right).norm() / right.norm()
        assert error < {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}[dtype]


@pytest.mark.parametrize(("name", "options"), VARIANTS.values(), ids=VARIANTS)
def test_every_model_computes_the_same(name, options, monkeypatch):
    """In double precision, in training without dropout: outputs and all gradients."""
    model = ready(name, options, "randomised")
    there = copy.deepcopy(model).cuda()
    here = outputs(model)
    monkeypatch.setattr(test_architectures, "batch_of", lambda *given: batch_of(*given).cuda())
    found = outputs(there)
    for one, other in zip(here, found):
        torch.testing.assert_close(other.cpu(), one)
    for numbers in (here, found):
        torch.cat([x.flatten() for x in numbers]).square().sum().backward()
    gradients = dict(there.named_parameters())
    for parameter, value in model.named_parameters():
        if value.grad is not None:
            torch.testing.assert_close(gradients[parameter].grad.cpu(), value.grad, rtol=1e-7, atol=1e-9)


def test_the_fused_loss_and_optimizer_give_the_same_step():
    """Over blocks of rows, with label smoothing; three steps of Adam."""
    weights = []
    for device in ("cpu", "cuda"):
        generator = torch.Generator().manual_seed(1)
        logits = torch.nn.Parameter(torch.randn(40, 300, generator=generator, dtype=torch.float64).to(device))
        target = torch.randint(300, (40,), generator=generator).to(device)
        optimizer = FusedAdam([logits], lr=0.01, betas=(0.9, 0.98), eps=1e-3, weight_decay=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            fused_cross_entropy(logits, target, 7, 0.1)[0].backward()
            optimizer.step()
        weights.append(logits.detach().cpu())
    torch.testing.assert_close(*weights)
