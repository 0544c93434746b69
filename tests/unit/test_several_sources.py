"""One table from several sources (`concat:A,B`, `avg:A,B`), against tables put together by hand."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embinit_fairseq.errors import OptionError
from embinit_fairseq.init import strategies
from embinit_fairseq.init.alignment import read_sources
from embinit_fairseq.init.draws import Draws
from embinit_fairseq.init.strategies import build
from embinit_fairseq.vectors.open import open_sources, parse_source
from embinit_fairseq.vectors.table import Origin, VectorTable
from embinit_fairseq.vectors.writers import write_npz, write_text
from embinit_fairseq.vocab.dictionary import SPECIAL_SYMBOLS, Vocabulary

WORDS = [f"w{at}" for at in range(20)]
A_WORDS, B_WORDS = WORDS[:12], WORDS[8:16]  # 8 only in A, 4 in both, 4 only in B, 4 in none
ALL_RULES = ("xavier", "mean", "zeros", "gaussian", "subword")


def numbers(words, dim, scale, seed):
    return np.random.default_rng(seed).normal(0.1, scale, (len(words), dim)).astype(np.float32)


def dictionary(words=tuple(WORDS)):
    return Vocabulary([*SPECIAL_SYMBOLS, *words], [1] * (4 + len(words)), dict(enumerate(SPECIAL_SYMBOLS.values())))


@pytest.fixture
def files(tmp_path):
    """a.npz: 12 words, 3 dimensions; b.txt: 8 words, 2 dimensions; c.npz: those of b in 3 dimensions."""
    write_npz(tmp_path / "a.npz", A_WORDS, numbers(A_WORDS, 3, 0.4, 1))
    write_text(tmp_path / "b.txt", B_WORDS, numbers(B_WORDS, 2, 0.05, 2))
    write_npz(tmp_path / "c.npz", B_WORDS, numbers(B_WORDS, 3, 0.05, 3))
    return {name: str(tmp_path / file) for name, file in (("a", "a.npz"), ("b", "b.txt"), ("c", "c.npz"))}


def read(text, dim=None, words=tuple(WORDS), **keywords):
    spec = parse_source(text)
    return read_sources(open_sources(spec, dim), spec, dictionary(words), **keywords)


def filled(reading, strategy=strategies.pretrained, dim=5, std=None, words=tuple(WORDS)):
    """Word -> its row of the finished table."""
    table = build(strategy, reading.source, Draws(4 + len(words), dim, 1, "encoder", std), 1)
    return dict(zip([*SPECIAL_SYMBOLS, *words], table))


def test_side_by_side_of_the_same_words_is_the_file_one_would_make_by_hand(files, tmp_path):
    both = [word for word in A_WORDS if word in B_WORDS]
    a, b = numbers(A_WORDS, 3, 0.4, 1), numbers(B_WORDS, 2, 0.05, 2)
    by_hand = np.hstack([a[[A_WORDS.index(word) for word in both]], b[[B_WORDS.index(word) for word in both]]])
    write_npz(tmp_path / "both.npz", both, by_hand)
    for name in ("pretrained", "pretrained_xavier", "shuffled", "shuffled_elements", "xavier_pretrained"):
        for oov in ALL_RULES[:4]:
            one, two = (
                filled(read(text, words=both, oov=oov), getattr(strategies, name), words=both)
                for text in (str(tmp_path / "both.npz"), f"concat:{files['a']},{files['b']}")
            )
            assert all((one[word] == two[word]).all() for word in one), (name, oov)


def test_side_by_side_takes_what_each_source_has(files):
    a, b = numbers(A_WORDS, 3, 0.4, 1), numbers(B_WORDS, 2, 0.05, 2)
    reading = read(f"concat:{files['a']},{files['b']}", 5)
    table = filled(reading)
    for at, word in enumerate(A_WORDS):
        assert (table[word][:3] == a[at]).all()
    for at, word in enumerate(B_WORDS):
        assert (table[word][3:] == b[at]).all()
    assert (reading.source.vectors[0] == [*a[0], 0, 0]).all()  # what was read is left as it is
    xavier = dict(zip(table, Draws(24, 5, 1, "encoder").xavier))
    for word in WORDS:  # what is missing is the draw of this row and of these columns
        if word not in A_WORDS:
            assert (table[word][:3] == xavier[word][:3]).all()
        if word not in B_WORDS:
            assert (table[word][3:] == xavier[word][3:]).all()
    assert reading.coverage == {"found": 16, "coverage_types": 0.8, "coverage_tokens": 0.8}
    assert [part.coverage["found"] for part in reading.parts] == [12, 8]
    assert reading.found_in_all == 4
    assert [reading.matched[4 + at] for at in range(20)] == [True] * 16 + [False] * 4
    # rows of which every number is a vector's: what `--embed-init-freeze SLOT:known` keeps
    assert [reading.known[4 + at] for at in range(20)] == [word in A_WORDS and word in B_WORDS for word in WORDS]


def test_mean_and_sigma_are_over_what_the_sources_give(files):
    """Eq. 1 with X_p = the numbers of both files, each once; the draw in the gaps counts for nothing."""
    a, b = (numbers(A_WORDS, 3, 0.4, 1).astype(np.float64), numbers(B_WORDS, 2, 0.05, 2).astype(np.float64))
    given = np.concatenate([a.ravel(), b.ravel()])
    reading = read(f"concat:{files['a']},{files['b']}")
    assert sorted(reading.source.given) == sorted(np.float32(given))
    table = filled(reading, strategies.pretrained_xavier)
    sigma = Draws(24, 5, 1, "encoder").target_std
    np.testing.assert_allclose(table["w8"][:3], (a[8] - given.mean()) * sigma / given.std(ddof=1), rtol=1e-5)
    np.testing.assert_allclose(table["w15"][3:], (b[7] - given.mean()) * sigma / given.std(ddof=1), rtol=1e-5)


def test_gaps_follow_the_rule_for_missing_rows(files):
    text = f"concat:{files['a']},{files['b']}"
    a, b = numbers(A_WORDS, 3, 0.4, 1), numbers(B_WORDS, 2, 0.05, 2)
    table = filled(read(text, oov="mean"))
    np.testing.assert_allclose(table["w0"][3:], b.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(table["w15"][:3], a.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(table["w19"], [*a.mean(axis=0), *b.mean(axis=0)], rtol=1e-5)
    table = filled(read(text, oov="zeros"))
    assert not table["w0"][3:].any()
    assert not table["w15"][:3].any()
    assert table["w0"][:3].all()
    # in the space of the finished table, as whole rows are
    table = filled(read(text, oov="mean"), strategies.pretrained_xavier)
    known = np.stack([table[word][3:] for word in B_WORDS]).mean(axis=0)
    np.testing.assert_allclose(table["w0"][3:], known, rtol=1e-4, atol=1e-8)


def test_gaussian_gaps_have_the_distribution_of_their_own_source(tmp_path):
    words = [f"x{at}" for at in range(8_000)]
    a, b = numbers(words, 1, 3.0, 4), numbers(words[:300], 2, 0.1, 5) @ np.float32([[1, 0.8], [0, 0.6]])
    write_npz(tmp_path / "a.npz", words, a)
    write_npz(tmp_path / "b.npz", words[:300], b)
    reading = read(f"concat:{tmp_path / 'a.npz'},{tmp_path / 'b.npz'}", words=words, oov="gaussian")
    table = filled(reading, dim=3, words=words)
    drawn = np.stack([table[word] for word in words[300:]])
    assert (drawn[:, :1] == a[300:]).all()
    np.testing.assert_allclose(drawn[:, 1:].mean(axis=0), b.mean(axis=0), atol=0.008)
    np.testing.assert_allclose(np.cov(drawn[:, 1:].T), np.cov(b.T, ddof=0), rtol=0.08)


def test_gaps_of_two_sources_are_drawn_independently(tmp_path):
    left, right, both = ([f"{side}{at}" for at in range(1500)] for side in "lrb")
    for name, words in (("a.npz", left + both), ("b.npz", right + both)):
        write_npz(tmp_path / name, words, numbers(words, 1, 1.0, 4))  # the same numbers: one stream would show
    words = left + right + both
    reading = read(f"concat:{tmp_path / 'a.npz'},{tmp_path / 'b.npz'}", words=words, oov="gaussian")
    table = filled(reading, dim=2, words=words)
    drawn = [table[word][1] for word in left], [table[word][0] for word in right]
    assert abs(np.corrcoef(*drawn)[0, 1]) < 0.1


def test_shuffled_keeps_every_number_of_the_joint_table(files):
    text = f"concat:{files['a']},{files['b']}"
    straight, table = (filled(read(text), strategy) for strategy in (strategies.pretrained, strategies.shuffled))
    known = WORDS[:16]
    assert {frozenset(table[word]) for word in known} == {frozenset(straight[word]) for word in known}
    assert not any(frozenset(table[word]) == frozenset(straight[word]) for word in known)
    assert all((table[word] == straight[word]).all() for word in WORDS[16:])


def test_the_mean_is_over_the_sources_that_have_the_word(files):
    a, c = numbers(A_WORDS, 3, 0.4, 1), numbers(B_WORDS, 3, 0.05, 3)
    reading = read(f"avg:{files['a']},{files['c']}", 3)
    table = filled(reading, dim=3)
    for at, word in enumerate(WORDS[:16]):
        own = [rows[names.index(word)] for rows, names in ((a, A_WORDS), (c, B_WORDS)) if word in names]
        expected = np.mean(np.float64(own), axis=0).astype(np.float32)
        assert (table[word] == expected).all(), at
    assert (table["w19"] == Draws(24, 3, 1, "encoder").xavier[23]).all()
    assert reading.source.gaps == ()
    assert reading.found_in_all == 4
    assert reading.known.sum() == 16


def test_vectors_of_length_1(files, tmp_path):
    a, c = (rows / np.linalg.norm(np.float64(rows), axis=1)[:, None] for rows in (
        numbers(A_WORDS, 3, 0.4, 1), numbers(B_WORDS, 3, 0.05, 3)
    ))  # fmt: skip
    table = filled(read(f"avg-l2:{files['a']},{files['c']}"), dim=3)
    np.testing.assert_allclose(table["w0"], a[0], rtol=1e-6)
    np.testing.assert_allclose(table["w8"], (a[8] + c[0]) / 2, rtol=1e-5, atol=1e-8)
    table = filled(read(f"concat-l2:{files['a']},{files['c']}"), dim=6)
    np.testing.assert_allclose(table["w8"], [*a[8], *c[0]], rtol=1e-6)
    write_npz(tmp_path / "zeros.npz", ["w0"], np.zeros((1, 3)))
    table = filled(read(f"concat-l2:{files['a']},{tmp_path / 'zeros.npz'}"), dim=6)
    assert not table["w0"][3:].any()  # nothing to divide by


def test_each_source_matches_by_its_own_rules(tmp_path):
    write_npz(tmp_path / "pieces.npz", ["▁haus", "▁maus", "▁'s"], numbers("abc", 2, 1, 1))
    write_npz(tmp_path / "words.npz", ["Haus", "'s", "maus"], numbers("abc", 2, 1, 2))
    words = ["haus", "maus", "&apos;s"]
    reading = read(f"concat:{tmp_path / 'pieces.npz'},{tmp_path / 'words.npz'}", words=words)
    assert [part.alignment.counts_by_rule() for part in reading.parts] == [
        {"marker": 2, "entities_marker": 1},
        {"exact": 1, "entities": 1, "casefold": 1},
    ]
    assert reading.rows_by_rule() == {"marker": 2, "entities_marker": 1}
    assert reading.found_in_all == 3


@pytest.fixture
def pieces(tmp_path):
    """A text file of pieces, which can compose: 2 dimensions, has w1 and the pieces of every other word."""
    names = ["▁w", *map(str, range(10)), "▁w1"]
    write_text(tmp_path / "pieces.txt", names, numbers(names, 2, 1.0, 7))
    return str(tmp_path / "pieces.txt"), dict(zip(names, numbers(names, 2, 1.0, 7)))


def test_subwords_of_each_source(files, pieces, caplog):
    path, rows = pieces
    with caplog.at_level(logging.WARNING):
        reading = read(f"concat:{files['a']},{path}", oov="subword", compose=True)
    assert f"{files['a']} has no sub-words" in caplog.text
    table, xavier = filled(reading), Draws(24, 5, 1, "encoder").xavier
    a = numbers(A_WORDS, 3, 0.4, 1)
    np.testing.assert_allclose(table["w2"], [*a[2], *(rows["▁w"] + rows["2"]) / 2], rtol=1e-5)
    np.testing.assert_allclose(table["w19"][3:], (rows["▁w1"] + rows["9"]) / 2, rtol=1e-5)
    assert (table["w19"][:3] == xavier[23][:3]).all()
    # composed numbers are moved as the others are, but do not count for mean and sigma
    assert reading.source.given.size == 12 * 3 + 2
    assert reading.matched.sum() == 12
    standardised = filled(reading, strategies.pretrained_xavier)
    given = np.float64(reading.source.given)
    sigma = Draws(24, 5, 1, "encoder").target_std
    expected = (np.float64(table["w19"][3:]) - given.mean()) * sigma / given.std(ddof=1)
    np.testing.assert_allclose(standardised["w19"][3:], expected, rtol=1e-5)


def test_subwords_and_the_mean(pieces, tmp_path):
    path, rows = pieces
    write_npz(tmp_path / "d.npz", ["w2", "w19"], numbers("de", 2, 1.0, 8))
    table = filled(read(f"avg:{path},{tmp_path / 'd.npz'}", oov="subword", compose=True), dim=2)
    # a source has them: nothing is composed
    assert (table["w2"] == numbers("de", 2, 1.0, 8)[0]).all()
    assert (table["w19"] == numbers("de", 2, 1.0, 8)[1]).all()
    np.testing.assert_allclose(table["w4"], (rows["▁w"] + rows["4"]) / 2, rtol=1e-6)


def test_entities_are_composed_from_their_plain_form(tmp_path):
    names = ["▁", "'", "s", "▁a", "&"]
    write_text(tmp_path / "pieces.txt", names[1:], numbers(names[1:], 2, 1.0, 7))
    rows = dict(zip(names[1:], numbers(names[1:], 2, 1.0, 7)))
    reading = read(str(tmp_path / "pieces.txt"), words=["&apos;s", "a"], oov="subword", compose=True)
    np.testing.assert_allclose(
        filled(reading, dim=2, words=["&apos;s", "a"])["&apos;s"], (rows["'"] + rows["s"]) / 2, rtol=1e-6
    )


def test_no_source_has_subwords(files):
    with pytest.raises(OptionError, match=r"a\.npz.*--embed-init-oov"):
        read(f"concat:{files['a']},{files['c']}", oov="subword", compose=True)


SOURCES = st.lists(st.dictionaries(st.sampled_from(WORDS), st.integers(1, 99), min_size=1), min_size=2, max_size=3)


class Given:
    """A reader of rows that are `dim` times one number."""

    def __init__(self, rows, dim):
        self.rows, self.dim, self.path, self.format = rows, dim, "given", "npz"

    def read(self, wanted):
        matrix = np.array([[number] * self.dim for number in self.rows.values()], dtype=np.float32)
        return VectorTable(list(self.rows), matrix, Origin("given", "npz", len(self.rows), self.dim, "none"))


@given(SOURCES, st.sampled_from(["xavier", "zeros"]))
@settings(max_examples=30, deadline=None)
def test_against_the_definition_word_by_word(sources, oov):
    readers = [Given(rows, dim) for rows, dim in zip(sources, (2, 1, 3))]
    dim = sum(reader.dim for reader in readers)
    spec = parse_source("concat:" + ",".join("abc"[: len(readers)]))
    table = filled(read_sources(readers, spec, dictionary(), oov=oov), dim=dim)
    draw = dict(zip(table, Draws(24, dim, 1, "encoder").xavier if oov == "xavier" else np.zeros((24, dim))))
    for word in WORDS:
        start = 0
        for reader in readers:
            end = start + reader.dim
            expected = reader.rows[word] if word in reader.rows else draw[word][start:end]
            assert (table[word][start:end] == expected).all()
            start = end
    spec = parse_source("avg:" + ",".join("abc"[: len(readers)]))
    table = filled(read_sources([Given(rows, 2) for rows in sources], spec, dictionary(), oov=oov), dim=2)
    draw = dict(zip(table, Draws(24, 2, 1, "encoder").xavier if oov == "xavier" else np.zeros((24, 2))))
    for word in WORDS:
        own = [rows[word] for rows in sources if word in rows]
        assert (table[word] == (np.float32(sum(own) / len(own)) if own else draw[word])).all()
