"""The encoder in use: what it refuses, kernels and their log, memory, half precision."""

from __future__ import annotations

import logging

import pytest
import torch
from sentence_encoders import (
    BOS,
    ENCODINGS,
    HEADS,
    LONGEST,
    MASK,
    PAD,
    SENTENCES,
    each_encoding,
    encoder,
    padded,
    plain,
    unpadded,
)
from tupe_reference import encode

from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.modules import sentence_encoder
from embinit_fairseq.modules.attention_kernels import prepare
from embinit_fairseq.modules.encoder_layer import SelfAttention

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@each_encoding
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_checkpointed_activations_change_nothing(name, dropout):
    results = []
    for checkpointed in (False, True):
        module = encoder(name, dropout=dropout, attention_dropout=dropout, checkpoint_activations=checkpointed).train()
        torch.manual_seed(7)
        (unpadded(module(padded())[0]) ** 2).sum().backward()
        results.append([parameter.grad for parameter in module.parameters()])
    for one, other in zip(*results):
        assert torch.equal(one, other)


def test_checkpointing_computes_layers_again():
    module = encoder(checkpoint_activations=True).train()
    calls = []
    module.layers[0].fc1.register_forward_hook(lambda *_: calls.append(1))
    unpadded(module(padded())[0]).sum().backward()
    assert len(calls) == 2
    module.eval()
    module(padded())[0].sum().backward()
    assert len(calls) == 3


def test_the_log_says_which_kernel_is_used_once_a_mode(caplog):
    module = encoder(attention_dropout=0.1)
    caplog.set_level(logging.INFO)
    for _ in range(2):
        module.train()(padded())
        with torch.no_grad():
            module.eval()(padded())
    assert [r.message.split(" (")[0] for r in caplog.records] == [
        "attention in training on cpu: eager",
        "attention in evaluation on cpu: sdpa",
    ]


@pytest.mark.parametrize("kernel", ["flex", "sdpa"])
def test_flex_always_has_a_padding_mask(monkeypatch, kernel):
    """With and without one are two functions to compile, and after eight PyTorch gives up."""
    masks = []
    monkeypatch.setattr(
        sentence_encoder, "prepare", lambda name, bias, mask: masks.append(mask) or prepare(name, bias, mask)
    )
    module, whole = encoder(attention_kernel=kernel), torch.tensor(SENTENCES[:1])
    with torch.no_grad():
        features, _ = module(whole)
        module(padded())
    torch.testing.assert_close(features[0], plain(module, "tupe_r", SENTENCES[:1]))
    assert masks[1].tolist() == padded().eq(PAD).tolist()
    assert (masks[0] is None) == (kernel == "sdpa")
    assert kernel == "sdpa" or masks[0].tolist() == [[False] * 6]


@each_encoding
def test_left_padding_is_refused(name):
    tokens = torch.tensor([[BOS, 4, 5, 2], [PAD, BOS, 4, 2]])
    with pytest.raises(DataError, match="begins with padding"):
        encoder(name)(tokens)


@each_encoding
def test_a_first_token_that_is_not_bos_is_refused_where_it_matters(name):
    tokens = torch.tensor([[BOS, 4, 2], [4, 5, 2]])
    module = encoder(name)
    if module.positions.untie_cls:
        with pytest.raises(DataError, match=r"does not begin with <s>.*--init-token 0.*--tupe-tie-cls"):
            module(tokens)
    else:
        assert module(tokens)[0].isfinite().all()
    assert module.positions.untie_cls == (name in ("tupe_a", "tupe_r", "tupe_r_paper"))


def test_bos_may_be_masked_or_exchanged_in_pre_training():
    tokens = torch.tensor([[MASK, 4, 5, 2], [7, 4, 5, 2], [BOS, 4, MASK, 2]])
    masked = torch.tensor([[True, False, False, False], [True, False, True, False], [False, False, True, False]])
    module = encoder()
    features, _ = module(tokens, masked)
    torch.testing.assert_close(features.flatten(0, 1), plain(module, "tupe_r", tokens.tolist()))
    for unexplained in (None, masked & (torch.arange(4) > 0), masked & (tokens[:, :1] == MASK)):
        with pytest.raises(DataError, match="does not begin with <s>"):
            module(tokens, unexplained)


@pytest.mark.parametrize("name", [name for name in ENCODINGS if name not in ("none", "bert_r")])
@pytest.mark.parametrize("length", [LONGEST + 1, 2 * LONGEST + 1])
def test_too_long_an_input_is_refused(name, length):
    with pytest.raises(OptionError, match=f"{length} tokens, the model has {LONGEST} positions"):
        encoder(name)(torch.full((2, length), BOS))


def test_heads_must_divide_the_width():
    with pytest.raises(OptionError, match="4 attention heads do not divide the width 6; numbers that do: 1, 2, 3, 6"):
        SelfAttention(6, 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@each_encoding
def test_half_precision(name, dtype):
    """--bf16 and --fp16 hold the parameters in half precision; what comes out is near the same in double precision."""
    module = encoder(name, embedding_normalize=True)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(0.3)
    module.to(dtype)
    exact = dict(module.double().named_parameters())
    expected = torch.cat([encode(exact, torch.tensor(s), HEADS, **ENCODINGS[name][1])[-1] for s in SENTENCES]).detach()
    features = unpadded(module.to(dtype)(padded())[0])
    assert features.dtype == dtype
    scale = 60 * torch.finfo(dtype).eps
    torch.testing.assert_close(features.double(), expected, rtol=scale, atol=scale)
    features.float().sum().backward()
    assert all(p.grad.isfinite().all() for p in module.parameters() if p.grad is not None)


@each_encoding
def test_autocast_stays_near(name):
    module = encoder(name).float()
    expected = module(padded())[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = module(padded())[0]
    error = unpadded((features - expected).abs()).max()
    assert 0 < error < 0.3
