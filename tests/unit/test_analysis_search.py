"""3CosAdd against a naive double-precision implementation, with stripes and blocks so small that all is split."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from embinit_fairseq.analysis import analogy as search
from embinit_fairseq.errors import DataError, OptionError


def naive(matrix: np.ndarray, questions: np.ndarray) -> list[int]:
    """The definition, one question and one word at a time, sums rounded once."""
    unit = []
    for row in matrix.astype(np.float64):
        length = math.sqrt(math.fsum(value * value for value in row))
        unit.append([value / length if length else 0.0 for value in row])
    answers = []
    for a, b, c in questions.tolist():
        target = [y - x + z for x, y, z in zip(unit[a], unit[b], unit[c])]
        scores = [
            -math.inf if word in (a, b, c) else math.fsum(u * t for u, t in zip(vector, target))
            for word, vector in enumerate(unit)
        ]
        top = max(scores)
        first = next(word for word, score in enumerate(scores) if score >= top - search.TIE)
        answers.append(first if top > -math.inf else -1)
    return answers


@st.composite
def tables(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    rows, dim = draw(st.integers(3, 40)), draw(st.integers(1, 6))
    # small integers: many equal vectors, parallel vectors, rows of zeros, exact ties
    integers = arrays.arrays(np.float32, (rows, dim), elements=st.integers(-2, 2).map(float))
    floats = arrays.arrays(np.float32, (rows, dim), elements=st.floats(-1e6, 1e6, width=32, allow_subnormal=False))
    matrix = draw(st.one_of(integers, floats))
    questions = draw(st.lists(st.tuples(*[st.integers(0, rows - 1)] * 3), min_size=1, max_size=20))
    return matrix, np.array(questions), draw(st.integers(1, rows))


@settings(max_examples=100, deadline=None)
@given(tables())
def test_agrees_with_the_definition(case):
    matrix, questions, block = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "STRIPE", 4)
        patch.setattr(search, "CHUNK", 3)
        patch.setattr(search, "PENDING", 2)
        assert search.nearest(matrix, questions, block).tolist() == naive(matrix, questions)


@pytest.mark.parametrize("block", [1, 128, 300, 10_000])
def test_agrees_on_ordinary_vectors_with_the_real_stripes(block):
    generator = np.random.default_rng(5)
    matrix = generator.standard_normal((700, 8)).astype(np.float32)
    questions = generator.integers(0, 700, size=(60, 3))
    assert search.nearest(matrix, questions, block).tolist() == naive(matrix, questions)


def test_scores_that_single_precision_cannot_tell_apart():
    generator = np.random.default_rng(2)
    matrix = generator.standard_normal((400, 16)).astype(np.float32)
    matrix[100:] = matrix[100] + generator.standard_normal((300, 16)).astype(np.float32) * 1e-6
    questions = np.stack([np.arange(50), np.full(50, 100), np.arange(50, 100)], axis=1)
    expected = naive(matrix, questions)
    unit = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    single = unit @ (unit[questions[:, 1]] - unit[questions[:, 0]] + unit[questions[:, 2]]).T
    single[questions.T, np.arange(50)] = -9
    assert single.argmax(axis=0).tolist() != expected  # the case is one that needs care
    assert search.nearest(matrix, questions, 128).tolist() == expected


def test_equal_vectors_give_the_lowest_row_across_blocks():
    matrix = np.ones((600, 3), dtype=np.float32)
    assert search.nearest(matrix, np.array([[0, 1, 3], [4, 4, 4]]), block=128).tolist() == [2, 0]


def test_no_other_row_is_minus_one():
    assert search.nearest(np.eye(3), np.array([[0, 1, 2]])).tolist() == [-1]


def test_no_questions():
    assert search.nearest(np.eye(3), np.empty((0, 3))).shape == (0,)


def test_extreme_lengths_do_not_matter():
    generator = np.random.default_rng(3)
    matrix = generator.standard_normal((50, 5)).astype(np.float32)
    questions = generator.integers(0, 50, size=(20, 3))
    lengths = np.float32(10.0) ** generator.integers(-30, 30, size=(50, 1))
    assert search.nearest(matrix * lengths, questions).tolist() == search.nearest(matrix, questions).tolist()


def test_values_that_are_not_finite_are_refused():
    matrix = np.ones((5, 2))
    matrix[3, 1] = np.nan
    with pytest.raises(DataError, match="row 3"):
        search.nearest(matrix, np.array([[0, 1, 2]]))


def test_block_must_be_positive():
    with pytest.raises(OptionError, match="block"):
        search.nearest(np.eye(4), np.array([[0, 1, 2]]), block=0)


def test_progress_sees_every_block():
    seen = []
    search.nearest(np.ones((1000, 2)), np.array([[0, 1, 2]]), 256, lambda blocks: [seen.append(b) or b for b in blocks])
    assert seen == [0, 256, 512, 768]
