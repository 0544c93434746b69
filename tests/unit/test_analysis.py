"""Test analogies (questions, 3CosAdd, scores, transformations) and the numbers of Kim's Tables 2 and 6."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from embinit_fairseq.analysis import transforms as positions
from embinit_fairseq.analysis import word_analogies as search
from embinit_fairseq.analysis.statistics import dictionary_statistics, frequent_words
from embinit_fairseq.analysis.transforms import Surroundings, transform
from embinit_fairseq.analysis.word_analogies import evaluate, read_questions, score
from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.init.alignment import read_sources
from embinit_fairseq.vectors.open import parse_source
from embinit_fairseq.vectors.table import Origin, VectorTable
from embinit_fairseq.vocab.dictionary import read_dictionary

WORDS = ["man", "woman", "king", "queen", "apple"]
# royalty, femininity, fruit
VECTORS = np.array([[0, 0, 1], [0, 1, 1], [1, 0, 1], [1, 1, 1], [0, 0, -3]], dtype=np.float32)
QUESTIONS = b": family\nman woman king queen\nMan King Woman Queen\n"
QUESTIONS += b": fruit\nman woman apple pear\nking queen man apple\n"


def normal(*shape: int, mean: float = 0.0, sigma: float = 1.0, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, sigma, shape).astype(np.float32)


@pytest.fixture
def read(tmp_path):
    """Questions of a file with this content."""

    def call(content: bytes = QUESTIONS, **options):
        (tmp_path / "questions.txt").write_bytes(content)
        return read_questions(str(tmp_path / "questions.txt"), **options)

    return call


def test_questions_and_scores_by_section(read):
    questions = read()
    assert (questions.sections, questions.section.tolist()) == (["family", "fruit"], [0, 0, 1, 1])
    assert questions.vocabulary() == {"man", "woman", "king", "queen", "apple", "pear"}
    assert questions.rows(["king", "man", "man", "woman", "queen"])[0].tolist() == [1, 3, 0, 4]  # the first of two
    found = {each.name: (each.correct, each.applicable, each.total) for each in score(WORDS, VECTORS, questions)}
    assert found == {"family": (2, 2, 2), "fruit": (0, 1, 2), "total": (2, 3, 4)}
    with pytest.raises(DataError, match="--case"):
        score(["x", "y"], VECTORS[:2], questions)
    assert read(lower=False).words[1] == ("Man", "King", "Woman", "Queen")
    questions = read(b"a b c d\r\n\r\n: two\r\ne f g h")
    assert questions.words == [tuple("abcd"), tuple("efgh")]
    assert [questions.sections[at] for at in questions.section] == ["(no section)", "two"]
    for bad, said in ((b": s\na b c\n", ":2: 3 words"), (b": s\n", "no questions"), (b"\xff\xfe\n", "UTF-8")):
        with pytest.raises(DataError, match=rf"questions\.txt.*{said}"):
            read(bad)


def test_positions_are_drawn_with_one_seed_after_the_other(read, monkeypatch):
    seeds = []
    monkeypatch.setattr(search, "transform", lambda matrix, _, around: seeds.append(around.seed) or matrix[::-1])
    runs = evaluate(WORDS, VECTORS, read(), ["xavier", "positions"], Surroundings(seed=4), repeats=3)
    assert (seeds, len(runs)) == ([4, 5, 6], 3)
    assert evaluate(WORDS, VECTORS, read(), ["xavier"], Surroundings(seed=4), repeats=3) == runs[:1]
    assert seeds[3:] == [4]


def test_steps_apply_from_left_to_right_and_leave_their_argument_alone():
    matrix, around = normal(40, 4, mean=0.5), Surroundings(position_rows=30)
    matrix -= (mean := matrix.mean())
    expected = matrix * math.sqrt(2 / (40 + 4)) / matrix.std(ddof=1)  # Kim, equation (1), whatever the mean
    np.testing.assert_allclose(transform(matrix + mean, ["xavier"], around), expected, rtol=1e-4, atol=1e-6)
    before = matrix.copy()
    position = transform(np.zeros_like(matrix), ["positions"], around)
    np.testing.assert_allclose(transform(matrix, ["scaled", "positions"], around), matrix * 2 + position, rtol=1e-6)
    # X + P sigma_p / sigma_x is (X sigma_x / sigma_p + P) times a number: rows 6 and 7 of Table 4 ask the same thing
    one, other = (transform(matrix, steps, around) for steps in (["scaled_positions"], ["xavier", "positions"]))
    np.testing.assert_allclose(one / one.std(), other / other.std(), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(matrix, before)
    drawn = transform(np.zeros((500, 6), dtype=np.float32), ["positions"], Surroundings(position_rows=7))
    np.testing.assert_allclose(np.unique(drawn, axis=0), np.unique(positions.kim(7, 6), axis=0), atol=1e-6)


def test_position_formulas_by_hand_and_what_cannot_be_done():
    sinusoidal = pytest.importorskip("fairseq.modules.sinusoidal_positional_embedding")
    theirs = sinusoidal.SinusoidalPositionalEmbedding.get_embedding(40, 12).numpy()
    np.testing.assert_allclose(positions.fairseq(40, 12), theirs, atol=1e-5)
    sin, cos = math.sin, math.cos
    kim, vaswani, fairseq = positions.kim(3, 4)[2], positions.vaswani(3, 4)[2], positions.fairseq(3, 5)[2]
    assert kim.tolist() == pytest.approx([sin(2), cos(2 / 10000**0.25), sin(2 / 100), cos(2 / 10000**0.75)])
    assert vaswani.tolist() == pytest.approx([sin(2), cos(2), sin(2 / 100), cos(2 / 100)])
    assert fairseq.tolist() == pytest.approx([sin(2), sin(2 / 10000), cos(2), cos(2 / 10000), 0.0])
    with pytest.raises(OptionError, match="equal"):
        transform(np.ones((4, 4), dtype=np.float32), ["xavier"], Surroundings())
    with pytest.raises(OptionError, match="--position-rows 0"):
        positions.position_table("kim", 0, 4)


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
    rows, dim = draw(st.integers(3, 16)), draw(st.integers(1, 4))
    # small integers: many equal vectors, parallel vectors, rows of zeros, exact ties
    integers = arrays.arrays(np.float32, (rows, dim), elements=st.integers(-2, 2).map(float))
    floats = arrays.arrays(np.float32, (rows, dim), elements=st.floats(-1e6, 1e6, width=32, allow_subnormal=False))
    questions = draw(st.lists(st.tuples(*[st.integers(0, rows - 1)] * 3), min_size=1, max_size=8))
    return draw(st.one_of(integers, floats)), np.array(questions), draw(st.integers(1, rows))


@settings(max_examples=50)
@given(tables())
def test_agrees_with_the_definition(case):
    assert search.nearest(*case).tolist() == naive(*case[:2])


def test_scores_that_single_precision_cannot_tell_apart():
    matrix, questions = normal(90, 8), np.stack([np.arange(15), np.full(15, 30), np.arange(15, 30)], axis=1)
    matrix[30:] = matrix[30] + normal(60, 8, sigma=1e-6, seed=1)
    assert search.nearest(matrix, questions, 32).tolist() == naive(matrix, questions)
    matrix[3, 1] = np.nan
    with pytest.raises(DataError, match="row 3"):
        search.nearest(matrix, questions)


def make_table(words: list[str], matrix: np.ndarray) -> VectorTable:
    return VectorTable(words, matrix.astype(np.float32), Origin("v.txt", "glove", 99, matrix.shape[1]))


def statistics(table: VectorTable, vocabulary, *arguments, **options) -> dict:
    reader = SimpleNamespace(dim=table.origin.dim, spelling=table.spelling, read=lambda wanted: table)
    found = read_sources([reader], parse_source("v.txt"), vocabulary)
    return dictionary_statistics(found, vocabulary, *arguments, **options)


@pytest.fixture
def vocabulary(tmp_path):
    (tmp_path / "dict.txt").write_text("the 60\ncat 25\nHouse 10\nzyx 4\nqqq 1\n", encoding="utf-8")
    return read_dictionary(tmp_path / "dict.txt")


def moments(values: np.ndarray) -> dict[str, float]:
    return {"min": values.min(), "max": values.max(), "mean": values.mean(), "std": values.std(ddof=1)}


def test_matched_rows_of_a_dictionary_and_what_they_are_compared_with(vocabulary):
    table = make_table(["unused", "house", "cat", "the"], normal(4, 6, mean=0.2, sigma=0.5))
    record = statistics(table, vocabulary, "kim", 40, missing=1)
    found = table.matrix[1:].astype(np.float64)
    assert (record["rows"], record["dim"], record["found"], record["source_rows"]) == (9, 6, 3, 99)
    assert (record["coverage_types"], record["coverage_tokens"]) == pytest.approx((3 / 5, 95 / 100))
    assert record["rows_by_rule"] == {"exact": 2, "casefold": 1}
    assert record["missing"] == [("zyx", 4)]
    assert {key: record[key] for key in moments(found)} == pytest.approx(moments(found))
    sigma_x = math.sqrt(6 / (9 + 6)) / math.sqrt(3)
    xavier, tables = moments((found - found.mean()) * sigma_x / found.std(ddof=1)), record["tables"]
    assert {key: tables["pretrained_xavier"][key] for key in xavier} == pytest.approx(xavier, abs=1e-9)
    scaled = {key: tables["pretrained"]["scaled"][key] for key in xavier}
    assert scaled == pytest.approx(moments(found * math.sqrt(6)))
    assert tables["xavier"]["max"] == pytest.approx(math.sqrt(6 / 15))
    of_positions = math.sqrt(6) / record["positions"]["std"]
    assert record["absorption_ratio"] == pytest.approx(record["std"] * of_positions)
    assert record["absorption_ratios"]["xavier"] == pytest.approx(sigma_x * of_positions)


def test_all_rows_have_the_moments_of_a_table_that_is_filled_with_a_draw(vocabulary):
    """Against 4,000 tables that are filled: two rows with a vector, six drawn rows, one of padding."""
    matrix = normal(2, 6, mean=0.2, sigma=0.5)
    record = statistics(make_table(["cat", "the"], matrix), vocabulary)
    bound = math.sqrt(6 / (9 + 6))
    drawn = np.random.default_rng(1).uniform(-bound, bound, (4000, 9, 6))
    drawn[:, :2], drawn[:, 2] = matrix, 0
    whole = record["all_rows"]["pretrained"]
    assert whole["mean"] == pytest.approx(matrix.sum(dtype=np.float64) / 54)
    assert whole["std"] ** 2 == pytest.approx(drawn.reshape(4000, -1).var(axis=1, ddof=1).mean(), rel=0.005)
    assert (whole["min"], whole["max"]) == (min(matrix.min(), -bound), max(matrix.max(), bound))
    expected = whole["std"] * math.sqrt(6) / record["positions"]["std"]
    assert record["absorption_ratios_all_rows"]["pretrained"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("foo 3 \nbar -1\nbaz 4 #fairseq:overwrite\n", ["baz", "foo", "bar"]),
        ("a b 3\nb 3\n", ["b", "3", "a"]),  # text: no symbol has a blank
        ("a b\n", ["a", "b"]),
    ],
)
def test_words_of_a_dictionary_and_of_a_text(tmp_path, text, words):
    (tmp_path / "words").write_text(text)
    assert frequent_words(str(tmp_path / "words")).symbols == words
