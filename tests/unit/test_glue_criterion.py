"""--criterion sentence_prediction_metrics: the stock loss, and metrics of the validation set however it is cut."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.criterions.sentence_prediction import SentencePredictionConfig, SentencePredictionCriterion
from fairseq.data import Dictionary
from fairseq.logging import metrics
from omegaconf import OmegaConf
from torch import nn

from embinit_fairseq.criterions import sentence_prediction_metrics as glue_metrics
from embinit_fairseq.criterions.sentence_prediction_metrics import (
    SentencePredictionMetrics,
    SentencePredictionMetricsConfig,
)
from embinit_fairseq.errors import DataError, OptionError

SIZE = 23  # divisible by none of the batch sizes below


class Model(nn.Module):
    """Logits are a linear function of one vector (4,) per example."""

    def __init__(self, classes):
        super().__init__()
        self.args = SimpleNamespace()
        self.classification_heads = nn.ModuleDict({"sentence_classification_head": nn.Linear(4, classes)})

    def forward(self, features, features_only, classification_head_name):
        return self.classification_heads[classification_head_name](features), {}

    def get_targets(self, sample, net_output):
        return sample["target"]


def task_with(classes, labels="01234", **sizes):
    dictionary = Dictionary()
    for label in labels[: max(classes, 2)]:
        dictionary.add_symbol(label)
    sizes = sizes or {"train": 1000, "valid": SIZE}
    return SimpleNamespace(
        cfg=SimpleNamespace(num_classes=classes, data="pairs/bin"),
        label_dictionary=dictionary,
        target_dictionary=dictionary,
        datasets={name: range(size) for name, size in sizes.items()},
    )


def criterion_with(task, checkpoint=("loss", False), **options):
    """The criterion as fairseq builds it: its configuration hangs in that of the training."""
    best, maximise = checkpoint
    root = {
        "criterion": SentencePredictionMetricsConfig(**options),
        "checkpoint": {"best_checkpoint_metric": best, "maximize_best_checkpoint_metric": maximise},
        "dataset": {"train_subset": "train", "valid_subset": "valid"},
    }
    return SentencePredictionMetrics(OmegaConf.create(root).criterion, task)


def samples_of(features, targets, batch_size, order=None):
    order = np.arange(len(targets)) if order is None else order
    for start in range(0, len(order), batch_size):
        ids = torch.from_numpy(order[start : start + batch_size].copy())
        yield {"id": ids, "net_input": {"features": features[ids]}, "target": targets[ids], "ntokens": 3 * len(ids)}


def validate(criterion, model, samples):
    """What fairseq's trainer does: one reduce_metrics per batch, inside an aggregator of the whole set."""
    model.eval()
    criterion.eval()
    with metrics.aggregate(new_root=True) as whole:
        for sample in samples:
            with metrics.aggregate("valid"), torch.no_grad():
                criterion.reduce_metrics([criterion(model, sample)[2]])
    return whole.get_smoothed_values()


@pytest.fixture(autouse=True)
def fresh_meters():
    metrics.reset()
    yield
    metrics.reset()


@pytest.fixture
def problem():
    """classes (1: regression) -> model, features (SIZE, 4), targets (SIZE,)."""

    def make(classes):
        generator = torch.Generator().manual_seed(classes)
        model = Model(classes)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        features = torch.randn(SIZE, 4, generator=generator)
        if classes == 1:
            return model, features, (torch.randint(0, 6, (SIZE,), generator=generator) / 5).float()
        return model, features, torch.randint(0, classes, (SIZE,), generator=generator)

    return make


@pytest.mark.parametrize("batch_size", [1, 8, SIZE])
@pytest.mark.parametrize("classes", [2, 3])
def test_classification_over_the_whole_set(problem, classes, batch_size):
    model, features, targets = problem(classes)
    names = ["accuracy", "mcc"] + (["f1", "acc_and_f1"] if classes == 2 else [])
    criterion = criterion_with(task_with(classes), glue_metrics=names)
    order = np.random.default_rng(0).permutation(SIZE)
    logged = validate(criterion, model, samples_of(features, targets, batch_size, order))
    with torch.no_grad():
        answers = model(features, True, "sentence_classification_head")[0].argmax(1)
    counts = np.zeros((classes, classes))
    for i, j in zip(targets.tolist(), answers.tolist()):
        counts[i, j] += 1
    assert 0 < np.trace(counts) < SIZE
    functions = (glue_metrics.accuracy, glue_metrics.matthews, glue_metrics.f1, glue_metrics.accuracy_and_f1)
    for name, function in zip(names, functions):
        assert logged[name] == pytest.approx(100 * function(counts), abs=0.005 + 1e-9)
    assert not [name for name in logged if name.startswith("_")]


@pytest.mark.parametrize("batch_size", [1, 8, SIZE])
def test_regression_over_the_whole_set(problem, batch_size):
    model, features, targets = problem(1)
    criterion = criterion_with(task_with(1), regression_target=True)
    order = np.random.default_rng(0).permutation(SIZE)
    logged = validate(criterion, model, samples_of(features, targets, batch_size, order))
    with torch.no_grad():
        answers = model(features, True, "sentence_classification_head")[0].view(-1).numpy()
    for name in ("pearson", "spearman"):
        expected = 100 * getattr(glue_metrics, name)(answers, targets.numpy())
        assert abs(expected) > 1
        assert logged[name] == pytest.approx(expected, abs=0.005 + 1e-9)


@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("training", [True, False])
def test_loss_and_gradient_are_the_stock_ones(problem, classes, training):
    model, features, targets = problem(classes)
    model.double()
    task, sample = task_with(classes), next(samples_of(features.double(), targets, SIZE))
    regression, results = classes == 1, []
    stock = SentencePredictionCriterion(SentencePredictionConfig(regression_target=regression), task)
    for criterion in (stock, criterion_with(task, regression_target=regression)):
        criterion.train(training)
        model.zero_grad()
        loss, size, logged = criterion(model, sample)
        loss.backward()
        gradients = [parameter.grad.clone() for parameter in model.parameters()]
        results.append((loss.item(), size, logged["loss"].item(), *gradients))
        if training:
            assert ("ncorrect" in logged) is not regression
            assert not [key for key in logged if key.startswith("_")]
    for one, other in zip(*results):
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))


def test_workers_add_up_and_an_idle_one_counts_nothing(problem):
    """fairseq sums each logging output over the workers; one that ran out of batches sends zeros of the same shape."""
    for classes, options in ((3, {"glue_metrics": ["mcc"]}), (1, {"regression_target": True})):
        model, features, targets = problem(classes)
        criterion = criterion_with(task_with(classes), **options).eval()
        assert criterion.logging_outputs_can_be_summed()
        alone = validate(criterion, model, samples_of(features, targets, 4))
        outputs = [criterion(model, sample)[2] for sample in samples_of(features, targets, 4)]
        idle = {key: torch.zeros_like(v) if torch.is_tensor(v) else 0 for key, v in outputs[0].items()}
        pairs = list(zip(outputs[0::2], [*outputs[1::2], *[idle] * (len(outputs) % 2)]))
        with metrics.aggregate(new_root=True) as together:
            for pair in pairs:
                criterion.reduce_metrics([{key: sum(log[key] for log in pair) for key in pair[0]}])
        for name in criterion.glue_metrics:
            assert together.get_smoothed_values()[name] == alone[name]


def test_f1_is_that_of_the_positive_label_wherever_it_stands(problem):
    """fairseq-preprocess puts the more frequent label first: in MRPC that is "1"."""
    model, features, targets = problem(2)
    logged = {}
    for labels, positive in itertools.product(("01", "10"), "01"):
        task = task_with(2, labels)
        criterion = criterion_with(task, glue_metrics=["f1", "mcc", "accuracy"], positive_label=positive)
        logged[labels, positive] = validate(criterion, model, samples_of(features, targets, 5))
    with torch.no_grad():
        answers = model(features, True, "sentence_classification_head")[0].argmax(1)
    for (labels, positive), values in logged.items():
        place = labels.index(positive)
        hits = int(((answers == place) & (targets == place)).sum())
        expected = 2 * hits / int((answers == place).sum() + (targets == place).sum())
        assert values["f1"] == pytest.approx(100 * expected, abs=0.006)
    assert logged["01", "1"]["f1"] != logged["01", "0"]["f1"]
    assert len({(values["mcc"], values["accuracy"]) for values in logged.values()}) == 1


def test_undefined_is_logged_as_zero(problem):
    model, features, targets = problem(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    criterion = criterion_with(task_with(1), regression_target=True)
    logged = validate(criterion, model, samples_of(features, targets, 5))
    assert logged["pearson"] == logged["spearman"] == 0.0


def test_what_is_kept_between_validations_is_bounded_and_survives_a_checkpoint(problem):
    model, features, targets = problem(1)
    sizes = {"train": 1000, "valid": SIZE, "valid1": SIZE + 10}
    criterion = criterion_with(task_with(1, **sizes), regression_target=True)
    first = validate(criterion, model, samples_of(features, targets, 6))
    for _ in range(3):
        assert validate(criterion, model, samples_of(features, targets, 6)) == first
    state = metrics.state_dict()
    kept = [meter["sum"] for _, key, _, meter in state["valid"] if key.startswith("_")]
    assert [each.shape for each in kept] == [(3, SIZE + 10)] * 2
    metrics.load_state_dict(state)  # looks for the class of each meter among fairseq's own
    assert validate(criterion, model, samples_of(features, targets, 6)) == first


@pytest.mark.parametrize(
    ("classes", "options", "message"),
    [
        (2, {"glue_metrics": ["pearson"]}, "--regression-target"),
        (1, {"glue_metrics": ["mcc"], "regression_target": True}, "drop --regression-target"),
        (2, {"glue_metrics": ["mmc"]}, "--glue-metrics mmc.*accuracy, mcc"),
        (3, {"glue_metrics": ["mcc", "f1"]}, "--num-classes 3.*mcc"),
        (2, {"regression_target": True}, "--num-classes 2.*--regression-target"),
        (2, {"glue_metrics": ["f1"], "positive_label": "yes"}, "--positive-label yes.*0, 1"),
        (2, {"checkpoint": ("mcc", True)}, "--glue-metrics accuracy"),
        (2, {"checkpoint": ("accuracy", False)}, "--maximize-best-checkpoint-metric"),
    ],
    ids=str,
)
def test_bad_options_are_named(classes, options, message):
    with pytest.raises(OptionError, match=message):
        criterion_with(task_with(classes), **options)


@pytest.mark.parametrize(("regression", "files"), [(False, "SPLIT.bin and SPLIT.idx"), (True, "SPLIT.label, a number")])
def test_a_split_without_labels(regression, files):
    criterion = criterion_with(task_with(1 if regression else 2), regression_target=regression)
    (sample,) = samples_of(torch.zeros(2, 4), torch.zeros(2, dtype=torch.long), 2)
    del sample["target"]
    with pytest.raises(DataError, match=f"pairs/bin/label has no labels for this split: expected {files}"):
        criterion(Model(2), sample)
