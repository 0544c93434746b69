"""Small files that unpack to much, or say that they do: one error that names file and remedy, and little memory.

Every format of vectors, and what is read beside vectors. Files are sparse or packed, limits are made small where real
ones would take seconds.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import struct
import sys
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from tokens import lines_of  # of scripts/

from embinit_fairseq import bounded
from embinit_fairseq.checkpoints.reading import load_checkpoint
from embinit_fairseq.errors import DataError, EmbinitError, OptionError
from embinit_fairseq.expand.request import read_codes, read_words, segmenter
from embinit_fairseq.runs.score import read_translations
from embinit_fairseq.runs.tokens import Tokenizer, detokenizer
from embinit_fairseq.vectors import binary as binary_scan
from embinit_fairseq.vectors import compressed, npz, torch_file
from embinit_fairseq.vectors import text_lines as text_head
from embinit_fairseq.vectors.hf_vocab import load_sentencepiece
from embinit_fairseq.vectors.huggingface import HuggingFaceDirectory
from embinit_fairseq.vectors.open import open_vectors
from embinit_fairseq.vectors.table import WIDEST, Wanted
from embinit_fairseq.vocab.dictionary import read_dictionary

MB = 1 << 20
GOOD = "".join(f"w{number} 1 2 3\n" for number in range(300)).encode()
MATRIX = np.ones((2, 3), np.float32)
#: what a remedy is made of
REMEDY = ("again", "unpack", "Unpack", "Name ", "name ", "save ", "give ", "remove", "choose ", "convert", "break ")


def refused(read, path: Path, most: int = 12 * MB) -> str:
    """The error of `read`, which takes at most so many bytes of Python's and NumPy's memory."""
    tracemalloc.start()
    try:
        with pytest.raises(EmbinitError) as error:
            read()
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()
    message = str(error.value)
    assert str(path) in message
    assert "\n" not in message
    assert len(message) < 1000
    assert any(word in message for word in REMEDY), message
    return message


def sparse(path: Path, content: bytes, size: int) -> Path:
    path.write_bytes(content)
    os.truncate(path, size)
    return path


def packed(path: Path, *members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


# --- text


ENDLESS = {
    "plain": lambda path: sparse(path, GOOD, 1 << 32),
    "gz": lambda path: path.write_bytes(gzip.compress(GOOD) + 20 * gzip.compress(b"x" * MB)),
    "bz2": lambda path: path.write_bytes(bz2.compress(GOOD + b"x" * 4 * MB)),
    "xz": lambda path: path.write_bytes(lzma.compress(GOOD) + 20 * lzma.compress(b"x" * MB, preset=0)),
    "zip": lambda path: packed(path, ("a.txt", GOOD + b"x" * 20 * MB)),
}


@pytest.mark.parametrize("wanted", [None, Wanted.words(["w1"])], ids=["all", "some"])
@pytest.mark.parametrize("pack", ENDLESS.values(), ids=ENDLESS)
def test_no_line_break_behind_good_rows(tmp_path, pack, wanted):
    path = tmp_path / "v.txt"
    pack(path)
    reader = open_vectors(str(path))
    assert reader.format == "glove"
    assert refused(lambda: reader.read(wanted), path).startswith(f"{path}:301: longer than 1,048,576")
    refused(lambda: reader.compose(["word"]), path)


@pytest.mark.parametrize("format", [None, "glove", "word2vec", "word2vec_bin", "fasttext_bin", "npz", "fairseq"])
def test_no_line_break_at_all(tmp_path, format):
    path = sparse(tmp_path / "v.txt", b"x", 1 << 32)
    refused(lambda: open_vectors(str(path), format).read(), path)


def test_a_header_that_promises_more_than_there_is(tmp_path):
    path = tmp_path / "v.txt"
    for content in (b"999999999999999999 3\n" + GOOD, b"300 999999999999999999\n" + GOOD):
        path.write_bytes(content)
        refused(lambda: open_vectors(str(path), "word2vec").read(), path, most=100 * MB)  # a constant, of any header


@pytest.mark.parametrize("format", [None, "glove", "word2vec"])
def test_lines_of_more_numbers_than_vectors_have(tmp_path, monkeypatch, format):
    monkeypatch.setattr(text_head, "WIDEST", 100)
    assert [text_head.numeric_tail(b"w" + columns * b" 1") for columns in (99, 101, 100_000)] == [99, 101, 101]
    path, first = tmp_path / "v.txt", b"3 100\n" if format == "word2vec" else b""
    for columns in (100, 101, 100_000):
        path.write_bytes(first + (b"w" + columns * b" 1" + b"\n") * 3)
        if columns == 100:
            assert open_vectors(str(path), format).read().matrix.shape == (1, 100)
        else:
            assert "more than 100 numbers" in refused(lambda: open_vectors(str(path), format), path)


def test_wide_rows_for_many_words(tmp_path):
    """Which rows are wanted is known before which of them are there: the table must not begin as large as all."""
    path = tmp_path / "v.txt"
    path.write_bytes((b"w0" + 60_000 * b" 1" + b"\n") * 2)
    wanted = Wanted.words(f"w{number}" for number in range(50_000))
    reader = open_vectors(str(path))
    capacity = reader._capacity(wanted)
    assert capacity * 60_000 * 4 <= 64 * MB
    assert reader._capacity(None) == 1
    assert reader.read(wanted).matrix.shape == (1, 60_000)


@pytest.mark.parametrize("wanted", [None, Wanted.words(["w1"])], ids=["all", "some"])
@pytest.mark.parametrize("blank", [b"\n", b" \n", b"\t \r\n"])
def test_blank_lines(tmp_path, monkeypatch, blank, wanted):
    monkeypatch.setattr(bounded, "MOST_BLANK_LINES", 1000)
    path = tmp_path / "v.txt.gz"
    path.write_bytes(gzip.compress(GOOD + blank * 1000 + GOOD))
    assert len(open_vectors(str(path)).read(wanted).words) == (300 if wanted is None else 1)
    path.write_bytes(gzip.compress(GOOD + blank * 100_000 + GOOD))
    assert refused(open_vectors(str(path)).read, path).startswith(f"{path}:1301: 1,001 of the lines so far are blank")


def test_xz_may_not_take_any_amount_of_memory(tmp_path):
    """Its block says how much unpacking takes: up to 4 GB, which fill up as it goes on."""
    path = tmp_path / "v.txt.xz"
    content = bytearray(lzma.compress(GOOD))
    size = 4 * (content[12] + 1)
    head = content[12 : 12 + size]
    head[head.index(b"\x21\x01") + 2] = 40  # of LZMA2: 4 GiB
    head[-4:] = struct.pack("<I", zlib.crc32(bytes(head[:-4])))
    content[12 : 12 + size] = head
    path.write_bytes(content)
    assert lzma.decompress(path.read_bytes()) == GOOD
    assert "unpack it first" in refused(lambda: open_vectors(str(path)), path)
    path = packed(tmp_path / "v.zip", ("v.txt", GOOD), method=zipfile.ZIP_LZMA)
    assert "packed by LZMA" in refused(lambda: open_vectors(str(path)), path)


@pytest.mark.parametrize("chunk", [1, 7, 1 << 18])
@pytest.mark.parametrize("end", [b"", b"\0\0\0\0", b"rubbish behind it"])
def test_xz_in_several_streams(tmp_path, monkeypatch, chunk, end):
    """As `lzma` itself reads it; damaged and cut ones are refused."""
    monkeypatch.setattr(compressed, "CHUNK", chunk)
    streams = [GOOD[:1000], b"", GOOD[1000:]]
    path = tmp_path / "v.txt"
    path.write_bytes(bytes(8).join(map(lzma.compress, streams)) + end)
    with compressed.open_bytes(str(path)) as stream:
        assert stream.read() == GOOD
    whole = lzma.compress(GOOD)
    for broken in (whole[:-1], whole[: len(whole) // 2], whole[:60] + b"\xff" * 9 + whole[69:]):
        path.write_bytes(broken)
        refused(lambda: open_vectors(str(path)).read(), path)


# --- npz


def npy(shape: str, dtype: str = "<f4", data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    head = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    size = struct.pack("<H" if version == b"\x01\x00" else "<I", len(head))
    return b"\x93NUMPY" + version + size + head + data


WORDS = npy("(2,)", "<U1", np.array(["a", "b"]).tobytes())


@pytest.mark.parametrize(
    "matrix",
    [
        npy("(2, 300000000)"),
        npy("(300000000, 300000000)"),
        npy("(2, 9223372036854775807)"),
        npy(f"(2, {'9' * 300})"),
        npy(f"(2, {'9' * 5000})"),
        npy("(2, -3)"),
        npy("(-2, -3)", data=bytes(24)),
        npy("(2, 0)"),
        npy("(True, 3)", data=bytes(12)),
        npy("(2, 3)", "<U999999999"),
        npy("(2, 3)", "V2147483647"),
        npy("(2, 3)", "O"),
        npy("(" * 5000),
        npy("'" + "x" * 60_000 + "'"),
        b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + b"{" * 100,
        b"",
        b"\x93NUMPY",
        npy("(2, 3)", data=bytes(10 * MB)),
    ],
    ids=range(18),
)
def test_absurd_heads_of_arrays(tmp_path, matrix):
    path = packed(tmp_path / "v.npz", ("words.npy", WORDS), ("matrix.npy", matrix))
    refused(lambda: open_vectors(str(path), "npz").read(), path)


@pytest.mark.parametrize("words", [npy("(2,)", "<U99999999"), npy("(2,)", "<U0"), npy("(10000000000,)", "<U1")])
def test_absurd_heads_of_words(tmp_path, words):
    path = packed(tmp_path / "v.npz", ("words.npy", words), ("matrix.npy", npy("(2, 3)", data=bytes(24))))
    refused(lambda: open_vectors(str(path), "npz").read(), path)


def test_more_columns_than_vectors_have(tmp_path, monkeypatch):
    """All of them are there, packed."""
    monkeypatch.setattr(npz, "WIDEST", 1000)
    path = tmp_path / "v.npz"
    np.savez_compressed(path, words=np.array(["a"]), matrix=np.zeros((1, 1000), np.float32))
    assert open_vectors(str(path)).dim == 1000
    np.savez_compressed(path, words=np.array(["a"]), matrix=np.zeros((1, 1001), np.float32))
    assert "1,001 columns" in refused(lambda: open_vectors(str(path)), path)


def test_only_what_is_wanted_is_unpacked(tmp_path):
    path = tmp_path / "v.npz"
    np.savez_compressed(path, words=np.arange(20_000).astype("U6"), matrix=np.ones((20_000, 300), np.float32))
    tracemalloc.start()
    assert open_vectors(str(path)).read(Wanted.words(["7", "none"])).matrix.tolist() == [[1.0] * 300]
    assert tracemalloc.get_traced_memory()[1] < 10 * MB  # of 24
    tracemalloc.stop()


# --- archives


def test_a_table_of_contents_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(compressed, "LARGEST_CONTENTS", 1000)
    path = packed(tmp_path / "v.zip", *((f"{number}.npy", b"") for number in range(100)))
    for format in (None, "glove", "npz"):
        assert "table of contents" in refused(lambda format=format: open_vectors(str(path), format), path)


def checkpoint(path: Path, tensor: torch.Tensor, zipped: bool = True) -> Path:
    state = {"model": {"encoder.embed_tokens.weight": tensor}}
    torch.save(state, path, _use_new_zipfile_serialization=zipped)
    (path.parent / "dict.txt").write_text("a 1\nb 1\n")
    return path


def test_a_pickle_that_is_packed(tmp_path):
    """torch never packs them, but would read them whole."""
    path = checkpoint(tmp_path / "c.pt", torch.ones(6, 3))
    with zipfile.ZipFile(path) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    assert open_vectors(str(path)).read().words == ["a", "b"]
    large = [(name, content + bytes(30 * MB) * name.endswith("data.pkl")) for name, content in members]
    packed(path, *large)
    for read in (lambda: open_vectors(str(path)), lambda: load_checkpoint(path)):
        assert "is compressed (31," in refused(read, path)
    os.rename(path, tmp_path / "pytorch_model.bin")
    refused(lambda: HuggingFaceDirectory(str(tmp_path)), tmp_path / "pytorch_model.bin")


def test_a_pickle_that_is_too_large(tmp_path, monkeypatch):
    path = checkpoint(tmp_path / "c.pt", torch.ones(6, 3))
    with zipfile.ZipFile(path) as archive:
        size = next(each.file_size for each in archive.infolist() if each.filename.endswith("data.pkl"))
    monkeypatch.setattr(torch_file, "LARGEST_PICKLE", size)
    assert open_vectors(str(path)).dim == 3
    monkeypatch.setattr(torch_file, "LARGEST_PICKLE", size - 1)
    assert f"has {size} bytes" in refused(lambda: open_vectors(str(path)), path)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_tensor_of_more_numbers_than_the_file_has(tmp_path, zipped):
    """A row that stands for a thousand million, and a tensor that is only a size."""
    path = checkpoint(tmp_path / "c.pt", torch.ones(1, 3).expand(6, 3), zipped)
    assert open_vectors(str(path)).read().matrix.tolist() == [[1.0] * 3] * 2  # small ones are usual
    bombs = [torch.ones(1, 1).expand(6, 10**9), torch.ones(6, 3, device="meta")]
    for tensor, said in zip(bombs if zipped else bombs[:1], ("weight' says that it is a tensor of size 6x", "_meta_")):
        checkpoint(path, tensor, zipped)
        for read in (lambda: open_vectors(str(path)), lambda: load_checkpoint(path)):
            assert said in refused(read, path)
    torch.save({"a": [{"b": (bombs[0],)}]}, path)
    refused(lambda: load_checkpoint(path), path)


# --- binaries


@pytest.mark.parametrize("content", [b"9" * 99 + b" 3\n", b"2 65537\n", b"2 " + b"9" * 90 + b"\n", b"2 3" + b" " * 200])
def test_absurd_heads_of_word2vec(tmp_path, content):
    path = sparse(tmp_path / "v.bin", content, 1 << 32)
    refused(lambda: open_vectors(str(path), "word2vec_bin").read(), path)


def test_a_word_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(binary_scan, "LONGEST_WORD", 1000)
    path = sparse(tmp_path / "v.bin", b"2 3\n" + b"x" * 100, 1 << 32)
    assert "row 1 has no word" in refused(open_vectors(str(path), "word2vec_bin").read, path)


# --- directories of Hugging Face


def directory(path: Path, rows: int = 4, **files: bytes | str) -> Path:
    """safetensors of `rows` x 2, and files by their names, with `__` for the point."""
    header = {"shared.weight": {"dtype": "F32", "shape": [rows, 2], "data_offsets": [0, 8 * rows]}}
    head = json.dumps(header).encode()
    path.mkdir(exist_ok=True)
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bytes(8 * rows))
    for name, content in files.items():
        content = content.encode() if isinstance(content, str) else content
        (path / name.replace("__", ".")).write_bytes(content)
    return path


TOKENIZER = '{"model": {"type": "WordLevel", "vocab": {"a": 0, "b": %s}}}'


@pytest.mark.parametrize(
    ("number", "reason"),
    [("7" * 100_000, "a number with thousands"), ("[" * 100_000, "nested too deeply"), ("1e999", "has the row inf")],
)
def test_numbers_and_nesting_without_end(tmp_path, number, reason):
    path = directory(tmp_path / "model", tokenizer__json=TOKENIZER % number)
    assert reason in refused(HuggingFaceDirectory(str(path)).read, path / "tokenizer.json")
    for name in ("config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"):
        path = directory(tmp_path / name, tokenizer__json=TOKENIZER % 1)
        (path / name).write_text(TOKENIZER % number)
        if reason != "has the row inf":
            assert reason in refused(HuggingFaceDirectory(str(path)).read, path / name)
    path = directory(tmp_path / "index")
    (path / "model.safetensors").rename(path / "model.safetensors.index.json")
    (path / "model.safetensors.index.json").write_text(TOKENIZER % number)
    refused(lambda: HuggingFaceDirectory(str(path)), path / "model.safetensors.index.json")


def test_files_that_are_larger_than_they_may_be(tmp_path):
    """Sparse ones: a tokenizer belongs to a matrix, whose rows say how much there can be."""
    for name, beside in (
        ("tokenizer.json", ()),
        ("vocab.json", ()),
        ("spiece.model", ()),
        ("vocab.txt", ()),
        ("config.json", ("vocab.txt",)),
        ("merges.txt", ("vocab.json",)),
    ):
        files = {"vocab__txt": "a\nb\n", "vocab__json": '{"a": 0, "\\u0120b": 1}'}
        path = directory(tmp_path / name, **{key: files[key] for key in files if key.replace("__", ".") in beside})
        sparse(path / name, b"", 1 << 33)
        reader = HuggingFaceDirectory(str(path))
        refused(lambda reader=reader: (reader.read(), reader.compose(["ab"])), path / name, most=64 * MB)


def test_more_tokens_than_rows(tmp_path):
    path = directory(tmp_path / "model", vocab__txt="token\n" * 1_000_000)
    assert ":5: more lines than" in refused(HuggingFaceDirectory(str(path)).read, path / "vocab.txt")


@pytest.mark.parametrize("length", [0, 1, 1 << 25, 1 << 40, 2**64 - 1])
def test_absurd_heads_of_safetensors(tmp_path, length):
    path = directory(tmp_path / "model")
    sparse(path / "model.safetensors", struct.pack("<Q", length) + b"{", 1 << 33)
    refused(lambda: HuggingFaceDirectory(str(path)), path / "model.safetensors", most=80 * MB)


# --- what is read beside vectors


def whole_text(path: Path) -> list[str]:
    with open(path, "rb") as stream:
        return list(lines_of(stream))


@pytest.mark.parametrize(
    "read",
    [
        read_dictionary,
        lambda path: read_words(str(path), ()),
        lambda path: read_codes(str(path), "--model"),
        lambda path: segmenter(str(path), None),
        lambda path: segmenter(None, str(path)),
        read_translations,
        load_sentencepiece,
        lambda path: detokenizer([f"sentencepiece={path}"], None),
        whole_text,
    ],
)
def test_texts_without_a_line_break(tmp_path, read):
    path = sparse(tmp_path / "file", b"", 1 << 32)
    refused(lambda: read(path), path, most=80 * MB)


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt", "spiece.model"])
def test_tokenizers_of_translations(tmp_path, monkeypatch, name):
    monkeypatch.setattr("embinit_fairseq.runs.tokens._LARGEST", 1000)
    damaged = [b"\xff"] if name == "vocab.txt" else [b"{}", b'{"model": ' + b"[" * 900, b"\xff"]
    for content in damaged:
        (tmp_path / name).write_bytes(content)
        refused(lambda: detokenizer([f"huggingface={tmp_path}"], None), tmp_path / name, most=80 * MB)
    sparse(tmp_path / name, b"", 1 << 33)
    refused(lambda: Tokenizer(str(tmp_path)), tmp_path / name, most=80 * MB)
    (tmp_path / name).unlink()
    with pytest.raises(OptionError, match="give a Hugging Face folder"):
        Tokenizer(str(tmp_path))


def test_the_settings_of_a_tokenizer(tmp_path):
    (tmp_path / "vocab.txt").write_text("[UNK]\n[CLS]\n[SEP]\na\n")
    assert Tokenizer(str(tmp_path)).encode("A") == ["a"]
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert Tokenizer(str(tmp_path)).encode("A") == ["[UNK]"]
    (tmp_path / "tokenizer_config.json").write_text("[" * 100_000)
    refused(lambda: Tokenizer(str(tmp_path)), tmp_path / "tokenizer_config.json")


def test_lines_of_texts(tmp_path):
    (tmp_path / "text").write_bytes("a\u2028b\r\n\nc".encode())
    with open(tmp_path / "text", "rb") as stream:
        assert list(lines_of(stream)) == ["a\u2028b\r", "", "c"]
    (tmp_path / "text").write_bytes(b"a\n\xff\n")
    with open(tmp_path / "text", "rb") as stream, pytest.raises(DataError, match=r"text:2: not UTF-8.*iconv"):
        list(lines_of(stream))


def test_the_limits_are_those_of_the_docs():
    """Tests make them small; docs/vectors.md says what they are."""
    assert (bounded.LONGEST_LINE, bounded.MOST_BLANK_LINES, WIDEST) == (1 << 20, 1_000_000, 65_536)
    assert (bounded.LARGEST_JSON, torch_file.LARGEST_PICKLE, compressed.UNPACKING) == (1 << 25, 1 << 25, 1 << 28)
    assert compressed.LARGEST_CONTENTS <= 1 << 24
