"""Decoding of translation models: rows that are exchanged at random, beam search, and what must hold of both."""

from __future__ import annotations

import torch
from fairseq.sequence_generator import SequenceGenerator
from fairseq.sequence_scorer import SequenceScorer
from tupe_transformer_reference import EOS, PAD, batch_of, dictionary

SOURCES = [[4, 5, 6, 7, 8, 9, EOS], [10, 4, EOS], [7, 7, 12, 5, EOS]]


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


def assert_equal_beyond_every_capacity(model, choice):
    """Caches begin with 32 columns, and the positions of our small models end at 48, which is no power of two."""
    decoding = Decoding(model)
    assert_steps_are_equal(decoding, choice, 20, 1e-12)
    while len(decoding.rows[0][1]) < 48:
        assert_steps_are_equal(decoding, choice, 1, 1e-12)


def assert_the_future_has_no_influence(model):
    """On logits, by the full forward."""
    one = batch_of([[EOS, 6, 9, 4, 5, 7]])
    for at in range(1, 6):
        other = one.clone()
        other[0, at:] = 12
        with torch.no_grad():
            ours, changed = (model(batch_of(SOURCES[:1]), None, each)[0] for each in (one, other))
        assert torch.equal(ours[:, :at], changed[:, :at])
        assert not torch.equal(ours[:, at:], changed[:, at:])


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


def assert_batches_do_not_matter(model, choice, beam, tolerance):
    """Beam search of six random sentences together, padded on either side, and one by one."""
    sources = [[choice.randrange(3, 15) for _ in range(choice.randrange(0, 9))] + [EOS] for _ in range(6)]
    right, left = searched(model, sources, beam=beam), searched(model, sources, left=True, beam=beam)
    alone = [searched(model, [source], beam=beam)[0] for source in sources]
    assert outputs(right) == outputs(left) == outputs(alone)
    for one, other in zip(right, alone):
        for hypothesis, same in zip(one, other):
            expected = same["positional_scores"]
            torch.testing.assert_close(hypothesis["positional_scores"], expected, rtol=0, atol=tolerance)


def assert_scores_of_full_forward(found, model, tolerance):
    """found: the hypotheses of SOURCES. The scores of their tokens are those that model gives them without a cache."""
    scorer = SequenceScorer(dictionary())
    for source, sentence in zip(SOURCES, found):
        for hypothesis in sentence:
            target = hypothesis["tokens"]
            previous = torch.cat([target.new_tensor([EOS]), target[:-1]])
            inputs = {"src_tokens": batch_of([source]), "src_lengths": None, "prev_output_tokens": previous[None]}
            sample = {"net_input": inputs, "target": target[None], "ntokens": len(target)}
            scores = scorer.generate([model], sample)[0][0]["positional_scores"]
            torch.testing.assert_close(scores, hypothesis["positional_scores"], rtol=0, atol=tolerance)


def assert_prefixes_are_kept(model):
    """Forced prefixes of different lengths in one batch; each sentence continues as it does alone."""
    prefixes = [[4, 5, 6], [7], [8, 9]]
    found = outputs(searched(model, SOURCES, sample={"prefix_tokens": batch_of(prefixes)}))
    for sentence, prefix in zip(found, prefixes):
        assert all(hypothesis[: len(prefix)] == prefix for hypothesis in sentence)
    alone = [searched(model, SOURCES[1:2], sample={"prefix_tokens": torch.tensor([[7]])})[0]]
    assert outputs(alone)[0] == found[1]
