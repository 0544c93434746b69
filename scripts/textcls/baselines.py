"""What a two-embedding classifier must beat: bags of words, weighted by TF-IDF. Needs scikit-learn.

    tfidf_lr    logistic regression as scikit-learn sets it (C = 1)
    mlp         one hidden layer of 1,024 rectified linear units, dropout 0.5 behind it (Galke and Scherp 2022). Adam,
                batch 128; a row of the first layer moves only in steps in which its word occurs (torch's SparseAdam)

Both learn from the same texts as all models: the validation texts are left out, and the words are those of dict.txt.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from embinit_fairseq.vocab.dictionary import read_dictionary

HIDDEN, DROPOUT, RATE, BATCH = 1024, 0.5, 1e-3, 128


@dataclass(frozen=True)
class Outcome:
    """Accuracies in percent; valid_loss in nats and epoch where there are epochs."""

    test_accuracy: float
    valid_accuracy: float
    parameters: int
    valid_loss: float | None = None
    epoch: int | None = None


@dataclass(frozen=True)
class Sets:
    """TF-IDF matrices (texts x words) and classes of train, valid and test."""

    features: dict[str, csr_matrix]
    labels: dict[str, np.ndarray]
    classes: int


def read_sets(text: Path, words: Path, labels: Path) -> Sets:
    """text: folder with <set>.input0 and <set>.label; words, labels: fairseq dictionaries. IDF is that of train."""
    dictionary = read_dictionary(words)
    vocabulary = [dictionary.symbols[row] for row in np.flatnonzero(dictionary.regular)]
    names = [line.rsplit(" ", 1)[0] for line in labels.read_text(encoding="utf-8").splitlines()]
    vectorizer = TfidfVectorizer(tokenizer=str.split, token_pattern=None, lowercase=False, vocabulary=vocabulary)
    texts = {name: (text / f"{name}.input0").read_text(encoding="utf-8").split("\n")[:-1] for name in SETS}
    vectorizer.fit(texts["train"])
    number = {name: at for at, name in enumerate(names)}
    classes = {
        name: np.array([number[label] for label in (text / f"{name}.label").read_text(encoding="utf-8").split()])
        for name in SETS
    }
    return Sets(
        {name: vectorizer.transform(lines).astype(np.float32) for name, lines in texts.items()}, classes, len(names)
    )


SETS = ("train", "valid", "test")


def tfidf_lr(sets: Sets) -> Outcome:
    """Deterministic: the seed has only drawn the validation texts."""
    model = LogisticRegression(max_iter=1000).fit(sets.features["train"], sets.labels["train"])
    valid, test = (100 * model.score(sets.features[name], sets.labels[name]) for name in ("valid", "test"))
    return Outcome(test, valid, model.coef_.size + model.intercept_.size)


class WideMLP(nn.Module):
    """A bag of words as (words, where each text starts, weights) -> logits."""

    def __init__(self, words: int, classes: int) -> None:
        super().__init__()
        self.first = nn.EmbeddingBag(words, HIDDEN, mode="sum", sparse=True)
        bound = words**-0.5  # as nn.Linear with as many inputs
        nn.init.uniform_(self.first.weight, -bound, bound)
        self.bias = nn.Parameter(torch.empty(HIDDEN).uniform_(-bound, bound))
        self.last = nn.Linear(HIDDEN, classes)

    def forward(self, words: Tensor, starts: Tensor, weights: Tensor) -> Tensor:
        hidden = F.relu(self.first(words, starts, per_sample_weights=weights) + self.bias)
        return self.last(F.dropout(hidden, DROPOUT, self.training))


def bag(features: csr_matrix) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of a sparse matrix as WideMLP takes them."""
    numbers = torch.from_numpy(features.indices.astype(np.int64))
    return numbers, torch.from_numpy(features.indptr[:-1].astype(np.int64)), torch.from_numpy(features.data)


@torch.no_grad()
def evaluate(model: WideMLP, features: csr_matrix, labels: np.ndarray) -> tuple[float, float]:
    """Loss in nats and accuracy in percent."""
    model.eval()
    logits, target = model(*bag(features)), torch.from_numpy(labels)
    return F.cross_entropy(logits, target).item(), 100 * (logits.argmax(1) == target).double().mean().item()


def train_epoch(
    model: WideMLP, optimizers: list[torch.optim.Optimizer], features: csr_matrix, labels: np.ndarray
) -> None:
    """One pass over the texts in random order."""
    model.train()
    for rows in torch.randperm(len(labels)).split(BATCH):
        loss = F.cross_entropy(model(*bag(features[rows.numpy()])), torch.from_numpy(labels[rows.numpy()]))
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()


def mlp(sets: Sets, seed: int, epochs: int, patience: int) -> Outcome:
    """The model of the epoch with the lowest validation loss; stops `patience` epochs after it."""
    torch.manual_seed(seed)
    model = WideMLP(sets.features["train"].shape[1], sets.classes)
    rest = [parameter for name, parameter in model.named_parameters() if name != "first.weight"]
    optimizers = [torch.optim.SparseAdam([model.first.weight], lr=RATE), torch.optim.Adam(rest, lr=RATE)]
    best, best_epoch, kept = float("inf"), 0, model.state_dict()
    for epoch in range(1, epochs + 1):
        train_epoch(model, optimizers, sets.features["train"], sets.labels["train"])
        loss, accuracy = evaluate(model, sets.features["valid"], sets.labels["valid"])
        print(f"epoch {epoch}: validation loss {loss:.4f}, accuracy {accuracy:.2f}", flush=True)
        if loss < best:
            best, best_epoch, kept = loss, epoch, copy.deepcopy(model.state_dict())
        if epoch - best_epoch >= patience:
            break
    model.load_state_dict(kept)
    accuracies = {name: evaluate(model, sets.features[name], sets.labels[name])[1] for name in ("valid", "test")}
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Outcome(accuracies["test"], accuracies["valid"], parameters, best, best_epoch)
