"""The whole encoder against a plain statement, with gradients; dropout, padding and packing, hidden states, kernels,
memory, heads, what is refused."""

from __future__ import annotations

import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from tupe_reference import (
    assert_same_values_and_gradients,
    class_logits,
    encode,
    gelu,
    linear,
    lm_logits,
    normed,
    randomise,
    visible_dropout,
)

from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.modules import sentence_encoder
from embinit_fairseq.modules.attention_kernels import prepare
from embinit_fairseq.modules.encoder_layer import LayerConfig, Packing, SelfAttention, packing_of
from embinit_fairseq.modules.heads import ClassificationHead, MaskedLMHead
from embinit_fairseq.modules.position_encoding import (
    AddedPositions,
    FourTermPositions,
    PositionEncoding,
    RelativePositions,
    untied_positions,
)
from embinit_fairseq.modules.sentence_encoder import EncoderConfig, SentenceEncoder

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
C, HEADS, FFN, SYMBOLS, LONGEST = 6, 2, 5, 11, 9
BOS, PAD, MASK = 0, 1, 10
SENTENCES = [[BOS, 4, 5, 6, 7, 2], [BOS, 8, 2], [BOS]]
UNEVEN = [[BOS, 2]] * 3 + [[BOS, 4, 5, 6, 7, 8, 9, 2]]
RESET = {"kind": "untied", "reset": "official"}
#: name -> (position encoding, how the reference says it)
ENCODINGS = {
    "none": (lambda: PositionEncoding(), {"kind": "none"}),
    "bert_a": (lambda: AddedPositions(C, LONGEST), {"kind": "added"}),
    "bert_r": (lambda: RelativePositions(HEADS, 32, 128), {"kind": "relative"}),
    "bert_ad": (lambda: FourTermPositions(C, LONGEST), {"kind": "four_terms"}),
    "tupe_a": (lambda: untied_positions(C, HEADS, LONGEST), RESET),
    "tupe_r": (lambda: untied_positions(C, HEADS, LONGEST, num_buckets=32), {**RESET, "relative": True}),
    "tupe_r_paper": (
        lambda: untied_positions(C, HEADS, LONGEST, reset="paper", num_buckets=32),
        {"kind": "untied", "reset": "paper", "relative": True},
    ),
    "tupe_a_tie_cls": (lambda: untied_positions(C, HEADS, LONGEST, reset=None), {"kind": "untied"}),
}
each_encoding = pytest.mark.parametrize("name", ENCODINGS)
each_order = pytest.mark.parametrize("pre_ln", [False, True], ids=["post-LN", "pre-LN"])


@pytest.fixture(params=[True, False], ids=["packed", "padded"])
def packed(request, monkeypatch):
    monkeypatch.setattr("embinit_fairseq.modules.encoder_layer.WORTHWHILE", 0 if request.param else 2)


def encoder(name="tupe_r", num_layers=2, pre_ln=False, **options):
    """Double precision, every parameter different from every other; in evaluation mode."""
    positions = ENCODINGS[name][0]()
    layer_options = {key: options.pop(key) for key in list(options) if key.endswith(("dropout", "activation"))}
    layer = LayerConfig(C, FFN, HEADS, num_terms=positions.num_terms, normalize_before=pre_ln, **layer_options)
    torch.manual_seed(0)
    embed_tokens = nn.Embedding(SYMBOLS, C, PAD)
    return randomise(SentenceEncoder(EncoderConfig(layer, num_layers, **options), embed_tokens, positions, BOS)).eval()


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
@each_order
@pytest.mark.parametrize("embedding_normalize", [False, True], ids=["", "embedding_normalize"])
def test_features_and_gradients_equal_the_equations_whatever_the_padding(packed, name, pre_ln, embedding_normalize):
    module = encoder(name, pre_ln=pre_ln, embedding_normalize=embedding_normalize)
    features, _ = module(padded(length=8))
    assert_same_values_and_gradients(module, unpadded(features), plain(module, name, pre_ln=pre_ln))


@each_encoding
@pytest.mark.parametrize("kernel", ["eager", "sdpa", "flex"])
def test_kernels_agree(packed, name, kernel):
    if kernel == "flex":
        pytest.importorskip("torch.nn.attention.flex_attention")
    module = encoder(name, attention_kernel=kernel)
    if kernel == "sdpa":
        assert_same_values_and_gradients(module, unpadded(module(padded())[0]), plain(module, name))
    with torch.no_grad():
        torch.testing.assert_close(unpadded(module(padded())[0]), plain(module, name), rtol=1e-11, atol=1e-12)


def test_full_batches_and_the_longest_input_and_relu():
    sentences = [[BOS, 4, 5, 6, 7, 8, 9, 4, 2], [BOS, 9, 8, 7, 6, 5, 4, 4, 2]]
    module = encoder(activation="relu")
    ours, expected = module(padded(sentences))[0].flatten(0, 1), plain(module, "tupe_r", sentences, act=torch.relu)
    assert_same_values_and_gradients(module, ours, expected)


@each_encoding
@each_order
def test_dropout_acts_where_it_should(monkeypatch, name, pre_ln):
    """Embeddings (after their layer norm), attention output, FFN output: 0.1; probabilities 0.2; inside the FFN 0.3."""
    rates = {"dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.3}
    module = encoder(name, 2, pre_ln, embedding_normalize=True, **rates).train()
    visible_dropout(monkeypatch)
    factors = {"hidden": 1.1, "attention": 1.2, "activation": 1.3}
    expected = plain(module, name, pre_ln=pre_ln, factors=factors)
    torch.testing.assert_close(unpadded(module(padded())[0]), expected, rtol=1e-11, atol=1e-12)
    module.eval()
    torch.testing.assert_close(unpadded(module(padded())[0]), plain(module, name, pre_ln=pre_ln))


@pytest.mark.parametrize("embedding_normalize", [False, True], ids=["", "embedding_normalize"])
def test_embeddings_of_another_dimension_are_dropped_before_they_are_projected(monkeypatch, embedding_normalize):
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
    expected = [encode(inner, torch.tensor(s), HEADS, "none", factors={"hidden": 1.1})[-1] for s in SENTENCES]
    assert_same_values_and_gradients(module, unpadded(features), torch.cat(expected))


@each_order
def test_hidden_states(packed, pre_ln):
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


# ---- Batches without their padding ----------------------------------------------------------------------------------

masks = st.integers(1, 7).flatmap(
    lambda length: st.lists(st.lists(st.booleans(), min_size=length, max_size=length), min_size=1, max_size=5)
)


@settings(deadline=None, max_examples=30)
@given(masks)
def test_packing_and_spreading(rows):
    padding_mask = torch.tensor(rows)
    x = torch.randn(*padding_mask.shape, 3, dtype=torch.float64, requires_grad=True)
    packing = Packing(padding_mask)
    assert torch.equal(packing.pack(x), x[~padding_mask])
    spread = packing.spread(packing.pack(x))
    assert torch.equal(spread, x.masked_fill(padding_mask.unsqueeze(-1), 0.0))
    weights = torch.randn_like(x)
    (spread * weights).sum().backward()
    assert torch.equal(x.grad, weights.masked_fill(padding_mask.unsqueeze(-1), 0.0))


def products_of(module, *inputs):
    with FlopCounterMode(display=False) as counted:
        module(*inputs)
    return counted.get_total_flops()


@pytest.mark.parametrize(("padding", "packs"), [(0, False), (3, False), (4, True), (40, True)])
def test_only_where_it_saves_something(monkeypatch, padding, packs):
    """With less than 1/16 of padding it does not."""
    padding_mask = torch.zeros(8, 8, dtype=torch.bool)
    for at in range(padding):
        padding_mask[at % 8, 7 - at // 8] = True
    assert (packing_of(padding_mask, 64 - padding) is not None) == packs
    assert packing_of(None, 10) is None
    module = encoder(attention_kernel="eager").requires_grad_(False)
    tokens = torch.full((8, 8), 4).index_fill(1, torch.tensor(0), BOS).masked_fill(padding_mask, module.padding_idx)
    counted = products_of(module, tokens)
    monkeypatch.setattr("embinit_fairseq.modules.encoder_layer.WORTHWHILE", 2)
    assert (counted < products_of(module, tokens)) == packs


@pytest.mark.parametrize("masking", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("training", [False, True])
def test_linear_maps_take_the_tokens_alone(monkeypatch, training, masking):
    """Of 4 sentences with 2, 2, 2 and 8 tokens: 14 tokens, not 32. All else is as before."""
    module = encoder("tupe_a", 2, attention_kernel="eager").train(training)
    module.requires_grad_(training)  # for no gradients: under no_grad the counter does not work
    inputs = padded(UNEVEN), padded(UNEVEN).eq(6) if masking else None
    counted = products_of(module, *inputs)
    monkeypatch.setattr("embinit_fairseq.modules.encoder_layer.WORTHWHILE", 2)
    assert products_of(module, *inputs) - counted == 2 * 2 * (32 - 14) * (4 * C * C + 2 * C * FFN)


# ---- In use ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert_ad", "tupe_r"])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_checkpointed_activations_change_nothing(name, dropout):
    results = []
    for checkpointed in (False, True):
        module = encoder(name, dropout=dropout, attention_dropout=dropout, checkpoint_activations=checkpointed).train()
        torch.manual_seed(7)
        (unpadded(module(padded())[0]) ** 2).sum().backward()
        results.append([parameter.grad for parameter in module.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*results))


def test_checkpointing_computes_layers_again():
    module, calls = encoder(checkpoint_activations=True).train(), []
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
    said = [record.message.split(" (")[0] for record in caplog.records]
    assert said == ["attention in training on cpu: eager", "attention in evaluation on cpu: sdpa"]


@pytest.mark.parametrize("kernel", ["flex", "sdpa"])
def test_flex_always_has_a_padding_mask(monkeypatch, kernel):
    """With and without one are two functions to compile, and after eight PyTorch gives up."""
    given = []
    monkeypatch.setattr(
        sentence_encoder, "prepare", lambda name, bias, mask: given.append(mask) or prepare(name, bias, mask)
    )
    module, whole = encoder(attention_kernel=kernel), torch.tensor(SENTENCES[:1])
    with torch.no_grad():
        features, _ = module(whole)
        module(padded())
    torch.testing.assert_close(features[0], plain(module, "tupe_r", SENTENCES[:1]))
    assert given[1].tolist() == padded().eq(PAD).tolist()
    assert (None if given[0] is None else given[0].tolist()) == (None if kernel == "sdpa" else [[False] * 6])


@each_encoding
def test_first_tokens_that_cannot_be_are_refused(name):
    """Padding in front always; another token than `<s>` where positions treat the first column apart."""
    module = encoder(name)
    with pytest.raises(DataError, match="begins with padding"):
        module(torch.tensor([[BOS, 4, 5, 2], [PAD, BOS, 4, 2]]))
    tokens = torch.tensor([[BOS, 4, 2], [4, 5, 2]])
    assert module.positions.untie_cls == (name in ("tupe_a", "tupe_r", "tupe_r_paper"))
    if module.positions.untie_cls:
        with pytest.raises(DataError, match=r"does not begin with <s>.*--init-token 0.*--tupe-tie-cls"):
            module(tokens)
    else:
        assert module(tokens)[0].isfinite().all()


def test_bos_may_be_masked_or_exchanged_in_pre_training():
    tokens = torch.tensor([[MASK, 4, 5, 2], [7, 4, 5, 2], [BOS, 4, MASK, 2]])
    masked = torch.tensor([[True, False, False, False], [True, False, True, False], [False, False, True, False]])
    module = encoder()
    torch.testing.assert_close(module(tokens, masked)[0].flatten(0, 1), plain(module, "tupe_r", tokens.tolist()))
    for unexplained in (None, masked & (torch.arange(4) > 0), masked & (tokens[:, :1] == MASK)):
        with pytest.raises(DataError, match="does not begin with <s>"):
            module(tokens, unexplained)


def test_heads_must_divide_the_dimension():
    with pytest.raises(OptionError, match="4 attention heads do not divide the width 6; numbers that do: 1, 2, 3, 6"):
        SelfAttention(6, 4)


# ---- Heads ----------------------------------------------------------------------------------------------------------


def test_lm_head_equals_the_equation_and_projects_selected_positions_only():
    """gelu is the exact one. The softmax moves the row of padding: point 13 of the authors' code."""
    embed_tokens = nn.Embedding(SYMBOLS, C, PAD)
    head = randomise(MaskedLMHead(embed_tokens, "gelu"))
    assert head.weight is embed_tokens.weight
    features = torch.randn(2, 4, C, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    w = dict(head.named_parameters())
    expected = torch.stack([lm_logits(w, sentence, head.weight) for sentence in features])
    assert_same_values_and_gradients(head, head(features), expected)
    masked = torch.tensor([[True, False, False, True], [False, False, True, False]])
    selected = lm_logits(w, features[masked], head.weight)
    assert selected.shape == (3, SYMBOLS)
    assert_same_values_and_gradients(head, head(features, masked), selected)
    x = torch.linspace(-4, 4, 100, dtype=torch.float64)
    torch.testing.assert_close(head.activation(x), gelu(x), rtol=1e-14, atol=1e-15)
    head(features).log_softmax(-1)[..., 4].sum().backward()
    assert embed_tokens.weight.grad[PAD].abs().max() > 0


def test_classification_head_equals_the_equation(monkeypatch):
    """Dropout between tanh and the last matrix, none before the first."""
    visible_dropout(monkeypatch)
    head = randomise(ClassificationHead(C, 4, 3, "tanh", 0.25))
    features = torch.randn(2, 4, C, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    w = dict(head.named_parameters())
    for training, factor in ((True, 1.25), (False, 1.0)):
        expected = torch.stack([class_logits(w, sentence, factor) for sentence in features])
        assert_same_values_and_gradients(head, head.train(training)(features), expected)
