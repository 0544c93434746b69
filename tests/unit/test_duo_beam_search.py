"""fairseq's beam search with the Duo transformer: batches, padding, prefixes, scores, alignments, ensembles."""

from __future__ import annotations

import random

import pytest
import torch

pytest.importorskip("fairseq", reason="this is an architecture of fairseq; install it with scripts/setup.sh")
from decoding import (
    SOURCES,
    assert_batches_do_not_matter,
    assert_prefixes_are_kept,
    assert_scores_of_full_forward,
    greedy,
    outputs,
    searched,
)
from duo_reference import TIED, built, randomised, reference, ways_to_the_output
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment
from tupe_transformer_reference import EOS, batch_of, dictionary


@torch.no_grad()
def test_beam_one_is_greedy():
    model = randomised(**TIED)
    found = searched(model, SOURCES, beam=1)
    assert [sentence[0] for sentence in outputs(found)] == [greedy(model, source, 20) for source in SOURCES]


@pytest.mark.parametrize("seed", range(4))
@torch.no_grad()
def test_beam_search_of_a_sentence_does_not_see_its_batch(seed):
    assert_batches_do_not_matter(randomised(**[{}, TIED][seed % 2]), random.Random(seed), 4, 1e-5)


@pytest.mark.parametrize("way", ["factored", "fused", "prepared"])
@torch.no_grad()
def test_scores_of_beam_search_are_those_of_the_full_forward(way, monkeypatch):
    model, other = built(**TIED).eval(), built(**TIED).eval()
    ways_to_the_output(model, monkeypatch, way)
    assert_scores_of_full_forward(searched(model, SOURCES, beam=4), other, 1e-5)


@torch.no_grad()
def test_forced_prefixes_of_different_lengths():
    assert_prefixes_are_kept(randomised())


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@torch.no_grad()
def test_alignments_name_words_of_the_source(left):
    """Hard alignments are pairs (source word, target word): where the statement's attention is largest."""
    model = randomised()
    found = searched(model, SOURCES, left, kind=SequenceGeneratorWithAlignment, beam=2)
    for source, sentence in zip(SOURCES, found):
        for hypothesis in sentence:
            target = hypothesis["tokens"].tolist()
            _, attention = reference(model, source, [EOS, *target[:-1]])
            best = attention[:, : len(source) - 1].argmax(dim=1)
            assert hypothesis["alignment"] == [(int(best[at]), at) for at in range(len(target) - 1)]


@torch.no_grad()
def test_an_ensemble_of_two_models_with_different_switches():
    """Each keeps a state of its own; fairseq's scores of an ensemble are the mean of the probabilities."""
    models = [built(**TIED).eval(), built(duo_fusion="off", duo_streams=1).eval()]
    tokens = batch_of(SOURCES)
    generator = SequenceGenerator(models, dictionary(), beam_size=4, max_len_b=20)
    found = generator.generate(models, {"net_input": {"src_tokens": tokens, "src_lengths": None}})
    for source, sentence in zip(SOURCES, found):
        target = sentence[0]["tokens"]
        previous = torch.cat([target.new_tensor([EOS]), target[:-1]])[None]
        probabilities = sum(model(batch_of([source]), None, previous)[0].softmax(-1) for model in models) / 2
        expected = probabilities[0, range(len(target)), target].log()
        torch.testing.assert_close(sentence[0]["positional_scores"], expected, rtol=0, atol=1e-5)
