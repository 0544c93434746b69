"""Incremental decoding of tupe_transformer equals the full forward, through any exchange of rows; beam search."""

from __future__ import annotations

import random

import pytest
import torch

pytest.importorskip("fairseq", reason="this is an architecture of fairseq; install it with scripts/setup.sh")
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment
from fairseq.sequence_scorer import SequenceScorer
from tupe_transformer_reference import EOS, PAD, VARIANTS, batch_of, built, dictionary, randomised

from embinit_fairseq.errors import DataError
from embinit_fairseq.modules.decoder_cache import DecoderCache, distinct_rows

SOURCES = [[4, 5, 6, 7, 8, 9, EOS], [10, 4, EOS], [7, 7, 12, 5, EOS]]
each_variant = pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)


class Decoding:
    """Rows of (sentence, prefix) that are decoded incrementally, with the logits of the full forward beside it."""

    def __init__(self, model, left=False):
        self.model, self.tokens = model, batch_of(SOURCES, left)
        self.rows = [(number, [EOS]) for number in range(len(SOURCES))]
        self.encoder_out, self.state = model.encoder(self.tokens), {}

    def reorder(self, order):
        """As beam search does it: encoder output and state."""
        order = torch.tensor(order)
        self.encoder_out = self.model.encoder.reorder_encoder_out(self.encoder_out, order)
        self.model.decoder.reorder_incremental_state_scripting(self.state, order)
        self.rows = [(self.rows[at][0], list(self.rows[at][1])) for at in order.tolist()]

    def step(self, words):
        """Logits and attention of the new tokens, incremental and in full; then every prefix gets its words."""
        previous = torch.tensor([prefix for _, prefix in self.rows])
        length = self.done if self.state else 0
        new, extra = self.model.decoder(previous, self.encoder_out, self.state)
        full, full_extra = self.model(self.tokens[[number for number, _ in self.rows]], None, previous)
        self.done = previous.shape[1]
        for (_, prefix), more in zip(self.rows, words):
            prefix.extend(more)
        return (new, extra["attn"][0]), (full[:, length:], full_extra["attn"][0][:, length:])


def assert_steps_are_equal(decoding, choice, steps, tolerance):
    """Random exchanges: within sentences, between sentences, with rows left out and doubled; several words at times."""
    for _ in range(steps):
        amount = choice.choice([1, 1, 1, 2])
        words = [[choice.randrange(3, 15) for _ in range(amount)] for _ in decoding.rows]
        for one, other in zip(*decoding.step(words)):
            assert one.shape == other.shape
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
        for _ in range(choice.choice([0, 1, 1, 2])):  # twice in a row: nobody forbids it
            number = len(decoding.rows)
            kind = choice.choice(["shuffle", "double", "fewer", "any"])
            if kind == "shuffle":
                decoding.reorder(choice.sample(range(number), number))
            elif kind == "double" and number < 8:
                decoding.reorder([at for at in range(number) for _ in range(2)])
            elif kind == "fewer" and number > 2:
                decoding.reorder(sorted(choice.sample(range(number), number - 1)))
            elif kind == "any":
                decoding.reorder([choice.randrange(number) for _ in range(number)])


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
    """Caches begin with 32 columns, and the positions end at 48, which is no power of two."""
    model, choice = randomised(rel_pos=True), random.Random(seed)
    decoding = Decoding(model)
    assert_steps_are_equal(decoding, choice, 20, 1e-12)
    while len(decoding.rows[0][1]) < 48:
        assert_steps_are_equal(decoding, choice, 1, 1e-12)


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


def greedy(model, source, steps):
    """By full forwards, without fairseq's search."""
    prefix = [EOS]
    for _ in range(steps):
        logits, _ = model(batch_of([source]), None, batch_of([prefix]))
        logits[0, -1, PAD] = -torch.inf
        prefix.append(int(logits[0, -1].argmax()))
        if prefix[-1] == EOS:
            return prefix[1:]
    return [*prefix[1:], EOS]


def searched(model, sources, left=False, beam=5, kind=SequenceGenerator, sample=None, **options):
    tokens = batch_of(sources, left)
    generator = kind([model], dictionary(), beam_size=beam, max_len_b=20, **options)
    lengths = torch.tensor([len(source) for source in sources])
    return generator.generate([model], {"net_input": {"src_tokens": tokens, "src_lengths": lengths}}, **(sample or {}))


def outputs(found):
    return [[hypothesis["tokens"].tolist() for hypothesis in sentence] for sentence in found]


@torch.no_grad()
def test_beam_one_is_greedy():
    model = randomised(rel_pos=True)
    found = searched(model, SOURCES, beam=1)
    assert [sentence[0] for sentence in outputs(found)] == [greedy(model, source, 20) for source in SOURCES]


@pytest.mark.parametrize("seed", range(4))
@torch.no_grad()
def test_beam_search_of_a_sentence_does_not_see_its_batch(seed):
    choice = random.Random(seed)
    model = randomised(rel_pos=bool(seed % 2))
    sources = [[choice.randrange(3, 15) for _ in range(choice.randrange(0, 9))] + [EOS] for _ in range(6)]
    right, left = searched(model, sources), searched(model, sources, left=True)
    alone = [searched(model, [source])[0] for source in sources]
    assert outputs(right) == outputs(left) == outputs(alone)
    for one, other in zip(right, alone):
        for hypothesis, same in zip(one, other):
            torch.testing.assert_close(hypothesis["positional_scores"], same["positional_scores"], rtol=0, atol=2e-6)


@torch.no_grad()
def test_scores_of_beam_search_are_those_of_the_full_forward():
    model = built().eval()
    found = searched(model, SOURCES, beam=3)
    scorer = SequenceScorer(dictionary())
    for source, sentence in zip(SOURCES, found):
        for hypothesis in sentence:
            target = hypothesis["tokens"]
            previous = torch.cat([target.new_tensor([EOS]), target[:-1]])
            inputs = {"src_tokens": batch_of([source]), "src_lengths": None, "prev_output_tokens": previous[None]}
            sample = {"net_input": inputs, "target": target[None], "ntokens": len(target)}
            scores = scorer.generate([model], sample)[0][0]["positional_scores"]
            torch.testing.assert_close(scores, hypothesis["positional_scores"], rtol=0, atol=2e-6)


@torch.no_grad()
def test_forced_prefixes_of_different_lengths():
    model = randomised()
    prefixes = batch_of([[4, 5, 6], [7], [8, 9]])
    found = outputs(searched(model, SOURCES, sample={"prefix_tokens": prefixes}))
    for sentence, prefix in zip(found, [[4, 5, 6], [7], [8, 9]]):
        assert all(hypothesis[: len(prefix)] == prefix for hypothesis in sentence)
    alone = [searched(model, SOURCES[1:2], sample={"prefix_tokens": torch.tensor([[7]])})[0]]
    assert outputs(alone)[0] == found[1]


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
