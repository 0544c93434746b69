"""Files of vectors in every format, written by hand or by the libraries that write real ones, for the tests of readers.

A format joins the tests of all readers (test_readers.py) by a line in SOURCES.
"""

import bz2
import gzip
import lzma
import os
import re
import struct
import zipfile
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from embinit_fairseq.errors import EmbinitError, OptionError
from embinit_fairseq.vectors import binary_records, compressed
from embinit_fairseq.vectors import fasttext as fasttext_module
from embinit_fairseq.vectors.open import open_vectors
from embinit_fairseq.vectors.table import Wanted

BERT = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BERT += ["the", "house", "un", "##believ", "##able", "!", "##s"]
BERT_EMBEDDING = "bert.embeddings.word_embeddings.weight"
TEXT = ["the house is old", "für die Häuser", "the old houses are big", "日本 语 the house", "der große Hund läuft"] * 4
MB = 1 << 20
#: what a remedy is made of
REMEDY = re.compile(
    "again|unpack|name (it|the|one|a)|save |give |remove|choose |convert|break |check |repair|correct|another file"
    "|copy |take |use |write |pip install|export|fetch",
    re.IGNORECASE,
)


def numbers(rows: int, dim: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, dim)).astype(np.float32)


def write(path: Path, data: bytes | str) -> str:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return str(path)


# ---- what is said of files that cannot be read


def one_line(error: pytest.ExceptionInfo, path: str | Path) -> str:
    """The message, which names the path and a remedy."""
    message = str(error.value)
    assert str(path) in message
    assert "\n" not in message
    assert len(message.replace(str(path), "")) < 1000
    assert REMEDY.search(message), message
    return message


def refused(read: Callable, path: str | Path) -> str:
    """Return the error of `read`."""
    with pytest.raises(EmbinitError) as error:
        read()
    return one_line(error, path)


def use(path: str, format: str | None, wanted: Wanted | None = None) -> None:
    """Read and compose; only errors of one line may come out."""
    try:
        reader = open_vectors(path, format)
        table = reader.read(wanted)
        assert table.matrix.shape == (len(table.words), reader.dim)
        assert np.isfinite(table.matrix).all()
        assert all(row.shape == (reader.dim,) for row in reader.compose(["houses"]).values())
    except EmbinitError as error:  # of compose, it may be about the option alone
        named = isinstance(error, OptionError) or str(Path(path).parent) in str(error)
        if "\n" in str(error) or not named:
            raise AssertionError(f"no line that names the file: {error}") from error


class Malicious:
    """Its pickle makes a directory, or calls another function, when it is executed."""

    def __init__(self, *arguments: object, call: Callable = os.mkdir) -> None:
        self.reduced = call, arguments

    def __reduce__(self):
        return self.reduced


# ---- one function a format: words, (V, D) float32 -> bytes; in a word "\udcff" is a byte that is no text


def encoded(word: str) -> bytes:
    return word.encode(errors="surrogateescape")


def text(words: list[str], matrix: np.ndarray, header: bool = False) -> bytes:
    lines = [f"{len(matrix)} {matrix.shape[1]}"] * header
    lines += [f"{word} {' '.join(map(str, row))}" for word, row in zip(words, matrix)]
    return encoded("\n".join(lines) + "\n")


def in_zip(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> str:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return str(path)


def word2vec(words: list[str], matrix: np.ndarray, newline: bytes = b"\n", header: bytes | None = None) -> bytes:
    rows = [encoded(word) + b" " + row.astype("<f4").tobytes() + newline for word, row in zip(words, matrix)]
    return (header or b"%d %d\n" % matrix.shape) + b"".join(rows)


def fasttext_head(dim: int, words: int, bucket: int, minn: int = 2, maxn: int = 3, labels: int = 0, **other) -> bytes:
    args = (dim, 5, 5, 1, 5, 1, 2, other.get("model", 2), bucket, minn, maxn, 100)
    counts = (words + labels, words, labels, 99, other.get("pruned", -1))
    magic = (other.get("magic", 793712314), other.get("version", 12))
    return struct.pack("<2i12id3i2q", *magic, *args, 1e-4, *counts)


def fasttext(words: list[str], matrix: np.ndarray, quantised: bool = False, **options) -> bytes:
    """A file as fastText writes it: head, dictionary, flag, matrix (of words, then buckets)."""
    bucket = options.pop("bucket", len(matrix) - len(words))
    content = fasttext_head(matrix.shape[1], len(words), bucket, **options)
    content += b"".join(encoded(word) + b"\0" + struct.pack("<qb", 7, 0) for word in words)
    content += (b"__label__x\0" + struct.pack("<qb", 7, 1)) * max(0, options.get("labels", 0))
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
    return in_zip(folder / "v.any", {"v.txt": text(words, matrix)})


def _npz(folder: Path, words: list[str], matrix: np.ndarray) -> str:
    np.savez_compressed(folder / "v.npz", words=np.array(words), matrix=matrix)
    return str(folder / "v.npz")


def _huggingface(folder: Path, words: list[str], matrix: np.ndarray) -> str:
    save_weights(folder, "shared.weight", matrix)
    write(folder / "vocab.txt", "\n".join(words) + "\n")
    return str(folder)


def _huggingface_torch(folder: Path, words: list[str], matrix: np.ndarray) -> str:
    import tokenizers

    torch.save({"shared.weight": torch.from_numpy(matrix)}, folder / "pytorch_model.bin")
    model = tokenizers.models.WordLevel({word: row for row, word in enumerate(words)}, unk_token="[UNK]")
    tokenizers.Tokenizer(model).save(str(folder / "tokenizer.json"))
    return str(folder)


def _fairseq(folder: Path, words: list[str], matrix: np.ndarray, zipped: bool = True) -> str:
    table = torch.from_numpy(np.concatenate([np.ones((4, matrix.shape[1]), np.float32), matrix]))
    write_dictionary(folder, words)
    return save_checkpoint(folder, {"encoder.embed_tokens.weight": table}, zipped=zipped)


def _word2vec(words: list[str], matrix: np.ndarray) -> bytes:
    return word2vec(words, matrix)[:-1]  # the last line break may be missing


def _text_blocks(patch: pytest.MonkeyPatch, size: int) -> None:
    patch.setattr(compressed, "CHUNK", size)


def _record_blocks(patch: pytest.MonkeyPatch, size: int) -> None:
    patch.setattr(binary_records, "BLOCK", size)
    patch.setattr(fasttext_module, "_CHUNK", 1 + size // 16)


@dataclass(frozen=True)
class Source:
    """make: writes the file, returns its path. format: the format that is recognised.

    blocks: sets the bytes that are read at a time. sparing: the MB that reading one wanted row of 8 MB may take. file:
    the file that is cut and damaged, None for the path itself. repeats: a word may be repeated. notices: every cut is
    noticed. unreadable: words that are not text are counted. specials: rows of its own before the others.
    """

    make: Callable[[Path, list[str], np.ndarray], str]
    format: str
    blocks: Callable[[pytest.MonkeyPatch, int], None] = _text_blocks
    sparing: int | None = None
    file: str | None = None
    repeats: bool = True
    notices: bool = True
    unreadable: bool = False
    specials: int = 0


_LINES = {"notices": False, "unreadable": True}
_RECORDS = {"blocks": _record_blocks}
_FAIRSEQ = {"format": "fairseq", "repeats": False, "specials": 4}
SOURCES = {
    "glove": Source(_bytes(text), "glove", **_LINES),
    "word2vec": Source(_bytes(lambda words, matrix: text(words, matrix, True)), "word2vec", **_LINES),
    "gz": Source(_bytes(lambda words, matrix: gzip.compress(text(words, matrix), 1, mtime=0)), "glove"),
    "bz2": Source(_bytes(lambda words, matrix: bz2.compress(text(words, matrix, True))), "word2vec"),
    "xz": Source(_bytes(lambda words, matrix: lzma.compress(text(words, matrix), preset=0)), "glove"),
    "zip": Source(_zip, "glove"),
    "word2vec_bin": Source(_bytes(_word2vec), "word2vec_bin", sparing=5, unreadable=True, **_RECORDS),
    "word2vec_bin gz": Source(  # as other programs write it: no line breaks
        _bytes(lambda words, matrix: gzip.compress(word2vec(words, matrix, b""), 1)), "word2vec_bin", **_RECORDS
    ),
    "fasttext_bin": Source(
        _bytes(lambda words, matrix: fasttext(words, matrix, maxn=0)),
        "fasttext_bin",
        sparing=5,
        unreadable=True,
        **_RECORDS,
    ),
    "npz": Source(_npz, "npz"),
    "huggingface": Source(_huggingface, "huggingface", file="model.safetensors", sparing=6, repeats=False),
    "huggingface torch": Source(_huggingface_torch, "huggingface", file="pytorch_model.bin", repeats=False),
    "fairseq": Source(_fairseq, **_FAIRSEQ),
    "fairseq legacy": Source(partial(_fairseq, zipped=False), **_FAIRSEQ),
}
