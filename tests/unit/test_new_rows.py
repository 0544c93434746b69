"""Rows of new words. Oracles: equations restated in float64, moments of large samples with their standard errors."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embinit_fairseq.init import draws as module
from embinit_fairseq.init import weights
from embinit_fairseq.init.draws import gaussian_rows
from embinit_fairseq.init.methods import MethodInputs, Recipe, new_rows, recipe_of
from embinit_fairseq.init.weights import mean_row

ROWS = np.array([0, 1, 2, 5, 6, 9])


def recipe(method, count, averaged, scale=None, seed=1, subwords=(), old_size=10) -> Recipe:
    """An expansion of `old_size` rows by `count` words."""
    old_row = np.array([*range(old_size), *[-1] * count])
    means = {old_size + number: (rows, None) for number, rows in enumerate(subwords)}
    return recipe_of(method, MethodInputs(old_size, old_row, old_row < 0, (averaged, None), means), scale, seed)


@pytest.fixture
def tables():
    """A table with correlated columns, a narrower one that depends on it, and a bias that depends on both."""
    generator = np.random.default_rng(0)
    wide = generator.normal(size=(10, 3)) @ generator.normal(size=(3, 3)) + [1.0, -2.0, 0.5]
    narrow = wide[:, :2] @ generator.normal(size=(2, 2)) + 0.3 * generator.normal(size=(10, 2))
    bias = wide.sum(axis=1) - 20
    return {"wide": [wide], "narrow": [narrow], "bias": [bias]}


def test_means_of_rows_and_of_the_bias(tables):
    pieces = [np.array([3]), np.array([4, 0, 4])]
    made = {method: new_rows(recipe(method, 2, ROWS, scale=0.0), tables) for method in ("avg", "zeros", "gaussian")}
    subword = new_rows(recipe("subword", 2, ROWS, subwords=pieces), tables)
    for name, (table,) in tables.items():
        assert made["avg"][name][0].shape == (2, *table.shape[1:])
        expected = sum(table[row] for row in ROWS) / len(ROWS)
        for method in ("avg", "gaussian"):  # without noise
            np.testing.assert_allclose(made[method][name][0], np.stack([expected, expected]), rtol=1e-14)
        assert not made["zeros"][name][0].any()
        expected = [table[3], (table[0] + 2 * table[4]) / 3]
        np.testing.assert_allclose(subword[name][0], expected, rtol=1e-12)


def test_normal_rows_are_as_fairseq_draws_them():
    wide = {"table": [np.zeros((4, 50)), np.ones((4, 50))], "other": [np.zeros((4, 50))], "bias": [np.ones(4)]}
    rows = new_rows(recipe("normal", 4000, np.arange(4), scale=2.0, old_size=4), wide)
    assert not rows["bias"][0].any()
    (drawn, copy), (other,) = rows["table"], rows["other"]
    np.testing.assert_array_equal(drawn, copy)  # copies of a table get the same draw
    variance = 2.0 / 50
    assert abs(drawn.mean()) < 5 * math.sqrt(variance / drawn.size)
    assert abs(drawn.var() - variance) < 5 * variance * math.sqrt(2 / drawn.size)
    assert abs((drawn * other).mean()) < 5 * variance / math.sqrt(drawn.size)  # each table has its own draw
    assert [recipe(method, 1, ROWS).c for method in ("gaussian", "normal")] == [1e-5, 1.0]


@pytest.mark.parametrize("noise", ["_noise_without_sigma", "_noise_with_sigma"])
def test_the_gaussian_has_the_joint_distribution(tables, noise, monkeypatch):
    """Mean, and covariance within and between the tables, of 40,000 draws; 5 standard errors."""
    monkeypatch.setattr(module, "_NORMAL", 0 if noise == "_noise_without_sigma" else 10**12)
    monkeypatch.setattr(module, "_EIGH", 10**12 if noise == "_noise_without_sigma" else 0)
    called = []
    inner = getattr(module, noise)
    monkeypatch.setattr(module, noise, lambda *args: called.append(noise) or inner(*args))
    count, scale = 40_000, 0.25
    drawn = new_rows(recipe("gaussian", count, ROWS, scale, seed=3), tables)
    assert called == [noise]
    sample = np.hstack([drawn[name][0].reshape(count, -1) for name in tables])
    stacked = np.hstack([table.reshape(10, -1) for (table,) in tables.values()])[ROWS]
    mean = stacked.mean(axis=0)
    sigma = scale * (stacked - mean).T @ (stacked - mean) / len(ROWS)
    spread = np.sqrt(np.diag(sigma))
    assert np.all(np.abs(sample.mean(axis=0) - mean) < 5 * spread / math.sqrt(count))
    error = np.sqrt((np.outer(np.diag(sigma), np.diag(sigma)) + sigma**2) / count)  # of a sample covariance
    assert np.all(np.abs(np.cov(sample.T, bias=True) - sigma) < 5 * error)
    kurtosis = ((sample - mean) ** 4).mean(axis=0) / spread**4
    assert np.all(np.abs(kurtosis - 3) < 5 * math.sqrt(96 / count))  # of a normal number's fourth moment: var = 96


def test_the_gaussian_of_few_rows_and_of_a_constant_column():
    """Where Sigma is singular, as with fewer rows than columns, draws lie in the span of the rows' deviations."""
    table = np.random.default_rng(1).normal(size=(3, 8))
    table[:, 2] = 7.0
    for count in (2, 5000):  # by z, by eigenvectors
        (drawn,) = gaussian_rows([table], np.arange(3), count, 1.0, np.random.default_rng(2))
        assert np.abs(drawn[:, 2] - 7.0).max() < 1e-6
        deviations = table - table.mean(axis=0)
        outside = (drawn - table.mean(axis=0)) @ (np.eye(8) - np.linalg.pinv(deviations) @ deviations)
        assert np.abs(outside).max() < 1e-6
    # the shorter way, as measured by benchmarks/expand.py
    sizes = (32_000, 4096, 10), (32_000, 4096, 1000), (250_000, 768, 10), (3000, 1000, 2000), (250_000, 768, 1000)
    assert [module.sigma_pays(*size) for size in sizes] == [False] * 4 + [True]


def test_neither_the_size_of_a_block_nor_a_copy_changes_the_draw(tables, monkeypatch):
    drawn = recipe("gaussian", 3, ROWS, 1.0, seed=5)
    monkeypatch.setattr(module, "_EIGH", 10**12)
    whole = new_rows(drawn, tables)
    doubled = new_rows(drawn, {name: [table, 2 * table] for name, (table,) in tables.items()})
    monkeypatch.setattr(weights, "_BLOCK_ELEMENTS", 7)
    pieces = new_rows(drawn, tables)
    for name in tables:
        np.testing.assert_allclose(pieces[name][0], whole[name][0], rtol=1e-12)
        np.testing.assert_allclose(doubled[name][0], whole[name][0], rtol=1e-12)
        np.testing.assert_allclose(doubled[name][1], 2 * whole[name][0], rtol=1e-12)
    other = new_rows(recipe("gaussian", 3, ROWS, 1.0, seed=6), tables)
    assert not np.isclose(other["wide"][0], whole["wide"][0]).any()


@pytest.mark.parametrize("method", ["normal", "copy", "random"])
def test_matrices_and_seeds_have_draws_of_their_own(method):
    table = np.random.default_rng(0).normal(size=(10, 4))
    tables = {"input": [table], "output": [table.copy()]}
    one, other = (new_rows(recipe(method, 3, ROWS, seed=seed), tables) for seed in (1, 2))
    for first, second in ((one["input"], one["output"]), (one["input"], other["input"])):
        assert not np.isclose(first[0], second[0]).any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_tensors_of_any_precision(dtype):
    table = torch.from_numpy(np.random.default_rng(0).normal(size=(12, 4))).to(dtype)
    # the last: as many as lie between the first and the last, but others
    for rows in ([1, 2, 3, 9, 5, 5], [1, 5, 3]):
        expected = sum(table[row].double().numpy() for row in rows) / len(rows)
        np.testing.assert_allclose(mean_row(table, np.array(rows)), expected, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(mean_row(table[:, 0], np.array(rows)), expected[:1], rtol=1e-6, atol=1e-7)
    many = np.full((1_000_000, 1), np.float32(1.1))  # summed in float32, they would be off by more than this
    assert float(mean_row(many, np.arange(len(many)))[0]) == pytest.approx(float(np.float32(1.1)), rel=1e-9)


# --- the guarantee


LOGITS = st.lists(st.floats(-60, 60), min_size=2, max_size=8)


@given(LOGITS, st.integers(1, 5), st.data())
@settings(max_examples=50)
def test_means_of_logits_keep_the_bound(logits, count, data):
    """Rows enter logits linearly, so a mean of rows has the mean of their logits, whatever the prefix is."""
    old, some = np.array(logits), st.lists(st.integers(0, len(logits) - 1), min_size=1, max_size=4)
    rows = np.array(data.draw(st.lists(st.integers(0, len(old) - 1), min_size=1, unique=True)))
    pieces = [np.array(data.draw(some)) for _ in range(count)]
    size = len(old)
    for made in (
        recipe("avg", count, rows, old_size=size),
        recipe("subword", count, rows, subwords=pieces, old_size=size),
    ):
        assert divergence(made, old) <= made.bound(()).limit + 1e-9
    assert recipe("avg", count, rows, old_size=size).bound(()).limit == math.log1p(count / len(rows))
    # it is reached, by a word of one piece that is sure
    piece = recipe("subword", 1, np.arange(8), subwords=[np.array([0, 0])], old_size=8)
    assert divergence(piece, np.array([50.0, *np.zeros(7)])) == pytest.approx(piece.bound(()).limit, rel=1e-9)
    assert [recipe(method, 1, ROWS).bound(()) for method in ("gaussian", "zeros", "normal")] == [None] * 3


def divergence(made, old):
    """KL(old || new) by its definition, over the old words."""
    new = np.concatenate([old, new_rows(made, {"bias": [old]})["bias"][0]])
    p, q = np.exp(old - np.logaddexp.reduce(old)), np.exp(new - np.logaddexp.reduce(new))
    return float((p * np.log(p / q[: len(p)])).sum())
