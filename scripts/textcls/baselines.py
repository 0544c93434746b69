"""Train bags of words weighted by TF-IDF, which a two-embedding classifier must beat. Needs scikit-learn.

    tfidf_lr    logistic regression as scikit-learn sets it (C = 1)
    mlp         one hidden layer of 1,024 rectified linear units, dropout 0.5 after it (Galke and Scherp 2022). Adam,
                batch 128; a row of the first layer moves only in steps in which its word occurs (torch's SparseAdam)

    python scripts/textcls/baselines.py data/mr --model mlp --seed 1 --save-dir runs/mlp.1

Both learn from the same texts as all models: the validation texts are left out, and the words are those of dict.txt.
--save-dir is the folder of a run with a record as of `embinit run`; a finished run is not repeated.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs from a checkout, installed or not

from scores import of_classes, show

from embinit_fairseq.errors import DataError, one_line
from embinit_fairseq.io import hardware, write_json
from embinit_fairseq.runs.command import data_hashes, parse_command
from embinit_fairseq.runs.record import RESULT, TRAINING
from embinit_fairseq.runs.run import check_same, new_record, record_before
from embinit_fairseq.vocab.dictionary import read_dictionary

SETS = ("train", "valid", "test")
HIDDEN, DROPOUT, RATE, BATCH = 1024, 0.5, 1e-3, 128


@dataclass(frozen=True)
class Outcome:
    """The result: predicted classes of the test texts, (texts,), accuracy in percent, loss in nats and best epoch."""

    test: np.ndarray
    valid_accuracy: float
    parameters: int
    valid_loss: float | None = None
    epoch: int | None = None


@dataclass(frozen=True)
class Sets:
    """TF-IDF matrices (texts x words) and classes of train, valid and test."""

    features: dict[str, csr_matrix]
    labels: dict[str, np.ndarray]
    classes: list[str]


def read_sets(text: Path, words: Path, labels: Path) -> Sets:
    """text: folder with <set>.input0 and <set>.label; words, labels: fairseq dictionaries. IDF is that of train."""
    vocabulary, names = (
        [found.symbols[row] for row in np.flatnonzero(found.regular)] for found in map(read_dictionary, (words, labels))
    )
    vectorizer = TfidfVectorizer(tokenizer=str.split, token_pattern=None, lowercase=False, vocabulary=vocabulary)
    texts = {name: (text / f"{name}.input0").read_text(encoding="utf-8").split("\n")[:-1] for name in SETS}
    vectorizer.fit(texts["train"])
    number = {name: at for at, name in enumerate(names)}
    classes = {
        name: np.array([number[label] for label in (text / f"{name}.label").read_text(encoding="utf-8").split()])
        for name in SETS
    }
    return Sets({name: vectorizer.transform(lines).astype(np.float32) for name, lines in texts.items()}, classes, names)


def tfidf_lr(sets: Sets) -> Outcome:
    """Fit logistic regression: deterministic, since the seed has only drawn the validation texts."""
    model = LogisticRegression(max_iter=1000).fit(sets.features["train"], sets.labels["train"])
    valid = 100 * model.score(sets.features["valid"], sets.labels["valid"])
    return Outcome(model.predict(sets.features["test"]), valid, model.coef_.size + model.intercept_.size)


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
    """Return rows of a sparse matrix as arguments of WideMLP."""
    numbers = torch.from_numpy(features.indices.astype(np.int64))
    return numbers, torch.from_numpy(features.indptr[:-1].astype(np.int64)), torch.from_numpy(features.data)


@torch.no_grad()
def evaluate(model: WideMLP, features: csr_matrix, labels: np.ndarray) -> tuple[float, float]:
    """Return loss in nats and accuracy in percent."""
    model.eval()
    logits, target = model(*bag(features)), torch.from_numpy(labels)
    return F.cross_entropy(logits, target).item(), 100 * (logits.argmax(1) == target).double().mean().item()


def train_epoch(
    model: WideMLP, optimizers: list[torch.optim.Optimizer], features: csr_matrix, labels: np.ndarray
) -> None:
    """Train on all texts once, in random order."""
    model.train()
    for rows in torch.randperm(len(labels)).split(BATCH):
        loss = F.cross_entropy(model(*bag(features[rows.numpy()])), torch.from_numpy(labels[rows.numpy()]))
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()


def mlp(sets: Sets, seed: int, epochs: int, patience: int) -> Outcome:
    """Train until `patience` epochs after the lowest validation loss, and use that epoch's model."""
    torch.manual_seed(seed)
    model = WideMLP(sets.features["train"].shape[1], len(sets.classes))
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
    _, accuracy = evaluate(model, sets.features["valid"], sets.labels["valid"])
    with torch.no_grad():
        test = model(*bag(sets.features["test"])).argmax(1).numpy()
    return Outcome(test, accuracy, sum(parameter.numel() for parameter in model.parameters()), best, best_epoch)


def record_of(args: argparse.Namespace) -> dict:
    """Return the content of training.json; raise DataError for data that are not prepared."""
    settings, data = args.data / "settings", args.data / "seeds" / str(args.seed) / "bin"
    if not settings.is_file() or not data.is_dir():
        raise DataError(
            f"DATA {args.data}: no seeds/{args.seed}; run prepare.sh with OUTPUT={args.data} SEEDS={args.seed}"
        )
    made_with = dict(line.split("=", 1) for line in settings.read_text(encoding="utf-8").splitlines())
    labels = {name: value for name, value in made_with.items() if name != "data" and "sha256" not in name}
    words = ["scripts/textcls/baselines.py", str(args.data), "--model", args.model, "--seed", str(args.seed)]
    if args.model == "mlp":
        words += ["--max-epoch", str(args.max_epoch), "--patience", str(args.patience)]
    command = parse_command(words, any_program=True)
    labels |= {"model": args.model, "init": "none"}
    return {**new_record(command, data_hashes([data]), labels, "valid_loss"), "hardware": hardware()}


def read(args: argparse.Namespace) -> Sets:
    """Return the texts and classes of a seed."""
    text, dictionaries = args.data / "seeds" / str(args.seed) / "text", ("seeds/dict.txt", "corpus/labels.txt")
    return read_sets(text, *(args.data / name for name in dictionaries))


def train(args: argparse.Namespace, sets: Sets) -> Outcome:
    """Train the model of this name."""
    return tfidf_lr(sets) if args.model == "tfidf_lr" else mlp(sets, args.seed, args.max_epoch, args.patience)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="what prepare.sh made")
    parser.add_argument("--model", choices=("tfidf_lr", "mlp"), required=True, help="of bags of words")
    parser.add_argument("--seed", type=int, default=1, help="of the validation texts and of the MLP; default: 1")
    parser.add_argument("--save-dir", type=Path, required=True, metavar="RUN", help="folder of the run")
    parser.add_argument("--max-epoch", type=int, default=200, help="mlp: at most; default: %(default)s")
    parser.add_argument("--patience", type=int, default=10, help="mlp: epochs without a lower loss; default: 10")
    args = parser.parse_args()
    record, file = record_of(args), args.save_dir / RESULT
    if file.is_file():
        check_same(args.save_dir, record_before(args.save_dir), record)
        print(f"{args.save_dir}: finished before")
        return
    args.save_dir.mkdir(parents=True, exist_ok=True)
    write_json(args.save_dir / TRAINING, record)
    began, sets = time.monotonic(), read(args)
    outcome = train(args, sets)
    counts = np.zeros((len(sets.classes),) * 2, dtype=int)
    np.add.at(counts, (sets.labels["test"], outcome.test), 1)
    classes, macro_f1 = of_classes(counts, sets.classes)
    right = 100 * float((sets.labels["test"] == outcome.test).mean())
    scores = {"test_accuracy": right, "test_macro_f1": macro_f1}
    loss, accuracy = outcome.valid_loss, outcome.valid_accuracy
    result = {
        "parameters": {"all": outcome.parameters, "trained": outcome.parameters},
        "epochs": {},
        "best": {"epoch": outcome.epoch, "valid_accuracy": accuracy, "valid_loss_nats": loss},
        "init": None,
        "scores": scores,
        "classes": classes,
        "time": {"wall_s": round(time.monotonic() - began, 3), "cpu_s": round(time.process_time(), 3)},
    }
    write_json(file, {**record, **result})
    show(args.save_dir, scores, classes)


if __name__ == "__main__":
    with one_line():
        main()
