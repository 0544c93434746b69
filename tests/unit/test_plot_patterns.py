"""Names of attention patterns: known maps, an independent statement of the numbers, invariances."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embinit_fairseq.analysis.position_patterns import PATTERNS, head_patterns
from embinit_fairseq.errors import OptionError

LENGTHS = (16, 63, 120)


def offsets(n: int) -> np.ndarray:
    return np.arange(n) - np.arange(n)[:, None]  # key - query


def bump(centre: float, width: float, n: int) -> np.ndarray:
    """(n, n): a Gaussian around query + centre; both as shares of n."""
    return -(((offsets(n) / n - centre) / width) ** 2) / 2


SYNTHETIC = {
    "globally": [lambda n: np.zeros((n, n)), lambda n: 0.5 * np.sin(np.arange(n)) + np.zeros((n, 1))],
    "locally": [lambda n: bump(0, 0.03, n), lambda n: 12.0 * (offsets(n) == 0)],
    "broadly": [lambda n: bump(0, 0.12, n)],
    "previous": [lambda n: bump(-0.12, 0.04, n), lambda n: 3.0 * (offsets(n) < 0), lambda n: 12.0 * (offsets(n) == -1)],
    "next": [lambda n: bump(0.12, 0.04, n), lambda n: 3.0 * (offsets(n) > 0), lambda n: 12.0 * (offsets(n) == 1)],
    # everybody looks at the same place: in the middle; at both ends
    "other": [
        lambda n: np.where(np.arange(n) == n // 2, 12.0, 0) + np.zeros((n, 1)),
        lambda n: np.where((np.arange(n) == 0) | (np.arange(n) == n - 1), 12.0, 0) + np.zeros((n, 1)),
    ],
}
CASES = [(name, case) for name, cases in SYNTHETIC.items() for case in range(len(cases))]


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize(("name", "case"), CASES)
def test_names_of_known_maps(name, case, n):
    (pattern,) = head_patterns(SYNTHETIC[name][case](n)[None])
    assert pattern.name == name, pattern


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.sampled_from(LENGTHS))
def test_names_survive_small_noise(seed, n):
    generator = np.random.default_rng(seed)
    scores = np.stack([SYNTHETIC[name][case](n) for name, case in CASES])
    # a shift of a whole row means nothing to a softmax, whatever its size
    noise = generator.normal(0, 0.1, scores.shape) + generator.normal(0, 5, (*scores.shape[:2], 1))
    assert [pattern.name for pattern in head_patterns(scores + noise)] == [name for name, _ in CASES]


def plain_numbers(scores: np.ndarray) -> tuple[float, float, float, float]:
    """width, keys, direction, distance of one head, with loops."""
    n = len(scores)
    spread = allowed = direction = distance = uniform = 0.0
    for i in range(n):
        seen = [j for j in range(n) if scores[i, j] > -math.inf]
        total = sum(math.exp(scores[i, j]) for j in seen)
        weights = {j: math.exp(scores[i, j]) / total for j in seen}
        spread += math.exp(-sum(w * math.log(w) for w in weights.values() if w))
        allowed += len(seen)
        direction += sum(w for j, w in weights.items() if j > i) - sum(w for j, w in weights.items() if j < i)
        distance += sum(w * abs(i - j) for j, w in weights.items())
        uniform += sum(abs(i - j) for j in seen) / len(seen)
    return spread / allowed, spread / n, direction / n, distance / uniform


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(2, 7), size=st.floats(0, 20), causal=st.booleans())
def test_numbers_against_a_plain_statement(seed, n, size, causal):
    scores = np.random.default_rng(seed).normal(0, size, (3, n, n))
    if causal:
        scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)
    for pattern, head in zip(head_patterns(scores), scores):
        found = (pattern.width, pattern.keys, pattern.direction, pattern.distance)
        assert found == pytest.approx(plain_numbers(head), abs=1e-12)
        assert pattern.name in PATTERNS


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_mirror_image_looks_the_other_way(seed):
    scores = np.random.default_rng(seed).normal(0, 2, (2, 6, 6))
    for pattern, mirrored in zip(head_patterns(scores), head_patterns(scores[:, ::-1, ::-1])):
        assert mirrored.direction == pytest.approx(-pattern.direction, abs=1e-12)
        assert mirrored.distance == pytest.approx(pattern.distance)
        other_way = {"previous": "next", "next": "previous"}
        assert mirrored.name == other_way.get(pattern.name, pattern.name)


@pytest.mark.parametrize("n", LENGTHS)
def test_without_later_keys_there_is_no_direction(n):
    """In a decoder all lies before the query: names say how wide a head looks."""
    causal = np.where(np.tri(n, dtype=bool), 0.0, -np.inf)
    maps = [np.zeros((n, n)), bump(0, 0.02, n), 12.0 * (offsets(n) == -1), bump(0, 0.15, n)]
    maps.append(np.where(np.arange(n) == 0, 12.0, 0) + np.zeros((n, 1)))  # everybody looks at the first token
    patterns = head_patterns(np.stack(maps) + causal)
    assert [pattern.name for pattern in patterns] == ["globally", "locally", "locally", "broadly", "other"]
    assert (patterns[0].width, patterns[0].distance) == pytest.approx((1, 1))


def test_one_position_has_no_pattern():
    with pytest.raises(OptionError, match="at least 2 positions"):
        head_patterns(np.zeros((1, 1, 1)))
