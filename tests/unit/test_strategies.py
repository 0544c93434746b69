"""Kim's initialisations against plain statements of their equations in float64, and the record that tells of them."""

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embinit_fairseq.errors import CoverageError, OptionError
from embinit_fairseq.init import draws as module
from embinit_fairseq.init import strategies
from embinit_fairseq.init.draws import Draws, TargetStd, parse_std
from embinit_fairseq.init.report import (
    absorption_ratio,
    describe,
    pack_rows,
    render,
    signature,
    unpack_rows,
    xavier_bound,
)
from embinit_fairseq.init.strategies import STRATEGIES, Source, build

N, D, PAD = 40, 6, 1
ROWS = np.array([0, 4, 5, 7, 9, 10, 11, 20, 30, 39])
MISSING = [row for row in range(N) if row not in ROWS and row != PAD]


def vectors(scale=0.4, shift=0.05, seed=3):
    return (np.random.default_rng(seed).normal(shift, scale, (len(ROWS), D))).astype(np.float32)


def source(**keywords):
    return Source(ROWS.copy(), vectors(), **keywords)


def draws(**keywords):
    return Draws(N, D, seed=1, slot="encoder", **keywords)


def moments():
    """X_p and X_x in float64."""
    return vectors().astype(np.float64), strategies.xavier(None, draws()).astype(np.float64)


def test_xavier_is_uniform_within_the_bound_of_the_final_size():
    table = build(strategies.xavier, None, Draws(2000, 50, 1, "encoder"), PAD)
    bound = math.sqrt(6 / (2000 + 50))
    assert xavier_bound(2000, 50) == bound
    assert np.abs(table).max() <= bound * (1 + 1e-6)
    assert np.abs(table).max() > 0.999 * bound
    assert abs(table.mean(dtype=np.float64)) < 5 * bound / math.sqrt(3 * table.size)
    assert table.std(dtype=np.float64) == pytest.approx(bound / math.sqrt(3), rel=0.01)
    assert not table[PAD].any()


def test_pretrained_keeps_rows_to_the_bit_and_draws_the_rest_like_xavier():
    table = build(strategies.pretrained, source(), draws(), PAD)
    assert (table[ROWS] == vectors()).all()
    assert (table[MISSING] == strategies.xavier(None, draws())[MISSING]).all()
    assert not table[PAD].any()
    assert build(strategies.pretrained, source(), draws(), None)[PAD].all()


def test_normal_has_fairseqs_distribution():
    table = strategies.normal(None, Draws(2000, 64, 1, "encoder"))
    assert table.std() == pytest.approx(1 / 8, rel=0.01)
    assert np.abs(table).max() > 3.5 / 8  # not uniform


@pytest.mark.parametrize("std", [None, "xavier", "0.25x", "3x", "0.3"])
def test_pretrained_xavier_is_equation_1(std):
    x_p, x_x = moments()
    own = x_x.std(ddof=1)
    sigma = {"0.25x": 0.25 * own, "3x": 3 * own, "0.3": 0.3}.get(std, own)
    chosen = draws(std=parse_std(std))
    table = build(strategies.pretrained_xavier, source(), chosen, PAD)
    np.testing.assert_allclose(table[ROWS], (x_p - x_p.mean()) * sigma / x_p.std(ddof=1), rtol=2e-7, atol=1e-12)
    assert chosen.target_std == pytest.approx(sigma, rel=1e-7)
    assert describe(chosen.xavier)["std"] == pytest.approx(sigma, rel=1e-6)  # and so are the drawn rows
    np.testing.assert_allclose(chosen.xavier, x_x * (sigma / own), rtol=1e-6)  # one draw at every scale
    assert (table[MISSING] == chosen.xavier[MISSING]).all()


def test_what_a_sigma_may_be():
    """Numbers are in checkpoints of earlier versions."""
    for given_, expected in {None: (None, 1, None), "xavier": (None, 1, None), "1x": (None, 1, None)}.items():
        got = parse_std(given_)
        assert (got.number, got.times, got.label) == expected
    for number in (0.02, 1e-3, 1e-19, 9e19):
        for std in (parse_std(str(number)), parse_std(number)):
            assert (std.number, std.times, std.label) == (number, 1, number)
    bad = "0 -1 nan inf 1e30 1e20 1e-20 0x -2x nanx x xavierx Xavier".split()
    for given_ in [*bad, "", 0.0]:
        with pytest.raises(OptionError, match=r"--embed-init-std .*positive number.*0\.25x.*xavier"):
            parse_std(given_)


@given(st.floats(1e-19, 1e19), st.booleans())
@settings(max_examples=40)
def test_a_label_is_read_back_as_what_it_says(value, relative):
    std = TargetStd(times=value) if relative else TargetStd(value)
    assert parse_std(std.label) == std


@pytest.mark.parametrize("shuffle", [strategies.shuffled, strategies.shuffled_elements])
@pytest.mark.parametrize("std", ["xavier", "0.25x", "0.3"])
def test_shuffled_vectors_at_a_chosen_scale_are_those_of_equation_1_shuffled(shuffle, std):
    scaled = draws(std=parse_std(std))
    table = build(lambda *given: shuffle(*given, rescaled=True), source(), scaled, PAD)
    straight = build(strategies.pretrained_xavier, source(), draws(std=parse_std(std)), PAD)
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
    elements = build(strategies.shuffled_elements, given_, draws(), PAD)[ROWS]
    assert sorted(elements.ravel()) == sorted(x_p.ravel())
    assert {frozenset(row) for row in elements} != set(by_set)
    assert (given_.vectors == x_p).all()


@given(st.integers(2, 12), st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_derangements_leave_nothing_in_place(count, seed):
    order = Draws(4, 4, seed, "encoder").derangement(count)
    assert sorted(order) == list(range(count))
    assert (order != np.arange(count)).all()


def test_oov_mean_and_zeros():
    mean = vectors().astype(np.float64).mean(axis=0)
    table = build(strategies.pretrained, source(oov="mean"), draws(), PAD)
    np.testing.assert_allclose(table[MISSING], np.tile(mean, (len(MISSING), 1)), rtol=1e-6)
    assert not build(strategies.pretrained, source(oov="zeros"), draws(), PAD)[MISSING].any()
    # in the space of the final table: standardised rows have a standardised mean
    table = build(strategies.pretrained_xavier, source(oov="mean"), draws(), PAD)
    np.testing.assert_allclose(table[MISSING][0], table[ROWS].mean(axis=0), rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("block", [16_000_000, 70_000])
def test_oov_gaussian_has_the_mean_and_covariance_of_the_found_rows(monkeypatch, block):
    monkeypatch.setattr(module, "_BLOCK_ELEMENTS", block)

    def drawn(found, rows):
        found_rows, draw = np.arange(len(found)), Draws(len(found) + rows, found.shape[1], 1, "encoder")
        return build(strategies.pretrained, Source(found_rows, found, "gaussian"), draw, None)[len(found) :]

    generator = np.random.default_rng(0)
    found = (generator.normal(size=(50, 3)) @ generator.normal(size=(3, 3)) + [1.0, -2.0, 0.5]).astype(np.float32)
    sample = drawn(found, 60_000).astype(np.float64)
    assert np.abs(sample.mean(axis=0) - found.mean(axis=0)).max() < 0.03
    np.testing.assert_allclose(np.cov(sample.T), np.cov(found.astype(np.float64).T, ddof=0), rtol=0.03, atol=0.03)
    # of two rows, too: the covariance has 1/K, not 1/(K - 1)
    sample = drawn(np.float32([[1.0], [3.0]]), 40_000)
    assert (sample.mean(), sample.std()) == (pytest.approx(2.0, abs=0.03), pytest.approx(1.0, rel=0.03))


def test_composed_rows_are_transformed_but_do_not_count():
    composed = np.full((2, D), 0.7, dtype=np.float32)
    with_composed = Source(ROWS, vectors(), "subword", np.array([2, 3]), composed)
    table = build(strategies.pretrained_xavier, with_composed, draws(), PAD)
    plain = build(strategies.pretrained_xavier, source(), draws(), PAD)
    assert (table[ROWS] == plain[ROWS]).all()
    x_p, x_x = moments()
    np.testing.assert_allclose(table[2], (0.7 - x_p.mean()) * x_x.std(ddof=1) / x_p.std(ddof=1), rtol=1e-5)
    left = [row for row in MISSING if row not in (2, 3)]
    assert (table[left] == plain[left]).all()  # what cannot be composed is drawn


def test_draws_are_paired_independent_and_leave_global_states_alone():
    first = build(strategies.pretrained, source(), draws(), PAD)
    states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    random.seed(5), np.random.seed(6), torch.manual_seed(7)
    disturbed = np.random.get_state()[1].copy(), torch.get_rng_state()
    assert (first == build(strategies.pretrained, source(), draws(), PAD)).all()
    assert (np.random.get_state()[1] == disturbed[0]).all()
    assert (torch.get_rng_state() == disturbed[1]).all()
    random.setstate(states[0]), torch.set_rng_state(states[2])
    mine = strategies.xavier(None, draws())
    for other in (Draws(N, D, 1, "decoder"), Draws(N, D, 2, "encoder"), Draws(N, D, 1 + 2**40, "encoder")):
        assert (mine != strategies.xavier(None, other)).mean() > 0.99
    drawn = Draws(400, 50, 1, "encoder")
    ranks = [values.ravel().argsort().argsort() for values in (drawn.xavier, drawn.normal)]
    assert abs(np.corrcoef(*ranks)[0, 1]) < 0.03


def test_constant_vectors_cannot_be_standardised():
    flat = Source(ROWS, np.ones((len(ROWS), D), dtype=np.float32))
    with pytest.raises(CoverageError, match=r"all the same number.*--embed-init-path"):
        build(strategies.pretrained_xavier, flat, draws(), PAD)


def test_what_each_strategy_needs():
    told = {name: (s.needs_source, s.fills, s.scaled, s.always_scaled) for name, s in STRATEGIES.items()}
    assert told == {
        "normal": (False, False, False, True),
        "xavier": (False, False, True, True),
        "pretrained": (True, True, False, True),
        "pretrained_xavier": (True, True, True, True),
        "shuffled": (True, True, True, False),
        "xavier_pretrained": (True, False, False, True),
    }


# ---- numbers about a table, and the report


@given(st.integers(1, 50), st.integers(1, 9), st.floats(1e-3, 1e3), st.floats(-100, 100), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_describe_equals_numpy_in_float64(rows, dim, scale, shift, seed):
    matrix = (np.random.default_rng(seed).normal(shift, scale, (rows, dim))).astype(np.float32)
    wide = matrix.astype(np.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("embinit_fairseq.init.report._BLOCK_ROWS", 7)
        got = describe(matrix)
    assert (got["min"], got["max"]) == (wide.min(), wide.max())
    assert got["mean"] == pytest.approx(wide.mean(), rel=1e-9, abs=1e-9 * scale)
    if wide.size > 1:
        assert got["std"] == pytest.approx(wide.std(ddof=1), rel=1e-9)
    else:
        assert math.isnan(got["std"])
    assert all(map(math.isnan, describe(matrix[:0]).values()))
    assert describe(np.float32([[1.0, 3.0]]))["std"] == pytest.approx(math.sqrt(2))


@given(st.lists(st.booleans(), max_size=40))
@settings(max_examples=30)
def test_packed_rows_come_back(mask):
    assert unpack_rows(pack_rows(np.array(mask, dtype=bool)), len(mask)).tolist() == mask
    # Kim Table 6: scaled GloVe 6.39 and Xavier 0.27 against positions 0.67
    assert absorption_ratio(0.369, math.sqrt(300), 0.67) == pytest.approx(6.39 / 0.67, rel=0.01)
    assert absorption_ratio(0.1, 1.0, None) is None


MOMENTS = {"min": -3.0, "max": 3.5, "mean": 0.02, "std": 0.375}
#: what version 0.1.0 wrote
OLD = {
    "strategy": "pretrained", "oov": "xavier", "shuffle": None, "match": ["casefold", "exact", "marker"],
    "std": None, "target_std": None, "seed": 1, "before": {"min": -1.0, "max": 1.0, "mean": 0.0, "std": 0.25},
    "rows": 1000, "dim": 300, "tied": [], "after": {"min": -3.0, "max": 3.5, "mean": 0.01, "std": 0.1625},
    "embed_scale": 20.0, "after_scaled_std": 3.25, "position_std": 0.5, "absorption_ratio": 6.5,
    "source": {"name": "glove.txt", "format": "glove", "rows": 400000, "dim": 300, "markers": "none"},
    "source_moments": MOMENTS, "markers": "none", "rows_by_rule": {"exact": 170, "casefold": 10}, "composed": 0,
    "found": 180, "coverage_types": 0.18, "coverage_tokens": 0.71, "freeze": None, "in_optimizer": True,
    "signature": "init:pretrained|src:glove.txt|dim:300|cov:0.710|oov:xavier|seed:1|v:0.1.0",
}  # fmt: skip


def shown(slot):
    """The report, and its lines by their title."""
    text = render({"strategy": "pretrained", "slots": {"encoder": slot}})
    return text, {line.strip().split("  ")[0]: line.split() for line in text.splitlines()}


def test_reports_of_this_and_of_earlier_versions_are_shown():
    text, lines = shown(OLD)
    assert lines["all rows"][2:] == ["-3", "3.5", "0.01", "0.1625", "3.25", "6.5"]
    assert lines["model's own"][2:] == ["-1", "1", "0", "0.25", "5"]
    assert lines["position encoding"][2:] == ["0.5"]
    assert "rows with a vector" not in lines
    assert "found 180 words (exact 170, casefold 10); coverage 18.0% of types, 71.0% of tokens" in text
    file = {"rows_by_rule": {"exact": 9}, "found": 9, "coverage_types": 0.25, "coverage_tokens": 0.5}
    sources = [{**file, "name": "glove.txt"}, {**file, "name": "b.vec", "found": 1}]
    new = {**OLD, "matched": MOMENTS, "matched_scaled_std": 7.5, "matched_absorption_ratio": 15.0, "tied": ["decoder"]}
    text, lines = shown({**new, "source": {**OLD["source"], "found_in_all": 1, "sources": sources}})
    assert "in all sources: 1 word\n" in text
    assert "glove.txt: 9 words (exact 9); coverage 25.0% of types, 50.0% of tokens\n" in text
    assert "b.vec: 1 word (exact 9); coverage 25.0%" in text
    assert lines["rows with a vector"][4:] == ["-3", "3.5", "0.02", "0.375", "7.5", "15"]
    assert list(lines).index("rows with a vector") < list(lines).index("all rows")
    assert "encoder (tied with decoder): 1,000 x 300  init:pretrained|" in text
    none = {"matched_absorption_ratio": None, "absorption_ratio": None, "position_std": None}
    _, lines = shown({**new, **none, "source": None, "before": {**MOMENTS, "std": math.nan}})
    assert lines["rows with a vector"][4:] == ["-3", "3.5", "0.02", "0.375", "7.5"]
    assert lines["model's own"][-2:] == ["-", "-"]
    assert "position encoding" not in lines
    assert not any(line.startswith("found") for line in lines)


@pytest.mark.parametrize(
    ("changes", "part", "instead"),
    [
        ({}, "", ""),
        ({"freeze": "encoder:known"}, "|seed", "|freeze:encoder:known|seed"),
        ({"source": {"name": "a|b"}}, "glove.txt", "a_b"),
        ({"source": None, "oov": None}, "|src:glove.txt|dim:300|cov:0.710|oov:xavier", ""),
        ({"shuffle": "rows", "target_std": 0.004, "std": "0.25x"}, "|seed", "|std:0.25x|seed"),
        ({"target_std": 0.004, "std": 0.02}, "|seed", "|std:0.02|seed"),
        ({"target_std": 0.004}, "|seed", "|std:xavier|seed"),
        ({"shuffle": "elements"}, "pretrained", "pretrained_elements"),
    ],
)
def test_signatures(changes, part, instead):
    expected = OLD["signature"].replace(part, instead) if part else OLD["signature"]
    assert signature({**OLD, **changes}, "0.1.0") == expected
