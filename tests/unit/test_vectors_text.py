"""Vectors as text: words with blanks, numbers of any spelling, headers, broken lines, pieces; a naive reader tells."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import re
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from source_files import write

from embinit_fairseq import bounded
from embinit_fairseq.errors import OptionError, VectorFileError
from embinit_fairseq.vectors import text_lines
from embinit_fairseq.vectors.open import open_vectors
from embinit_fairseq.vectors.parse import RowParser, parse_number
from embinit_fairseq.vectors.table import Wanted
from embinit_fairseq.vectors.text import TextVectors

#: Enough good lines for one broken line to be tolerated.
PADDING = "".join(f"padding{n} 0 0\n" for n in range(30))


def naive(data: bytes, dim: int) -> dict[str, np.ndarray]:
    """The oracle: no header, every line is a word and dim numbers, the first of duplicates wins."""
    rows: dict[str, np.ndarray] = {}
    for line in data.split(b"\n"):
        fields = re.split(rb"[ \t]+", line.strip(b" \t\r"))
        if fields == [b""]:
            continue
        word = b" ".join(fields[:-dim]).decode("utf-8")
        rows.setdefault(word, np.array([np.float32(float(field)) for field in fields[-dim:]], np.float32))
    return rows


def assert_table(table, rows: dict[str, np.ndarray]) -> None:
    assert table.words == list(rows)
    wanted = np.array(list(rows.values()), np.float32).reshape(len(rows), table.origin.dim)
    assert_bits_equal(table.matrix, wanted)


def assert_bits_equal(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_array_equal(np.ravel(found).view(np.uint32), np.ravel(wanted).view(np.uint32))


# ---- against the naive reader, every record split somewhere

LETTERS = st.characters(exclude_categories=("Cs",), exclude_characters=" \t\r\n\ufeff")
WORDS = st.text(LETTERS, min_size=1, max_size=6) | st.sampled_from(["a", "A", "b", "\u00a0", "x\u0085y", "\u2028", "."])
NUMBERS = st.floats(-9, 9, width=32).map(lambda x: f"{x:.5f}") | st.floats(-(2.0**90), 2.0**90, width=32).map(
    lambda x: str(np.float32(x))
)


@st.composite
def vector_files(draw):
    dim = draw(st.integers(1, 5))
    row = st.tuples(WORDS, st.lists(NUMBERS, min_size=dim, max_size=dim))
    rows = draw(st.lists(row, min_size=1, max_size=20))
    separator, end = draw(st.sampled_from([" ", "\t"])), draw(st.sampled_from(["\n", "\r\n", " \n"]))
    data = "".join(separator.join([word, *numbers]) + end for word, numbers in rows).encode()
    return dim, len(rows), data[: -len(end)] if draw(st.booleans()) else data


@settings(max_examples=50, deadline=None)
@given(vector_files(), st.booleans(), st.sampled_from([5, 16, 1024]), st.booleans(), st.data())
def test_equals_the_naive_reader(tmp_path_factory, made, header, chunk, strict, data):
    dim, count, content = made
    head = b"%d %d\n" % (count, dim) if header else b""
    path = write(tmp_path_factory.getbasetemp() / "drawn.txt", head + content)
    rows = naive(content, dim)
    reader = TextVectors(path, dim, strict, header=header, chunk=chunk)
    assert (reader.dim, reader.format) == (dim, "word2vec" if header else "glove")
    assert_table(reader.read(), rows)
    some = data.draw(st.sets(st.sampled_from(list(rows))))
    found = reader.read(Wanted.words(some | {"absent"}))
    assert_table(found, {word: row for word, row in rows.items() if word in some})
    assert found.origin.rows == count
    folded = frozenset(word.casefold() for word in some)
    assert_table(reader.read(Wanted(folded=folded)), {w: row for w, row in rows.items() if w.casefold() in folded})


@pytest.mark.parametrize(
    ("content", "wanted", "expected", "counted"),
    [
        # words with blanks, as in glove.840B
        ("the 0.1 0.2 0.3\n. . . 0.4 0.5 0.6\nat name@domain.com 1 2 3\n. 7 8 9\n", ["the", "at", ". . .", "."],
         {"the": [0.1, 0.2, 0.3], ". . .": [0.4, 0.5, 0.6], ".": [7, 8, 9]}, (4, 0, 0)),
        # words that are numbers
        ("1 0.5 0.25\n1 000 0.1 0.2\nnan 1 2\n3 4 5\n", None,
         {"1": [0.5, 0.25], "1 000": [0.1, 0.2], "nan": [1, 2], "3": [4, 5]}, (4, 0, 0)),
        ("a 1 2\nb 3 4\na 5 6\na 7 8\nc 1 1\nc 2 2\n", "ab", {"a": [1, 2], "b": [3, 4]}, (6, 2, 0)),
        # a broken first row gives way to a later one
        ("x 0 0\na 1 oops\ny 0 0\na 5 6\n" + PADDING, "a", {"a": [5, 6]}, (33, 0, 1)),
        # byte-order mark, blank lines, mixed separators
        ("\ufeffa 1 2\n\n  b\t3 4\nc  5   6 \t\r\n\n\n", "abc", {"a": [1, 2], "b": [3, 4], "c": [5, 6]}, (3, 0, 0)),
        ("a 1 2\nx 1\nb 3 4\n" + PADDING, "ab", {"a": [1, 2], "b": [3, 4]}, (32, 0, 1)),  # short and not wanted
        ("a 1 2\n 3 4\nb 5 6\n" + PADDING, "ab", {"a": [1, 2], "b": [5, 6]}, (32, 0, 1)),  # no word
    ],
    ids=["blanks", "numbers", "duplicates", "broken first", "separators", "short", "no word"],
)  # fmt: skip
def test_lines_by_hand(tmp_path, content, wanted, expected, counted):
    table = open_vectors(write(tmp_path / "v.txt", content)).read(wanted and Wanted.words(wanted))
    assert_table(table, {word: np.float32(row) for word, row in expected.items()})
    assert (table.origin.rows, table.origin.duplicates, table.origin.broken_lines) == counted


# ---- what is wrong with it


@pytest.mark.parametrize("format", [None, "glove", "word2vec"])
def test_empty_file(tmp_path, format):
    for content in (b"", b"\n\n", b"  \n", gzip.compress(b"", mtime=0)):
        with pytest.raises(VectorFileError, match=r"v.txt: the file is empty"):
            open_vectors(write(tmp_path / "v.txt", content), format)


@pytest.mark.parametrize("tail", ["z 1 2", "z 1 2\n", "z", "z 1 2 -", "z 1 2 1e-", "z 1 2\n\n"])
def test_truncated_last_line(tmp_path, tail):
    path = write(tmp_path / "v.txt", "a 1 2 3\n" * 20 + tail)
    for strict, wanted in itertools.product((False, True), (None, Wanted.words("a"))):
        with pytest.raises(VectorFileError, match=r"v.txt:21: .*Download it again"):
            open_vectors(path, strict=strict).read(wanted)


@pytest.mark.parametrize(
    ("content", "format", "message"),
    [
        ("3 2\na 1 2\nb 3 4\n", None, r"3 rows, .* 2.*download it again"),
        ("2 3\na 1 2\nb 3 4\n", None, r"v.txt:1: .* 3 numbers a line, .* 2.*correct its header"),
        ("a 1 2\nb 3 4\n", "word2vec", r"v.txt:1: .*--embed-init-format glove"),
        ("5 2\n", None, "--embed-init-format"),
        *(("this is a sentence\nand another one\n", format, "--embed-init-format") for format in (None, "glove")),
        ("x 1 y\n" * 3 + "a 1 2\n", None, r"3 of 4 lines .*--embed-init-format"),
    ],
)
def test_headers_and_rows_that_disagree(tmp_path, caplog, content, format, message):
    with pytest.raises(VectorFileError, match=message):
        open_vectors(write(tmp_path / "v.txt", content), format).read()
    assert open_vectors(write(tmp_path / "v.txt", "1 2\na 1 2\nb 3 4\n")).read().words == ["a", "b"]
    assert "announces 1 row, read 2" in caplog.text
    # all words end in a number: only the expected width tells it from the vector
    path = write(tmp_path / "v.txt", "page 1 0.5 0.5\npage 2 0.25 0.5\na 1 2\n")
    assert open_vectors(path).dim == 3
    assert open_vectors(path, dim=2).read().words == ["page 1", "page 2", "a"]


GOOD = [f"w{i} {i}.5 0.25 -1.0" for i in range(1200)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [("w3 1 2", "3 fields instead of 4"), ("w3 1 x 2", "is no number"), ("w3 1.5 2.5 ", "3 fields instead of 4")],
)
def test_a_few_broken_lines_are_counted_or_refused(tmp_path, line, reason, caplog):
    path = write(tmp_path / "v.txt", "\n".join([*GOOD[:3], line, *GOOD[4:]]) + "\n")
    for wanted, count in ((None, 1199), (Wanted.words(["w3", "w4"]), 1)):
        caplog.clear()
        table = open_vectors(path).read(wanted)
        assert (len(table.words), table.origin.broken_lines, table.origin.rows) == (count, 1, 1199)
        assert re.search(rf"1 broken line ignored: line 4 \(.*{reason}", caplog.text)
    with pytest.raises(VectorFileError, match=rf"v.txt:4: .*{reason}.*--embed-init-strict"):
        open_vectors(path, strict=True).read(Wanted.words(["w1"]))


@pytest.mark.parametrize(
    ("good", "broken", "tolerated"), [(4, 1, False), (19, 1, True), (300, 10, True), (300, 11, False), (2000, 20, True)]
)
def test_how_many_broken_lines_are_a_few(tmp_path, monkeypatch, good, broken, tolerated):
    content = "".join(f"w{n} 1 2\n" for n in range(good - 1)) + "short 1\n" * broken + "last 1 2\n"
    reader = open_vectors(write(tmp_path / "v.txt", content))
    if tolerated:
        assert reader.read().origin.broken_lines == broken
    else:
        named = ", ".join(f"{good + at} \\(" + ".*" for at in range(min(broken, 5)))
        with pytest.raises(VectorFileError, match=rf"v.txt:{good}: {broken} of {good + broken} lines? .*{named}"):
            reader.read()
    monkeypatch.setattr(text_lines, "_HOPELESS", 100)  # it is not read to its end
    path = write(tmp_path / "v.txt", "a 1 2\n" * 100 + "a 1 x\n" * 1000)
    with pytest.raises(VectorFileError, match=r"v.txt:20\d: 101 of the lines so far.*--embed-init-format"):
        open_vectors(path).read()


@pytest.mark.parametrize("number", [" nan", "  NaN", " inf", "  -Infinity", " 1e39"])
def test_nan_and_infinity_are_named_with_their_line(tmp_path, number):
    path = write(tmp_path / "v.txt", f"a 1 2\nbad 1{number}\nb 3 4\n")
    for strict, wanted in ((False, ["bad"]), (True, ["a"])):  # strict: of rows that are not wanted, too
        with pytest.raises(VectorFileError, match=r"v.txt:2: .*'bad'.*Delete the line"):
            open_vectors(path, strict=strict).read(Wanted.words(wanted))


def test_wide_rows_for_many_words(tmp_path):
    """Which rows are wanted is known before which of them are there: the table must not begin as large as all."""
    numbers = [" 1"] * 30 + [" 1.2345678"] * 10  # two batches, the second of fewer and longer numbers
    path = write(tmp_path / "v.txt", "".join(f"w{row}{number * 1000}\n" for row, number in enumerate(numbers)))
    reader, wanted = open_vectors(path), Wanted.words(f"w{number}" for number in range(50_000))
    assert reader._capacity(wanted) * 1_000 * 4 <= 64 << 20
    assert reader._capacity(None) == 1
    for filter_ in (None, wanted):
        assert_bits_equal(reader.read(filter_).matrix, np.repeat(floats(numbers), 1000))


@pytest.mark.parametrize("blank", [b"\n", b" \n", b"\t \r\n"])
def test_blank_lines(tmp_path, monkeypatch, blank):
    monkeypatch.setattr(bounded, "MOST_BLANK_LINES", 100)
    good = "".join(f"w{number} 1 2 3\n" for number in range(30)).encode()
    for wanted, count in ((None, 30), (Wanted.words(["w1"]), 1)):
        for blanks in (100, 10_000):
            path = write(tmp_path / "v.txt", good + blank * blanks + good)
            said = pytest.raises(VectorFileError, match=r"v.txt:131: 101 of the lines .*remove them")
            with contextlib.nullcontext() if blanks == 100 else said:
                assert len(open_vectors(path).read(wanted).words) == count


# ---- sub-words


@pytest.mark.parametrize(
    ("lines", "surface", "rows"),
    [
        (["▁un 1 0", "believ 2 0", "able 3 0", "▁ 9 9", "▁a 4 4", "b 5 5"], "unbelievable", [1, 2, 3]),
        (["un 1 0", "##believ 2 0", "##able 3 0", "able 9 9", "believ 9 9"], "unbelievable", [1, 2, 3]),
        (["un@@ 1 0", "believ@@ 2 0", "able 3 0", "able@@ 9 9", "un 9 9"], "unbelievable", [1, 2, 3]),
        (["▁a 1 0", "▁ab 3 0", "c 5 0", "bc 9 9"], "ab?c", [3, 5]),
    ],
)
def test_pieces_are_cut_longest_first_and_averaged(tmp_path, lines, surface, rows):
    for head in ("", f"{len(lines)} 2\n"):
        composed = open_vectors(write(tmp_path / "v.txt", head + "\n".join(lines) + "\n")).compose([surface, "ω"])
        assert (list(composed), composed[surface].dtype) == ([surface], np.float32)
        np.testing.assert_allclose(composed[surface], [np.mean(rows), 0], rtol=1e-6)


def test_long_pieces_and_words_that_are_no_text(tmp_path):
    """Of long words only those count that a word can be cut into."""
    long = "x" * 200
    content = f"▁{long} 1 0\n▁a 2 0\n".encode() + b"\xff\xfe 3 0\n" + ("y" * 900 + " 5 0\n" + PADDING).encode()
    reader = open_vectors(write(tmp_path / "v.txt", content.replace(b"padding", b"\xe2\x96\x81p")))
    assert reader.compose([long])[long].tolist() == [1, 0]
    with pytest.raises(OptionError, match="--embed-init-oov"):
        open_vectors(write(tmp_path / "v.txt", PADDING)).compose(["padding"])


# ---- numbers, bit-equal to numpy.float32(float(token))

DIGITS = st.text("0123456789", min_size=1, max_size=22)
FRACTION = st.text("0123456789", min_size=1, max_size=16)
SIGN = st.sampled_from(["", "-", "+"])
EXPONENT = st.builds("{}{}{}".format, st.sampled_from("eE"), SIGN, st.integers(0, 60))
DECIMAL = st.builds("{}{}.{}".format, SIGN, DIGITS, DIGITS)
TOKENS = st.one_of(
    st.builds("{}{}.{}".format, st.sampled_from(["", "-"]), st.sampled_from("0123"), FRACTION),
    DECIMAL,
    st.builds("{}{}".format, DECIMAL, EXPONENT),
    st.builds("{}{}".format, SIGN, DIGITS),
    st.builds("{}.{}".format, SIGN, DIGITS),
    st.builds("{}{}.".format, SIGN, DIGITS),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(lambda x: str(np.float32(x))),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(["-0", "-0.0", "-0.000000", "0.", ".5", "1e-45", "1.4e-45", "7.0e-46", "3.4028236e38", "1e39"]),
)


def floats(tokens: list[str]) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.array([np.float32(float(token)) for token in tokens], np.float32)


def assert_parsed(tokens: list[str], copies: int = 1) -> None:
    values, regular = RowParser(len(tokens)).parse([" ".join(tokens).encode()] * copies)
    assert regular.all()
    assert_bits_equal(values, np.tile(floats(tokens), copies))


@settings(max_examples=70, deadline=None)
@given(st.lists(TOKENS, min_size=1, max_size=25), st.sampled_from([1, 1, 70, 200]))
def test_any_spelling_equals_float(tokens, copies):
    """Above a number of unusual tokens the array path for long fractions is taken."""
    assert_parsed(tokens, copies)


def test_every_fraction_length_equals_float():
    for digits in range(1, 18):
        drawn = np.random.default_rng(digits).integers(0, 10**digits, 500)
        assert_parsed([f"{'-' * (i % 2)}{i % 10}.{number:0{digits}d}" for i, number in enumerate(drawn.tolist())])


def test_numbers_near_the_middle_of_two_float32_equal_float():
    """Rounding the decimal at once would differ; 17 digits are more than float64 holds."""
    low = np.random.default_rng(1).uniform(4, 8, 500).astype(np.float32)
    middle = [(Decimal(float(a)) + Decimal(float(b))) / 2 for a, b in zip(low, np.nextafter(low, np.float32(9)))]
    one = (1 + float(np.nextafter(np.float32(1), np.float32(2)))) / 2
    assert_parsed([*(f"{number:.16f}" for number in middle), repr(one), f"{one:.20f}", f"{one:.15f}", f"{one:.17f}1"])


IRREGULAR = [b"0.1", b"0.1 0.2 0.3", b"0.1  0.2", b"0.1 ", b" 0.1 0.2", b"0.1\t0.2", b"0.1\x0b0.2", b"0.1 0.2\r", b""]
IRREGULAR += [b"0.1 " + number for number in b"0.x2 0..2 --0.2 0.2- 1_0 0x1p3 1e - . :.5 /.5 0.12345678:".split()]
IRREGULAR += [b"0.1 0.2\x00", b"0.1 0.1\xb2", b"0.1 0.\xd9\xa1", b"0.1 0.1234567\xb0"]
IRREGULAR += [b"0.1 0.1234/678901", b"0.1 0.1234567/8901"]


@pytest.mark.parametrize("row", IRREGULAR)
def test_irregular_rows_are_told_apart_from_their_neighbours(row):
    values, regular = RowParser(2).parse([b"0.5 -0.25", row, b"1.5 2.5"] * 70)
    assert regular.tolist() == [True, False, True] * 70
    assert_bits_equal(values[regular], np.tile(np.float32([0.5, -0.25, 1.5, 2.5]), 70))
    # those that make up for each other
    assert not RowParser(2).parse([b"0.5", b"0.1 0.2 0.3"])[1].any()


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=30).filter(lambda row: b"\n" not in row))
def test_random_bytes_are_numbers_or_irregular(row):
    values, regular = RowParser(2).parse([row])
    found = [parse_number(token) for token in row.split(b" ")]
    assert regular[0] == (len(found) == 2 and None not in found)
    if regular[0]:
        assert_bits_equal(values, floats([token.decode() for token in row.split(b" ")]))


@settings(max_examples=60)
@given(st.binary(max_size=8) | st.sampled_from([b"1_0", b" 1", b"1 ", b"\x1c1", b"nan", b"-inf", b"Infinity", b"1e5"]))
def test_a_number_is_what_float_takes_without_underscores_and_white_space(token):
    plain = token.isascii() and b"_" not in token and token == token.strip(b" \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85")
    try:
        number = float(token) if plain else None
    except ValueError:
        number = None
    assert repr(parse_number(token)) == repr(number)


def test_the_scratch_space_follows_the_batch():
    parser = RowParser(3)
    for count in (1, 50, 2, 400, 7):
        rows = [b"%d.5 0.25 -%d.125" % (i % 10, i % 7) for i in range(count)]
        values, regular = parser.parse(rows)
        assert regular.all()
        assert values.shape == (count, 3)
        assert_bits_equal(values, floats([token for row in rows for token in row.decode().split()]))
