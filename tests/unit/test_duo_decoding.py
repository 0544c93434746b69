"""Incremental decoding of the Duo transformer equals the full forward, through any exchange of rows; beam search."""

from __future__ import annotations

import random

import pytest
import torch

pytest.importorskip("fairseq", reason="this is an architecture of fairseq; install it with scripts/setup.sh")
from decoding import SOURCES, Decoding, assert_equal_beyond_every_capacity, assert_steps_are_equal
from duo_reference import TIED, VARIANTS, built, randomised, reference, ways_to_the_output
from torch.utils.flop_counter import FlopCounterMode
from tupe_transformer_reference import EOS, batch_of

from embinit_fairseq.errors import DataError
from embinit_fairseq.modules.decoder_layer import DecoderCache, beam_of

each_variant = pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)


@each_variant
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@torch.no_grad()
def test_incremental_equals_full_in_double_precision(options, left):
    assert_steps_are_equal(Decoding(randomised(**options), left), random.Random(1), 12, 1e-12)


@each_variant
@torch.no_grad()
def test_incremental_equals_full_in_single_precision(options):
    """With first values: random ones of size 1 would make logits of size 50. Rounding alone makes 1e-6 of these."""
    assert_steps_are_equal(Decoding(built(**options).eval()), random.Random(2), 12, 4e-6)


@pytest.mark.parametrize("seed", range(5))
@torch.no_grad()
def test_incremental_equals_full_beyond_every_capacity(seed):
    model = randomised(encoder_learned_pos=True, decoder_learned_pos=True)
    assert_equal_beyond_every_capacity(model, random.Random(seed))


@pytest.mark.parametrize("seed", range(4))
@torch.no_grad()
def test_beams_that_share_their_memory(seed):
    """As beam search has them: rows of a sentence are neighbours and stay so, until any exchange is allowed."""
    model, choice, beam = randomised(**TIED), random.Random(seed), 4
    decoding = Decoding(model, left=bool(seed % 2))
    decoding.reorder([at for at in range(3) for _ in range(beam)])
    sentences = 3
    for step in range(8):
        assert_without_exchange(decoding, choice)
        cache = cache_of(decoding)
        assert cache.beam == beam
        assert len(cache.memory[0][0]) == 2 * sentences
        kept = sorted(choice.sample(range(sentences), max(1, sentences - step % 3 // 2)))
        decoding.reorder([beam * sentence + choice.randrange(beam) for sentence in kept for _ in range(beam)])
        sentences = len(kept)
    decoding.reorder([0, *range(len(decoding.rows))])  # one more of the first sentence: no longer beam by beam
    assert_without_exchange(decoding, choice)
    assert cache_of(decoding).beam == 1
    assert_steps_are_equal(decoding, choice, 6, 1e-12)


@torch.no_grad()
def test_beams_of_sentences_that_come_back_in_another_order():
    model, choice = randomised(), random.Random(0)
    decoding = Decoding(model)
    decoding.reorder([0, 0, 1, 1, 2, 2])
    assert_without_exchange(decoding, choice)
    decoding.reorder([4, 5, 0, 1, 0, 0])  # sentences 2, 0, 0
    assert_without_exchange(decoding, choice)
    assert cache_of(decoding).beam == 2
    decoding.reorder([1, 2, 2, 3, 4, 5])  # sentence 2 once, then 0: neighbours differ
    assert_without_exchange(decoding, choice)
    assert cache_of(decoding).beam == 1


def assert_without_exchange(decoding, choice):
    """With one or two tokens more for the next step."""
    amount = choice.choice([1, 2])
    words = [[choice.randrange(3, 15) for _ in range(amount)] for _ in decoding.rows]
    for one, other in zip(*decoding.step(words)):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def cache_of(decoding):
    return next(value for value in decoding.state.values() if isinstance(value, DecoderCache))


def test_beam_of():
    assert beam_of(torch.tensor([0, 0, 1, 1, 2, 2]), 3) == 2
    assert beam_of(torch.tensor([0, 1, 0, 1, 2, 2]), 3) == 1
    assert beam_of(torch.tensor([1, 1, 0, 0]), 2) == 1
    assert beam_of(torch.tensor([0, 0, 1]), 2) == 1
    assert beam_of(torch.tensor([0, 0, 0]), 1) == 3


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
    encoder_out, memory = decoding.encoder_out, cache_of(decoding).memory
    decoding.reorder([1, 0, 2, 2, 5, 4])
    assert decoding.encoder_out is encoder_out
    assert cache_of(decoding).memory is memory
    decoding.reorder([2, 3])
    assert decoding.encoder_out["encoder_out"][0].shape[1] == 2
    assert len(cache_of(decoding).memory[0][0]) == 2  # one sentence, two streams


@torch.no_grad()
def test_keys_and_values_of_the_encoder_are_computed_once_and_once_a_sentence(monkeypatch):
    model = randomised()
    decoding, calls = Decoding(model), []
    for layer in model.decoder.layers:
        original = layer.encoder_attn.memory
        monkeypatch.setattr(layer.encoder_attn, "memory", lambda x, f=original: calls.append(x.shape[:2]) or f(x))
    decoding.reorder([0, 1, 0, 1, 2, 2])
    model.decoder(torch.full((6, 1), EOS), decoding.encoder_out, decoding.state)
    model.decoder(torch.full((6, 2), EOS), decoding.encoder_out, decoding.state)
    assert calls == [(2, 3), (2, 3)]


@pytest.mark.parametrize("way", ["factored", "fused", "prepared"])
@pytest.mark.parametrize("options", [TIED, {"share_decoder_input_output_embed": True, "decoder_dim_p": 3}], ids=str)
@torch.no_grad()
def test_all_ways_to_the_output_give_the_same_logits(options, way, monkeypatch):
    model = randomised(**options)
    expected, _ = reference(model, SOURCES[0], [EOS, 4, 5])
    ways_to_the_output(model, monkeypatch, way)
    decoding = Decoding(model)
    assert_steps_are_equal(decoding, random.Random(4), 10, 1e-12)
    encoder_out, state = model.encoder(batch_of(SOURCES[:1])), {}
    steps = [model.decoder(torch.tensor([[EOS, 4, 5][:length]]), encoder_out, state)[0] for length in (1, 2, 3)]
    torch.testing.assert_close(torch.cat(steps, dim=1)[0], expected, rtol=1e-11, atol=1e-12)


@torch.no_grad()
def test_the_fused_table_is_made_once_a_batch_and_once_for_all_when_weights_are_final(monkeypatch):
    model, made = randomised(**TIED), []
    tables = model.decoder.fused_tables
    original = type(tables).forward
    monkeypatch.setattr(type(tables), "forward", lambda self, given: made.append(self.kept) or original(self, given))
    monkeypatch.setattr("embinit_fairseq.architectures.duo._STEPS", 1000)
    for _ in range(2):
        encoder_out, state = model.encoder(batch_of(SOURCES)), {}
        for length in (1, 2, 3):
            model.decoder(torch.full((3, length), EOS), encoder_out, state)
    assert made == [None, None]
    keys = list(model.state_dict())
    model.make_generation_fast_()
    assert list(model.state_dict()) == keys, "what is derived does not belong into a checkpoint"
    assert tables.kept.shape == (15, 8)
    half = model.half().decoder.fused_tables.kept
    assert half.dtype == torch.float16, "fairseq's --fp16 may come after it (from_pretrained)"


@pytest.mark.parametrize(
    "dims", [{}, {"decoder_dim_s": 40, "decoder_dim_p": 3}, {"decoder_dim_s": 1, "decoder_dim_p": 2}]
)
@torch.no_grad()
def test_few_rows_are_multiplied_with_one_table_after_the_other(dims):
    """Whichever takes fewer multiplications, counted by PyTorch, also when the fused table is there already."""
    model = randomised(share_decoder_input_output_embed=True, **dims)
    fused, tables = model.decoder.fused_tables, [table.weight for table in model.decoder.embedding.tables()]

    def operations(job):
        with FlopCounterMode(display=False) as counter:
            job()
        return counter.get_total_flops()

    for kept in (False, True):
        if kept:
            fused.keep_(tables)
        chosen = set()
        for rows in (1, 2, 5, 7, 8, 9, 20, 100):
            f = torch.zeros(rows, 8, dtype=torch.float64)
            whole = operations(lambda f=f: f @ fused(tables).T)
            factored = operations(lambda f=f: fused.factored(f, tables))
            assert fused.is_cheaper_factored(rows, tables) == (factored < whole), rows
            chosen.add(factored < whole)
        if kept or sum(fused.dims) < 8:  # making the table is free, or never pays
            assert len(chosen) == 1
        else:
            assert chosen == {True, False}


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
