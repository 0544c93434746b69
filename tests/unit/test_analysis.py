"""Analogies (questions, 3CosAdd, scores, transformations) and the numbers of Kim's Tables 2 and 6.

Oracles: tables drawn by hand, a naive double-precision implementation, numpy, the paper's own figures.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from embinit_fairseq.analysis import analogy as search
from embinit_fairseq.analysis import transforms as positions
from embinit_fairseq.analysis.analogy import TABLE4, evaluate, read_questions, score
from embinit_fairseq.analysis.statistics import frequent_words, table_statistics, with_drawn_rows
from embinit_fairseq.analysis.transforms import TRANSFORMS, Surroundings, transform
from embinit_fairseq.errors import CoverageError, DataError, EmbinitError, OptionError
from embinit_fairseq.init.alignment import read_sources
from embinit_fairseq.vectors.open import parse_source
from embinit_fairseq.vectors.table import Origin, VectorTable
from embinit_fairseq.vocab.dictionary import read_dictionary

WORDS = ["man", "woman", "king", "queen", "apple"]
# royalty, femininity, fruit
VECTORS = np.array([[0, 0, 1], [0, 1, 1], [1, 0, 1], [1, 1, 1], [0, 0, -3]], dtype=np.float32)
QUESTIONS = """: family
man woman king queen
Man King Woman Queen
: fruit
man woman apple pear
king queen man apple
"""


@pytest.fixture
def question_file(tmp_path):
    path = tmp_path / "questions.txt"
    path.write_text(QUESTIONS, encoding="utf-8")
    return str(path)


def test_questions_by_section(question_file):
    questions = read_questions(question_file)
    assert questions.sections == ["family", "fruit"]
    assert questions.section.tolist() == [0, 0, 1, 1]
    assert questions.words[1] == ("man", "king", "woman", "queen")
    assert read_questions(question_file, lower=False).words[1] == ("Man", "King", "Woman", "Queen")
    assert questions.vocabulary() == {"man", "woman", "king", "queen", "apple", "pear"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b": s\na b c\n", "line 2: 3 words"),
        (b": s\na b c d\na b c d e\n", "line 3: 5 words"),
        (b": s\n", "no questions"),
        (b"", "no questions"),
        (b"\xff\xfe\n", "not UTF-8"),
    ],
)
def test_bad_question_files(tmp_path, content, message):
    path = tmp_path / "questions.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_questions(str(path))
    assert str(path) in str(caught.value)


def test_crlf_blank_lines_and_questions_before_a_section(tmp_path):
    path = tmp_path / "questions.txt"
    path.write_bytes(b"a b c d\r\n\r\n: two\r\ne f g h")
    questions = read_questions(str(path))
    assert questions.words == [("a", "b", "c", "d"), ("e", "f", "g", "h")]
    assert [questions.sections[at] for at in questions.section] == ["(no section)", "two"]


def test_score_by_section(question_file):
    questions = read_questions(question_file)
    assert questions.rows(["king", "man", "man", "woman", "queen"])[0].tolist() == [1, 3, 0, 4]  # the first of two
    assert questions.rows(["king"])[0].tolist() == [-1, -1, 0, -1]
    with pytest.raises(DataError, match="--case"):
        score(["x", "y"], VECTORS[:2], questions)
    family, fruit, total = score(WORDS, VECTORS, read_questions(question_file))
    assert (family.name, family.correct, family.applicable, family.total) == ("family", 2, 2, 2)
    assert (fruit.name, fruit.correct, fruit.applicable, fruit.total) == ("fruit", 0, 1, 2)
    assert (total.correct, total.applicable, total.total) == (2, 3, 4)
    assert total.accuracy == pytest.approx(2 / 3)


def test_positions_are_drawn_once_per_seed_and_other_steps_run_once(question_file):
    questions, around = read_questions(question_file), Surroundings(position_rows=50, seed=4)
    assert len(evaluate(WORDS, VECTORS, questions, ["xavier"], around, repeats=5).runs) == 1
    row = evaluate(WORDS, VECTORS, questions, ["positions"], around, repeats=5)
    assert len(row.runs) == 5
    assert row.mean == pytest.approx(np.mean(row.accuracies))
    assert row.std == pytest.approx(np.std(row.accuracies, ddof=1))
    alone = evaluate(WORDS, VECTORS, questions, ["positions"], Surroundings(position_rows=50, seed=6), repeats=1)
    assert row.runs[2] == alone.runs[0]
    with pytest.raises(OptionError, match="--repeats"):
        evaluate(WORDS, VECTORS, questions, [], around, repeats=0)


def test_scaling_changes_no_answer_and_table4_names_known_steps(question_file):
    questions, around = read_questions(question_file), Surroundings()
    plain = evaluate(WORDS, VECTORS, questions, [], around)
    assert evaluate(WORDS, VECTORS, questions, ["scaled"], around).runs == plain.runs
    assert all(step in TRANSFORMS for _, steps, _ in TABLE4 for step in steps)


def test_xavier_has_mean_zero_and_xaviers_sigma():
    matrix = np.random.default_rng(0).normal(0.3, 2.0, size=(200, 10)).astype(np.float32)
    for rows, n in ((None, 200), (5893, 5893)):
        changed = transform(matrix, ["xavier"], Surroundings(xavier_rows=rows))
        assert changed.mean() == pytest.approx(0.0, abs=1e-6)
        assert changed.std(ddof=1) == pytest.approx(math.sqrt(6 / (n + 10)) / math.sqrt(3), rel=1e-5)
        assert np.corrcoef(changed.ravel(), matrix.ravel())[0, 1] == pytest.approx(1.0)


def test_steps_apply_from_left_to_right_and_leave_their_argument_alone():
    matrix = np.random.default_rng(0).normal(0.3, 2.0, size=(20, 4)).astype(np.float32)
    before = matrix.copy()
    around = Surroundings(position_rows=30)
    position = transform(np.zeros_like(matrix), ["positions"], around)
    first = transform(matrix, ["scaled", "positions"], around)
    second = transform(matrix, ["positions", "scaled"], around)
    np.testing.assert_allclose(first, matrix * 2 + position, rtol=1e-6)
    np.testing.assert_allclose(second, (matrix + position) * 2, rtol=1e-6)
    np.testing.assert_array_equal(matrix, before)


def test_scaled_positions_equal_positions_beside_a_xavier_table():
    # X + P sigma_p / sigma_x is (X sigma_x / sigma_p + P) times a number: rows 6 and 7 of Table 4 ask the same thing
    matrix = np.random.default_rng(0).normal(0.0, 2.0, size=(40, 6)).astype(np.float32)
    matrix -= matrix.mean()
    around = Surroundings(position_rows=30)
    one = transform(matrix, ["scaled_positions"], around)
    other = transform(matrix, ["xavier", "positions"], around)
    np.testing.assert_allclose(one / one.std(), other / other.std(), rtol=1e-4, atol=1e-5)


def test_every_row_gets_a_row_of_the_position_table():
    changed = transform(np.zeros((500, 6), dtype=np.float32), ["positions"], Surroundings(position_rows=7))
    table = positions.kim(7, 6).astype(np.float32)
    which = [int(np.flatnonzero((table == row).all(axis=1))[0]) for row in changed]
    assert set(which) == set(range(7))


def test_transformations_refuse_what_they_cannot_do():
    with pytest.raises(OptionError, match="scaled_positions"):
        transform(VECTORS, ["rotated"], Surroundings())
    with pytest.raises(OptionError, match="equal"):
        transform(np.ones((4, 4), dtype=np.float32), ["xavier"], Surroundings())
    with pytest.raises(OptionError, match="fairseq"):
        positions.position_table("rotary", 4, 4)
    with pytest.raises(OptionError, match="0 x 4"):
        positions.position_table("kim", 0, 4)


def test_position_formulas_by_hand():
    sinusoidal = pytest.importorskip("fairseq.modules.sinusoidal_positional_embedding")
    theirs = sinusoidal.SinusoidalPositionalEmbedding.get_embedding(40, 12).numpy()
    np.testing.assert_allclose(positions.fairseq(40, 12), theirs, atol=1e-5)
    assert positions.kim(3, 4)[2].tolist() == pytest.approx(
        [math.sin(2), math.cos(2 / 10000**0.25), math.sin(2 / 100), math.cos(2 / 10000**0.75)]
    )
    assert positions.vaswani(3, 4)[2].tolist() == pytest.approx(
        [math.sin(2), math.cos(2), math.sin(2 / 100), math.cos(2 / 100)]
    )
    assert positions.fairseq(3, 5)[2].tolist() == pytest.approx(
        [math.sin(2), math.sin(2 / 10000), math.cos(2), math.cos(2 / 10000), 0.0]
    )


def test_frequent_words_of_a_text_and_of_a_dictionary(tmp_path):
    text, dictionary = tmp_path / "text", tmp_path / "dict.txt"
    text.write_text("b a b\nc b a\n", encoding="utf-8")
    dictionary.write_text("c 1\nb 3\na 2\nmadeupword0000 0\n", encoding="utf-8")
    for path in (text, dictionary):
        vocabulary = frequent_words(str(path))
        assert list(vocabulary.symbols) == ["b", "a", "c"]
        assert vocabulary.counts.tolist() == [3, 2, 1]
    assert list(frequent_words(str(text), top=2).symbols) == ["b", "a"]


def test_frequent_words_refuse_bad_input(tmp_path):
    path = tmp_path / "text"
    with pytest.raises(OptionError, match="--top"):
        frequent_words(str(path), top=0)
    for content, message in ((b"", "no words"), (b"fine line\n\xff\n", "line 2: not UTF-8")):
        path.write_bytes(content)
        with pytest.raises(EmbinitError, match=message):
            frequent_words(str(path))


# ---- 3CosAdd, with stripes and blocks so small that all is split


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


@settings(max_examples=50, deadline=None)
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


def test_searches_at_the_edges():
    equal = np.ones((600, 3), dtype=np.float32)  # the lowest row, across blocks
    assert search.nearest(equal, np.array([[0, 1, 3], [4, 4, 4]]), block=128).tolist() == [2, 0]
    assert search.nearest(np.eye(3), np.array([[0, 1, 2]])).tolist() == [-1]  # there is no other row
    assert search.nearest(np.eye(3), np.empty((0, 3))).shape == (0,)
    generator = np.random.default_rng(3)
    matrix, questions = generator.standard_normal((50, 5)).astype(np.float32), generator.integers(0, 50, size=(20, 3))
    lengths = np.float32(10.0) ** generator.integers(-30, 30, size=(50, 1))
    assert search.nearest(matrix * lengths, questions).tolist() == search.nearest(matrix, questions).tolist()
    seen = []
    search.nearest(np.ones((1000, 2)), np.array([[0, 1, 2]]), 256, lambda blocks: [seen.append(b) or b for b in blocks])
    assert seen == [0, 256, 512, 768]
    matrix[3, 1] = np.nan
    with pytest.raises(DataError, match="row 3"):
        search.nearest(matrix, questions)
    with pytest.raises(OptionError, match="block"):
        search.nearest(np.eye(4), np.array([[0, 1, 2]]), block=0)


# ---- statistics


def make_table(words: list[str], matrix: np.ndarray) -> VectorTable:
    return VectorTable(words, matrix.astype(np.float32), Origin("v.txt", "glove", 99, matrix.shape[1]))


class Reader:
    """A reader that has read."""

    def __init__(self, table: VectorTable) -> None:
        self.table, self.path, self.dim = table, table.origin.path, table.origin.dim

    def read(self, wanted):
        return self.table


def reading(table: VectorTable, vocabulary):
    return read_sources([Reader(table)], parse_source("v.txt"), vocabulary)


@pytest.fixture
def vocabulary(tmp_path):
    (tmp_path / "dict.txt").write_text("the 60\ncat 25\nHouse 10\nzyx 4\nqqq 1\n", encoding="utf-8")
    return read_dictionary(tmp_path / "dict.txt")


def test_over_the_found_rows_of_a_dictionary(vocabulary):
    matrix = np.random.default_rng(0).normal(0.2, 0.5, size=(4, 6))
    table = make_table(["unused", "house", "cat", "the"], matrix)
    record = table_statistics(reading(table, vocabulary), vocabulary, missing=1)
    found = matrix[1:].astype(np.float32).astype(np.float64)
    assert (record["rows"], record["dim"], record["found"], record["source_rows"]) == (9, 6, 3, 99)
    assert record["coverage_types"] == pytest.approx(3 / 5)
    assert record["coverage_tokens"] == pytest.approx(95 / 100)
    assert record["rows_by_rule"] == {"exact": 2, "casefold": 1}
    assert record["missing"] == [("zyx", 4)]
    for key, value in (("min", found.min()), ("max", found.max()), ("mean", found.mean()), ("std", found.std(ddof=1))):
        assert record[key] == pytest.approx(value), key


def test_the_lines_beside_the_source(vocabulary):
    matrix = np.random.default_rng(0).normal(0.2, 0.5, size=(3, 6))
    table = make_table(["house", "cat", "the"], matrix)
    record = table_statistics(reading(table, vocabulary), vocabulary, "kim", 40)
    found = table.matrix.astype(np.float64)
    sigma_x = math.sqrt(6 / (9 + 6)) / math.sqrt(3)
    standardised = (found - found.mean()) * sigma_x / found.std(ddof=1)
    tables = record["tables"]
    for key in ("min", "max", "mean", "std"):
        value = standardised.std(ddof=1) if key == "std" else getattr(standardised, key)()
        assert tables["pretrained_xavier"][key] == pytest.approx(value, abs=1e-9)
        assert tables["pretrained"]["scaled"][key] == pytest.approx(record[key] * math.sqrt(6))
    assert tables["xavier"]["max"] == pytest.approx(math.sqrt(6 / 15))
    assert record["absorption_ratio"] == pytest.approx(record["std"] * math.sqrt(6) / record["positions"]["std"])
    assert record["absorption_ratios"]["xavier"] == pytest.approx(sigma_x * math.sqrt(6) / record["positions"]["std"])


def test_all_rows_have_the_moments_of_a_table_that_is_filled_with_a_draw(vocabulary):
    """Against 4,000 tables that are filled: two rows with a vector, six drawn rows, one of padding."""
    matrix = np.random.default_rng(0).normal(0.2, 0.5, size=(2, 6)).astype(np.float32)
    table = make_table(["cat", "the"], matrix)
    record = table_statistics(reading(table, vocabulary), vocabulary)
    bound = math.sqrt(6 / (9 + 6))
    drawn = np.random.default_rng(1).uniform(-bound, bound, (4000, 9, 6))
    drawn[:, :2], drawn[:, 2] = matrix, 0
    whole = record["all_rows"]["pretrained"]
    assert whole["mean"] == pytest.approx(matrix.sum(dtype=np.float64) / 54)
    assert whole["std"] ** 2 == pytest.approx(drawn.reshape(4000, -1).var(axis=1, ddof=1).mean(), rel=0.005)
    assert (whole["min"], whole["max"]) == (min(matrix.min(), -bound), max(matrix.max(), bound))
    expected = whole["std"] * math.sqrt(6) / record["positions"]["std"]
    assert record["absorption_ratios_all_rows"]["pretrained"] == pytest.approx(expected)


def test_nothing_drawn_is_the_matrix_itself():
    matrix = np.random.default_rng(0).normal(0.2, 0.5, size=(5, 6))
    moments = {"min": matrix.min(), "max": matrix.max(), "mean": matrix.mean(), "std": matrix.std(ddof=1)}
    padded = np.concatenate([matrix, np.zeros((1, 6))])
    got = with_drawn_rows(moments, {"min": 0.0, "max": 0.0, "mean": 0.0, "std": 0.0}, 36, 0, 6)
    assert got["mean"] == pytest.approx(padded.mean())
    assert got["std"] == pytest.approx(padded.std(ddof=1))


def test_kims_table_6():
    """The paper's figures, at N = 7.8k: the encoder's vocabulary (its Table 5), not the 5,893 of Table 6's caption."""
    table = make_table([f"w{row}" for row in range(7800)], np.zeros((7800, 300)))
    table.matrix[::2], table.matrix[1::2] = 0.369, -0.369
    record = table_statistics(table, formula="vaswani", length=5000)
    xavier = record["tables"]["xavier"]
    assert xavier["max"] == pytest.approx(0.027, abs=0.0005)
    assert xavier["std"] == pytest.approx(0.016, abs=0.0005)
    assert xavier["scaled"]["max"] == pytest.approx(0.47, abs=0.005)
    assert xavier["scaled"]["std"] == pytest.approx(0.27, abs=0.005)
    assert record["scaled_std"] == pytest.approx(6.39, abs=0.005)
    assert record["positions"]["mean"] == pytest.approx(0.131, abs=0.0005)


def test_tables_without_a_dictionary(vocabulary):
    record = table_statistics(make_table(["a", "b"], np.array([[1.0, 2.0], [3.0, 6.0]])))
    assert (record["rows"], record["found"], record["coverage_types"], record["all_rows"]) == (2, 2, None, {})
    assert (record["min"], record["max"], record["mean"]) == (1.0, 6.0, 3.0)
    record = table_statistics(make_table(["a", "b"], np.ones((2, 4))))
    assert record["std"] == 0.0
    assert math.isnan(record["tables"]["pretrained_xavier"]["std"])
    with pytest.raises(CoverageError, match=r"v\.txt"):
        table_statistics(reading(make_table(["nothing"], np.ones((1, 4))), vocabulary), vocabulary)
