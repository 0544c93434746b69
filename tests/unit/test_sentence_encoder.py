"""The whole encoder against a plain statement, with gradients; dropout, padding, hidden states."""

from __future__ import annotations

import pytest
import torch
from sentence_encoders import (
    BOS,
    FFN,
    HEADS,
    PAD,
    SENTENCES,
    SYMBOLS,
    C,
    each_encoding,
    encoder,
    padded,
    plain,
    unpadded,
)
from torch import nn
from tupe_reference import assert_same_values_and_gradients, encode, linear, normed, randomise, visible_dropout

from embinit_fairseq.modules.encoder_layer import LayerConfig
from embinit_fairseq.modules.position_encoding import PositionEncoding
from embinit_fairseq.modules.sentence_encoder import EncoderConfig, SentenceEncoder

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@each_encoding
@pytest.mark.parametrize("pre_ln", [False, True], ids=["post-LN", "pre-LN"])
@pytest.mark.parametrize("embedding_normalize", [False, True], ids=["", "embedding_normalize"])
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_features_and_gradients_equal_the_equations_whatever_the_padding(
    monkeypatch, name, pre_ln, embedding_normalize, packed
):
    monkeypatch.setattr("embinit_fairseq.modules.encoder_layer.WORTHWHILE", 0 if packed else 2)
    module = encoder(name, pre_ln=pre_ln, embedding_normalize=embedding_normalize)
    features, _ = module(padded(length=8))
    expected = plain(module, name, pre_ln=pre_ln)
    assert_same_values_and_gradients(module, unpadded(features), expected)


@each_encoding
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_kernels_agree(monkeypatch, name, packed):
    monkeypatch.setattr("embinit_fairseq.modules.encoder_layer.WORTHWHILE", 0 if packed else 2)
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


@pytest.mark.parametrize("embedding_normalize", [False, True], ids=["", "embedding_normalize"])
def test_embeddings_of_another_width_are_dropped_before_they_are_projected(monkeypatch, embedding_normalize):
    """ELECTRA's generator: layer norm, dropout, projection (whose bias is never dropped), padding to zero."""
    visible_dropout(monkeypatch)
    layer, embed_tokens = LayerConfig(C, FFN, HEADS, dropout=0.1), nn.Embedding(SYMBOLS, C + 2, PAD)
    config = EncoderConfig(layer, 1, embedding_normalize)
    module = randomise(SentenceEncoder(config, embed_tokens, PositionEncoding(), BOS)).train()
    w = dict(module.named_parameters())
    table = w["embed_tokens.weight"]
    if embedding_normalize:
        table = normed(w, "emb_layer_norm", table)
    projected = linear(w, "embed_proj", table * 1.1)
    features, hiddens = module(padded(), return_all_hiddens=True)
    torch.testing.assert_close(unpadded(hiddens[0]), torch.cat([projected[s] for s in SENTENCES]))
    assert not hiddens[0][padded() == PAD].any()
    inner = {key: value for key, value in w.items() if not key.startswith("emb")}
    inner["embed_tokens.weight"] = projected / 1.1  # the reference drops its embeddings itself
    factors = {"hidden": 1.1}
    expected = torch.cat([encode(inner, torch.tensor(s), HEADS, "none", factors=factors)[-1] for s in SENTENCES])
    assert_same_values_and_gradients(module, unpadded(features), expected)


def test_real_dropout_differs_from_call_to_call_and_only_in_training():
    for kind in ("dropout", "attention_dropout", "activation_dropout"):
        module = encoder(**{kind: 0.5})
        assert torch.equal(module(padded())[0], module(padded())[0])
        module.train()
        assert not torch.equal(module(padded())[0], module(padded())[0]), kind


@pytest.mark.parametrize("pre_ln", [False, True], ids=["post-LN", "pre-LN"])
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_hidden_states(monkeypatch, pre_ln, packed):
    """Embeddings and the output of every layer, all (batch, length, C); the last one is the features."""
    monkeypatch.setattr("embinit_fairseq.modules.encoder_layer.WORTHWHILE", 0 if packed else 2)
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
