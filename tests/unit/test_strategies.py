"""Kim's initialisations against plain statements of their equations in float64, and the record that tells of them."""

import math
import random
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embinit_fairseq.errors import CoverageError, OptionError
from embinit_fairseq.init import draws as draws_module
from embinit_fairseq.init import strategies
from embinit_fairseq.init.draws import Draws, TargetStd
from embinit_fairseq.init.init_report import (
    absorption_ratio,
    describe,
    pack_rows,
    render,
    signature,
    unpack_rows,
    xavier_bound,
)
from embinit_fairseq.init.strategies import Source, build

N, D, PAD = 40, 6, 1
ROWS = np.array([0, 4, 5, 7, 9, 10, 11, 20, 30, 39])
MISSING = [row for row in range(N) if row not in ROWS and row != PAD]


def parse_std(value):
    return draws_module.parse_std(value, "--embed-init-std")


def vectors(scale=0.4, shift=0.05, seed=3):
    return (np.random.default_rng(seed).normal(shift, scale, (len(ROWS), D))).astype(np.float32)


def source(**keywords):
    return Source(ROWS.copy(), vectors(), **keywords)


def draws(**keywords):
    return Draws(N, D, seed=1, slot="encoder", **keywords)


def moments():
    """X_p and X_x in float64."""
    return vectors().astype(np.float64), strategies.xavier(None, draws()).astype(np.float64)


@pytest.mark.parametrize("std", [None, "xavier", "0.25x", "2x", "0.3"])
def test_pretrained_xavier_is_equation_1(std):
    x_p, x_x = moments()
    own = x_x.std(ddof=1)
    sigma = {"0.25x": 0.25 * own, "2x": 2 * own, "0.3": 0.3}.get(std, own)
    chosen = draws(std=parse_std(std))
    table = build(strategies.pretrained_xavier, source(), chosen, PAD)
    np.testing.assert_allclose(table[ROWS], (x_p - x_p.mean()) * sigma / x_p.std(ddof=1), rtol=2e-7, atol=1e-12)
    assert chosen.target_std == pytest.approx(sigma, rel=1e-7)
    assert describe(chosen.xavier)["std"] == pytest.approx(sigma, rel=1e-6)  # and so are the drawn rows
    np.testing.assert_allclose(chosen.xavier, x_x * (sigma / own), rtol=1e-6)  # one draw at every scale
    assert (table[MISSING] == chosen.xavier[MISSING]).all()


def test_xavier_and_normal_have_their_distributions():
    drawn = Draws(2000, 50, 1, "encoder")
    table, bound = build(strategies.xavier, None, drawn, PAD), math.sqrt(6 / (2000 + 50))
    assert xavier_bound(2000, 50) == bound
    assert 0.999 * bound < np.abs(table).max() <= bound * (1 + 1e-6)
    assert abs(table.mean(dtype=np.float64)) < 5 * bound / math.sqrt(3 * table.size)
    assert table.std(dtype=np.float64) == pytest.approx(bound / math.sqrt(3), rel=0.01)
    assert not table[PAD].any()
    table = strategies.normal(None, drawn)  # fairseq's own
    assert table.std() == pytest.approx(1 / math.sqrt(50), rel=0.01)
    assert np.abs(table).max() > 3.5 / math.sqrt(50)  # not uniform


def test_what_a_sigma_may_be():
    """Numbers are in checkpoints of earlier versions."""
    for same in (None, "xavier", "1x"):
        got = parse_std(same)
        assert (got.number, got.times, got.label) == (None, 1, None)
    for number in (0.02, 1e-3, 1e-19, 9e19):
        for std in (parse_std(str(number)), parse_std(number), parse_std(TargetStd(number).label)):
            assert (std.number, std.times, std.label) == (number, 1, number)
        relative = TargetStd(times=number)
        assert parse_std(relative.label) == relative
    for wrong in [*"0 -1 nan inf 1e30 1e20 1e-20 0x -2x nanx x xavierx Xavier".split(), "", 0.0]:
        with pytest.raises(OptionError, match=r"--embed-init-std .*positive number.*0\.25x.*xavier"):
            parse_std(wrong)


@pytest.mark.parametrize("shuffle", [strategies.shuffled, strategies.shuffled_elements])
def test_shuffled_vectors_at_a_chosen_scale_are_those_of_equation_1_shuffled(shuffle):
    scaled = draws(std=parse_std("0.3"))
    table = build(lambda *given: shuffle(*given, rescaled=True), source(), scaled, PAD)
    straight = build(strategies.pretrained_xavier, source(), draws(std=parse_std("0.3")), PAD)
    raw = build(shuffle, source(), draws(), PAD)
    assert sorted(table[ROWS].ravel()) == sorted(straight[ROWS].ravel())
    assert (table[MISSING] == straight[MISSING]).all()
    x_p, _ = moments()
    # the same words get the same rows as without a scale: the permutations are one
    expected = (raw[ROWS].astype(np.float64) - x_p.mean()) * scaled.target_std / x_p.std(ddof=1)
    np.testing.assert_allclose(table[ROWS], expected, rtol=2e-7, atol=1e-12)


def test_xavier_pretrained_is_equation_4():
    x_p, x_x = moments()
    expected = (x_x - x_x.mean()) * x_p.std(ddof=1) / x_x.std(ddof=1) + x_p.mean()
    table = build(strategies.xavier_pretrained, source(), draws(), None)
    np.testing.assert_allclose(table, expected, rtol=1e-6, atol=1e-7)


def test_shuffled_permutes_rows_and_columns_and_no_word_keeps_its_vector():
    given_ = source()
    table, x_p = build(strategies.shuffled, given_, draws(), PAD), vectors()
    assert not any(set(mine) == set(old) for mine, old in zip(table[ROWS], x_p))  # whatever the order of the columns
    by_set = {frozenset(row): row for row in x_p}
    assert {frozenset(row) for row in table[ROWS]} == set(by_set)  # rows stay whole
    # one permutation of the columns for all rows: the first row found gives it
    order = [list(by_set[frozenset(table[ROWS[0]])]).index(value) for value in table[ROWS[0]]]
    assert all((by_set[frozenset(row)][order] == row).all() for row in table[ROWS])
    assert order != list(range(D))
    one = build(strategies.shuffled, Source(ROWS[:1], x_p[:1]), draws(), PAD)  # there is nothing to change with
    assert set(one[ROWS[0]]) == set(x_p[0])
    two = build(strategies.shuffled, Source(ROWS[:2], x_p[:2]), draws(), PAD)
    assert [set(row) for row in two[ROWS[:2]]] == [set(x_p[1]), set(x_p[0])]
    elements = build(strategies.shuffled_elements, given_, draws(), PAD)[ROWS]
    assert sorted(elements.ravel()) == sorted(x_p.ravel())
    assert {frozenset(row) for row in elements} != set(by_set)
    assert (given_.vectors == x_p).all()


def test_oov_mean_and_zeros():
    mean = vectors().astype(np.float64).mean(axis=0)
    table = build(strategies.pretrained, source(oov="mean"), draws(), PAD)
    np.testing.assert_allclose(table[MISSING], np.tile(mean, (len(MISSING), 1)), rtol=1e-6)
    assert not build(strategies.pretrained, source(oov="zeros"), draws(), PAD)[MISSING].any()
    # in the space of the final table: standardised rows have a standardised mean
    table = build(strategies.pretrained_xavier, source(oov="mean"), draws(), PAD)
    np.testing.assert_allclose(table[MISSING][0], table[ROWS].mean(axis=0), rtol=1e-4, atol=1e-8)
    flat = Source(ROWS, np.ones((len(ROWS), D), dtype=np.float32))
    with pytest.raises(CoverageError, match=r"all the same number.*right file"):
        build(strategies.pretrained_xavier, flat, draws(), PAD)


def test_oov_gaussian_has_the_mean_and_covariance_of_the_found_rows(monkeypatch):
    monkeypatch.setattr(strategies, "_BLOCK_ELEMENTS", 70_000)
    generator = np.random.default_rng(0)
    found = (generator.normal(size=(50, 3)) @ generator.normal(size=(3, 3)) + [1.0, -2.0, 0.5]).astype(np.float32)
    for rows in (found, found[:2]):  # the covariance of two has 1/2, not 1/(2 - 1)
        given, draw = Source(np.arange(len(rows)), rows, "gaussian"), Draws(len(rows) + 60_000, 3, 1, "encoder")
        sample = build(strategies.pretrained, given, draw, None)[len(rows) :].astype(np.float64)
        assert np.abs(sample.mean(axis=0) - rows.mean(axis=0)).max() < 0.03
        np.testing.assert_allclose(np.cov(sample.T), np.cov(rows.astype(np.float64).T, ddof=0), rtol=0.03, atol=0.03)


def test_draws_are_paired_independent_and_leave_global_states_alone():
    first = build(strategies.pretrained, source(), draws(), PAD)
    assert (first[ROWS] == vectors()).all()
    assert (first[MISSING] == strategies.xavier(None, draws())[MISSING]).all()
    assert (not first[PAD].any(), build(strategies.pretrained, source(), draws(), None)[PAD].all()) == (True, True)

    def states():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    random.random(), np.random.random(), torch.rand(1)
    before = states()
    assert (first == build(strategies.pretrained, source(), draws(), PAD)).all()
    assert states() == before
    # the same in every process and version: reports of runs name no more than slot and seed
    fixed = [[-0.40978634, -0.07917356], [-0.50629514, 0.6919204]]
    np.testing.assert_allclose(strategies.xavier(None, Draws(2, 2, 1, "encoder")), fixed, rtol=1e-6)
    mine = strategies.xavier(None, draws())
    for other in (Draws(N, D, 1, "decoder"), Draws(N, D, 2, "encoder"), Draws(N, D, 1 + 2**40, "encoder")):
        assert (mine != strategies.xavier(None, other)).mean() > 0.99
    drawn = Draws(400, 50, 1, "encoder")
    ranks = [values.ravel().argsort().argsort() for values in (drawn.xavier, drawn.normal)]
    assert abs(np.corrcoef(*ranks)[0, 1]) < 0.03


# ---- numbers about a table, and the report


@given(st.integers(1, 50), st.integers(1, 9), st.floats(1e-3, 1e3), st.floats(-100, 100), st.integers(0, 2**31))
@settings(max_examples=40)
def test_describe_equals_numpy_in_float64(rows, dim, scale, shift, seed):
    matrix = (np.random.default_rng(seed).normal(shift, scale, (rows, dim))).astype(np.float32)
    wide = matrix.astype(np.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("embinit_fairseq.init.init_report.BLOCK_ROWS", 7)
        got = describe(matrix)
    expected = {"min": wide.min(), "max": wide.max(), "mean": wide.mean()}
    expected["std"] = wide.std(ddof=1) if wide.size > 1 else math.nan
    assert got == pytest.approx(expected, rel=1e-9, abs=1e-9 * scale, nan_ok=True)
    assert all(map(math.isnan, describe(matrix[:0]).values()))
    order = Draws(4, 4, seed, "encoder").derangement(rows + 1)
    assert sorted(order) == list(range(rows + 1))
    assert (order != np.arange(rows + 1)).all()


@given(st.lists(st.booleans(), max_size=40))
@settings(max_examples=20)
def test_packed_rows_come_back(mask):
    assert unpack_rows(pack_rows(np.array(mask, dtype=bool)), len(mask)).tolist() == mask


def test_the_absorption_ratio_of_kims_table_6():
    """Scaled GloVe 6.39 against positions 0.67."""
    assert absorption_ratio(0.369, math.sqrt(300), 0.67) == pytest.approx(6.39 / 0.67, rel=0.01)
    assert absorption_ratio(0.1, 1.0, None) is None


MOMENTS = {"min": -3.0, "max": 3.5, "mean": 0.02, "std": 0.375}
#: what version 0.1.0 wrote, as far as it is shown
OLD = {
    "strategy": "pretrained", "oov": "xavier", "shuffle": None, "std": None, "target_std": None, "seed": 1,
    "before": {**MOMENTS, "std": math.nan}, "source_moments": MOMENTS, "after": {**MOMENTS, "std": 0.1625},
    "rows": 1000, "dim": 300, "tied": [], "embed_scale": 20.0, "position_std": 0.5, "absorption_ratio": 6.5,
    "source": {"name": "glove.txt"}, "rows_by_rule": {"exact": 170, "casefold": 10}, "found": 180,
    "coverage_types": 0.18, "coverage_tokens": 0.71, "freeze": None,
    "signature": "init:pretrained|src:glove.txt|dim:300|cov:0.710|oov:xavier|seed:1|v:0.1.0",
}  # fmt: skip


def test_a_report_has_a_line_for_each_file_and_for_rows_with_a_vector():
    file = {"name": "b", "rows_by_rule": {"exact": 9}, "found": 9, "coverage_types": 0.25, "coverage_tokens": 0.5}
    slot = {**OLD, "matched": MOMENTS, "matched_absorption_ratio": 15.0, "tied": ["decoder"], "position_std": None}
    slot["source"] = {"name": "a", "found_in_all": 1, "sources": [file, {**file, "name": "c", "composed": 2}]}
    text = render({"strategy": "pretrained", "slots": {"encoder": slot}})
    assert "in all sources: 1 word\n" in text
    found = "9 words (exact 9); coverage 25.0% of types, 50.0% of tokens"
    assert f"b: {found}\n" in text
    assert f"c: {found}; 2 rows of other words composed\n" in text
    assert re.search(r"rows with a vector +-3 +3.5 +0.02 +0.375 +7.5 +15\n", text)
    assert "encoder (tied with decoder): 1,000 x 300  init:pretrained|" in text


@pytest.mark.parametrize(
    ("changes", "part", "instead"),
    [
        ({}, "", ""),
        ({"freeze": "encoder:known"}, "|seed", "|freeze:encoder:known|seed"),
        ({"source": {"name": "a|b"}}, "glove.txt", "a_b"),
        ({"source": None, "oov": None}, "|src:glove.txt|dim:300|cov:0.710|oov:xavier", ""),
        ({"shuffle": "rows", "target_std": 0.004, "std": "0.25x"}, "|seed", "|std:0.25x|seed"),
        ({"target_std": 0.004}, "|seed", "|std:xavier|seed"),
        ({"shuffle": "elements"}, "pretrained", "pretrained_elements"),
    ],
)
def test_signatures(changes, part, instead):
    expected = OLD["signature"].replace(part, instead) if part else OLD["signature"]
    assert signature({**OLD, **changes}, "0.1.0") == expected
