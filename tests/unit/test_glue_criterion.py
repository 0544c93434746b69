"""--criterion sentence_prediction_metrics: the stock loss; GLUE's metrics against their definitions."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.criterions.sentence_prediction import SentencePredictionConfig, SentencePredictionCriterion
from fairseq.logging import metrics
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from scipy import stats
from sklearn import metrics as sk
from small_models import dictionary
from torch import nn

from embinit_fairseq.criterions import sentence_prediction_metrics as glue_metrics
from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.modules.glue_metrics import CLASSIFICATION, REGRESSION, average_ranks

SIZE = 23  # divisible by none of the batch sizes below
HEAD = "sentence_classification_head"
CRITERION, CONFIG = glue_metrics.SentencePredictionMetrics, glue_metrics.SentencePredictionMetricsConfig


class Model(nn.Module):
    """Logits are a linear function of one vector (4,) per example."""

    def __init__(self, classes):
        super().__init__()
        self.args, self.classification_heads = SimpleNamespace(), nn.ModuleDict({HEAD: nn.Linear(4, classes)})

    def forward(self, features, **_):
        return self.classification_heads[HEAD](features), {}

    def get_targets(self, sample, net_output):
        return sample["target"]


def task_with(classes, labels="01234"):
    names = dictionary(0)
    for label in labels[: max(classes, 2)]:
        names.add_symbol(label)
    datasets = {"train": range(1000), "valid": range(SIZE)}
    cfg = SimpleNamespace(num_classes=classes, data="pairs/bin")
    return SimpleNamespace(cfg=cfg, label_dictionary=names, target_dictionary=names, datasets=datasets)


def criterion_with(task, best="loss", maximise=False, **options):
    """The criterion as fairseq builds it: its configuration hangs in that of the training."""
    root = {
        "criterion": CONFIG(regression_target=task.cfg.num_classes == 1, **options),
        "checkpoint": {"best_checkpoint_metric": best, "maximize_best_checkpoint_metric": maximise},
        "dataset": {"train_subset": "train", "valid_subset": "valid"},
    }
    return CRITERION(OmegaConf.create(root).criterion, task).eval()


def samples_of(features, targets, batch_size):
    for ids in torch.from_numpy(np.random.default_rng(0).permutation(len(targets))).split(batch_size):
        yield {"id": ids, "net_input": {"features": features[ids]}, "target": targets[ids], "ntokens": 3 * len(ids)}


@torch.no_grad()
def validate(criterion, model, samples):
    """What fairseq's trainer does: one reduce_metrics per batch, inside an aggregator of the whole set."""
    with metrics.aggregate(new_root=True) as whole:
        for sample in samples:
            with metrics.aggregate("valid"):
                criterion.reduce_metrics([criterion(model, sample)[2]])
    return whole.get_smoothed_values()


def problem(classes):
    """Model, features (SIZE, 4), targets (SIZE); one class: a regression."""
    torch.manual_seed(4 - classes)
    model, features = Model(classes), torch.randn(SIZE, 4)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    targets = torch.randint(0, classes, (SIZE,)) if classes > 1 else torch.randint(0, 6, (SIZE,)) / 5
    return model, features, targets


@pytest.mark.parametrize(("classes", "batch_size"), [(1, 8), (2, 1), (2, 8), (3, 8)])
def test_metrics_are_those_of_the_whole_set(classes, batch_size):
    model, features, targets = problem(classes)
    names = list(glue_metrics.REGRESSION if classes == 1 else glue_metrics.CLASSIFICATION)
    names = [name for name in names if classes == 2 or name not in glue_metrics.BINARY]
    # f1 is that of label 1, also where fairseq-preprocess puts it first, as in MRPC
    flipped = classes == 2 and batch_size == 1
    task = task_with(classes, "10" if flipped else "01234")
    criterion = criterion_with(task, glue_metrics=[*names, *(["confusion"] if classes > 1 else [])])
    logged = validate(criterion, model, samples_of(features, targets, batch_size))
    answers = model(features)[0].detach()
    if classes == 1:
        arguments = (answers.view(-1).numpy(), targets.numpy())
    else:
        counts = np.zeros((classes, classes))
        np.add.at(counts, (targets.numpy(), answers.argmax(1).numpy()), 1)
        arguments = (np.flip(counts) if flipped else counts,)
    for name in names:
        expected = 100 * {**glue_metrics.CLASSIFICATION, **glue_metrics.REGRESSION}[name](*arguments)
        assert 0.1 < abs(expected) < 99.9
        assert logged[name] == pytest.approx(expected, abs=0.005 + 1e-9)
    if classes > 1:
        assert logged["confusion"] == arguments[0].astype(int).tolist()
    assert "loss" in logged  # fairseq's own, too
    assert not [name for name in logged if name.startswith("_")]


@pytest.mark.parametrize(("classes", "training"), [(1, False), (3, False), (3, True)])
def test_loss_and_gradient_are_the_stock_ones(classes, training):
    model, features, targets = problem(classes)
    task, sample = task_with(classes), next(samples_of(features.double(), targets, SIZE))
    stock, results = SentencePredictionCriterion(SentencePredictionConfig(regression_target=classes == 1), task), []
    for criterion in (stock, criterion_with(task)):
        model.double().zero_grad()
        loss, size, logged = criterion.train(training)(model, sample)
        loss.backward()
        results.append([loss, size, logged["loss"], *(parameter.grad.clone() for parameter in model.parameters())])
    torch.testing.assert_close(*results, rtol=0, atol=0)
    assert ("ncorrect" in logged) is (training and classes > 1)
    assert training is not any(key.startswith("_") for key in logged)


@pytest.mark.parametrize("classes", [1, 3])
def test_workers_add_up_and_an_idle_one_counts_nothing(classes):
    """fairseq sums each logging output over the workers; one that ran out of batches sends zeros of the same shape."""
    model, features, targets = problem(classes)
    criterion = criterion_with(task_with(classes))
    assert criterion.logging_outputs_can_be_summed()
    alone = validate(criterion, model, samples_of(features, targets, 5))
    outputs = [criterion(model, sample)[2] for sample in samples_of(features, targets, 5)]
    idle = {key: 0 * value for key, value in outputs[0].items()}
    with metrics.aggregate(new_root=True) as together:
        for pair in itertools.zip_longest(outputs[0::2], outputs[1::2], fillvalue=idle):
            criterion.reduce_metrics([{key: sum(log[key] for log in pair) for key in pair[0]}])
    for name in criterion.glue_metrics:
        assert together.get_smoothed_values()[name] == alone[name]


def test_correlations_of_a_part_of_the_set():
    """There is a place for every example that is validated, and what no batch has had yet does not count."""
    model, features, targets = problem(1)
    criterion = criterion_with(task_with(1))
    assert criterion.validation_size() == SIZE
    first = next(samples_of(features, targets, 8))
    logged, answers = validate(criterion, model, [first]), model(first["net_input"]["features"])[0].view(-1).tolist()
    expected = 100 * stats.pearsonr(answers, first["target"].tolist())[0]
    assert logged["pearson"] == pytest.approx(expected, abs=0.005 + 1e-6)
    criterion.root.dataset.valid_subset = "valid,train"
    assert criterion.validation_size() == 1000


@torch.no_grad()
def test_validation_of_sets_that_are_loaded_one_after_the_other():
    """As fairseq-validate --valid-subset small,valid: all sets add to one meter, and the second one is larger."""
    model, features, targets = problem(1)
    task = task_with(1)
    criterion, found = criterion_with(task), []
    with metrics.aggregate(new_root=True):
        for size in (8, SIZE):
            task.datasets = {"valid": range(size)}
            with metrics.aggregate() as one:
                outputs = [criterion(model, s)[2] for s in samples_of(features[:size], targets[:size], 5)]
                criterion.reduce_metrics(outputs)
            found.append(one.get_smoothed_values()["pearson"])
    for size, pearson in zip((8, SIZE), found):
        expected = stats.pearsonr(model(features[:size])[0].view(-1).numpy(), targets[:size].numpy())[0]
        assert pearson == pytest.approx(100 * expected, abs=0.005 + 1e-6)


def test_bad_options_and_data_are_named():
    for classes, options, message in (
        (2, {"glue_metrics": ["pearson"]}, "without --regression-target choose among: accuracy"),
        (1, {"glue_metrics": ["mcc"]}, "with --regression-target choose among: pearson"),
        (2, {"glue_metrics": ["mmc"]}, "--glue-metrics mmc.*accuracy, mcc"),
        (3, {"glue_metrics": ["mcc", "f1"]}, "--num-classes 3.*mcc"),
        (2, {"glue_metrics": ["f1"], "positive_label": "yes"}, "--positive-label yes.*0, 1"),
        (2, {"best": "mcc", "maximise": True}, "--glue-metrics accuracy"),
        (2, {"best": "accuracy"}, "--maximize-best-checkpoint-metric"),
    ):
        with pytest.raises(OptionError, match=message):
            criterion_with(task_with(classes), **options)
    for classes, files in ((2, "SPLIT.bin and SPLIT.idx"), (1, "SPLIT.label, a number per line")):
        with pytest.raises(DataError, match=f"pairs/bin/label has no labels for this split: expected {files}"):
            criterion_with(task_with(classes))(Model(2), {})


# ---- The metrics against scikit-learn and SciPy ----------------------------------------------------------------------


@given(st.integers(2, 5), st.data())
@settings(max_examples=25)
def test_classifications_are_those_of_scikit_learn(classes, data):
    label = st.integers(0, classes - 1)
    true, predicted = zip(*data.draw(st.lists(st.tuples(label, label), min_size=1, max_size=40)))
    counts = np.zeros((classes, classes))
    np.add.at(counts, (true, predicted), 1)
    accuracy, f1 = sk.accuracy_score(true, predicted), sk.f1_score(true, predicted, labels=range(classes), average=None)
    expected = {"mcc": sk.matthews_corrcoef(true, predicted), "accuracy": accuracy, "macro_f1": f1.mean()}
    if classes == 2:
        expected |= {"f1": f1[1], "acc_and_f1": (f1[1] + accuracy) / 2}
        assert expected.keys() == CLASSIFICATION.keys()
    assert {name: CLASSIFICATION[name](counts) for name in expected} == pytest.approx(expected, abs=1e-9)


#: few distinct values: ties are frequent
numbers = st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=2, max_size=30).filter(
    lambda pairs: all(len(set(side)) > 1 for side in zip(*pairs))
)


@given(numbers, st.sampled_from([(1.0, 0.0), (1.0, 1e6), (-1e-3, 7.0)]))
@settings(max_examples=30)
def test_correlations_are_those_of_scipy(pairs, line):
    x, y = (np.array(side, dtype=float) for side in zip(*pairs))
    x = x * line[0] + line[1]
    pearson, spearman = stats.pearsonr(x, y)[0], stats.spearmanr(x, y)[0]
    assert average_ranks(x).tolist() == stats.rankdata(x).tolist()
    expected = {"pearson": pearson, "spearman": spearman, "pearson_and_spearman": (pearson + spearman) / 2}
    assert {name: metric(x, y) for name, metric in REGRESSION.items()} == pytest.approx(expected, abs=1e-8)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("values", [[0.1] * 3, [0.1, 0.2, math.inf], [0.1, math.nan, 0.3]])
def test_correlations_that_are_undefined(values):
    for x, y in ((values, [1, 2, 3]), ([1, 2, 3], values)):
        assert math.isnan(REGRESSION["pearson"](np.array(x), np.array(y)))
    assert math.isnan(REGRESSION["spearman"](np.array([0.1, math.nan, 0.3]), np.array([1, 2, 3])))
