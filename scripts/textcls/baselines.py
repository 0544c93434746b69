"""Train bags of words weighted by TF-IDF, which a two-embedding classifier must beat. Needs scikit-learn.

    tfidf_lr    logistic regression as scikit-learn sets it (C = 1)
    mlp         one hidden layer of 1,024 rectified linear units, dropout 0.5 after it (Galke and Scherp 2022). Adam,
                batch 128; a row of the first layer moves only in steps in which its word occurs (torch's SparseAdam)

    python scripts/textcls/baselines.py data/mr --model mlp --seed 1 --save-dir runs/mlp.1

Both learn from the same texts as all models: the validation texts are left out, and the words are taken from dict.txt.
--save-dir is the folder of a run with a record as of `embinit run`; a finished run is not repeated.
"""

from __future__ import annotations

import argparse
import copy
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import csr_matrix
from scores import of_classes, read_symbols, show
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from embinit_fairseq.arguments import ArgumentParser
from embinit_fairseq.errors import DataError, one_line
from embinit_fairseq.io import write_json
from embinit_fairseq.machine import hardware
from embinit_fairseq.runs.command import data_hashes, parse_command
from embinit_fairseq.runs.record import RESULT, TRAINING
from embinit_fairseq.runs.run_folder import check_same, record_before
from embinit_fairseq.runs.training import new_record

SETS = ("train", "valid", "test")
HIDDEN, DROPOUT, RATE, BATCH = 1024, 0.5, 1e-3, 128


@dataclass(frozen=True)
class Outcome:
    """Hold the result: predicted classes of the test texts, (texts,), accuracy in percent, loss in nats, best epoch."""

    test: np.ndarray
    valid_accuracy: float
    parameters: int
    valid_loss: float | None = None
    epoch: int | None = None


@dataclass(frozen=True)
class Sets:
    """Hold TF-IDF matrices (texts x words) and classes of train, valid and test."""

    features: dict[str, csr_matrix]
    labels: dict[str, np.ndarray]
    classes: list[str]


def read_sets(text: Path, words: Path, labels: Path) -> Sets:
    """Return features, with the IDF of train, and classes.

    Args:
        text: folder with <set>.input0 and <set>.label.
        words, labels: fairseq dictionaries.
    """
    vocabulary, classes = read_symbols(words), read_symbols(labels)
    vectorizer = TfidfVectorizer(tokenizer=str.split, token_pattern=None, lowercase=False, vocabulary=vocabulary)
    texts, targets = (
        {name: (text / f"{name}.{column}").read_text(encoding="utf-8").split("\n")[:-1] for name in SETS}
        for column in ("input0", "label")
    )
    vectorizer.fit(texts["train"])
    return Sets(
        {name: vectorizer.transform(lines).astype(np.float32) for name, lines in texts.items()},
        {name: np.array([classes.index(label) for label in lines]) for name, lines in targets.items()},
        classes,
    )


def tfidf_lr(sets: Sets) -> Outcome:
    """Fit logistic regression: deterministic, since the seed has only drawn the validation texts."""
    model = LogisticRegression(max_iter=1000).fit(sets.features["train"], sets.labels["train"])
    valid = 100 * model.score(sets.features["valid"], sets.labels["valid"])
    return Outcome(model.predict(sets.features["test"]), valid, model.coef_.size + model.intercept_.size)


class WideMLP(nn.Module):
    """Map a bag of words, a sparse matrix (texts x words), to logits."""

    def __init__(self, words: int, classes: int) -> None:
        super().__init__()
        self.first = nn.EmbeddingBag(words, HIDDEN, mode="sum", sparse=True)
        bound = words**-0.5  # as nn.Linear with as many inputs
        nn.init.uniform_(self.first.weight, -bound, bound)
        self.bias = nn.Parameter(torch.empty(HIDDEN).uniform_(-bound, bound))
        self.last = nn.Linear(HIDDEN, classes)

    def forward(self, features: csr_matrix) -> Tensor:
        words, starts = (torch.from_numpy(part.astype(np.int64)) for part in (features.indices, features.indptr[:-1]))
        hidden = self.first(words, starts, per_sample_weights=torch.from_numpy(features.data)) + self.bias
        return self.last(F.dropout(F.relu(hidden), DROPOUT, self.training))


@torch.no_grad()
def evaluate(model: WideMLP, features: csr_matrix, labels: np.ndarray) -> tuple[float, float]:
    """Return loss in nats and accuracy in percent."""
    logits, target = model.eval()(features), torch.from_numpy(labels)
    return F.cross_entropy(logits, target).item(), 100 * (logits.argmax(1) == target).double().mean().item()


def mlp(sets: Sets, seed: int, epochs: int, patience: int) -> Outcome:
    """Train until `patience` epochs after the lowest validation loss, and use that epoch's model."""
    torch.manual_seed(seed)
    features, labels = sets.features["train"], sets.labels["train"]
    model = WideMLP(features.shape[1], len(sets.classes))
    rest = [parameter for name, parameter in model.named_parameters() if name != "first.weight"]
    optimizers = [torch.optim.SparseAdam([model.first.weight], lr=RATE), torch.optim.Adam(rest, lr=RATE)]
    best, best_epoch, best_state = float("inf"), 0, model.state_dict()
    for epoch in range(1, epochs + 1):
        model.train()
        for rows in torch.randperm(len(labels)).split(BATCH):
            loss = F.cross_entropy(model(features[rows.numpy()]), torch.from_numpy(labels[rows.numpy()]))
            model.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
        valid_loss, accuracy = evaluate(model, sets.features["valid"], sets.labels["valid"])
        print(f"epoch {epoch}: validation loss {valid_loss:.4f}, accuracy {accuracy:.2f}", flush=True)
        if valid_loss < best:
            best, best_epoch, best_state = valid_loss, epoch, copy.deepcopy(model.state_dict())
        if epoch - best_epoch >= patience:
            break
    model.load_state_dict(best_state)
    _, accuracy = evaluate(model, sets.features["valid"], sets.labels["valid"])
    with torch.no_grad():
        test = model(sets.features["test"]).argmax(1).numpy()
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


def result_of(outcome: Outcome, sets: Sets) -> dict:
    """Return the entries of result.json that follow from an outcome."""
    counts = np.zeros((len(sets.classes),) * 2, dtype=int)
    np.add.at(counts, (sets.labels["test"], outcome.test), 1)
    classes, macro_f1 = of_classes(counts, sets.classes)
    right = 100 * float((sets.labels["test"] == outcome.test).mean())
    loss, accuracy = outcome.valid_loss, outcome.valid_accuracy
    return {
        "parameters": {"all": outcome.parameters, "trained": outcome.parameters},
        "epochs": {},
        "best": {"epoch": outcome.epoch, "valid_accuracy": accuracy, "valid_loss_nats": loss},
        "init": None,
        "scores": {"test_accuracy": right, "test_macro_f1": macro_f1},
        "classes": classes,
    }


def main() -> None:
    """Train a model, unless its run is finished, and write its record."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder that prepare.sh made")
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
    began = time.monotonic()
    text, dictionaries = args.data / "seeds" / str(args.seed) / "text", ("seeds/dict.txt", "corpus/labels.txt")
    sets = read_sets(text, *(args.data / name for name in dictionaries))
    outcome = tfidf_lr(sets) if args.model == "tfidf_lr" else mlp(sets, args.seed, args.max_epoch, args.patience)
    result = result_of(outcome, sets)
    seconds = {"wall_s": round(time.monotonic() - began, 3), "cpu_s": round(time.process_time(), 3)}
    write_json(file, {**record, **result, "time": seconds})
    show(args.save_dir, result["scores"], result["classes"])


if __name__ == "__main__":
    with one_line():
        main()
