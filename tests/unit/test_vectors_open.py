"""Opening vectors: packed files, recognising the format, errors about the file itself."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import zipfile

import numpy as np
import pytest

from embinit_fairseq.errors import OptionError, VectorFileError
from embinit_fairseq.vectors.open import FORMATS, open_vectors, recognise
from embinit_fairseq.vectors.text import TextVectors

CHUNKS = (5, 16, 1024)


def write(path, data: bytes | str) -> str:
    path.write_bytes(data if isinstance(data, bytes) else data.encode("utf-8"))
    return str(path)


# ---- packing

TEXT = b"".join(b"w%d 0.%d -0.%d\n" % (i, i, i + 1) for i in range(500))


def assert_is_text(table) -> None:
    assert table.words == [f"w{i}" for i in range(500)]
    rows = [[f"0.{i}", f"-0.{i + 1}"] for i in range(500)]
    np.testing.assert_array_equal(table.matrix, np.array(rows, np.float64).astype(np.float32))


PACKERS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "plain": bytes}


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("chunk", CHUNKS)
def test_packed_files_are_recognised_by_content(tmp_path, kind, chunk):
    path = write(tmp_path / "vectors.txt", PACKERS[kind](TEXT))
    assert recognise(path) == "glove"
    assert_is_text(TextVectors(path, chunk=chunk).read())


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_truncated_packed_files_are_refused(tmp_path, kind):
    packed = PACKERS[kind](TEXT)
    path = write(tmp_path / "v", packed[: len(packed) * 2 // 3])
    with pytest.raises(VectorFileError, match=r"damaged or incomplete"):
        TextVectors(path).read()


def test_a_flipped_bit_in_gz_is_noticed(tmp_path):
    packed = bytearray(gzip.compress(TEXT))
    packed[-6] ^= 1  # in the checksum
    with pytest.raises(VectorFileError, match=r"damaged"):
        TextVectors(write(tmp_path / "v.gz", bytes(packed))).read()


def make_zip(path, **members: bytes) -> str:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return str(path)


def test_zip_members(tmp_path):
    one = make_zip(tmp_path / "one.zip", **{"deep/v.txt": TEXT, "__MACOSX/._v.txt": b"x"})
    assert_is_text(open_vectors(one).read())
    two = make_zip(tmp_path / "two.zip", **{"50d.txt": TEXT, "100d.txt": b"a 1 2 3\n"})
    with pytest.raises(VectorFileError, match=r"holds 2 files \(50d.txt, 100d.txt\). Name one: .*two.zip:50d.txt"):
        open_vectors(two)
    assert open_vectors(f"{two}:100d.txt").dim == 3
    with pytest.raises(VectorFileError, match=r"no such member"):
        open_vectors(f"{two}:200d.txt")
    with pytest.raises(VectorFileError, match=r"archive is empty"):
        open_vectors(make_zip(tmp_path / "none.zip"))


# ---- recognising


@pytest.mark.parametrize(
    ("head", "format"),
    [
        (b"a 0.1 0.2\n", "glove"),
        (b"2 3\na 1 2 3\nb 1 2 3\n", "word2vec"),
        (b"2 3\nnew york 1 2 3\nb 1 2 3\n", "word2vec"),
        (b"1 3\na " + np.float32([0.1, 0.2, 0.3]).tobytes() + b"\n", "word2vec_bin"),
        (np.int32(793712314).astype("<i4").tobytes() + bytes(60), "fasttext_bin"),
        (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02", "fairseq"),
    ],
)
def test_formats_are_recognised_by_content(tmp_path, head, format):
    assert recognise(write(tmp_path / "v.any", head)) == format
    assert recognise(write(tmp_path / "v.gz", gzip.compress(head))) == format


def test_archives_and_folders_are_recognised(tmp_path):
    assert recognise(str(tmp_path)) == "huggingface"
    assert recognise(make_zip(tmp_path / "c.pt", **{"archive/data.pkl": b"x", "archive/version": b"3"})) == "fairseq"
    np.savez(tmp_path / "v.npz", words=np.array(["a"]), matrix=np.ones((1, 2)))
    assert recognise(str(tmp_path / "v.npz")) == "npz"


def test_unknown_content_is_refused_with_the_flag(tmp_path):
    with pytest.raises(VectorFileError, match=r"not recognised.*--embed-init-format"):
        open_vectors(write(tmp_path / "v", "this is a sentence\nand another one\n"))


def test_unknown_format_lists_the_known_ones(tmp_path):
    with pytest.raises(OptionError, match=f"--embed-init-format glvoe.*{', '.join(FORMATS)}"):
        open_vectors(write(tmp_path / "v", "a 1 2\n"), format="glvoe")


# ---- errors


def test_pipes_are_refused(tmp_path):
    """They cannot be read twice, and would silently lose their beginning."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(VectorFileError, match="a pipe or device, not a file"):
        open_vectors(str(tmp_path / "pipe"))


def test_missing_file_names_flag_and_look_alikes(tmp_path):
    write(tmp_path / "glove.6B.300d.txt", "a 1 2\n")
    with pytest.raises(VectorFileError, match=r"no such file \(did you mean glove.6B.300d.txt.*--embed-init-path"):
        open_vectors(str(tmp_path / "glove.6b.300d.txt"))
    with pytest.raises(VectorFileError, match=r"folder .*nowhere does not exist"):
        open_vectors(str(tmp_path / "nowhere" / "v.txt"))


def test_a_directory_or_locked_file_as_text(tmp_path):
    with pytest.raises(VectorFileError, match=r"cannot be read"):
        open_vectors(str(tmp_path), "glove")


# ---- sub-words


def test_no_sub_words(tmp_path):
    with pytest.raises(OptionError, match=r"has no sub-words.*--embed-init-oov"):
        open_vectors(write(tmp_path / "v.txt", "a 1 2\n")).compose(["a"])


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
    reader = open_vectors(write(tmp_path / "v.txt", "\n".join(lines) + "\n"))
    composed = reader.compose([surface, "ω"])
    assert list(composed) == [surface]
    assert composed[surface].dtype == np.float32
    np.testing.assert_allclose(composed[surface], [np.mean(rows), 0], rtol=1e-6)
