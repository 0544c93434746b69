"""`.npz` archives, files in zip archives, and the writers of vectors."""

import os

import numpy as np
import pytest
from source_files import in_zip

from embinit_fairseq.errors import VectorFileError
from embinit_fairseq.vectors.open import open_vectors
from embinit_fairseq.vectors.writers import write_npz, write_text

WORDS = np.array(["the", "The", "ß", "new york", "the"])
MATRIX = np.arange(15, dtype=np.float32).reshape(5, 3) / 7


@pytest.mark.parametrize("dtype", ["f2", "f8", ">f4"])
def test_words_may_be_bytes_and_numbers_of_any_precision_and_order(tmp_path, dtype):
    matrix = np.asarray(MATRIX.astype(dtype), order="F")
    np.savez(tmp_path / "v.npz", words=np.char.encode(WORDS, "utf-8"), vectors=matrix)
    table = open_vectors(tmp_path / "v.npz").read()
    assert table.words == WORDS[:4].tolist()
    np.testing.assert_array_equal(table.matrix, matrix[:4].astype(np.float32))


def test_a_file_of_a_zip_archive_is_named_after_a_colon(tmp_path):
    one = in_zip(tmp_path / "one.zip", {"deep/": b"", "deep/v.txt": b"a 1 2\n", "__MACOSX/._v.txt": b"x"})
    assert open_vectors(one).read().words == ["a"]
    two = in_zip(tmp_path / "two.zip", {"50d.txt": b"a 1\n", "100d.txt": b"a 1 2 3\n"})
    assert open_vectors(f"{two}:100d.txt").dim == 3
    for path, message in (
        (two, r"two.zip: .*holds 2 files \(50d.txt, 100d.txt\); name one: .*zip:50d.txt"),
        (f"{two}:200d.txt", r"two.zip:200d.txt: .*holds 50d.txt, 100d.txt"),
        (in_zip(tmp_path / "v.zip", {f"{n}.txt": b"" for n in range(11)}), r"9\.txt and 1 more\)"),
    ):
        with pytest.raises(VectorFileError, match=message):
            open_vectors(path)


# ---- writers


@pytest.mark.parametrize(("name", "format"), [("v.txt", "glove"), ("v.txt.gz", "word2vec"), ("v.npz", "npz")])
def test_written_vectors_come_back_bit_for_bit(tmp_path, monkeypatch, name, format):
    monkeypatch.setattr("embinit_fairseq.vectors.writers._ROWS", 2)
    words, generator = ["ä b", "\u00a0", "x\u0085", "Ġ.", "5"], np.random.default_rng(1)
    matrix = np.frombuffer(generator.bytes(4 * 5 * 40), np.float32).reshape(5, 40)
    matrix = np.where(np.isfinite(matrix), matrix, -0.0)
    if format == "npz":
        write_npz(tmp_path / name, words, matrix)
    else:
        write_text(tmp_path / name, words, matrix, header=format == "word2vec")
    table = open_vectors(tmp_path / name, dim=40).read()
    assert (table.words, table.origin.format) == (words, format)
    np.testing.assert_array_equal(table.matrix.view(np.uint32), matrix.view(np.uint32))


def test_text_is_what_other_programs_expect(tmp_path):
    write_text(tmp_path / "v.vec", ["a", "b"], np.float32([[0.1, -2], [1e-8, 0]]), header=True)
    assert (tmp_path / "v.vec").read_bytes() == b"2 2\na 0.1 -2.0\nb 1e-08 0.0\n"


@pytest.mark.parametrize(
    ("words", "matrix", "message"),
    [
        *((["a", "b"], [[1.0], [number]], "'b' holds") for number in (np.nan, 1e39)),
        (["a", "b"], [[1.0]], r"2 words .*\(1, 1\)"),
        (["a"], [1.0], r"\(1,\)"),
        ([], np.ones((0, 2)), r"\(0, 2\)"),
    ],
)
def test_what_cannot_be_written(tmp_path, words, matrix, message):
    with pytest.raises(VectorFileError, match=message):
        write_npz(tmp_path / "v.npz", words, np.array(matrix))
    for word in ("", " a", "a ", "a\nb", "a\r", "\ufeffa", "\ud800"):  # which text cannot hold
        with pytest.raises(VectorFileError, match=r"\.npz"):
            write_text(tmp_path / "v.txt", ["fine", word], np.ones((2, 2)))
    assert os.listdir(tmp_path) == []
