"""Kim's initialisations against plain statements of their equations in float64."""

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embinit_fairseq.errors import CoverageError, OptionError
from embinit_fairseq.init import strategies
from embinit_fairseq.init.draws import Draws, TargetStd, parse_std
from embinit_fairseq.init.report import absorption_ratio, describe, xavier_bound
from embinit_fairseq.init.strategies import Source, build

N, D, PAD = 40, 6, 1
ROWS = np.array([0, 4, 5, 7, 9, 10, 11, 20, 30, 39])


def vectors(scale=0.4, shift=0.05, seed=3):
    return (np.random.default_rng(seed).normal(shift, scale, (len(ROWS), D))).astype(np.float32)


def source(**keywords):
    return Source(ROWS.copy(), vectors(), **keywords)


def draws(**keywords):
    return Draws(N, D, seed=1, slot="encoder", **keywords)


def missing_rows():
    return [row for row in range(N) if row not in ROWS and row != PAD]


def test_xavier_is_uniform_within_the_bound_of_the_final_size():
    table = build(strategies.xavier, None, Draws(3000, 50, 1, "encoder"), PAD)
    bound = math.sqrt(6 / (3000 + 50))
    assert xavier_bound(3000, 50) == bound
    assert np.abs(table).max() <= bound * (1 + 1e-6)
    assert np.abs(table).max() > 0.999 * bound
    assert abs(table.mean(dtype=np.float64)) < 5 * bound / math.sqrt(3 * table.size)
    assert table.std(dtype=np.float64) == pytest.approx(bound / math.sqrt(3), rel=0.01)
    assert not table[PAD].any()


def test_normal_has_fairseq_law():
    table = strategies.normal(None, Draws(3000, 64, 1, "encoder"))
    assert table.std() == pytest.approx(1 / 8, rel=0.01)
    assert np.abs(table).max() > 3.5 / 8  # not uniform


def test_pretrained_keeps_rows_to_the_bit_and_draws_the_rest_like_xavier():
    table = build(strategies.pretrained, source(), draws(), PAD)
    assert (table[ROWS] == vectors()).all()
    assert (table[missing_rows()] == strategies.xavier(None, draws())[missing_rows()]).all()
    assert not table[PAD].any()


def test_pretrained_xavier_is_equation_1():
    x_p, x_x = vectors().astype(np.float64), strategies.xavier(None, draws()).astype(np.float64)
    expected = (x_p - x_p.mean()) * x_x.std(ddof=1) / x_p.std(ddof=1)
    table = build(strategies.pretrained_xavier, source(), draws(), PAD)
    np.testing.assert_allclose(table[ROWS], expected, rtol=2e-7, atol=0)
    assert table[ROWS].std(ddof=1, dtype=np.float64) == pytest.approx(x_x.std(ddof=1), rel=1e-6)


def test_a_chosen_std_replaces_that_of_xavier():
    table = build(strategies.pretrained_xavier, source(), draws(std=0.25), None)
    assert table[ROWS].std(ddof=1, dtype=np.float64) == pytest.approx(0.25, rel=1e-6)
    assert describe(strategies.xavier(None, draws(std=0.25)))["std"] == pytest.approx(0.25, rel=1e-6)


@pytest.mark.parametrize(
    ("given", "number", "times", "label"),
    [
        (None, None, 1, None),
        ("xavier", None, 1, None),
        ("1x", None, 1, None),
        ("0.25x", None, 0.25, "0.25x"),
        ("4x", None, 4, "4x"),
        ("0.02", 0.02, 1, 0.02),
        (0.02, 0.02, 1, 0.02),  # in checkpoints of earlier versions
        ("1e-3", 0.001, 1, 0.001),
    ],
)
def test_what_a_sigma_may_be(given, number, times, label):
    got = parse_std(given)
    assert (got.number, got.times, got.label) == (number, times, label)


@pytest.mark.parametrize(
    "given", ["0", "-1", "nan", "inf", "1e30", "0x", "-2x", "nanx", "x", "xavierx", "Xavier", "", 0.0]
)
def test_what_no_sigma_is(given):
    with pytest.raises(OptionError, match=r"--embed-init-std .*positive number.*0\.25x.*xavier"):
        parse_std(given)


@given(st.floats(1e-19, 1e19), st.booleans())
def test_a_label_is_read_back_as_what_it_says(value, relative):
    std = TargetStd(times=value) if relative else TargetStd(value)
    assert parse_std(std.label) == std


@pytest.mark.parametrize("times", [0.25, 0.1, 3.0])
def test_a_multiple_of_xaviers_sigma(times):
    own, scaled = draws(), draws(std=parse_std(f"{times}x"))
    assert (scaled.xavier == own.xavier * np.float32(times)).all()  # one draw at every scale
    sigma = own.xavier.std(ddof=1, dtype=np.float64)
    assert scaled.target_std == pytest.approx(times * sigma, rel=1e-12)
    table = build(strategies.pretrained_xavier, source(), scaled, PAD)
    assert table[ROWS].std(ddof=1, dtype=np.float64) == pytest.approx(times * sigma, rel=1e-6)


def test_the_word_xavier_changes_nothing_that_has_this_scale():
    assert (draws(std=parse_std("xavier")).xavier == draws().xavier).all()
    assert draws(std=parse_std("xavier")).target_std == draws().target_std


@pytest.mark.parametrize("shuffle", [strategies.shuffled, strategies.shuffled_elements])
@pytest.mark.parametrize("std", ["xavier", "0.25x", "0.3"])
def test_shuffled_vectors_at_a_chosen_scale_are_those_of_equation_1_shuffled(shuffle, std):
    def rescaled(source, draws):
        return shuffle(source, draws, rescaled=True)

    table = build(rescaled, source(), draws(std=parse_std(std)), PAD)
    straight = build(strategies.pretrained_xavier, source(), draws(std=parse_std(std)), PAD)
    raw = build(shuffle, source(), draws(), PAD)
    assert sorted(table[ROWS].ravel()) == sorted(straight[ROWS].ravel())
    assert (table[missing_rows()] == straight[missing_rows()]).all()
    x_p, x_x = vectors().astype(np.float64), strategies.xavier(None, draws()).astype(np.float64)
    sigma = {"xavier": 1, "0.25x": 0.25}.get(std, 0.3 / x_x.std(ddof=1)) * x_x.std(ddof=1)
    # the same words get the same rows as without a scale: the permutations are one
    expected = (raw[ROWS].astype(np.float64) - x_p.mean()) * sigma / x_p.std(ddof=1)
    np.testing.assert_allclose(table[ROWS], expected, rtol=2e-7, atol=1e-12)
    assert abs(table[ROWS].mean(dtype=np.float64)) < 1e-8
    assert table[ROWS].std(ddof=1, dtype=np.float64) == pytest.approx(sigma, rel=1e-6)


def test_xavier_pretrained_is_equation_4():
    x_p, x_x = vectors().astype(np.float64), strategies.xavier(None, draws()).astype(np.float64)
    expected = (x_x - x_x.mean()) * x_p.std(ddof=1) / x_x.std(ddof=1) + x_p.mean()
    table = build(strategies.xavier_pretrained, source(), draws(), None)
    np.testing.assert_allclose(table, expected, rtol=1e-6, atol=1e-7)


def test_shuffled_permutes_rows_and_columns_and_no_word_keeps_its_vector():
    table = build(strategies.shuffled, source(), draws(), PAD)
    x_p = vectors()
    assert sorted(table[ROWS].ravel()) == sorted(x_p.ravel())
    for mine, old in zip(table[ROWS], x_p):
        assert set(mine) != set(old)  # whatever the order of the columns
    assert {frozenset(row) for row in table[ROWS]} == {frozenset(row) for row in x_p}  # rows stay whole
    # one permutation of the columns for all rows: the first row found gives it
    by_set = {frozenset(row): row for row in x_p}
    order = [list(by_set[frozenset(table[ROWS[0]])]).index(value) for value in table[ROWS[0]]]
    assert all((by_set[frozenset(row)][order] == row).all() for row in table[ROWS])
    assert order != list(range(D))


def test_shuffled_elements_keeps_values_only():
    table = build(strategies.shuffled_elements, source(), draws(), PAD)
    assert sorted(table[ROWS].ravel()) == sorted(vectors().ravel())
    assert {frozenset(row) for row in table[ROWS]} != {frozenset(row) for row in vectors()}


@given(st.integers(2, 12), st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_derangements_leave_nothing_in_place(count, seed):
    order = Draws(4, 4, seed, "encoder").derangement(count)
    assert sorted(order) == list(range(count))
    assert (order != np.arange(count)).all()


def test_oov_mean_and_zeros():
    mean = vectors().astype(np.float64).mean(axis=0)
    table = build(strategies.pretrained, source(oov="mean"), draws(), PAD)
    np.testing.assert_allclose(table[missing_rows()], np.tile(mean, (len(missing_rows()), 1)), rtol=1e-6)
    table = build(strategies.pretrained, source(oov="zeros"), draws(), PAD)
    assert not table[missing_rows()].any()
    # in the space of the final table: standardised rows have a standardised mean
    table = build(strategies.pretrained_xavier, source(oov="mean"), draws(), PAD)
    np.testing.assert_allclose(table[missing_rows()][0], table[ROWS].mean(axis=0), rtol=1e-4, atol=1e-8)


def test_oov_gaussian_has_the_mean_and_covariance_of_the_found_rows():
    generator = np.random.default_rng(0)
    mixing = generator.normal(size=(3, 3))
    found = (generator.normal(size=(500, 3)) @ mixing + [1.0, -2.0, 0.5]).astype(np.float32)
    table = build(strategies.pretrained, Source(np.arange(500), found, "gaussian"), Draws(60500, 3, 1, "encoder"), None)
    drawn = table[500:].astype(np.float64)
    expected = np.cov(found.astype(np.float64).T, ddof=0)
    assert np.abs(drawn.mean(axis=0) - found.mean(axis=0)).max() < 0.03
    np.testing.assert_allclose(np.cov(drawn.T), expected, rtol=0.03, atol=0.03)


def test_oov_gaussian_of_two_rows():
    """With K = 2 the law is exact, too: the covariance has 1/K, not 1/(K - 1)."""
    found = np.array([[1.0], [3.0]], dtype=np.float32)
    table = build(strategies.pretrained, Source(np.arange(2), found, "gaussian"), Draws(40002, 1, 1, "encoder"), None)
    assert table[2:].mean() == pytest.approx(2.0, abs=0.03)
    assert table[2:].std() == pytest.approx(1.0, rel=0.03)


def test_the_streams_of_a_slot_are_independent():
    drawn = Draws(400, 50, 1, "encoder")
    assert abs(np.corrcoef(drawn.xavier.ravel(), drawn.normal.ravel())[0, 1]) < 0.03
    ranks = [values.ravel().argsort().argsort() for values in (drawn.xavier, drawn.normal)]
    assert abs(np.corrcoef(*ranks)[0, 1]) < 0.03


def test_composed_rows_are_transformed_but_do_not_count():
    composed = np.full((2, D), 0.7, dtype=np.float32)
    with_composed = Source(ROWS, vectors(), "subword", np.array([2, 3]), composed)
    table = build(strategies.pretrained_xavier, with_composed, draws(), PAD)
    plain = build(strategies.pretrained_xavier, source(), draws(), PAD)
    assert (table[ROWS] == plain[ROWS]).all()
    x_p, sigma_x = vectors().astype(np.float64), strategies.xavier(None, draws()).std(ddof=1, dtype=np.float64)
    np.testing.assert_allclose(table[2], (0.7 - x_p.mean()) * sigma_x / x_p.std(ddof=1), rtol=1e-5)
    left = [row for row in missing_rows() if row not in (2, 3)]
    assert (table[left] == plain[left]).all()  # what cannot be composed is drawn


def test_draws_are_paired_and_independent_of_global_state():
    first = build(strategies.pretrained, source(), draws(), PAD)
    states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    random.seed(5), np.random.seed(6), torch.manual_seed(7)
    disturbed = np.random.get_state()[1].copy(), torch.get_rng_state()
    again = build(strategies.pretrained, source(), draws(), PAD)
    assert (first == again).all()
    assert (np.random.get_state()[1] == disturbed[0]).all()
    assert (torch.get_rng_state() == disturbed[1]).all()
    random.setstate(states[0]), torch.set_rng_state(states[2])
    other_slot = strategies.xavier(None, Draws(N, D, 1, "decoder"))
    other_seed = strategies.xavier(None, Draws(N, D, 2, "encoder"))
    mine = strategies.xavier(None, draws())
    assert (mine != other_slot).mean() > 0.99
    assert (mine != other_seed).mean() > 0.99


def test_constant_vectors_cannot_be_standardised():
    flat = Source(ROWS, np.ones((len(ROWS), D), dtype=np.float32))
    with pytest.raises(CoverageError, match="all the same number"):
        build(strategies.pretrained_xavier, flat, draws(), PAD)


@given(st.integers(1, 50), st.integers(1, 9), st.floats(1e-3, 1e3), st.floats(-100, 100), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_describe_equals_numpy_in_float64(rows, dim, scale, shift, seed):
    matrix = (np.random.default_rng(seed).normal(shift, scale, (rows, dim))).astype(np.float32)
    wide = matrix.astype(np.float64)
    got = describe(matrix)
    assert got["min"] == wide.min()
    assert got["max"] == wide.max()
    assert got["mean"] == pytest.approx(wide.mean(), rel=1e-9, abs=1e-9 * scale)
    if wide.size > 1:
        assert got["std"] == pytest.approx(wide.std(ddof=1), rel=1e-9)


def test_absorption_ratio_of_the_paper():
    # Kim Table 6: scaled GloVe 6.39 and Xavier 0.27 against positions 0.67
    assert absorption_ratio(0.369, math.sqrt(300), 0.67) == pytest.approx(6.39 / 0.67, rel=0.01)
    assert absorption_ratio(0.1, 1.0, None) is None
