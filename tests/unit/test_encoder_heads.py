"""Language-model and classification head against their equations, with gradients."""

from __future__ import annotations

import torch
from torch import nn
from tupe_reference import assert_same_values_and_gradients, class_logits, gelu, lm_logits, randomise, visible_dropout

from embinit_fairseq.modules.heads import ClassificationHead, MaskedLMHead

C, SYMBOLS, PAD = 6, 11, 1


def embedded_head(activation="gelu"):
    torch.manual_seed(0)
    embed_tokens = nn.Embedding(SYMBOLS, C, PAD)
    return embed_tokens, randomise(MaskedLMHead(embed_tokens, activation))


def test_lm_head_equals_the_equation_and_projects_selected_positions_only():
    embed_tokens, head = embedded_head()
    features = torch.randn(2, 4, C, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    w = dict(head.named_parameters())
    expected = torch.stack([lm_logits(w, sentence, head.weight) for sentence in features])
    assert_same_values_and_gradients(head, head(features), expected)
    masked = torch.tensor([[True, False, False, True], [False, False, True, False]])
    selected = lm_logits(w, features[masked], head.weight)
    assert_same_values_and_gradients(head, head(features, masked), selected)
    assert selected.shape == (3, SYMBOLS)
    assert head.weight is embed_tokens.weight


def test_the_softmax_moves_the_row_of_padding():
    """Point 13 of the authors' code: tying gives it a gradient although the embedding alone never would."""
    embed_tokens, head = embedded_head()
    head(torch.ones(1, 3, C, dtype=torch.float64)).log_softmax(-1)[..., 4].sum().backward()
    assert embed_tokens.weight.grad[PAD].abs().max() > 0


def test_gelu_is_the_exact_one():
    """The tanh approximation differs by up to 5e-4."""
    _, head = embedded_head()
    x = torch.linspace(-4, 4, 100, dtype=torch.float64)
    torch.testing.assert_close(head.activation(x), gelu(x), rtol=1e-14, atol=1e-15)


def test_classification_head_equals_the_equation(monkeypatch):
    """Dropout between tanh and the last matrix, none before the first."""
    visible_dropout(monkeypatch)
    head = randomise(ClassificationHead(C, 4, 3, "tanh", 0.25))
    features = torch.randn(2, 4, C, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    w = dict(head.named_parameters())
    for training, factor in ((True, 1.25), (False, 1.0)):
        expected = torch.stack([class_logits(w, sentence, factor) for sentence in features])
        assert_same_values_and_gradients(head, head.train(training)(features), expected)
