"""One table from several sources (`concat:A,B`, `avg:A,B`), against tables put together by hand."""

import unicodedata

import numpy as np
import pytest

from embinit_fairseq.errors import DimensionError, OptionError
from embinit_fairseq.init import strategies
from embinit_fairseq.init.alignment import Matching, read_sources
from embinit_fairseq.init.draws import Draws
from embinit_fairseq.init.strategies import build
from embinit_fairseq.vectors.open import open_sources, parse_source
from embinit_fairseq.vectors.writers import write_npz, write_text
from embinit_fairseq.vocab import matching
from embinit_fairseq.vocab.dictionary import SPECIAL_SYMBOLS, Vocabulary

WORDS = [f"w{at}" for at in range(20)]
A_WORDS, B_WORDS = WORDS[:12], WORDS[8:16]  # 8 only in A, 4 in both, 4 only in B, 4 in none


def numbers(words, dim, scale, seed):
    return np.random.default_rng(seed).normal(0.1, scale, (len(words), dim)).astype(np.float32)


A, B, C = numbers(A_WORDS, 3, 0.4, 1), numbers(B_WORDS, 2, 0.05, 2), numbers(B_WORDS, 3, 0.05, 3)


def dictionary(words=tuple(WORDS)):
    return Vocabulary([*SPECIAL_SYMBOLS, *words], [1] * (4 + len(words)), dict(enumerate(SPECIAL_SYMBOLS.values())))


@pytest.fixture
def files(tmp_path):
    """a.npz: 12 words, 3 dimensions; b.txt: 8 words, 2 dimensions; c.npz: those of b in 3 dimensions."""
    paths = {name: str(tmp_path / name) for name in ("a.npz", "b.txt", "c.npz")}
    write_npz(paths["a.npz"], A_WORDS, A)
    write_text(paths["b.txt"], B_WORDS, B)
    write_npz(paths["c.npz"], B_WORDS, C)
    return {name[0]: path for name, path in paths.items()}


def concat(files, *names):
    return "concat:" + ",".join(str(files[name]) for name in names)


def read(text, dim=None, words=tuple(WORDS), **keywords):
    spec = parse_source(text)
    return read_sources(open_sources(spec, dim), spec, dictionary(words), Matching(**keywords))


def filled(reading, strategy=strategies.pretrained, dim=5, std=None, words=tuple(WORDS)):
    """Word -> its row of the finished table."""
    table = build(strategy, reading.source, Draws(4 + len(words), dim, 1, "encoder", std), 1)
    return dict(zip([*SPECIAL_SYMBOLS, *words], table))


@pytest.mark.parametrize("text", ["concat:a", "concat:", "avg:a,", "concat-l2:,a", "avg:a,,b"])
def test_one_file_is_not_several(text):
    with pytest.raises(OptionError, match=f"{text}: .*at least two"):
        parse_source(text)


@pytest.mark.parametrize(
    ("text", "dim", "error", "message"),
    [
        *(("avg:{a},{b}", dim, OptionError, "one dimension .*concat:") for dim in (3, 2, None)),
        ("concat:{a},{b}", 4, DimensionError, "a.npz has 3 dimensions, .*b.txt has 2 .*, together 5; expected 4"),
        ("avg:{a},{c}", 4, DimensionError, "3 dimensions; expected 4"),
        ("{a}", 4, DimensionError, "3 dimensions, expected 4"),
    ],
)
def test_dimensions_that_do_not_fit(files, text, dim, error, message):
    with pytest.raises(error, match=message):
        open_sources(parse_source(text.format(**files)), dim)


@pytest.mark.parametrize(
    ("text", "how", "files"),
    [
        ("a,b.txt", None, [("a,b.txt", None)]),  # one file: a comma is a comma
        ("./concat:a,b", None, [("./concat:a,b", None)]),
        ("~/a", None, [("/home/me/a", None)]),
        ("avg:a,b,c", "avg", [("a", None), ("b", None), ("c", None)]),
        ("concat-l2:x.zip:m.txt,b", "concat", [("x.zip:m.txt", None), ("b", None)]),
        ("concat:a,,1.txt,b,,,c", "concat", [("a,1.txt", None), ("b,", None), ("c", None)]),
        ("concat:~/a,npz=~/b,x=c", "concat", [("/home/me/a", None), ("/home/me/b", "npz"), ("x=c", None)]),
    ],
)
def test_what_a_source_may_be(monkeypatch, text, how, files):
    monkeypatch.setenv("HOME", "/home/me")
    spec = parse_source(text)
    assert (spec.how, spec.unit, list(spec.files)) == (how, "-l2:" in text, files)
    assert (spec.method, spec.paths) == (how and text.split(":")[0], [path for path, _ in files])
    assert parse_source(spec.named(lambda path: path)) == spec
    formats = [format or "glove" for _, format in files]  # a format for all is for the files that name none
    assert [format for _, format in parse_source(text, "glove").files] == formats


#: all that take vectors
RULES = {name: strategy.rule for name, strategy in strategies.STRATEGIES.items() if strategy.needs_source}
RULES["shuffled_elements"] = strategies.shuffled_elements


@pytest.mark.parametrize("name", RULES)
def test_side_by_side_of_the_same_words_is_the_file_one_would_make_by_hand(files, tmp_path, name):
    write_npz(tmp_path / "both.npz", words := WORDS[8:12], np.hstack([A[8:], B[:4]]))
    sources = str(tmp_path / "both.npz"), concat(files, "a", "b")
    one, two = (filled(read(source, words=words, oov="mean"), RULES[name], words=words) for source in sources)
    assert all((one[word] == two[word]).all() for word in one)


def test_side_by_side_takes_what_each_source_has(files):
    reading = read(concat(files, "a", "b"), 5)
    table, xavier = filled(reading), dict(enumerate(Draws(24, 5, 1, "encoder").xavier[4:]))
    for at, word in enumerate(WORDS):  # what is missing is the draw of this row and of these columns
        assert (table[word][:3] == (A[at] if word in A_WORDS else xavier[at][:3])).all()
        assert (table[word][3:] == (B[at - 8] if word in B_WORDS else xavier[at][3:])).all()
    assert (reading.source.vectors[0] == [*A[0], 0, 0]).all()  # what was read is left as it is
    assert sorted(reading.source.matched_values) == sorted(np.float32([*A.ravel(), *B.ravel()]))  # no draw
    assert reading.coverage == {"found": 16, "coverage_types": 0.8, "coverage_tokens": None}
    assert [part.coverage["found"] for part in reading.parts] == [12, 8]
    assert reading.found_in_all == 4
    assert reading.matched[4:].tolist() == [True] * 16 + [False] * 4
    # rows of which every number is a vector's: what `--embed-init-freeze SLOT:known` keeps
    assert reading.complete[4:].tolist() == [8 <= at < 12 for at in range(20)]
    shuffled = filled(reading, strategies.shuffled)
    before, after = ({frozenset(each[word]) for word in WORDS[:16]} for each in (table, shuffled))
    assert before == after
    assert not any(frozenset(shuffled[word]) == frozenset(table[word]) for word in WORDS[:16])
    assert all((shuffled[word] == table[word]).all() for word in WORDS[16:])


def test_gaps_follow_the_rule_for_missing_rows(files):
    table, means = filled(read(concat(files, "a", "b"), oov="mean")), (*A.mean(axis=0), *B.mean(axis=0))
    np.testing.assert_allclose(table["w19"], means, rtol=1e-5)
    np.testing.assert_allclose([*table["w15"][:3], *table["w0"][3:]], means, rtol=1e-5)
    table = filled(read(concat(files, "a", "b"), oov="zeros"))
    assert [*table["w0"][3:], *table["w15"][:3]] == [0] * 5
    assert table["w0"][:3].all()
    table = filled(read(concat(files, "a", "a", "b"), oov="gaussian"), dim=8)  # each source has draws of its own
    assert (table["w15"][:3] != table["w15"][3:6]).all()
    # in the space of the finished table, as whole rows are
    table = filled(read(concat(files, "a", "b"), oov="mean"), strategies.pretrained_xavier)
    known = np.stack([table[word][3:] for word in B_WORDS]).mean(axis=0)
    np.testing.assert_allclose(table["w0"][3:], known, rtol=1e-4, atol=1e-8)


def test_the_mean_is_over_the_sources_that_have_the_word(files, tmp_path):
    reading = read(f"avg:{files['a']},{files['c']}", 3)
    table = filled(reading, dim=3)
    for at, word in enumerate(WORDS[:16]):
        own = [rows[names.index(word)] for rows, names in ((A, A_WORDS), (C, B_WORDS)) if word in names]
        assert (table[word] == np.mean(np.float64(own), axis=0).astype(np.float32)).all(), at
    assert (table["w19"] == Draws(24, 3, 1, "encoder").xavier[23]).all()
    assert (reading.source.gaps, reading.found_in_all, reading.complete.sum()) == ((), 4, 16)
    a, c = (rows / np.linalg.norm(np.float64(rows), axis=1)[:, None] for rows in (A, C))  # each of length 1
    table = filled(read(f"avg-l2:{files['a']},{files['c']}"), dim=3)
    np.testing.assert_allclose(table["w8"], (a[8] + c[0]) / 2, rtol=1e-5, atol=1e-8)
    write_npz(tmp_path / "zeros.npz", ["w0", "w8"], np.float32([[0, 0, 0], C[0]]))
    table = filled(read(f"concat-l2:{files['a']},{tmp_path / 'zeros.npz'}"), dim=6)
    np.testing.assert_allclose(table["w8"], [*a[8], *c[0]], rtol=1e-6)
    assert not table["w0"][3:].any()  # nothing to divide by


def test_subwords_of_each_source(files, tmp_path, caplog):
    names = ["▁w", *map(str, range(10)), "▁w1"]
    rows = dict(zip(names, numbers(names, 2, 1.0, 7)))
    write_text(path := tmp_path / "pieces.txt", names, np.stack(list(rows.values())))
    reading = read(f"concat:{files['a']},{path}", oov="subword")
    assert f"{files['a']} has no subwords" in caplog.text
    table, xavier = filled(reading), Draws(24, 5, 1, "encoder").xavier
    np.testing.assert_allclose(table["w2"], [*A[2], *(rows["▁w"] + rows["2"]) / 2], rtol=1e-5)
    np.testing.assert_allclose(table["w19"][3:], (rows["▁w1"] + rows["9"]) / 2, rtol=1e-5)
    assert (table["w19"][:3] == xavier[23][:3]).all()
    # composed numbers are moved as the others are, but do not count for mean and sigma
    assert reading.source.matched_values.size == 12 * 3 + 2
    assert reading.matched.sum() == 12
    standardised = filled(reading, strategies.pretrained_xavier)
    given, sigma = np.float64(reading.source.matched_values), Draws(24, 5, 1, "encoder").target_std
    expected = (np.float64(table["w19"][3:]) - given.mean()) * sigma / given.std(ddof=1)
    np.testing.assert_allclose(standardised["w19"][3:], expected, rtol=1e-5)
    # of the mean, only words that no source has
    table = filled(read(f"avg:{path},{files['b']}", oov="subword"), dim=2)
    assert (table["w8"] == B[0]).all()
    np.testing.assert_allclose(table["w4"], (rows["▁w"] + rows["4"]) / 2, rtol=1e-6)
    with pytest.raises(OptionError, match=r"a\.npz.*another oov"):
        read(concat(files, "a", "c"), oov="subword")


def test_capitals_are_composed_from_a_file_without_capitals(tmp_path):
    """As BPEmb segments: `Ab` is `▁a` and `b`, not `b` alone; a file with capitals is taken as it is."""
    lower, cased, no_sign = ["▁a", "b", "▁the"], ["▁a", "b", "▁the", "▁The", "▁A"], ["▁a", "b", "▁is"]
    for names, rules, parts in (
        (lower, matching.RULES, ["▁a", "b"]),
        (cased, matching.RULES, ["▁A", "b"]),
        (no_sign, matching.RULES, ["b"]),
        (lower, ("exact", "marker"), ["b"]),
    ):
        write_text(path := tmp_path / "v.vec", names, matrix := numbers(names, 2, 1.0, 7), header=True)
        reading = read(str(path), words=["Ab", "The", "is"], oov="subword", rules=rules)
        assert reading.parts[0].composed_rows[0] == 4
        expected = matrix[[names.index(name) for name in parts]].mean(axis=0)
        np.testing.assert_allclose(reading.parts[0].composed[0], expected, rtol=1e-6)


@pytest.mark.parametrize(("of_file", "of_text"), [("NFC", "NFD"), ("NFD", "NFC"), ("NFD", "NFD")])
def test_words_are_composed_in_the_normal_form_of_the_file(tmp_path, of_file, of_text):
    """Text of macOS is decomposed: its letters and accents are not the subwords or n-grams of other files."""
    names = [unicodedata.normalize(of_file, name) for name in ("▁ti", "ế", "ng", "▁việt", "e", "▁nam")]
    write_text(path := tmp_path / "v.vec", names, matrix := numbers(names, 2, 1.0, 7), header=True)
    words = [unicodedata.normalize(of_text, word) for word in ("tiếng", "việt", "nam")]
    reading = read(str(path), words=words, oov="subword")
    assert reading.parts[0].composed_rows.tolist() == [4]
    np.testing.assert_allclose(reading.parts[0].composed[0], matrix[:3].mean(axis=0), rtol=1e-6)


def test_words_are_composed_as_they_are_if_the_file_does_not_show_its_form(tmp_path):
    """No word of the text that the file has, `nam`, has an accent."""
    write_text(
        path := tmp_path / "v.vec", ["▁ti", "ế", "ng", "▁nam"], matrix := numbers("abcd", 2, 1.0, 7), header=True
    )
    reading = read(str(path), words=["tiếng", "nam"], oov="subword")
    np.testing.assert_allclose(reading.parts[0].composed[0], matrix[:3].mean(axis=0), rtol=1e-6)


def test_words_of_moses_are_read_for_words_of_raw_text(tmp_path):
    write_text(path := tmp_path / "v.txt", ["&apos;s", "@-@", "R&amp;D"], matrix := numbers("abc", 2, 1.0, 7))
    reading = read(str(path), words=["'s", "-", "R&D"])
    np.testing.assert_array_equal(reading.parts[0].vectors, matrix)


def test_a_capital_i_with_a_dot_is_composed_as_one_letter(tmp_path):
    names = ["▁iz", "mir", "▁i", "z", "▁nam"]
    write_text(path := tmp_path / "v.vec", names, matrix := numbers(names, 2, 1.0, 7), header=True)
    reading = read(str(path), words=["İzmir", "Nam"], oov="subword")
    np.testing.assert_allclose(reading.parts[0].composed[0], matrix[:2].mean(axis=0), rtol=1e-6)


def test_an_entity_is_composed_from_its_plain_form_and_an_inner_piece_is_no_word(tmp_path):
    write_text(path := tmp_path / "pieces.txt", ["[", "1", "▁w1"], pieces := numbers("abc", 2, 1.0, 8))
    reading = read(str(path), words=(words := ["&#91;1", "[1", "▁[1", "w1"]), oov="subword")
    assert reading.parts[0].composed_rows.tolist() == [6]
    (plain,) = (read(str(path), words=words[:1], oov="subword"),)
    np.testing.assert_allclose(filled(plain, dim=2, words=words[:1])["&#91;1"], pieces[:2].mean(axis=0), rtol=1e-6)
