"""`.npz` archives and the writers: what is written comes back bit for bit, what is damaged is refused."""

from __future__ import annotations

import contextlib
import gzip
import os
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from embinit_fairseq.errors import DimensionError, EmbinitError, OptionError, OutputError, VectorFileError
from embinit_fairseq.vectors import npz
from embinit_fairseq.vectors.open import open_vectors
from embinit_fairseq.vectors.table import Wanted
from embinit_fairseq.vectors.writers import write_npz, write_text

WORDS = ["the", "The", "ß", "new york", "the"]
MATRIX = np.arange(15, dtype=np.float32).reshape(5, 3) / 7


def save(path, **arrays) -> str:
    np.savez(path, **arrays)
    return str(path)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("saver", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("block", [1, 24, 1 << 20])
def test_wanted_rows_are_those_of_the_arrays(tmp_path, monkeypatch, dtype, order, saver, block):
    monkeypatch.setattr(npz, "_BLOCK", block)
    matrix = np.asarray(MATRIX.astype(dtype), order=order)
    path = tmp_path / "v.npz"
    saver(path, words=np.array(WORDS), matrix=matrix)
    reader = open_vectors(str(path))
    assert (reader.format, reader.dim) == ("npz", 3)
    table = reader.read()
    assert table.words == ["the", "The", "ß", "new york"]
    assert table.matrix.dtype == np.float32
    assert table.matrix.flags.c_contiguous
    np.testing.assert_array_equal(table.matrix, matrix[:4].astype(np.float32))
    assert (table.origin.rows, table.origin.duplicates) == (5, 1)
    some = reader.read(Wanted(frozenset(["new york"]), frozenset(["ss"])))
    assert some.words == ["ß", "new york"]
    np.testing.assert_array_equal(some.matrix, matrix[2:4].astype(np.float32))
    assert reader.read(Wanted.words([])).matrix.shape == (0, 3)


def test_bytes_as_words_and_vectors_as_name(tmp_path):
    path = save(tmp_path / "v.npz", words=np.array(["ä".encode(), b"b"]), vectors=MATRIX[:2])
    assert open_vectors(path).read().words == ["ä", "b"]


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"matrix": MATRIX}, "no arrays `words` and `matrix`, it holds matrix"),
        ({"words": np.array(WORDS)}, "no arrays `words` and `matrix`, it holds words"),
        ({"words": np.array(WORDS, dtype=object), "matrix": MATRIX}, "`words` holds Python objects"),
        ({"words": np.arange(5), "matrix": MATRIX}, "`words` is no list of strings"),
        ({"words": np.array([WORDS]), "matrix": MATRIX}, "`words` is no list of strings"),
        ({"words": np.array(WORDS), "matrix": MATRIX[0]}, "`matrix` is no matrix of floats"),
        ({"words": np.array(WORDS), "matrix": MATRIX.astype(int)}, "`matrix` is no matrix of floats"),
        ({"words": np.array(WORDS), "matrix": MATRIX[:4]}, "5 words, but 4 rows"),
        ({"words": np.array(WORDS)[:0], "matrix": MATRIX[:0]}, "`matrix` is empty"),
        ({"words": np.array([b"\xff"]), "matrix": MATRIX[:1]}, "`words` is no Unicode text"),
    ],
)
def test_unusable_arrays_say_how_to_save_them(tmp_path, arrays, reason):
    path = save(tmp_path / "v.npz", **arrays)
    with pytest.raises(VectorFileError, match=rf"v.npz: {reason}.*numpy.savez"):
        open_vectors(path, "npz").read()


def test_an_array_with_bytes_too_many_is_refused(tmp_path):
    path = save(tmp_path / "v.npz", words=np.array(WORDS), matrix=MATRIX)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content + b"x" * (name == "matrix.npy"))
    with pytest.raises(VectorFileError, match=r"`matrix` has 189 bytes instead of 188"):
        open_vectors(path)


def test_wrong_dimension_and_no_sub_words(tmp_path):
    path = save(tmp_path / "v.npz", words=np.array(WORDS), matrix=MATRIX)
    with pytest.raises(DimensionError, match="--encoder-embed-dim 3"):
        open_vectors(path, dim=300)
    with pytest.raises(OptionError, match="no sub-words"):
        open_vectors(path, dim=3).compose(["x"])


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e39])
def test_nan_and_infinity_only_matter_in_wanted_rows(tmp_path, value):
    matrix = MATRIX.astype(np.float64)
    matrix[2, 1] = value
    reader = open_vectors(save(tmp_path / "v.npz", words=np.array(WORDS), matrix=matrix))
    with pytest.raises(VectorFileError, match="vector of 'ß' holds NaN"):
        reader.read()
    assert reader.read(Wanted.words(["the"])).words == ["the"]


@settings(max_examples=150, deadline=None)
@given(st.data(), st.booleans())
def test_damaged_archives_are_refused_or_read(tmp_path_factory, data, compressed):
    path = tmp_path_factory.getbasetemp() / "fuzzed.npz"
    (np.savez_compressed if compressed else np.savez)(path, words=np.array(WORDS), matrix=MATRIX)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content)))
        content[place : place + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    path.write_bytes(content)
    for format in (None, "npz", "glove"):
        with contextlib.suppress(EmbinitError):
            open_vectors(str(path), format).read()


# ---- writers

FLOATS = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=2, max_side=5),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
)


@settings(max_examples=80, deadline=None)
@given(FLOATS, st.sampled_from(["v.txt", "v.txt.gz", "v.npz"]), st.booleans())
def test_written_vectors_come_back_bit_for_bit(tmp_path_factory, matrix, name, header):
    path = tmp_path_factory.getbasetemp() / name
    words = ["ä b", "\u00a0", "x\u0085", "Ġ.", "5"][: len(matrix)]
    if name.endswith("npz"):
        write_npz(path, words, matrix)
    else:
        write_text(path, words, matrix, header=header)
    table = open_vectors(str(path), dim=matrix.shape[1]).read()
    assert table.words == words
    assert table.origin.format == ("npz" if name.endswith("npz") else "word2vec" if header else "glove")
    np.testing.assert_array_equal(table.matrix.view(np.uint32), matrix.view(np.uint32))


def test_text_is_what_other_programs_expect(tmp_path):
    write_text(tmp_path / "v.vec", ["a", "b"], np.float32([[0.1, -2], [1e-8, 0]]), header=True)
    assert (tmp_path / "v.vec").read_bytes() == b"2 2\na 0.1 -2.0\nb 1e-08 0.0\n"
    write_text(tmp_path / "v.txt.gz", ["a"], np.float32([[0.25]]))
    assert gzip.decompress((tmp_path / "v.txt.gz").read_bytes()) == b"a 0.25\n"


@pytest.mark.parametrize("word", ["", " a", "a ", "a\nb", "a\r", "\ufeffa", "\ud800"])
def test_words_that_text_cannot_hold_are_refused_and_nothing_is_left(tmp_path, word):
    with pytest.raises(VectorFileError, match=r"cannot stand in a text file.*\.npz"):
        write_text(tmp_path / "v.txt", ["fine", word], np.ones((2, 2)))
    assert os.listdir(tmp_path) == []


def test_unwritable_values_and_places(tmp_path):
    with pytest.raises(VectorFileError, match="'b' holds NaN"):
        write_npz(tmp_path / "v.npz", ["a", "b"], np.array([[1.0], [np.nan]]))
    with pytest.raises(VectorFileError, match="2 words and a matrix of shape"):
        write_text(tmp_path / "v.txt", ["a", "b"], np.ones((1, 2)))
    with pytest.raises(VectorFileError, match="null character"):
        write_npz(tmp_path / "v.npz", ["a\0"], np.ones((1, 1)))
    with pytest.raises(OutputError, match="cannot be written"):
        write_npz(tmp_path / "no" / "v.npz", ["a"], np.ones((1, 1)))
    assert os.listdir(tmp_path) == []


def test_an_interrupted_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "v.npz"
    write_npz(path, ["old"], np.ones((1, 1)))

    def full(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OutputError, match="No space left"):
        write_npz(path, ["new"], np.ones((1, 1)))
    assert os.listdir(tmp_path) == ["v.npz"]
    assert open_vectors(str(path)).read().words == ["old"]


def test_encrypted_zip_is_refused(tmp_path):
    path = tmp_path / "v.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("v.txt", "a 1 2\n")
    content = bytearray(path.read_bytes())
    content[6] |= 1  # flag "encrypted" in the local header and in the central directory
    content[content.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)
    with pytest.raises(VectorFileError, match=r"v.txt cannot be read .*encrypted.*Unpack the archive"):
        open_vectors(str(path), "glove")
