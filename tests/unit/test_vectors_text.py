"""Text vectors against a naive reader, line by line and token by token."""

from __future__ import annotations

import contextlib
import gzip
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embinit_fairseq.errors import EmbinitError
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
