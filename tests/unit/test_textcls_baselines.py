"""scripts/textcls/baselines.py: TF-IDF, the wide MLP and early stopping against plain statements."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from textcls import baselines

TEXTS = {"train": ["a b a", "b c", "c c d"], "valid": ["a d"], "test": ["d unknown", ""]}
LABELS = {"train": ["x", "y", "y"], "valid": ["x"], "test": ["y", "x"]}
WORDS = "abcd"


@pytest.fixture
def sets(tmp_path):
    for name, texts in TEXTS.items():
        (tmp_path / f"{name}.input0").write_text("".join(f"{text}\n" for text in texts))
        (tmp_path / f"{name}.label").write_text("".join(f"{label}\n" for label in LABELS[name]))
    fillers = "madeupword0000 0\nmadeupword0001 0\n"  # fairseq's, to have a multiple of 8 symbols: no features
    (tmp_path / "dict.txt").write_text("".join(f"{word} 3\n" for word in WORDS) + fillers)
    (tmp_path / "labels.txt").write_text("y 1\nx 1\n")
    return baselines.read_sets(tmp_path, tmp_path / "dict.txt", tmp_path / "labels.txt")


def test_weights_are_tf_idf_of_the_training_texts(sets):
    for name, texts in TEXTS.items():
        for row, text in enumerate(texts):
            counts = [text.split().count(word) for word in WORDS]
            documents = [sum(word in other.split() for other in TEXTS["train"]) for word in WORDS]
            weights = [tf * (math.log((1 + 3) / (1 + df)) + 1) for tf, df in zip(counts, documents)]
            length = math.sqrt(sum(weight**2 for weight in weights)) or 1.0
            found = sets.features[name][row].toarray()[0]
            np.testing.assert_allclose(found, [weight / length for weight in weights], rtol=1e-6)
    assert {name: classes.tolist() for name, classes in sets.labels.items()} == {
        "train": [1, 0, 0],
        "valid": [1],
        "test": [0, 1],
    }
    assert sets.classes == 2


def test_mlp_is_what_it_is_called(sets):
    model = baselines.WideMLP(4, 3).eval()
    features = sets.features["test"]
    hidden = (torch.from_numpy(features.toarray()) @ model.first.weight + model.bias).relu()
    assert hidden.shape == (2, 1024)
    expected = hidden @ model.last.weight.T + model.last.bias
    torch.testing.assert_close(model(*baselines.bag(features)), expected)
    dropped = (model.train()(*baselines.bag(features)) - expected).abs()
    assert dropped.max() > 1e-4


def test_half_of_the_hidden_units_are_dropped():
    model = baselines.WideMLP(1, 1024).train()  # as many classes as hidden units, each of which is 1
    with torch.no_grad():
        model.first.weight.zero_()
        model.bias.fill_(1.0)
        model.last.weight.copy_(torch.eye(1024))
        model.last.bias.zero_()
    torch.manual_seed(0)
    logits = model(*baselines.bag(baselines.csr_matrix([[1.0]], dtype=np.float32)))
    values, counts = logits.unique(return_counts=True)
    assert values.tolist() == [0.0, 2.0]
    assert abs(counts[0] - 512) < 5 * math.sqrt(1024 / 4)


@pytest.fixture
def topics():
    """600 texts of ten words, most from the half of the vocabulary that is their class."""
    generator = np.random.default_rng(0)
    features, labels = [], generator.integers(2, size=600)
    for label in labels:
        words = np.where(generator.random(10) < 0.75, 30 * label, 30 * (1 - label)) + generator.integers(30, size=10)
        features.append(np.bincount(words, minlength=60))
    matrix = baselines.csr_matrix(np.array(features, dtype=np.float32))
    parts = {"train": slice(0, 200), "valid": slice(200, 300), "test": slice(300, 600)}
    return baselines.Sets({n: matrix[p] for n, p in parts.items()}, {n: labels[p] for n, p in parts.items()}, 2)


def test_both_learn_what_words_tell(topics):
    assert baselines.tfidf_lr(topics).test_accuracy > 85
    outcome = baselines.mlp(topics, seed=1, epochs=30, patience=5)
    assert outcome.test_accuracy > 85
    assert outcome.parameters == 60 * 1024 + 1024 + 1024 * 2 + 2


def test_training_stops_after_the_patience_and_keeps_the_best_epoch(topics, monkeypatch, capsys):
    losses = iter([0.9, 0.5, 0.7, 0.6, 0.5, 0.4])
    seen = []

    def evaluate(model, features, labels):
        if len(labels) == 100 and len(seen) < 5:
            seen.append(model.last.bias.detach().clone())
            return next(losses), 50.0
        return 0.0, 100.0 * float(torch.equal(model.last.bias, seen[1]))

    monkeypatch.setattr(baselines, "evaluate", evaluate)
    outcome = baselines.mlp(topics, seed=1, epochs=50, patience=3)
    assert len(seen) == 5  # 0.5 of the fifth epoch is not lower
    assert (outcome.epoch, outcome.valid_loss) == (2, 0.5)
    assert outcome.test_accuracy == 100.0  # the weights of the second epoch are back
    assert len(capsys.readouterr().out.splitlines()) == 5


def test_seeds_decide(topics):
    one, again, other = (baselines.mlp(topics, seed, 2, 5) for seed in (1, 1, 2))
    assert one == again
    assert one.valid_loss != other.valid_loss
