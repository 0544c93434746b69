"""Questions, scores and transformations on tables drawn by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from embinit_fairseq.analysis import transforms as positions
from embinit_fairseq.analysis.analogy import TABLE4, evaluate, read_questions, score
from embinit_fairseq.analysis.statistics import frequent_words
from embinit_fairseq.analysis.transforms import TRANSFORMS, Surroundings, transform
from embinit_fairseq.errors import DataError, EmbinitError, OptionError
from embinit_fairseq.vectors.open import open_vectors

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


def test_rows_of_questions_take_the_first_duplicate(question_file):
    questions = read_questions(question_file)
    assert questions.rows(["king", "man", "man", "woman", "queen"])[0].tolist() == [1, 3, 0, 4]
    assert questions.rows(["king"])[0].tolist() == [-1, -1, 0, -1]


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
    family, fruit, total = score(WORDS, VECTORS, read_questions(question_file))
    assert (family.name, family.correct, family.applicable, family.total) == ("family", 2, 2, 2)
    assert (fruit.name, fruit.correct, fruit.applicable, fruit.total) == ("fruit", 0, 1, 2)
    assert (total.correct, total.applicable, total.total) == (2, 3, 4)
    assert total.accuracy == pytest.approx(2 / 3)


def test_no_applicable_question(question_file):
    with pytest.raises(DataError, match="--case"):
        score(["x", "y"], VECTORS[:2], read_questions(question_file))


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
    assert positions.kim(3, 4)[2].tolist() == pytest.approx(
        [math.sin(2), math.cos(2 / 10000**0.25), math.sin(2 / 100), math.cos(2 / 10000**0.75)]
    )
    assert positions.vaswani(3, 4)[2].tolist() == pytest.approx(
        [math.sin(2), math.cos(2), math.sin(2 / 100), math.cos(2 / 100)]
    )
    assert positions.fairseq(3, 5)[2].tolist() == pytest.approx(
        [math.sin(2), math.sin(2 / 10000), math.cos(2), math.cos(2 / 10000), 0.0]
    )


def test_fairseqs_formula_is_fairseqs():
    sinusoidal = pytest.importorskip("fairseq.modules.sinusoidal_positional_embedding")
    theirs = sinusoidal.SinusoidalPositionalEmbedding.get_embedding(40, 12).numpy()
    np.testing.assert_allclose(positions.fairseq(40, 12), theirs, atol=1e-5)


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


@pytest.mark.data
def test_genuine_glove_against_a_double_precision_product(data_dir):
    table = open_vectors(str(data_dir / "vectors" / "glove.6B.300d.subset.txt.gz")).read()
    questions = read_questions(str(data_dir / "analogy" / "questions-words.txt"))
    *sections, total = score(table.words, table.matrix, questions)
    rows = questions.rows(table.words)
    a, b, c, d = rows[(rows >= 0).all(axis=1)].T
    unit = table.matrix / np.linalg.norm(table.matrix.astype(np.float64), axis=1, keepdims=True)
    scores = (unit[b] - unit[a] + unit[c]) @ unit.T
    for role in (a, b, c):
        scores[np.arange(len(a)), role] = -np.inf
    assert (total.correct, total.applicable, total.total) == ((scores.argmax(axis=1) == d).sum(), len(a), 19544)
    assert (len(sections), sum(section.total for section in sections)) == (14, 19544)
    assert 0.5 < total.accuracy < 1.0  # genuine vectors know analogies
