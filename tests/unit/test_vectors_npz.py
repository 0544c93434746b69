"""`.npz` archives, the writers of vectors, and what vectors may be packed in."""

from __future__ import annotations

import gzip
import lzma
import os
import struct
import zipfile
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from source_files import MB, in_zip, numbers, refused, text, write

from embinit_fairseq.errors import VectorFileError
from embinit_fairseq.vectors import compressed, npz
from embinit_fairseq.vectors.open import open_vectors
from embinit_fairseq.vectors.table import Wanted
from embinit_fairseq.vectors.text import TextVectors
from embinit_fairseq.vectors.writers import write_npz, write_text

WORDS = np.array(["the", "The", "ß", "new york", "the"])
MATRIX = np.arange(15, dtype=np.float32).reshape(5, 3) / 7


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_wanted_rows_are_those_of_the_arrays(tmp_path, monkeypatch, dtype, order):
    monkeypatch.setattr(npz, "_BLOCK", 24)
    matrix = np.asarray(MATRIX.astype(dtype), order=order)
    np.savez(tmp_path / "v.npz", words=np.char.encode(WORDS, "utf-8"), vectors=matrix)
    reader = open_vectors(tmp_path / "v.npz")
    for wanted, first in ((None, 0), (Wanted(frozenset(["new york"]), frozenset(["ss"])), 2)):
        table = reader.read(wanted)
        assert table.words == WORDS[first:4].tolist()
        np.testing.assert_array_equal(table.matrix, matrix[first:4].astype(np.float32))


@pytest.mark.parametrize(
    ("words", "matrix", "reason"),
    [
        (None, MATRIX, "holds matrix"),
        (WORDS, None, "holds words"),
        (WORDS.astype(object), MATRIX, "`words` holds Python objects"),
        *((words, MATRIX, "`words` is no list of strings") for words in (np.arange(5), WORDS[None])),
        *((WORDS, matrix, "`matrix` is no matrix of floats") for matrix in (MATRIX[0], MATRIX.astype(int))),
        (WORDS, MATRIX.astype(np.longdouble), "`matrix` is no matrix of floats"),
        (WORDS, MATRIX[:4], "5 words, but 4 rows"),
        (WORDS[:0], MATRIX[:0], "`matrix` is empty"),
        (np.array([b"\xff"]), MATRIX[:1], "`words` is no Unicode text"),
        (np.array(["a"]), np.float64([[1e39, 0, 0]]), "'a'.* beyond float32"),
    ],
)
def test_unusable_arrays_say_how_to_save_them(tmp_path, words, matrix, reason):
    arrays = {"words": words, "matrix": matrix}
    np.savez(tmp_path / "v.npz", **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(VectorFileError, match=rf"v.npz: .*{reason}.*(numpy.savez|another file)"):
        open_vectors(tmp_path / "v.npz", "npz").read()


def npy(shape: str, dtype: str = "<f4", data: bytes = b"") -> bytes:
    head = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + data


HEADS = [
    *(npy(f"(2, {columns})") for columns in ("300000000", "9223372036854775807", "9" * 300, "9" * 5000, "-3", "0")),
    *(npy("(300000000, 300000000)"), npy("(-2, -3)", data=bytes(24)), npy("(True, 3)", data=bytes(12))),
    *(npy("(2, 3)", kind) for kind in ("<U999999999", "V2147483647", "O")),
    *(npy("(" * 5000), npy("'" + "x" * 60_000 + "'"), b"", b"\x93NUMPY", npy("(2, 3)", data=bytes(10 * MB))),
    b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + b"{" * 100,
    *(npy("(2, 3)", data=bytes(23)), npy("(2, 3)", data=bytes(25))),
]


GOOD = npy("(2, 3)", data=bytes(24))
PAIRS = [(npy("(2,)", "<U1", np.array(["a", "b"]).tobytes()), matrix) for matrix in HEADS]

PAIRS += [(npy(*words), GOOD) for words in (("(2,)", "<U99999999"), ("(2,)", "<U0"), ("(10000000000,)", "<U1"))]


@pytest.mark.parametrize(("words", "matrix"), PAIRS, ids=range(len(PAIRS)))
def test_absurd_heads_of_arrays(tmp_path, words, matrix):
    path = in_zip(tmp_path / "v.npz", {"words.npy": words, "matrix.npy": matrix})
    refused(lambda: open_vectors(path, "npz").read(), path)


# ---- what they are packed in

LINES = text([f"w{i}" for i in range(300)], numbers(300, 2))


def test_zip_members(tmp_path):
    one = in_zip(tmp_path / "one.zip", {"deep/": b"", "deep/v.txt": LINES, "__MACOSX/._v.txt": b"x"})
    assert len(open_vectors(one).read().words) == 300
    two = in_zip(tmp_path / "two.zip", {"50d.txt": LINES, "100d.txt": b"a 1 2 3\n"})
    assert f"holds 2 files (50d.txt, 100d.txt). Name one: {two}:50d.txt" in refused(lambda: open_vectors(two), two)
    assert open_vectors(f"{two}:100d.txt").dim == 3
    with pytest.raises(VectorFileError, match=r"two.zip:200d.txt: .*holds 50d.txt, 100d.txt"):
        open_vectors(f"{two}:200d.txt")
    for members, said in (({}, "empty"), ({f"{n}.txt": b"" for n in range(11)}, "9.txt, ...)")):
        path = in_zip(tmp_path / "v.zip", members)
        assert said in refused(lambda path=path: open_vectors(path), path)


def test_archives_that_cannot_be_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "v.zip"
    in_zip(path, {"v.txt": b"a 1 2\n"})
    content = bytearray(path.read_bytes())
    content[6] |= 1  # flag "encrypted" in the local header and in the central directory
    content[content.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)
    for format in ("glove", None):
        assert "encrypted" in refused(lambda format=format: open_vectors(str(path), format), path)
    in_zip(path, {"v.txt": LINES}, zipfile.ZIP_LZMA)
    assert "packed by LZMA" in refused(lambda: open_vectors(str(path)), path)
    monkeypatch.setattr(compressed, "LARGEST_CONTENTS", 1000)
    in_zip(path, {f"{number}.npy": b"" for number in range(100)})
    for format in (None, "glove", "npz"):
        assert "table of contents" in refused(lambda format=format: open_vectors(str(path), format), path)
    packed = bytearray(gzip.compress(LINES))
    packed[-6] ^= 1  # in the checksum
    refused(lambda: TextVectors(write(tmp_path / "v.gz", bytes(packed))).read(), tmp_path / "v.gz")


@pytest.mark.parametrize("chunk", [1, 7, 1 << 18])
@pytest.mark.parametrize("end", [b"", b"\0\0\0\0", b"rubbish behind it"])
def test_xz_in_several_streams(tmp_path, monkeypatch, chunk, end):
    """As `lzma` itself reads it; damaged ones are refused."""
    monkeypatch.setattr(compressed, "CHUNK", chunk)
    streams = [lzma.compress(each, preset=0) for each in (LINES[:1000], b"", LINES[1000:])]
    path = write(tmp_path / "v.txt", bytes(8).join(streams) + end)
    with compressed.open_bytes(path) as stream:
        assert stream.read() == LINES
    write(tmp_path / "v.txt", streams[0][:60] + b"\xff" * 9 + streams[0][69:])
    refused(lambda: open_vectors(path).read(), path)


# ---- writers

FLOATS = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=2, max_side=5),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
)


@settings(max_examples=40, deadline=None)
@given(FLOATS, st.sampled_from([("v.txt", "glove"), ("v.txt.gz", "word2vec"), ("v.npz", "npz")]))
def test_written_vectors_come_back_bit_for_bit(tmp_path_factory, matrix, kind):
    path = tmp_path_factory.getbasetemp() / kind[0]
    words = ["ä b", "\u00a0", "x\u0085", "Ġ.", "5"][: len(matrix)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("embinit_fairseq.vectors.writers._ROWS", 2)
        write = write_npz if kind[1] == "npz" else partial(write_text, header=kind[1] == "word2vec")
        write(path, words, matrix)
    table = open_vectors(str(path), dim=matrix.shape[1]).read()
    assert (table.words, table.origin.format) == (words, kind[1])
    np.testing.assert_array_equal(table.matrix.view(np.uint32), matrix.view(np.uint32))
    write_text(path, ["a", "b"], np.float32([[0.1, -2], [1e-8, 0]]), header=True)
    if kind[0] == "v.txt":  # what other programs expect
        assert path.read_bytes() == b"2 2\na 0.1 -2.0\nb 1e-08 0.0\n"


@pytest.mark.parametrize(
    ("words", "matrix", "message"),
    [
        *((["a", "b"], [[1.0], [number]], "'b' holds") for number in (np.nan, 1e39)),
        (["a", "b"], [[1.0]], r"2 words .*\(1, 1\)"),
        (["a"], [1.0], r"\(1,\)"),
        ([], np.ones((0, 2)), r"\(0, 2\)"),
        (["a\0"], [[1.0]], "null character"),
    ],
)
def test_what_cannot_be_written(tmp_path, words, matrix, message):
    with pytest.raises(VectorFileError, match=message):
        write_npz(tmp_path / "v.npz", words, np.array(matrix))
    for word in ("", " a", "a ", "a\nb", "a\r", "\ufeffa", "\ud800"):  # which text cannot hold
        with pytest.raises(VectorFileError, match=r"\.npz"):
            write_text(tmp_path / "v.txt", ["fine", word], np.ones((2, 2)))
    assert os.listdir(tmp_path) == []
