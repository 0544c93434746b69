"""Text vectors against a naive reader, line by line and token by token."""

from __future__ import annotations

import contextlib
import gzip
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embinit_fairseq.errors import DimensionError, EmbinitError, VectorFileError
from embinit_fairseq.vectors.open import open_vectors, recognise
from embinit_fairseq.vectors.table import Wanted
from embinit_fairseq.vectors.text import TextVectors

CHUNKS = (5, 16, 1024)


def write(path, data: bytes | str) -> str:
    path.write_bytes(data if isinstance(data, bytes) else data.encode("utf-8"))
    return str(path)


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
    assert table.matrix.dtype == np.float32
    assert table.matrix.flags.c_contiguous
    wanted = np.array(list(rows.values()), np.float32).reshape(len(rows), table.origin.dim)
    np.testing.assert_array_equal(table.matrix.view(np.uint32), wanted.view(np.uint32))


# ---- against the naive reader, every record split somewhere

LETTERS = st.characters(exclude_categories=("Cs",), exclude_characters=" \t\r\n\ufeff")
WORDS = st.one_of(
    st.text(LETTERS, min_size=1, max_size=6), st.sampled_from(["a", "A", "b", "\u00a0", "x\u0085y", "\u2028", "ß", "."])
)
NUMBERS = st.one_of(
    st.floats(-9, 9, width=32).map(lambda x: f"{x:.5f}"),
    st.floats(-(2.0**90), 2.0**90, width=32).map(lambda x: str(np.float32(x))),
)  # fmt: skip


@st.composite
def vector_files(draw):
    dim = draw(st.integers(1, 5))
    row = st.tuples(WORDS, st.lists(NUMBERS, min_size=dim, max_size=dim))
    rows = draw(st.lists(row, min_size=1, max_size=20))
    separator = draw(st.sampled_from([" ", "\t"]))
    end = draw(st.sampled_from(["\n", "\r\n", " \n"]))
    data = "".join(separator.join([word, *numbers]) + end for word, numbers in rows).encode()
    return dim, len(rows), data[: -len(end)] if draw(st.booleans()) else data


@settings(max_examples=100, deadline=None)
@given(vector_files(), st.booleans(), st.sampled_from(CHUNKS), st.booleans(), st.data())
def test_equals_the_naive_reader(tmp_path_factory, made, header, chunk, strict, data):
    dim, count, text = made
    path = write(tmp_path_factory.getbasetemp() / "fuzzed.txt", (b"%d %d\n" % (count, dim) if header else b"") + text)
    rows = naive(text, dim)
    reader = TextVectors(path, dim, strict, header=header, chunk=chunk)
    assert (reader.dim, reader.format) == (dim, "word2vec" if header else "glove")
    assert_table(reader.read(), rows)
    some = data.draw(st.sets(st.sampled_from(list(rows))))
    found = reader.read(Wanted.words(some | {"absent"}))
    assert_table(found, {word: row for word, row in rows.items() if word in some})
    assert found.origin.rows == count
    folded = frozenset(word.casefold() for word in some)
    found = reader.read(Wanted(folded=folded))
    assert_table(found, {word: row for word, row in rows.items() if word.casefold() in folded})


@settings(max_examples=200, deadline=None)
@given(vector_files(), st.sampled_from(CHUNKS), st.data())
def test_damaged_files_are_read_or_refused_but_never_crash(tmp_path_factory, made, chunk, data):
    _, _, text = made
    damaged = bytearray(text)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(damaged)))
        damaged[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    path = write(tmp_path_factory.getbasetemp() / "fuzzed.txt", bytes(damaged))
    try:
        table = TextVectors(path, chunk=chunk).read()
    except EmbinitError:
        return
    assert table.matrix.shape == (len(table.words), table.origin.dim)
    assert np.isfinite(table.matrix).all()


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.sampled_from([None, "glove", "word2vec", "npz"]))
def test_random_bytes_are_refused_or_read_but_never_crash(tmp_path_factory, content, format):
    path = write(tmp_path_factory.getbasetemp() / "fuzzed.txt", content)
    with contextlib.suppress(EmbinitError):
        format = format or recognise(path)
        if format in ("glove", "word2vec", "npz"):
            open_vectors(path, format).read()


def test_words_with_blanks_as_in_glove_840b(tmp_path):
    text = "the 0.1 0.2 0.3\n. . . 0.4 0.5 0.6\nat name@domain.com 1.5 2.5 -3.5\n. 7.0 8.0 9.0\n"
    reader = open_vectors(write(tmp_path / "v.txt", text))
    assert reader.dim == 3
    table = reader.read(Wanted.words([".", ". . .", "the", "at"]))
    assert table.words == ["the", ". . .", "."]
    np.testing.assert_array_equal(table.matrix[1], np.float32([0.4, 0.5, 0.6]))
    assert reader.read().words == ["the", ". . .", "at name@domain.com", "."]


def test_words_that_are_numbers(tmp_path):
    reader = open_vectors(write(tmp_path / "v.txt", "1 0.5 0.25\n1 000 0.1 0.2\nnan 1 2\n3 4 5\n"))
    assert reader.dim == 2
    assert reader.read().words == ["1", "1 000", "nan", "3"]


def test_first_of_duplicates_wins_and_is_counted(tmp_path):
    reader = open_vectors(write(tmp_path / "v.txt", "a 1 2\nb 3 4\na 5 6\na 7 8\nc 1 1\nc 2 2\n"))
    table = reader.read(Wanted.words("ab"))
    assert table.words == ["a", "b"]
    np.testing.assert_array_equal(table.matrix, [[1, 2], [3, 4]])
    assert (table.origin.duplicates, table.origin.rows) == (2, 6)


#: Enough good lines for one broken line to be tolerated.
PADDING = "".join(f"padding{n} 0 0\n" for n in range(30))


def test_a_broken_first_row_gives_way_to_a_later_one(tmp_path):
    reader = open_vectors(write(tmp_path / "v.txt", "x 0 0\na 1 oops\ny 0 0\na 5 6\n" + PADDING))
    table = reader.read(Wanted.words("a"))
    np.testing.assert_array_equal(table.matrix, [[5, 6]])
    assert (table.origin.broken_lines, table.origin.duplicates) == (1, 0)


def test_byte_order_mark_blank_lines_and_mixed_separators(tmp_path):
    data = b"\xef\xbb\xbfa 1 2\n\n  b\t3 4\nc  5   6 \t\r\n\n\n"
    table = open_vectors(write(tmp_path / "v.txt", data)).read(Wanted.words("abc"))
    assert table.words == ["a", "b", "c"]
    np.testing.assert_array_equal(table.matrix, [[1, 2], [3, 4], [5, 6]])
    assert (table.origin.rows, table.origin.broken_lines) == (3, 0)


def test_case_folding_goes_beyond_ascii(tmp_path):
    text = "Straße 1 2\nSTRASSE 3 4\nK 5 6\nk 7 8\nother 0 0\n"
    table = open_vectors(write(tmp_path / "v.txt", text)).read(Wanted(frozenset(), frozenset({"strasse", "k"})))
    assert table.words == ["Straße", "STRASSE", "K", "k"]


def test_nothing_wanted_is_an_empty_table(tmp_path):
    table = open_vectors(write(tmp_path / "v.txt", "a 1 2\nb 3 4\n")).read(Wanted.words(["zzz", "\ud800"]))
    assert (table.words, table.matrix.shape) == ([], (0, 2))


def test_reading_twice_gives_the_same(tmp_path):
    reader = open_vectors(write(tmp_path / "v.txt", "a 1 2\nb 3 4\n"))
    assert reader.read().words == reader.read().words


# ---- errors name file, line, remedy


@pytest.mark.parametrize("content", [b"", b"\n\n", b"  \n", gzip.compress(b"", mtime=0)])
@pytest.mark.parametrize("format", [None, "glove", "word2vec"])
def test_empty_file(tmp_path, content, format):
    with pytest.raises(VectorFileError, match=r"v.txt: the file is empty"):
        open_vectors(write(tmp_path / "v.txt", content), format)


@pytest.mark.parametrize("text", ["a 1 2 3\nb 4 5 6\n", "2 3\na 1 2 3\nb 4 5 6\n"])
@pytest.mark.parametrize("dim", [1, 2, 4, 300])
def test_wrong_dimension_names_the_flags(tmp_path, text, dim):
    with pytest.raises(
        DimensionError, match=r"have 3 dimensions, expected \d+.*--encoder-embed-dim 3 .*--decoder-embed-dim 3"
    ):
        open_vectors(write(tmp_path / "v.txt", text), dim=dim)


def test_dimension_resolves_doubt(tmp_path):
    """All words end in a number: only the expected width tells it from the vector."""
    path = write(tmp_path / "v.txt", "page 1 0.5 0.5\npage 2 0.25 0.5\na 1 2\n")
    assert open_vectors(path).dim == 3
    assert open_vectors(path, dim=2).read().words == ["page 1", "page 2", "a"]


@pytest.mark.parametrize("tail", ["z 1 2", "z 1 2\n", "z", "z 1 2 -", "z 1 2 1e-", "z 1 2\n\n"])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("wanted", [None, Wanted.words("a")])
def test_truncated_last_line(tmp_path, tail, strict, wanted):
    path = write(tmp_path / "v.txt", "a 1 2 3\n" * 20 + tail)
    with pytest.raises(VectorFileError, match=r"v.txt:21: the last line .*Download it again"):
        open_vectors(path, strict=strict).read(wanted)


def test_header_and_rows_disagree(tmp_path, caplog):
    with pytest.raises(VectorFileError, match=r"announces 3 rows, but the file has 2.*cut short"):
        open_vectors(write(tmp_path / "v.txt", "3 2\na 1 2\nb 3 4\n")).read(Wanted.words("a"))
    with pytest.raises(VectorFileError, match=r"v.txt:1: the header announces 3 numbers a line, .* have 2"):
        open_vectors(write(tmp_path / "v.txt", "2 3\na 1 2\nb 3 4\n"))
    table = open_vectors(write(tmp_path / "v.txt", "1 2\na 1 2\nb 3 4\n")).read()
    assert table.words == ["a", "b"]
    assert "announces 1 row, read 2" in caplog.text
    with pytest.raises(VectorFileError, match=r"no header 'ROWS DIM'.*--embed-init-format glove"):
        open_vectors(write(tmp_path / "v.txt", "a 1 2\nb 3 4\n"), "word2vec")
    with pytest.raises(VectorFileError, match=r"no vectors follow the header"):
        open_vectors(write(tmp_path / "v.txt", "5 2\n"))


GOOD = [f"w{i} {i}.5 0.25 -1.0" for i in range(1200)]
BROKEN = {
    "few": ("w3 1 2", "3 fields instead of 4"),
    "word": ("w3 1 x 2", "is no number"),
    "blank": ("w3 1.5 2.5 ", "3 fields instead of 4"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_few_broken_lines_are_counted_or_refused(tmp_path, kind, caplog):
    line, reason = BROKEN[kind]
    path = write(tmp_path / "v.txt", "\n".join([*GOOD[:3], line, *GOOD[4:]]) + "\n")
    for wanted, count in ((None, 1199), (Wanted.words(["w3", "w4"]), 1)):
        caplog.clear()
        table = open_vectors(path).read(wanted)
        assert (len(table.words), table.origin.broken_lines, table.origin.rows) == (count, 1, 1199)
        assert "1 broken line ignored: line 4 (" in caplog.text
        assert reason in caplog.text
    with pytest.raises(VectorFileError, match=rf"v.txt:4: .*{reason}.*--embed-init-strict"):
        open_vectors(path, strict=True).read(Wanted.words(["w1"]))


def test_short_lines_of_unwanted_words_are_counted(tmp_path):
    path = write(tmp_path / "v.txt", "a 1 2\nx 1\nb 3 4\n" + PADDING)
    assert open_vectors(path).read(Wanted.words("ab")).origin.broken_lines == 1


def test_a_line_without_word_is_broken(tmp_path):
    table = open_vectors(write(tmp_path / "v.txt", "a 1 2\n 3 4\nb 5 6\n" + PADDING)).read()
    assert (table.words[:2], table.origin.broken_lines) == (["a", "b"], 1)


def test_words_that_are_not_utf8_are_broken_lines(tmp_path):
    path = write(tmp_path / "v.txt", b"a 1 2\n\xff\xfe 3 4\nb 5 6\n" + PADDING.encode())
    table = open_vectors(path).read()
    assert (table.words[:2], table.origin.broken_lines) == (["a", "b"], 1)
    with pytest.raises(VectorFileError, match=r"v.txt:2: .*not UTF-8"):
        open_vectors(path, strict=True).read()


@pytest.mark.parametrize("gap", [" ", "  "])
@pytest.mark.parametrize("number", ["nan", "NaN", "inf", "-Infinity", "1e39"])
@pytest.mark.parametrize("strict", [False, True])
def test_nan_and_infinity_in_a_wanted_row(tmp_path, number, strict, gap):
    path = write(tmp_path / "v.txt", f"a 1 2\nbad 1{gap}{number}\nb 3 4\n")
    with pytest.raises(VectorFileError, match=r"v.txt:2: the vector of 'bad' holds NaN, infinity"):
        open_vectors(path, strict=strict).read(Wanted.words(["bad"]))
    if not strict:
        assert open_vectors(path).read(Wanted.words("ab")).words == ["a", "b"]


@pytest.mark.parametrize(
    ("good", "broken", "tolerated"), [(4, 1, False), (19, 1, True), (300, 10, True), (300, 11, False)]
)
def test_how_many_broken_lines_are_a_few(tmp_path, good, broken, tolerated):
    text = "".join(f"w{n} 1 2\n" for n in range(good - 1)) + "short 1\n" * broken + "last 1 2\n"
    reader = open_vectors(write(tmp_path / "v.txt", text))
    if tolerated:
        assert reader.read().origin.broken_lines == broken
    else:
        verb = "is" if broken == 1 else "are"
        with pytest.raises(VectorFileError, match=rf"v.txt:{good}: {broken} of {good + broken} lines {verb} no word"):
            reader.read()


def test_many_broken_lines_mean_another_file(tmp_path):
    lines = [line if i % 50 else "w 1 2" for i, line in enumerate(GOOD)]
    with pytest.raises(
        VectorFileError, match=r"24 of 1,200 lines are no word with 3 numbers: lines 1 .*--embed-init-format"
    ):
        open_vectors(write(tmp_path / "v.txt", "\n".join(lines) + "\n"), dim=3).read()
    with pytest.raises(VectorFileError, match=r"3 of 4 lines are no word with 2 numbers"):
        open_vectors(write(tmp_path / "v.txt", "x 1 y\n" * 3 + "a 1 2\n")).read()


# ---- genuine files

GENUINE = {
    "glove.6B.50d.subset.txt.gz": 50,
    "glove.6B.300d.subset.txt.gz": 300,
    "glove.840B.300d.subset.txt.gz": 300,
    "word2vec.googlenews.300d.top1000.txt.gz": 300,
}


@pytest.mark.data
@pytest.mark.parametrize("name", GENUINE)
def test_genuine_vectors_equal_the_naive_reader(data_dir, name):
    path = data_dir / "vectors" / name
    reader = open_vectors(path)
    assert (reader.format, reader.dim) == ("glove", GENUINE[name])
    table = reader.read()
    assert_table(table, naive(gzip.decompress(path.read_bytes()), GENUINE[name]))
    assert (table.origin.broken_lines, table.origin.duplicates) == (0, 0)
