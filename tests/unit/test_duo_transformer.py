"""The Duo transformer against a plain statement, for all switches; and what must not matter."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

pytest.importorskip("fairseq", reason="this is an architecture of fairseq; install it with scripts/setup.sh")
from decoding import SOURCES, assert_the_future_has_no_influence
from duo_reference import LEARNED, PRE_LN, VARIANTS, built, encoder, randomised, reference
from duo_reference import Weights as ReferenceWeights
from hypothesis import given, settings
from hypothesis import strategies as st
from tupe_reference import assert_same_values_and_gradients, randomise, visible_dropout
from tupe_transformer_reference import EOS, PAD, batch_of

from embinit_fairseq.errors import DataError
from embinit_fairseq.modules.attention_kernels import prepare
from embinit_fairseq.modules.duo import DuoSelfAttention, back_to_values, values_for_queries

PREVIOUS = [[EOS, 6, 9, 4], [EOS, 5, 5, 8, 11, 4, 13, 6], [EOS]]
TIES = {"untied": {}, "tied": {"share_decoder_input_output_embed": True}, "all": {"share_all_embeddings": True}}
SWITCHES = [
    ("off", "stream", "pair"),
    ("off", "encoder", "decoder", "all"),
    ("on", "off"),
    TIES,
    ("post-LN", "pre-LN"),
]
each_variant = pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
each_side = pytest.mark.parametrize("left", [False, True], ids=["right", "left"])


def logits_of(model, sources, previous, left_source=False, left_target=False, width=0):
    """The logits of each sentence, computed in one batch; padding cut off."""
    logits, _ = model(batch_of(sources, left_source, width), None, batch_of(previous, left_target))
    if left_target:
        return torch.cat([row[-len(prefix) :] for row, prefix in zip(logits, previous)])
    return torch.cat([row[: len(prefix)] for row, prefix in zip(logits, previous)])


def expected_logits(model, sources=SOURCES, previous=PREVIOUS):
    return torch.cat([reference(model, s, p)[0] for s, p in zip(sources, previous)])


@each_variant
@each_side
def test_logits_and_gradients_equal_the_equations_whatever_the_padding(options, left):
    model = randomised(**options)
    assert_same_values_and_gradients(model, logits_of(model, SOURCES, PREVIOUS, left, left), expected_logits(model))


@pytest.mark.parametrize("switches", [*itertools.product(*SWITCHES)], ids="-".join)
def test_every_combination_of_the_switches(switches):
    share, norm, fusion, ties, order = switches
    options = {"duo_share_weights": share, "duo_norm": norm, "duo_fusion": fusion, **TIES[ties]}
    model = randomised(**options, **(PRE_LN if order == "pre-LN" else {}))
    sources, previous = SOURCES[1:], PREVIOUS[::2]
    ours = logits_of(model, sources, previous, left_source=True)
    assert_same_values_and_gradients(model, ours, expected_logits(model, sources, previous))


@each_variant
def test_dropout_acts_where_the_transformer_has_it(options, monkeypatch):
    visible_dropout(monkeypatch)
    rates = {"dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.3}
    if options.get("attention_kernel") == "sdpa":
        del rates["attention_dropout"]  # inside the fused kernel, where it cannot be seen
    model = randomised(**options, **rates).train()
    torch.testing.assert_close(logits_of(model, SOURCES, PREVIOUS), expected_logits(model), rtol=1e-11, atol=1e-12)
    model.eval()  # and nowhere when the model is used
    torch.testing.assert_close(logits_of(model, SOURCES, PREVIOUS), expected_logits(model), rtol=1e-11, atol=1e-12)


word = st.integers(3, 14)
sentence = st.lists(word, min_size=0, max_size=9).map(lambda words: [*words, EOS])


@settings(deadline=None, max_examples=25)
@given(
    pairs=st.lists(st.tuples(sentence, st.lists(word, max_size=8)), min_size=1, max_size=4),
    left_source=st.booleans(),
    left_target=st.booleans(),
    extra=st.integers(0, 3),
    learned=st.booleans(),
)
def test_a_sentence_does_not_see_its_batch(pairs, left_source, left_target, extra, learned):
    model = randomised(**(LEARNED if learned else {}))
    sources, previous = [pair[0] for pair in pairs], [[EOS, *pair[1]] for pair in pairs]
    width = max(map(len, sources)) + extra
    with torch.no_grad():
        together = logits_of(model, sources, previous, left_source, left_target, width)
        alone = torch.cat([logits_of(model, [s], [p]) for s, p in zip(sources, previous)])
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-10)


@each_side
@pytest.mark.parametrize("options", [{}, PRE_LN], ids=["post-LN", "pre-LN"])
def test_the_encoders_streams_stand_side_by_side(options, left):
    model = randomised(**options)
    out = model.encoder(batch_of(SOURCES, left), None, return_all_hiddens=True)
    for row, source in enumerate(SOURCES):
        columns = slice(-len(source), None) if left else slice(len(source))
        ours = out["encoder_out"][0][columns, row]
        expected = torch.cat(encoder(ReferenceWeights(model), source), dim=1)
        torch.testing.assert_close(ours, expected, rtol=1e-11, atol=1e-12)
    assert torch.equal(out["encoder_padding_mask"][0], batch_of(SOURCES, left).eq(PAD))
    assert out["src_lengths"][0].tolist() == [[7], [3], [5]]
    assert [state.shape for state in out["encoder_states"]] == [(7, 3, 16)] * 3
    assert torch.equal(out["encoder_states"][-1], out["encoder_out"][0])
    alone = model.encoder(batch_of(SOURCES[:1]))
    assert alone["encoder_padding_mask"] == alone["encoder_states"] == []


@each_variant
def test_the_future_has_no_influence(options):
    assert_the_future_has_no_influence(randomised(**options))


@each_variant
@each_side
def test_attention_is_the_mean_of_streams_and_heads_in_the_columns_of_the_source(options, left):
    model = randomised(**options)
    with torch.no_grad():
        _, extra = model(batch_of(SOURCES, left), None, batch_of(PREVIOUS))
    attn = extra["attn"][0]
    assert attn.shape == (3, 8, 7)
    assert not attn.masked_select(batch_of(SOURCES, left).eq(PAD).unsqueeze(1)).any()
    for row, (source, previous) in enumerate(zip(SOURCES, PREVIOUS)):
        columns = slice(-len(source), None) if left else slice(len(source))
        _, expected = reference(model, source, previous)
        torch.testing.assert_close(attn[row, : len(previous), columns], expected.detach(), rtol=1e-11, atol=1e-12)


def test_attention_of_a_chosen_layer_and_of_the_first_heads():
    model, source, previous = randomised(), batch_of(SOURCES[:1]), batch_of(PREVIOUS[:1])
    encoder_out, first = model.encoder(source), model.decoder.layers[0]
    with torch.no_grad():
        _, extra = model.decoder(previous, encoder_out, alignment_layer=0, alignment_heads=1)
        states = extra["inner_states"]
        assert [state.shape for state in states] == [(4, 1, 16)] * 3
        seen = {}
        first.encoder_attn.register_forward_hook(lambda module, given, result: seen.update(weights=result[1]))
        _, both = model.decoder(previous, encoder_out, alignment_layer=0)
        _, last = model.decoder(previous, encoder_out, alignment_layer=1)
        _, default = model.decoder(previous, encoder_out)
    assert seen["weights"] is None  # of the last call, in which the second layer was asked
    assert torch.equal(last["attn"][0], default["attn"][0])
    model.decoder.layers = model.decoder.layers[:1]
    model.cfg.decoder_layers = 1
    _, expected = reference(model, SOURCES[0], PREVIOUS[0])
    torch.testing.assert_close(both["attn"][0][0], expected.detach(), rtol=1e-11, atol=1e-12)
    assert not torch.allclose(both["attn"][0], extra["attn"][0])
    with torch.no_grad():
        first.encoder_attn.q_proj.weight[:, 4:] = 0  # the second head looks everywhere alike
        first.encoder_attn.q_proj.bias[:, 4:] = 0
        _, both = model.decoder(previous, encoder_out)
    torch.testing.assert_close(both["attn"][0], (extra["attn"][0] + 1 / 7) / 2)


def test_three_streams_hand_on_their_values_in_a_circle():
    """With two it does not show which way they go. Stream s asks its own keys and takes the values of s + 1."""
    attention = randomise(DuoSelfAttention(3, 8, 2, share_weights="off"))
    x = torch.randn(3, 2, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    plain = prepare("eager", None, None)
    ours = attention(x, plain).detach().clone()
    for stream in range(3):
        weight, bias = attention.in_proj.weight, attention.in_proj.bias
        after = (stream + 1) % 3
        q, k = (x[stream] @ weight[stream].T + bias[stream])[..., :16].chunk(2, dim=-1)
        v = (x[after] @ weight[after].T + bias[after])[..., 16:]
        for head in (slice(0, 4), slice(4, 8)):
            y = (q[..., head] @ k[..., head].transpose(1, 2) / 2).softmax(-1) @ v[..., head]
            ours[stream] = ours[stream] - y @ attention.out_proj.weight[:, head].T
        torch.testing.assert_close(ours[stream], attention.out_proj.bias.expand(2, 5, 8))
    assert back_to_values(torch.tensor([[0], [1], [2]])).tolist() == [[2], [0], [1]]
    assert torch.equal(back_to_values(values_for_queries(x)), x)


def test_sinusoids_are_those_of_vaswani_in_fairseqs_order():
    """sin in the first half of the columns, cos in the second; the wavelengths go from 2 pi to 10,000 times that."""
    model = built(encoder_embed_dim=8, no_scale_embedding=True).eval()
    with torch.no_grad():
        for table in model.encoder.embedding.tables():
            table.weight.zero_()
        x = model.encoder.embedding(batch_of([[5, 6, 7, EOS], [8, EOS]], left=True))
    for stream in x:
        for row, column, position in ((0, 0, 2), (0, 3, 5), (1, 2, 2), (1, 3, 3)):
            angles = [position / 10000 ** (k / 3) for k in range(4)]
            expected = torch.tensor([*map(math.sin, angles), *map(math.cos, angles)])
            torch.testing.assert_close(stream[row, column], expected, rtol=0, atol=1e-6)


def test_kernels():
    """One query at a time is faster without fusing on a CPU; flex would compile for the shape of every batch."""
    x = torch.zeros(1)
    side = randomised().decoder.cfg
    with torch.no_grad():
        assert side.prepare(x, False, None, None).kernel == "sdpa"
        assert side.prepare(x, False, None, None, step=True).kernel == "eager"
        asked = randomised(attention_kernel="sdpa").decoder.cfg
        assert asked.prepare(x, False, None, None, step=True).kernel == "sdpa"
    assert side.prepare(x, True, None, None).kernel == "eager"


def test_sentences_that_are_too_long_are_refused_by_the_name_of_the_flag():
    model = randomised(max_source_positions=6, max_target_positions=4)
    assert model.max_positions() == (6, 4)
    with pytest.raises(DataError, match=r"source sentence has 7 tokens, the model 6 positions.*--max-source-positions"):
        model(batch_of(SOURCES), None, batch_of([[EOS]] * 3))
    with pytest.raises(DataError, match=r"target sentence has 8 tokens, the model 4 positions.*--max-target-positions"):
        model(batch_of([[EOS]] * 3), None, batch_of(PREVIOUS))
    model(batch_of([SOURCES[0][:6]]), None, batch_of([PREVIOUS[0]]))  # 6 and 4 are not
