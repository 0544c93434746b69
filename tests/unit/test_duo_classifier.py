"""The Duo classifier: equations 1 to 3 and their gradients in double precision, what is learned, what is refused."""

from __future__ import annotations

import logging
from argparse import Namespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import ARCHITECTURES, PAD, task_of

from embinit_fairseq.bench.steps import training_step
from embinit_fairseq.errors import OptionError
from embinit_fairseq.models.duo_classifier import DuoClassifierConfig
from embinit_fairseq.modules.duo_classifier import ATTENTIONS, DuoSentenceEmbedding

ROWS = 12


def model_with(num_classes=3, **options):
    model = ARCHITECTURES["duo_classifier"].build(task_of(ROWS - 4), dropout=0.0, **options)
    model.register_classification_head("h", num_classes=num_classes)
    return model.double()


def logits_of_one_text(weights, words, attention):
    """Equations 1 to 3 for one text without padding, a word at a time."""
    table_s, table_p = weights["embed_tokens.weight"], weights["embed_tokens_p.weight"]
    query_s, query_p = weights["sentence_embedding.query_s"], weights["sentence_embedding.query_p"]
    by_s = [sum(a * b for a, b in zip(query_s, table_s[word])) for word in words]
    by_p = [sum(a * b for a, b in zip(query_p, table_p[word])) for word in words]
    if attention == "softmax":
        by_s, by_p = ([score.exp() / sum(each.exp() for each in scores) for score in scores] for scores in (by_s, by_p))
    a_p = sum(weight * table_p[word] for weight, word in zip(by_s, words))
    a_s = sum(weight * table_s[word] for weight, word in zip(by_p, words))
    e = torch.cat([a_p, a_s]) @ weights["sentence_embedding.out_proj.weight"].T
    return e @ weights["classification_heads.h.projection.weight"].T


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("train_embeddings", [False, True])
def test_logits_and_gradients_equal_the_equations(attention, train_embeddings):
    model = model_with(duo_attention=attention, train_embeddings=train_embeddings)
    texts = [[4, 5, 6, 4, 2], [7], [8, 9, 2]]
    batch = torch.tensor([text + [PAD] * (6 - len(text)) for text in texts])
    target = torch.tensor([2, 0, 1])
    logits, _ = model(batch, features_only=True, classification_head_name="h")
    weights = {name: value.detach().clone().requires_grad_() for name, value in model.state_dict().items()}
    expected = torch.stack([logits_of_one_text(weights, text, attention) for text in texts])
    torch.testing.assert_close(logits, expected, rtol=1e-12, atol=1e-12)
    torch.nn.functional.cross_entropy(logits, target).backward()
    torch.nn.functional.cross_entropy(expected, target).backward()
    trained = dict(model.named_parameters())
    assert len(trained) == 6
    for name, parameter in trained.items():
        if name.startswith("embed_tokens") and not train_embeddings:
            assert parameter.grad is None
        else:
            torch.testing.assert_close(parameter.grad, weights[name].grad, rtol=1e-10, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(
    texts=st.lists(st.lists(st.integers(4, ROWS - 1), max_size=5), min_size=1, max_size=4),
    left=st.integers(0, 3),
    right=st.integers(0, 3),
    attention=st.sampled_from(ATTENTIONS),
)
def test_neither_padding_nor_neighbours_change_a_sentence_vector(texts, left, right, attention):
    model = model_with(duo_attention=attention)
    longest = max(map(len, texts))
    rows = [[PAD] * left + text + [PAD] * (longest - len(text) + right) for text in texts]
    together, _ = model(torch.tensor(rows, dtype=torch.long).view(len(texts), -1))
    for row, text in enumerate(texts):
        alone = torch.zeros(4, dtype=torch.double)
        if text:
            alone = model(torch.tensor([text]))[0][0]
        torch.testing.assert_close(together[row], alone, rtol=1e-12, atol=1e-12)


def test_a_vector_at_padding_is_not_looked_at():
    """--embed-init keeps that row zero; the sum must not rely on it."""
    model = model_with()
    batch = torch.tensor([[4, 5, PAD]])
    before, _ = model(batch)
    model.embed_tokens.weight.data[PAD] = 100.0
    model.embed_tokens_p.weight.data[PAD] = float("nan")
    torch.testing.assert_close(model(batch)[0], before)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_weights_of_a_text_are_those_of_the_equations(attention):
    model = model_with(duo_attention=attention)
    words = torch.tensor([4, 5, 9])
    for weights, table, query in zip(
        model.attention_weights(words),
        (model.embed_tokens, model.embed_tokens_p),
        (model.sentence_embedding.query_s, model.sentence_embedding.query_p),
    ):
        scores = table.weight[words] @ query
        torch.testing.assert_close(weights, scores.softmax(0) if attention == "softmax" else scores)


def test_dropout_is_behind_both_sublayers_and_only_in_training():
    module = DuoSentenceEmbedding(3, 5, 2000, dropout=0.5)
    table_s, table_p = torch.randn(ROWS, 3), torch.randn(ROWS, 5)
    tokens = torch.tensor([[4, 5]])
    call = lambda: module(tokens, tokens.eq(PAD), table_s, table_p)[0]  # noqa: E731
    zeros = (call() == 0).float().mean()
    assert 0.4 < zeros < 0.6  # of the sentence vector
    with torch.no_grad():
        module.out_proj.weight[:] = torch.eye(8).repeat(250, 1)  # 250 copies of [a^P, a^S]
        copies = torch.stack([call().view(250, 8) for _ in range(200)]).ne(0).any(dim=1)
    assert 0.4 < copies.float().mean() < 0.6  # an element of [a^P, a^S] is dropped in all its copies at once
    module.eval()
    torch.testing.assert_close(call(), call())


@pytest.mark.parametrize(("dim_s", "dim_p", "ffn_dim", "labels"), [(300, 300, 600, 20), (50, 300, 600, 2)])
def test_parameters_are_those_that_the_paper_counts(dim_s, dim_p, ffn_dim, labels):
    """Section 3.1.4: fewer than 0.4 million at 300, 300, 600 and 20 labels, which is what the defaults are."""
    cfg = DuoClassifierConfig()
    assert (cfg.encoder_dim_s, cfg.encoder_dim_p, cfg.duo_ffn_dim) == (300, 300, 600)
    assert (str(cfg.duo_attention), cfg.dropout, cfg.train_embeddings) == ("softmax", 0.1, False)
    model = model_with(labels, encoder_dim_s=dim_s, encoder_dim_p=dim_p, duo_ffn_dim=ffn_dim)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert trained == dim_s + dim_p + (dim_s + dim_p) * ffn_dim + ffn_dim * labels
    assert trained < 400_000


def test_all_that_is_learned_starts_with_xaviers_distribution():
    model = model_with(600, encoder_dim_s=400, encoder_dim_p=300, duo_ffn_dim=500)
    embedding = model.sentence_embedding
    for weight, fans in (
        (embedding.query_s, 400 + 1),
        (embedding.query_p, 300 + 1),
        (embedding.out_proj.weight, 700 + 500),
        (model.classification_heads["h"].projection.weight, 500 + 600),
    ):
        bound = (6 / fans) ** 0.5
        assert 0.9 * bound < weight.abs().max() <= bound


def test_a_step_with_the_configuration_as_plain_dictionaries():
    """As the doctor and hydra build it; the task adds its --max-positions to the options of the model."""
    assert training_step("duo_classifier") > 0
    assert training_step("duo_classifier", ["--embed-init", "xavier"]) > 0


def as_asked(model, **asked):
    """The model with the options of a command line in its configuration, as in fairseq's flat kind."""
    model.cfg = Namespace(**vars(model.cfg), **asked)
    return model


def test_random_tables_that_stay_random_are_worth_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        model_with(train_embeddings=True).check_training(None, None)
        as_asked(model_with(), embed_init="pretrained").check_training(None, None)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    model_with().check_training(None, None)
    assert "--embed-init-path" in caplog.text
    assert "--train-embeddings" in caplog.text
    caplog.clear()
    as_asked(model_with(), embed_init="xavier").check_training(None, None)
    assert "THE TABLES ARE RANDOM" in caplog.text


def test_vectors_for_one_of_two_frozen_tables_are_refused():
    asked = {"embed_init": "pretrained", "embed_init_path": ["encoder=vectors.txt"]}
    with pytest.raises(OptionError, match=r"no vectors for encoder_p, .*add encoder_p=FILE.*--train-embeddings"):
        as_asked(model_with(), **asked).check_training(None, None)
    as_asked(model_with(train_embeddings=True), **asked).check_training(None, None)
    as_asked(model_with(), **asked).check_training("checkpoint_last.pt", None)
    both = {**asked, "embed_init_path": ["encoder=vectors.txt", "encoder_p=vectors.txt"]}
    as_asked(model_with(), **both).check_training(None, None)


def test_freezing_a_part_needs_tables_that_are_trained():
    asked = {"embed_init": "pretrained", "embed_init_freeze": ["encoder:known"]}
    with pytest.raises(OptionError, match=r"--embed-init-freeze encoder:known: .*--train-embeddings"):
        as_asked(model_with(), **asked).check_training(None, None)
    as_asked(model_with(train_embeddings=True), **asked).check_training(None, None)
    as_asked(model_with(), embed_init="pretrained", embed_init_freeze=["encoder"]).check_training(None, None)
