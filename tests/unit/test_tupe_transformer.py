"""Encoder and decoder of tupe_transformer against a plain statement, and what must not matter."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("fairseq", reason="this is an architecture of fairseq; install it with scripts/setup.sh")
from decoding import SOURCES, assert_the_future_has_no_influence
from hypothesis import given, settings
from hypothesis import strategies as st
from tupe_reference import assert_same_values_and_gradients, visible_dropout
from tupe_transformer_reference import EOS, PAD, VARIANTS, batch_of, config, randomised, reference_logits

from embinit_fairseq.errors import DataError
from embinit_fairseq.modules.decoder_layer import leading_padding, rotate_left

PREVIOUS = [[EOS, 6, 9, 4], [EOS, 5, 5, 8, 11, 4, 13, 6], [EOS]]
each_variant = pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)


def logits_of(model, sources, previous, left_source=False, left_target=False, width=0):
    """The logits of each sentence, computed in one batch; padding cut off."""
    logits, _ = model(batch_of(sources, left_source, width), None, batch_of(previous, left_target))
    if left_target:
        return torch.cat([row[-len(prefix) :] for row, prefix in zip(logits, previous)])
    return torch.cat([row[: len(prefix)] for row, prefix in zip(logits, previous)])


@each_variant
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_logits_and_gradients_equal_the_equations_whatever_the_padding(options, left):
    model = randomised(**options)
    expected = torch.cat([reference_logits(model, config(**options), s, p) for s, p in zip(SOURCES, PREVIOUS)])
    assert_same_values_and_gradients(model, logits_of(model, SOURCES, PREVIOUS, left), expected)


@each_variant
def test_dropout_acts_where_the_transformer_has_it(options, monkeypatch):
    visible_dropout(monkeypatch)
    rates = {"dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.3}
    if options.get("attention_kernel") == "sdpa":
        del rates["attention_dropout"]  # inside the fused kernel, where it cannot be seen
    model = randomised(**options, **rates).train()
    cfg = config(**options, **rates)
    expected = torch.cat([reference_logits(model, cfg, s, p) for s, p in zip(SOURCES, PREVIOUS)])
    torch.testing.assert_close(logits_of(model, SOURCES, PREVIOUS), expected, rtol=1e-11, atol=1e-12)


word = st.integers(3, 14)
sentence = st.lists(word, min_size=0, max_size=9).map(lambda words: [*words, EOS])


@settings(deadline=None, max_examples=25)
@given(
    pairs=st.lists(st.tuples(sentence, st.lists(word, max_size=8)), min_size=1, max_size=4),
    left_source=st.booleans(),
    left_target=st.booleans(),
    extra=st.integers(0, 3),
)
def test_a_sentence_does_not_see_its_batch(pairs, left_source, left_target, extra):
    model = randomised(rel_pos=True)
    sources, previous = [pair[0] for pair in pairs], [[EOS, *pair[1]] for pair in pairs]
    width = max(map(len, sources)) + extra
    with torch.no_grad():
        together = logits_of(model, sources, previous, left_source, left_target, width)
        alone = torch.cat([logits_of(model, [s], [p]) for s, p in zip(sources, previous)])
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-10)


def test_the_encoder_keeps_the_columns_of_its_input():
    model = randomised(encoder_normalize_before=True)
    left, right = (model.encoder(batch_of(SOURCES, side), None, return_all_hiddens=True) for side in (True, False))
    for one, other in zip(
        [left["encoder_out"][0], *left["encoder_states"]], [right["encoder_out"][0], *right["encoder_states"]]
    ):
        for row, source in enumerate(SOURCES):
            torch.testing.assert_close(one[-len(source) :, row], other[: len(source), row])
    assert torch.equal(left["encoder_padding_mask"][0], batch_of(SOURCES, True).eq(PAD))
    assert left["src_lengths"][0].tolist() == [[7], [3], [5]]
    assert len(left["encoder_states"]) == 3
    alone = model.encoder(batch_of(SOURCES[:1]))
    assert alone["encoder_padding_mask"] == alone["encoder_states"] == []


@each_variant
def test_the_future_has_no_influence(options):
    assert_the_future_has_no_influence(randomised(**options))


def test_word_order_matters_on_both_sides_and_only_through_positions():
    """Nothing positional is added to embeddings: with a bias of zero the encoder sees a bag of words."""
    model = randomised()
    sources, previous = [[4, 5, 6, EOS], [6, 4, 5, EOS]], [[EOS, 7, 8, 9], [EOS, 8, 7, 9]]

    def last_logits(source, prefix):
        with torch.no_grad():
            return model(batch_of([source]), None, batch_of([prefix]))[0][0, -1]

    assert not torch.allclose(last_logits(sources[0], previous[0]), last_logits(sources[1], previous[0]))
    assert not torch.allclose(last_logits(sources[0], previous[0]), last_logits(sources[0], previous[1]))
    for side in (model.encoder, model.decoder):
        side.positions.absolute.q_proj.weight.data.zero_()
        side.positions.absolute.q_proj.bias.data.zero_()
    torch.testing.assert_close(last_logits(sources[0], previous[0]), last_logits(sources[1], previous[0]))
    model.decoder.layers = model.decoder.layers[:1]  # a second layer would tell prefixes apart by their causal mask
    torch.testing.assert_close(last_logits(sources[0], previous[0]), last_logits(sources[0], previous[1]))


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_attention_is_that_of_the_chosen_layer_and_heads_in_the_columns_of_the_source(left):
    model = randomised()
    tokens, previous = batch_of(SOURCES, left), batch_of(PREVIOUS)
    encoder_out = model.encoder(tokens)
    _, extra = model.decoder(previous, encoder_out)
    attn, states = extra["attn"][0], extra["inner_states"]
    torch.testing.assert_close(attn.sum(-1), torch.ones_like(attn[..., 0]))
    assert attn.shape == (3, 8, 7)
    assert not attn.masked_select(tokens.eq(PAD).unsqueeze(1)).any()
    first = model.decoder.layers[0]
    x, memory = states[0][:, 0], encoder_out["encoder_out"][0][-7:, 0]  # the first sentence has no padding
    bias = model.decoder.positions.bias(8) + torch.full((8, 8), -torch.inf, dtype=x.dtype).triu(1)
    q, k, v = first.self_attn.qkv_proj(x).view(8, 3, 2, 4).permute(1, 2, 0, 3)
    y = ((q @ k.transpose(1, 2) / 8**0.5 + bias).softmax(-1) @ v).transpose(0, 1).reshape(8, 8)
    x = first.self_attn_layer_norm(x + first.self_attn.out_proj(y))
    q = first.encoder_attn.q_proj(x)[:, :4]
    k = first.encoder_attn.kv_proj(memory)[:, :4]
    _, extra = model.decoder(previous, encoder_out, alignment_layer=0, alignment_heads=1)
    torch.testing.assert_close(extra["attn"][0][0], (q @ k.T / 2).softmax(-1))
    q, k = first.encoder_attn.q_proj(x)[:, 4:], first.encoder_attn.kv_proj(memory)[:, 4:8]
    mean = (extra["attn"][0][0] + (q @ k.T / 2).softmax(-1)) / 2
    _, extra = model.decoder(previous, encoder_out, alignment_layer=0)
    torch.testing.assert_close(extra["attn"][0][0], mean)
    _, last = model.decoder(previous, encoder_out, alignment_layer=1)
    assert torch.equal(last["attn"][0], attn)


@each_variant
@pytest.mark.parametrize("left_source", [False, True])
def test_with_padding_before_the_target_attention_and_states_stand_at_their_tokens(options, left_source):
    """--left-pad-target: weights of cross-attention and hidden states of every token, as with padding behind it."""
    model = randomised(**options)
    encoder_out = model.encoder(batch_of(SOURCES, left_source))
    (_, left), (_, right) = (model.decoder(batch_of(PREVIOUS, side), encoder_out) for side in (True, False))
    for row, previous in enumerate(PREVIOUS):
        at_end, at_start = slice(-len(previous), None), slice(len(previous))
        torch.testing.assert_close(left["attn"][0][row, at_end], right["attn"][0][row, at_start])
        assert len(left["inner_states"]) == len(right["inner_states"]) == 1 + len(model.decoder.layers)
        for one, other in zip(left["inner_states"], right["inner_states"]):
            torch.testing.assert_close(one[at_end, row], other[at_start, row])


def test_rows_are_rotated_by_the_padding_in_front_only():
    tokens = torch.tensor([[PAD, PAD, 5, PAD], [5, PAD, 6, PAD], [PAD] * 4])
    shift = leading_padding(tokens.eq(PAD))
    assert shift.tolist() == [2, 0, 4]
    rotated = rotate_left(tokens, shift)
    assert rotated.tolist() == [[5, PAD, PAD, PAD], [5, PAD, 6, PAD], [PAD] * 4]
    assert torch.equal(rotate_left(rotated, -shift), tokens)


def test_kernels():
    """One query at a time is faster without fusing on a CPU; flex would compile for the shape of every batch."""
    x = torch.zeros(1)
    side = randomised().decoder.cfg
    with torch.no_grad():
        assert side.kernel(x, training=False) == "sdpa"
        assert side.kernel(x, training=False, step=True) == "eager"
        assert randomised(attention_kernel="sdpa").decoder.cfg.kernel(x, training=False, step=True) == "sdpa"
    assert side.kernel(x, training=True) == "eager"


def test_sentences_that_are_too_long_are_refused_by_the_name_of_the_flag():
    model = randomised(max_source_positions=6, max_target_positions=4)
    assert model.max_positions() == (6, 4)
    with pytest.raises(DataError, match=r"source sentence has 7 tokens, the model 6 positions.*--max-source-positions"):
        model(batch_of(SOURCES), None, batch_of([[EOS]] * 3))
    with pytest.raises(DataError, match=r"target sentence has 8 tokens, the model 4 positions.*--max-target-positions"):
        model(batch_of([[EOS]] * 3), None, batch_of(PREVIOUS))
