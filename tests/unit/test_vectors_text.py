"""Vectors as text: words with spaces, numbers of any spelling, headers, broken lines, subwords."""

import itertools
import re
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from source_files import write

from embinit_fairseq.errors import VectorFileError
from embinit_fairseq.vectors import compressed
from embinit_fairseq.vectors.numbers import RowParser, parse_number
from embinit_fairseq.vectors.open import open_vectors
from embinit_fairseq.vectors.table import Wanted

#: Enough good lines for one broken line to be tolerated.
PADDING = "".join(f"padding{n} 0 0\n" for n in range(30))


@pytest.mark.parametrize(
    ("content", "expected", "counted"),
    [
        # words with blanks, as in glove.840B
        ("the 0.1 0.2 0.3\n. . . 0.4 0.5 0.6\nat name@domain.com 1 2 3\n. 7 8 9\n",
         {"the": [0.1, 0.2, 0.3], ". . .": [0.4, 0.5, 0.6], "at name@domain.com": [1, 2, 3], ".": [7, 8, 9]},
         (4, 0, 0)),
        # words that are numbers
        ("1 0.5 0.25\n1 000 0.1 0.2\nnan 1 2\n3 4 5",
         {"1": [0.5, 0.25], "1 000": [0.1, 0.2], "nan": [1, 2], "3": [4, 5]}, (4, 0, 0)),
        ("a 1 2\nb 3 4\na 5 6\na 7 8\n", {"a": [1, 2], "b": [3, 4]}, (4, 2, 0)),
        ("2 2\nnew york 1 2\nb 3 4\n", {"new york": [1, 2], "b": [3, 4]}, (2, 0, 0)),
        # words like the beginnings of other files
        *((f"{word} 1 2\nb 3 4\n", {word: [1, 2]}, (2, 0, 0)) for word in ("<html", "version", "a,b", "1;2", "<?xml")),
        # what Unicode takes for blanks and ends of lines
        ("\u00a0 1 2\nx\x85y 3 4\n\u2028 5 6\n", {"\u00a0": [1, 2], "x\x85y": [3, 4], "\u2028": [5, 6]}, (3, 0, 0)),
        ("\ufeff2 2\na 1 2\nb 3 4\n", {"a": [1, 2], "b": [3, 4]}, (2, 0, 0)),
        # byte-order mark, blank lines, mixed separators
        ("\ufeffa 1 2\n\n  b\t3 4\nc  5   6 \t\r\n\n\n", {"a": [1, 2], "b": [3, 4], "c": [5, 6]}, (3, 0, 0)),
        # two files put together: words end in another way than most; a space before each word
        *((f"{a}\n{a.replace('x', 'y')}\n{b}\n", {"x": [0.25, 0.5], "zz": [0.25, 0.5]}, (3, 0, 0))
          for one, other in itertools.permutations(
              ("%s 0.25 0.5", "%s\t0.25\t0.5", "%s\t0.25 0.5", " %s\t0.25\t0.5", "%s\r\t0.25\t0.5"), 2)
          for a, b in [(one % "x", other % "zz")]),
        # broken: a first row, which gives way to a later one; a short one that is not wanted; one without a word
        ("x 0 0\na 1 oops\ny 0 0\na 5 6\n" + PADDING, {"a": [5, 6]}, (33, 0, 1)),
        ("a 1 2\nx 1\nb 3 4\n" + PADDING, {"a": [1, 2], "b": [3, 4]}, (32, 0, 1)),
        ("a 1 2\n 3 4\nb 5 6\n" + PADDING, {"a": [1, 2], "b": [5, 6]}, (32, 0, 1)),
    ],
)  # fmt: skip
def test_lines_by_hand(tmp_path, monkeypatch, content, expected, counted):
    path = write(tmp_path / "v.txt", content)
    for chunk, wanted in itertools.product((5, 16, 1024), (None, Wanted.words({*expected, "absent"}))):
        monkeypatch.setattr(compressed, "CHUNK", chunk)
        table = open_vectors(path).read(wanted)
        assert {word: row.tolist() for word, row in zip(table.words, table.matrix) if word in expected} == {
            word: np.float32(row).tolist() for word, row in expected.items()
        }
        assert (table.origin.rows, table.origin.duplicates, table.origin.broken_lines) == counted
        assert wanted is None or table.words == list(expected)


def test_a_number_at_the_end_of_every_word_is_told_by_the_expected_width(tmp_path):
    path = write(tmp_path / "v.txt", "page 1 0.5 0.5\npage 2 0.25 0.5\na 1 2\n")
    assert open_vectors(path).dim == 3
    assert open_vectors(path, dim=2).read().words == ["page 1", "page 2", "a"]


@pytest.mark.parametrize("announced", [1, 100, 101, 102])
def test_a_header_with_a_wrong_number_of_rows(tmp_path, caplog, announced):
    """As wiki-news-300d-1M-subword.vec has one; a file that does not end with its line is cut short all the same."""
    lines = "".join(f"w{row} {row} 2\n" for row in range(100))
    reader = open_vectors(path := write(tmp_path / "v.txt", f"{announced} 2\n{lines}"))
    for wanted in (None, Wanted.words(["w7", "w99"])):
        table = reader.read(wanted)
        assert table.matrix[-1].tolist() == [99, 2]
        assert (table.origin.rows, table.origin.broken_lines) == (100, max(0, announced - 100))
    strict = open_vectors(path, strict=True)
    if announced == 100:
        assert not caplog.text
        return
    assert f"the header announces {announced} row" in caplog.text
    with pytest.raises(VectorFileError, match=r"announces .* has 100; correct the header, or do without strict"):
        strict.read()
    if announced > 100:
        with pytest.raises(VectorFileError, match="cut short"):
            open_vectors(write(tmp_path / "cut.txt", f"{announced} 2\n{lines[:-1]}")).read()


@pytest.mark.parametrize(
    ("announced", "broken", "said"), [(107, 0, "cut short: download it again, or correct"), (107, 3, "3 of 104 lines")]
)
def test_missing_rows_are_broken_lines(tmp_path, announced, broken, said):
    """Five of a hundred are a few, six are many."""
    lines = "".join(f"w{row} 1 2\n" for row in range(101))
    with pytest.raises(VectorFileError, match=said):
        open_vectors(write(tmp_path / "v.txt", f"{announced} 2\n" + "x 1\n" * broken + lines)).read()


def test_words_of_another_encoding_are_broken_lines(tmp_path):
    """Also those that the dictionary does not name byte for byte: it would miss all words with umlauts, silently."""
    words = [f"w{number}" for number in range(95)]
    rows = "".join(f"{word} 1 2\n" for word in [*words, "m\u00e4dchen"])
    path = write(tmp_path / "v.txt", rows.encode("latin-1"))
    wanted = Wanted(exact=frozenset(["m\u00e4dchen", *words]), folded=frozenset(["m\u00e4dchen", *words]))
    assert open_vectors(path).read(wanted).origin.broken_lines == 1
    path = write(tmp_path / "v.txt", (rows + "stra\u00dfe 1 2\n" * 12).encode("latin-1"))
    with pytest.raises(VectorFileError, match=r"not UTF-8.*iconv -f cp1252"):
        open_vectors(path).read(wanted)


@pytest.mark.parametrize(
    ("good", "broken", "tolerated"),
    [(18, 1, False), (19, 1, True), (300, 10, True), (300, 11, False), (1980, 20, True), (1980, 21, False)],
)
def test_how_many_broken_lines_are_a_few(tmp_path, caplog, good, broken, tolerated):
    content = "".join(f"w{n} 1 2\n" for n in range(good - 1)) + "short 1\n" * broken + "last 1 2\n"
    reader = open_vectors(path := write(tmp_path / "v.txt", content))
    if tolerated:
        assert reader.read().origin.broken_lines == broken
        assert re.search(rf"{broken} broken lines? ignored: lines? {good} \(2 fields instead of 3", caplog.text)
        with pytest.raises(VectorFileError, match=rf"v.txt:{good}: 2 fields instead of 3.*strict"):
            open_vectors(path, strict=True).read(Wanted.words(["last"]))
    else:
        named = ", ".join(f"{good + at} \\(" + ".*" for at in range(min(broken, 5)))
        with pytest.raises(VectorFileError, match=rf"v.txt:{good}: {broken} of {good + broken:,} lines? .*{named}"):
            reader.read()


# ---- subwords


@pytest.mark.parametrize(
    ("lines", "surface", "rows"),
    [
        (["▁un 1 0", "believ 2 0", "able 3 0", "▁ 9 9", "▁a 4 4", "b 5 5"], "unbelievable", [1, 2, 3]),
        (["un 1 0", "##believ 2 0", "##able 3 0", "able 9 9", "believ 9 9"], "unbelievable", [1, 2, 3]),
        (["un@@ 1 0", "believ@@ 2 0", "able 3 0", "able@@ 9 9", "un 9 9"], "unbelievable", [1, 2, 3]),
        (["▁a 1 0", "▁ab 3 0", "c 5 0", "bc 9 9"], "ab?c", [3, 5]),
        (["▁ab 1 0", "▁a 2 0", "\udcff\udcfe 3 0"], "ab", [1]),  # not UTF-8
        (["▁北 9 9", "京大 9 9", "北京 1 0", "大学 3 0", "学 9 9", "▁a 9 9"], "北京大学", [1, 3]),  # `▁北 京大 学`
    ],
)
def test_pieces_are_cut_longest_first_and_averaged(tmp_path, lines, surface, rows):
    for head in ("", f"{len(lines)} 2\n"):
        content = head + "\n".join(lines) + "\n"
        reader = open_vectors(write(tmp_path / "v.txt", content.encode(errors="surrogateescape")))
        composed = reader.compose([surface, "ω"])
        assert (list(composed), composed[surface].dtype) == ([surface], np.float32)
        np.testing.assert_allclose(composed[surface], [np.mean(rows), 0], rtol=1e-6)


# ---- numbers, bit-equal to numpy.float32(float(token))


def assert_parsed(tokens: list[str], dim: int = 25, batch: int = 64) -> None:
    parser = RowParser(dim)  # one, for batches of several sizes
    rows = [" ".join(row).encode() for row in itertools.zip_longest(*[iter(tokens)] * dim, fillvalue="0.5")]
    with np.errstate(over="ignore"):
        expected = np.array([np.float32(float(token)) for row in rows for token in row.split()], np.float32)
    for begin in range(0, len(rows), batch):
        values, regular = parser.parse(rows[begin : begin + batch])
        assert regular.all()
        part = expected[begin * dim : (begin + batch) * dim]
        np.testing.assert_array_equal(values.ravel().view(np.uint32), part.view(np.uint32))


@pytest.mark.parametrize(("dim", "batch"), [(1, 70), (25, 1), (25, 3), (300, 9)])
def test_any_spelling_equals_float(dim, batch):
    """In batches of many unusual numbers, and in few among the usual ones of vectors."""
    generator = np.random.default_rng(dim * batch)

    def digits(most: int, least: int = 0) -> str:
        return "".join(map(str, generator.integers(0, 10, generator.integers(least, most + 1))))

    tokens = ["-0", "-0.0", "-0.000000", "0.", ".5", "1e-45", "1.4e-45", "7.0e-46", "3.4028236e38", "1e39", "+1.5E+3"]
    for _ in range(400):
        whole, fraction, sign = digits(22, 1), digits(17), generator.choice(["", "-", "+"])
        exponent = generator.choice(["", "", f"e{generator.integers(-50, 40)}"])
        tokens += [f"{sign}{whole}{'.' * bool(fraction)}{fraction}{exponent}", f"{sign}.{digits(17, 1)}"]
        tokens += [f"{'-' * int(generator.integers(2))}{generator.integers(4)}.{digits(17, 1)}"]  # as in vectors
        tokens += [str(np.float32(generator.normal())), repr(float(generator.normal() * 1e-9))]
    assert_parsed(tokens, dim, batch)
    usual = [f"{number:.5f}" for number in generator.normal(size=600)]
    assert_parsed([*usual, tokens[-1], *usual], dim, batch)


def test_numbers_near_the_middle_of_two_float32_equal_float():
    """Rounding the decimal at once would differ; 17 digits are more than float64 holds."""
    low = np.random.default_rng(1).uniform(1, 8, 500).astype(np.float32)
    middle = [(Decimal(float(a)) + Decimal(float(b))) / 2 for a, b in zip(low, np.nextafter(low, np.float32(9)))]
    one = (1 + float(np.nextafter(np.float32(1), np.float32(2)))) / 2
    assert_parsed([*(f"{number:.16f}" for number in middle), repr(one), f"{one:.20f}", f"{one:.15f}", f"{one:.17f}1"])
    for length in range(1, 18):  # and fractions of every length
        drawn = np.random.default_rng(length).integers(0, 10**length, 500)
        assert_parsed([f"{'-' * (i % 2)}{i % 10}.{number:0{length}d}" for i, number in enumerate(drawn.tolist())])


IRREGULAR = [b"0.1", b"0.1 0.2 0.3", b"0.1  0.2", b"0.1 ", b" 0.1 0.2", b"0.1\t0.2", b"0.1\x0b0.2", b"0.1 0.2\r", b""]
ODD = b"0.x2 0..2 --0.2 0.2- 1_0 0x1p3 1e - . :.5 /.5 0.12345678: 0.1234/678901 0.1234567/8901 0.2\0 0.1\xb2"
IRREGULAR += [b"0.1 " + number for number in ODD.split()]


@pytest.mark.parametrize("row", IRREGULAR)
def test_irregular_rows_are_told_apart_from_their_neighbours(row):
    values, regular = RowParser(2).parse([b"0.5 -0.25", row, b"1.5 2.5"] * 70)
    assert regular.tolist() == [True, False, True] * 70
    np.testing.assert_array_equal(values[regular].ravel(), np.tile(np.float32([0.5, -0.25, 1.5, 2.5]), 70))
    # those that make up for each other
    assert not RowParser(2).parse([b"0.5", b"0.1 0.2 0.3"])[1].any()


@settings(max_examples=40)
@given(st.binary(max_size=8) | st.sampled_from([b"1_0", b" 1", b"1 ", b"\x1c1", b"nan", b"-inf", b"Infinity", b"1e5"]))
def test_a_number_is_what_float_takes_without_underscores_and_white_space(token):
    plain = token.isascii() and b"_" not in token and token == token.strip(b" \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85")
    try:
        number = float(token) if plain else None
    except ValueError:
        number = None
    assert repr(parse_number(token)) == repr(number)
    values, regular = RowParser(1).parse([token.replace(b"\n", b" ")])  # which both are no number
    assert regular.tolist() == [number is not None]
    if number is not None:
        np.testing.assert_array_equal(values[0, 0], np.float32(number))
