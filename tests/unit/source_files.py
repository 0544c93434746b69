"""Files of vectors in every format, written by hand or by the libraries that real ones are written by.

A format joins the tests of all readers (test_readers.py) by a line in SOURCES.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import struct
import zipfile
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

BERT = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BERT += ["the", "house", "un", "##believ", "##able", "!", "##s"]
BERT_EMBEDDING = "bert.embeddings.word_embeddings.weight"
TEXT = ["the house is old", "für die Häuser", "the old houses are big", "日本 语 the house", "der große Hund läuft"] * 4


def numbers(rows: int, dim: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, dim)).astype(np.float32)


def write(path: Path, data: bytes | str) -> str:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return str(path)


# ---- one function a format: folder, words, (V, D) float32 -> path


def text(words: list[str], matrix: np.ndarray, header: bool = False) -> bytes:
    lines = [f"{word} {' '.join(map(str, row))}\n" for word, row in zip(words, matrix)]
    return ((f"{len(matrix)} {matrix.shape[1]}\n" if header else "") + "".join(lines)).encode()


def in_zip(content: bytes, name: str = "v.txt", method: int = zipfile.ZIP_DEFLATED) -> Callable[[Path], None]:
    def pack(path: Path) -> None:
        with zipfile.ZipFile(path, "w", method) as archive:
            archive.writestr(name, content)

    return pack


def word2vec(words: list[bytes], matrix: np.ndarray, newline: bytes = b"\n", header: bytes | None = None) -> bytes:
    rows = [word + b" " + row.astype("<f4").tobytes() + newline for word, row in zip(words, matrix)]
    return (header or b"%d %d\n" % matrix.shape) + b"".join(rows)


def fasttext_head(dim: int, words: int, bucket: int, minn: int = 2, maxn: int = 3, labels: int = 0, **other) -> bytes:
    args = (dim, 5, 5, 1, 5, 1, 2, other.get("model", 2), bucket, minn, maxn, 100)
    counts = (words + labels, words, labels, 99, other.get("pruned", -1))
    magic = (other.get("magic", 793712314), other.get("version", 12))
    return struct.pack("<2i12id3i2q", *magic, *args, 1e-4, *counts)


def fasttext(words: list[bytes], matrix: np.ndarray, pairs: tuple = (), quantised: bool = False, **options) -> bytes:
    """A file as fastText writes it: head, dictionary, kept buckets, flag, matrix (of words, then buckets)."""
    bucket = options.pop("bucket", len(matrix) - len(words))
    content = fasttext_head(matrix.shape[1], len(words), bucket, **options)
    content += b"".join(word + b"\0" + struct.pack("<qb", 7, 0) for word in words)
    content += (b"__label__x\0" + struct.pack("<qb", 7, 1)) * max(0, options.get("labels", 0))
    content += b"".join(struct.pack("<2i", *pair) for pair in pairs)
    return content + struct.pack("<?2q", quantised, *matrix.shape) + matrix.astype("<f4").tobytes()


def save_weights(folder: Path, name: str, matrix: np.ndarray, **others: np.ndarray) -> None:
    from safetensors.numpy import save_file

    folder.mkdir(exist_ok=True)
    save_file({name: matrix, **others}, folder / "model.safetensors")


def bert(folder: Path, matrix: np.ndarray | None = None, vocabulary: list[str] = BERT) -> np.ndarray:
    matrix = numbers(len(vocabulary), 4) if matrix is None else matrix
    position = numbers(len(vocabulary) + 7, matrix.shape[1], 1)
    save_weights(folder, BERT_EMBEDDING, matrix, **{"bert.embeddings.position_embeddings.weight": position})
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    return matrix


def write_dictionary(folder: Path, words: list[str], name: str = "dict.txt") -> None:
    (folder / name).write_text("".join(f"{word} 7\n" for word in words), encoding="utf-8")


def save_checkpoint(folder: Path, state: dict, task: object = None, zipped: bool = True, **others: object) -> str:
    """A checkpoint with the plain data that fairseq puts beside the model."""
    cfg = {"task": {"_name": "translation"} if task is None else task, "model": Namespace(arch="transformer")}
    extra = {"best": np.float64(1.5), "metrics": {"bleu": np.array([1, 2])}, "epoch": np.int64(3)}
    content = {"args": None, "cfg": cfg, "model": state, "extra_state": extra, **others}
    torch.save(content, folder / "checkpoint.pt", _use_new_zipfile_serialization=zipped)
    return str(folder / "checkpoint.pt")


def _bytes(make: Callable) -> Callable[[Path, list[str], np.ndarray], str]:
    return lambda folder, words, matrix: write(folder / "v.any", make(words, matrix))


def _zip(folder: Path, words: list[str], matrix: np.ndarray) -> str:
    in_zip(text(words, matrix))(folder / "v.any")
    return str(folder / "v.any")


def _npz(save: Callable) -> Callable[[Path, list[str], np.ndarray], str]:
    def make(folder: Path, words: list[str], matrix: np.ndarray) -> str:
        save(folder / "v.npz", words=np.array(words), matrix=matrix)
        return str(folder / "v.npz")

    return make


def _encoded(words: list[str]) -> list[bytes]:
    return [word.encode() for word in words]


def _huggingface(folder: Path, words: list[str], matrix: np.ndarray) -> str:
    save_weights(folder, "shared.weight", matrix)
    write(folder / "vocab.txt", "\n".join(words) + "\n")
    return str(folder)


def _huggingface_torch(folder: Path, words: list[str], matrix: np.ndarray) -> str:
    torch.save({"shared.weight": torch.from_numpy(matrix)}, folder / "pytorch_model.bin")
    write(folder / "vocab.json", json.dumps({word: row for row, word in enumerate(words)}))
    return str(folder)


def _fairseq(zipped: bool) -> Callable[[Path, list[str], np.ndarray], str]:
    def make(folder: Path, words: list[str], matrix: np.ndarray) -> str:
        table = torch.from_numpy(np.concatenate([np.ones((4, matrix.shape[1]), np.float32), matrix]))
        write_dictionary(folder, words)
        return save_checkpoint(folder, {"encoder.embed_tokens.weight": table}, zipped=zipped)

    return make


@dataclass(frozen=True)
class Source:
    """make: writes it, returns its path. format: what it is recognised as. file: what is cut and damaged, None: the
    path itself. repeats: can a word stand in it twice? notices: is every cut noticed? unreadable: writes one whose
    fourth word is no text, where the format counts those. specials: rows of its own in front.
    """

    make: Callable[[Path, list[str], np.ndarray], str]
    format: str
    file: str | None = None
    repeats: bool = True
    notices: bool = True
    unreadable: Callable[[Path, np.ndarray], str] | None = None
    specials: int = 0


def _broken_lines(header: bool) -> Callable[[Path, np.ndarray], str]:
    return lambda folder, matrix: write(
        folder / "v.any", text([f"w{row}" for row in range(len(matrix))], matrix, header).replace(b"\nw3 ", b"\n\xff ")
    )


def _names_with_a_broken_one(rows: int) -> list[bytes]:
    return [b"\xff" if row == 3 else b"w%d" % row for row in range(rows)]


def _broken_record(make: Callable) -> Callable[[Path, np.ndarray], str]:
    return lambda folder, matrix: write(folder / "v.any", make(_names_with_a_broken_one(len(matrix)), matrix))


def _word2vec(words: list[str], matrix: np.ndarray) -> bytes:
    return word2vec(_encoded(words), matrix)[:-1]  # the last line break may be missing


SOURCES = {
    "glove": Source(_bytes(text), "glove", notices=False, unreadable=_broken_lines(False)),
    "word2vec": Source(
        _bytes(lambda words, matrix: text(words, matrix, True)),
        "word2vec",
        notices=False,
        unreadable=_broken_lines(True),
    ),
    "gz": Source(_bytes(lambda words, matrix: gzip.compress(text(words, matrix), 1, mtime=0)), "glove"),
    "bz2": Source(_bytes(lambda words, matrix: bz2.compress(text(words, matrix, True))), "word2vec"),
    "xz": Source(_bytes(lambda words, matrix: lzma.compress(text(words, matrix), preset=0)), "glove"),
    "zip": Source(_zip, "glove"),
    "word2vec_bin": Source(_bytes(_word2vec), "word2vec_bin", unreadable=_broken_record(word2vec)),
    "word2vec_bin lines": Source(_bytes(lambda words, matrix: word2vec(_encoded(words), matrix, b"")), "word2vec_bin"),
    "word2vec_bin gz": Source(_bytes(lambda words, matrix: gzip.compress(_word2vec(words, matrix), 1)), "word2vec_bin"),
    "fasttext_bin": Source(
        _bytes(lambda words, matrix: fasttext(_encoded(words), matrix, maxn=0)),
        "fasttext_bin",
        unreadable=_broken_record(lambda words, matrix: fasttext(words, matrix, maxn=0)),
    ),
    "npz": Source(_npz(np.savez), "npz"),
    "npz compressed": Source(_npz(np.savez_compressed), "npz"),
    "huggingface": Source(_huggingface, "huggingface", "model.safetensors"),
    "huggingface torch": Source(_huggingface_torch, "huggingface", "pytorch_model.bin", repeats=False),
    "fairseq": Source(_fairseq(True), "fairseq", repeats=False, specials=4),
    "fairseq legacy": Source(_fairseq(False), "fairseq", repeats=False, specials=4),
}
