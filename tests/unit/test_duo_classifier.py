"""The Duo classifier: equations 1 to 3 and their gradients in double precision, parameters, refusals."""

from __future__ import annotations

import re
from argparse import Namespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from small_models import ARCHITECTURES, PAD, task_of
from tupe_reference import visible_dropout

from embinit_fairseq.embed_init.request import request_from
from embinit_fairseq.errors import OptionError
from embinit_fairseq.models.duo_classifier import DuoClassifier, DuoClassifierConfig
from embinit_fairseq.modules.duo_sentence_embedding import ATTENTIONS

ROWS = 12


def model_with(num_classes=3, **options):
    model = ARCHITECTURES["duo_classifier"].build(task_of(ROWS - 4), **{"dropout": 0.0, **options})
    model.register_classification_head("h", num_classes=num_classes)
    return model.double()


def weights_of_one_text(w, words, attention):
    for slot, query in (("embed_tokens", "query_s"), ("embed_tokens_p", "query_p")):
        table = w[f"{slot}.weight"]
        scores = [sum(a * b for a, b in zip(w[f"sentence_embedding.{query}"], table[word])) for word in words]
        yield [score.exp() / sum(map(torch.exp, scores)) for score in scores] if attention == "softmax" else scores


def logits_of_one_text(w, words, attention):
    """Equations 1 to 3 for one text without padding, a word at a time."""
    by_s, by_p = weights_of_one_text(w, words, attention)
    a_p = sum(weight * w["embed_tokens_p.weight"][word] for weight, word in zip(by_s, words))
    a_s = sum(weight * w["embed_tokens.weight"][word] for weight, word in zip(by_p, words))
    e = torch.cat([a_p, a_s]) @ w["sentence_embedding.out_proj.weight"].T
    return e @ w["classification_heads.h.projection.weight"].T


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("train_embeddings", [False, True])
def test_logits_and_gradients_equal_the_equations(attention, train_embeddings):
    model = model_with(duo_attention=attention, train_embeddings=train_embeddings)
    texts, target = [[4, 5, 6, 4, 2], [7], [8, 9, 2]], torch.tensor([2, 0, 1])
    batch = torch.tensor([text + [PAD] * (6 - len(text)) for text in texts])
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
    expected = map(torch.stack, weights_of_one_text(weights, texts[0], attention))
    torch.testing.assert_close(model.attention_weights(torch.tensor(texts[0])), tuple(expected))


@settings(max_examples=20)
@given(
    texts=st.lists(st.lists(st.integers(4, ROWS - 1), max_size=5), min_size=1, max_size=4),
    left=st.integers(0, 3),
    right=st.integers(0, 3),
    attention=st.sampled_from(ATTENTIONS),
)
def test_neither_padding_nor_neighbours_change_a_sentence_vector(texts, left, right, attention):
    """Nor the vectors at padding: --embed-init keeps those rows zero; the sums do not rely on it."""
    model, longest = model_with(duo_attention=attention), max(map(len, texts))
    model.embed_tokens.weight.data[PAD] = 100.0
    model.embed_tokens_p.weight.data[PAD] = float("nan")
    rows = [[PAD] * left + text + [PAD] * (longest - len(text) + right) for text in texts]
    together, _ = model(torch.tensor(rows, dtype=torch.long).view(len(texts), -1))
    for row, text in enumerate(texts):
        alone = model(torch.tensor([text]))[0][0] if text else torch.zeros(4, dtype=torch.double)
        torch.testing.assert_close(together[row], alone, rtol=1e-12, atol=1e-12)


def test_the_hub_names_the_weights_of_each_symbol():
    task = task_of(ROWS - 4, init_token=0, separator_token=2)
    hub = DuoClassifier.hub(OmegaConf.create({"tokenizer": None, "bpe": None}), task, [model_with()])
    found = hub.attention("w1 unheard w0", "w2")
    assert [symbol for symbol, *_ in found] == ["<s>", "w1", "<unk>", "w0", "</s>", "</s>", "w2", "</s>"]
    tokens = torch.tensor([task.source_dictionary.index(symbol) for symbol, *_ in found])
    torch.testing.assert_close(
        torch.tensor([row[1:] for row in found]), torch.stack(hub.model.attention_weights(tokens), 1).float()
    )


def test_dropout_acts_after_both_sublayers(monkeypatch):
    visible_dropout(monkeypatch)
    model, tokens = model_with(dropout=0.5), torch.tensor([[4, 5, 9]])
    torch.testing.assert_close(model.train()(tokens)[0], 1.5**2 * model.eval()(tokens)[0])


def test_parameters_are_those_that_the_paper_counts_and_start_with_xaviers_distribution():
    """Section 3.1.4: fewer than 0.4 million at 300, 300, 600 and 20 labels, which is what the defaults are."""
    cfg = DuoClassifierConfig()
    assert (cfg.encoder_dim_s, cfg.encoder_dim_p, cfg.duo_ffn_dim) == (300, 300, 600)
    model = model_with(20, encoder_dim_s=200, encoder_dim_p=300, duo_ffn_dim=600)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert trained == 500 + 500 * 600 + 600 * 20
    embedding, head = model.sentence_embedding, model.classification_heads["h"].projection
    starts = {embedding.query_s: 201, embedding.query_p: 301, embedding.out_proj.weight: 1100, head.weight: 620}
    for weight, fans in starts.items():
        assert 0.9 * (6 / fans) ** 0.5 < weight.abs().max() <= (6 / fans) ** 0.5


def check(checkpoint=None, train_embeddings=False, **asked):
    """Before a training with the options of a command line in the model's configuration, as in fairseq's flat kind."""
    model = model_with(train_embeddings=train_embeddings)
    model.cfg = Namespace(**vars(model.cfg), **asked)
    model.check_training(checkpoint, request_from(model.cfg))


ONE, BOTH = ["encoder=vectors.txt"], ["encoder=vectors.txt", "encoder_p=vectors.txt"]
KNOWN = ["encoder:known"]


def test_tables_that_nothing_would_set_or_train_are_refused_and_random_ones_a_warning(caplog):
    for asked, said in (
        ({"embed_init_path": ONE}, "no vectors for encoder_p, .*add encoder_p=FILE.*--train-embeddings"),
        ({"embed_init_freeze": KNOWN}, "--embed-init-freeze encoder:known: .*--train-embeddings"),
    ):
        with pytest.raises(OptionError, match=said):
            check(embed_init="pretrained", **asked)
    check(train_embeddings=True)
    check(embed_init="pretrained")
    check(embed_init="pretrained", embed_init_path=ONE, train_embeddings=True)
    check("checkpoint_last.pt", embed_init="pretrained", embed_init_path=ONE)
    check(embed_init="pretrained", embed_init_path=BOTH, embed_init_freeze=["encoder"])
    check(embed_init="pretrained", embed_init_freeze=KNOWN, train_embeddings=True)
    assert "WARNING" not in caplog.text
    for asked in ({}, {"embed_init": "xavier"}):
        caplog.clear()
        check(**asked)
        assert re.search("--embed-init-path.*--train-embeddings", caplog.text)
