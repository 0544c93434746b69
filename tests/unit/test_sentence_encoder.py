"""The whole encoder against a plain statement, with gradients; dropout, padding, hidden states, errors."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn
from tupe_reference import assert_same_values_and_gradients, encode, randomise, visible_dropout

from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.modules.encoder_layer import LayerConfig
from embinit_fairseq.modules.position_encoding import (
    AddedPositions,
    FourTermPositions,
    PositionEncoding,
    RelativePositions,
    untied_positions,
)
from embinit_fairseq.modules.self_attention import SelfAttention
from embinit_fairseq.modules.sentence_encoder import EncoderConfig, SentenceEncoder

C, HEADS, FFN, SYMBOLS, LONGEST = 6, 2, 5, 11, 9
BOS, PAD, MASK = 0, 1, 10
SENTENCES = [[BOS, 4, 5, 6, 7, 2], [BOS, 8, 2], [BOS]]
#: name -> (position encoding, how the reference says it)
ENCODINGS = {
    "none": (lambda: PositionEncoding(), {"kind": "none"}),
    "bert_a": (lambda: AddedPositions(C, LONGEST), {"kind": "added"}),
    "bert_r": (lambda: RelativePositions(HEADS, 32, 128), {"kind": "relative"}),
    "bert_ad": (lambda: FourTermPositions(C, LONGEST), {"kind": "four_terms"}),
    "tupe_a": (lambda: untied_positions(C, HEADS, LONGEST), {"kind": "untied", "reset": "official"}),
    "tupe_r": (
        lambda: untied_positions(C, HEADS, LONGEST, num_buckets=32),
        {"kind": "untied", "reset": "official", "relative": True},
    ),
    "tupe_r_paper": (
        lambda: untied_positions(C, HEADS, LONGEST, reset="paper", num_buckets=32),
        {"kind": "untied", "reset": "paper", "relative": True},
    ),
    "tupe_a_tie_cls": (lambda: untied_positions(C, HEADS, LONGEST, reset=None), {"kind": "untied"}),
}
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
each_encoding = pytest.mark.parametrize("name", ENCODINGS)


def encoder(name="tupe_r", num_layers=2, pre_ln=False, **options):
    """Double precision, every parameter different from every other; in evaluation mode."""
    positions = ENCODINGS[name][0]()
    layer_options = {key: options.pop(key) for key in list(options) if key.endswith(("dropout", "activation"))}
    layer = LayerConfig(C, FFN, HEADS, num_terms=positions.num_terms, normalize_before=pre_ln, **layer_options)
    torch.manual_seed(0)
    embed_tokens = nn.Embedding(SYMBOLS, C, PAD)
    config = EncoderConfig(layer, num_layers, **options)
    return randomise(SentenceEncoder(config, embed_tokens, positions, BOS)).eval()


def padded(sentences=SENTENCES, length=None):
    batch = torch.full((len(sentences), length or max(map(len, sentences))), PAD)
    for row, sentence in enumerate(sentences):
        batch[row, : len(sentence)] = torch.tensor(sentence)
    return batch


def unpadded(features, sentences=SENTENCES):
    """Features (batch, length, C) of real tokens only, one sentence after the other."""
    return torch.cat([row[: len(sentence)] for row, sentence in zip(features, sentences)])


def plain(module, name, sentences=SENTENCES, state=-1, **options):
    """The same from the plain statement, which never sees padding."""
    w = dict(module.named_parameters())
    return torch.cat([encode(w, torch.tensor(s), HEADS, **ENCODINGS[name][1], **options)[state] for s in sentences])


@each_encoding
@pytest.mark.parametrize("pre_ln", [False, True], ids=["post-LN", "pre-LN"])
@pytest.mark.parametrize("embedding_normalize", [False, True], ids=["", "embedding_normalize"])
def test_features_and_gradients_equal_the_equations_whatever_the_padding(name, pre_ln, embedding_normalize):
    module = encoder(name, pre_ln=pre_ln, embedding_normalize=embedding_normalize)
    features, _ = module(padded(length=8))
    expected = plain(module, name, pre_ln=pre_ln)
    assert_same_values_and_gradients(module, unpadded(features), expected)


@each_encoding
def test_kernels_agree(name):
    expected = plain(encoder(name), name).detach()
    for kernel in ("eager", "sdpa", "flex"):
        if kernel == "flex":
            pytest.importorskip("torch.nn.attention.flex_attention")
        module = encoder(name, attention_kernel=kernel)
        with torch.no_grad():
            features, _ = module(padded())
        torch.testing.assert_close(unpadded(features), expected, rtol=1e-11, atol=1e-12)


@each_encoding
def test_gradients_of_sdpa(name):
    module = encoder(name, attention_kernel="sdpa")
    assert_same_values_and_gradients(module, unpadded(module(padded())[0]), plain(module, name))


def test_full_batches_and_the_longest_input():
    sentences = [[BOS, 4, 5, 6, 7, 8, 9, 4, 2], [BOS, 9, 8, 7, 6, 5, 4, 4, 2]]
    module = encoder()
    assert_same_values_and_gradients(
        module, module(padded(sentences))[0].flatten(0, 1), plain(module, "tupe_r", sentences)
    )


def test_relu():
    module = encoder(activation="relu")
    torch.testing.assert_close(unpadded(module(padded())[0]), plain(module, "tupe_r", act=torch.relu))


@each_encoding
@pytest.mark.parametrize("pre_ln", [False, True], ids=["post-LN", "pre-LN"])
def test_dropout_acts_where_it_should(monkeypatch, name, pre_ln):
    """Embeddings (after their layer norm), attention output, FFN output: 0.1; probabilities 0.2; inside the FFN 0.3."""
    module = encoder(
        name, 2, pre_ln, embedding_normalize=True, dropout=0.1, attention_dropout=0.2, activation_dropout=0.3
    ).train()
    visible_dropout(monkeypatch)
    factors = {"hidden": 1.1, "attention": 1.2, "activation": 1.3}
    expected = plain(module, name, pre_ln=pre_ln, factors=factors)
    torch.testing.assert_close(unpadded(module(padded())[0]), expected, rtol=1e-11, atol=1e-12)
    module.eval()
    torch.testing.assert_close(unpadded(module(padded())[0]), plain(module, name, pre_ln=pre_ln))


def test_real_dropout_differs_from_call_to_call_and_only_in_training():
    for kind in ("dropout", "attention_dropout", "activation_dropout"):
        module = encoder(**{kind: 0.5})
        assert torch.equal(module(padded())[0], module(padded())[0])
        module.train()
        assert not torch.equal(module(padded())[0], module(padded())[0]), kind


@pytest.mark.parametrize("pre_ln", [False, True], ids=["post-LN", "pre-LN"])
def test_hidden_states(pre_ln):
    """Embeddings and the output of every layer, all (batch, length, C); the last one is the features."""
    module = encoder(pre_ln=pre_ln, embedding_normalize=True)
    features, hiddens = module(padded(), return_all_hiddens=True)
    assert len(hiddens) == 3
    assert hiddens[-1] is features
    assert not hiddens[0][padded() == PAD].any(), "embeddings of padding are zero"
    for state, hidden in enumerate(hiddens):
        assert hidden.shape == (3, 6, C)
        torch.testing.assert_close(unpadded(hidden), plain(module, "tupe_r", state=state, pre_ln=pre_ln))
    assert module(padded())[1] == []


@each_encoding
@pytest.mark.parametrize("wanted", ["bias", "projections"])
def test_positions_are_computed_once_for_all_layers(monkeypatch, name, wanted):
    module, calls = encoder(name, num_layers=3), []
    original = getattr(module.positions, wanted)
    monkeypatch.setattr(module.positions, wanted, lambda length: calls.append(length) or original(length))
    module(padded())
    assert calls == [6]


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
