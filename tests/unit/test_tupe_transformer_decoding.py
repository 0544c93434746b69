"""Incremental decoding of tupe_transformer equals the full forward, through any exchange of rows; beam search."""

from __future__ import annotations

import random

import pytest
import torch

pytest.importorskip("fairseq", reason="this is an architecture of fairseq; install it with scripts/setup.sh")
from decoding import (
    SOURCES,
    Decoding,
    assert_batches_do_not_matter,
    assert_equal_beyond_every_capacity,
    assert_prefixes_are_kept,
    assert_scores_of_full_forward,
    assert_steps_are_equal,
    greedy,
    outputs,
    searched,
)
from fairseq.sequence_generator import SequenceGeneratorWithAlignment
from tupe_transformer_reference import EOS, VARIANTS, batch_of, built, randomised

from embinit_fairseq.errors import DataError
from embinit_fairseq.modules.decoder_layer import DecoderCache, distinct_rows

each_variant = pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)


@each_variant
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@torch.no_grad()
def test_incremental_equals_full_in_double_precision(options, left):
    assert_steps_are_equal(Decoding(randomised(**options), left), random.Random(1), 12, 1e-12)


@each_variant
@torch.no_grad()
def test_incremental_equals_full_in_single_precision(options):
    """With first values: random ones of size 1 would make logits of size 50, and 1e-6 less than a rounding error."""
    assert_steps_are_equal(Decoding(built(**options).eval()), random.Random(2), 12, 1e-6)


@pytest.mark.parametrize("seed", range(5))
@torch.no_grad()
def test_incremental_equals_full_beyond_every_capacity(seed):
    assert_equal_beyond_every_capacity(randomised(rel_pos=True), random.Random(seed))


@torch.no_grad()
def test_a_prefix_may_come_at_once():
    model = randomised()
    decoding = Decoding(model)
    decoding.rows = [(number, [EOS, 4, 5 + number, 6]) for number in range(3)]
    assert_steps_are_equal(decoding, random.Random(3), 3, 1e-12)


@torch.no_grad()
def test_exchanges_within_a_sentence_copy_neither_encoder_output_nor_memory():
    model = randomised()
    decoding = Decoding(model)
    decoding.reorder([0, 0, 1, 1, 2, 2])
    decoding.step([[5]] * 6)
    encoder_out, cache = decoding.encoder_out, next(iter(decoding.state.values()))
    memory = cache.memory
    decoding.reorder([1, 0, 2, 2, 5, 4])
    assert decoding.encoder_out is encoder_out
    assert cache.memory is memory
    decoding.reorder([2, 3])
    assert decoding.encoder_out["encoder_out"][0].shape[1] == 2
    assert cache.memory[0][0].shape[0] == 2


@torch.no_grad()
def test_keys_and_values_of_the_encoder_are_computed_once_and_once_a_sentence(monkeypatch):
    model = randomised()
    decoding, calls = Decoding(model), []
    for layer in model.decoder.layers:
        original = layer.encoder_attn.memory
        monkeypatch.setattr(layer.encoder_attn, "memory", lambda x, f=original: calls.append(len(x)) or f(x))
    decoding.reorder([0, 0, 1, 1, 2, 2])
    model.decoder(torch.full((6, 1), EOS), decoding.encoder_out, decoding.state)
    model.decoder(torch.full((6, 2), EOS), decoding.encoder_out, decoding.state)
    assert calls == [3, 3]


@torch.no_grad()
def test_positions_are_computed_for_powers_of_two_only(monkeypatch):
    model, lengths = randomised(), []
    original = model.decoder.positions.bias
    monkeypatch.setattr(model.decoder.positions, "bias", lambda length: lengths.append(length) or original(length))
    encoder_out, state = model.encoder(batch_of(SOURCES)), {}
    for length in range(1, 41):
        model.decoder(torch.full((3, length), EOS), encoder_out, state)
    assert lengths == [32, 48]


def test_a_step_without_a_new_token_is_refused():
    model = randomised()
    encoder_out, state = model.encoder(batch_of(SOURCES)), {}
    model.decoder(torch.full((3, 2), EOS), encoder_out, state)
    with pytest.raises(DataError, match="given 2 tokens after 2: prev_output_tokens must be the whole prefix"):
        model.decoder(torch.full((3, 2), EOS), encoder_out, state)


def test_encoder_states_go_with_their_rows():
    model = randomised()
    encoder_out = model.encoder(batch_of(SOURCES), None, return_all_hiddens=True)
    order = torch.tensor([2, 0, 0])
    reordered = model.encoder.reorder_encoder_out(encoder_out, order)
    for before, after in zip(encoder_out["encoder_states"], reordered["encoder_states"]):
        assert torch.equal(after, before[:, order])
    assert torch.equal(reordered["src_lengths"][0], encoder_out["src_lengths"][0][order])


def test_distinct_rows():
    rows, place = distinct_rows(torch.tensor([7, 3, 7, 7, 5]))
    assert torch.equal(torch.tensor([7, 3, 7, 7, 5])[rows][place], torch.tensor([7, 3, 7, 7, 5]))
    assert len(rows) == 3


@torch.no_grad()
def test_buffers_are_used_again():
    """Three layers, exchanged rows: four buffers in all, whatever the number of steps."""
    sentence, seen = torch.zeros(4, dtype=torch.long), set()
    cache = DecoderCache(sentence, [(torch.zeros(4, 1, 1, 2),) * 2 for _ in range(3)])
    for step in range(20):
        cache.reorder(torch.tensor([1, 0, 3, 2]))
        for layer in range(3):
            new = torch.full((4, 1, 1, 2), float(step))
            k, v = cache.extend(layer, new, new + 100)
            assert k[:, 0, :, 0].tolist() == [list(map(float, range(step + 1)))] * 4
            assert torch.equal(v, k + 100)
            seen.add(k.data_ptr())
        cache.advance(1)
    assert len(seen) == 4


@torch.no_grad()
def test_beam_one_is_greedy():
    model = randomised(rel_pos=True)
    found = searched(model, SOURCES, beam=1)
    assert [sentence[0] for sentence in outputs(found)] == [greedy(model, source, 20) for source in SOURCES]


@pytest.mark.parametrize("seed", range(4))
@torch.no_grad()
def test_beam_search_of_a_sentence_does_not_see_its_batch(seed):
    assert_batches_do_not_matter(randomised(rel_pos=bool(seed % 2)), random.Random(seed), 5, 2e-6)


@torch.no_grad()
def test_scores_of_beam_search_are_those_of_the_full_forward():
    model = built().eval()
    assert_scores_of_full_forward(searched(model, SOURCES, beam=3), model, 2e-6)


@torch.no_grad()
def test_forced_prefixes_of_different_lengths():
    assert_prefixes_are_kept(randomised())


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@torch.no_grad()
def test_alignments_name_words_of_the_source(left):
    """Hard alignments are pairs (source word, target word); the same for both ways of padding."""
    model = randomised()
    found = searched(model, SOURCES, left, kind=SequenceGeneratorWithAlignment, beam=2)
    right = searched(model, SOURCES, False, kind=SequenceGeneratorWithAlignment, beam=2)
    for source, sentence, other in zip(SOURCES, found, right):
        for hypothesis, same in zip(sentence, other):
            pairs = hypothesis["alignment"]
            assert len(pairs) == len(hypothesis["tokens"]) - 1
            assert all(0 <= at < len(source) - 1 for at, _ in pairs)
            assert pairs == same["alignment"]
