"""The one way to open a source of vectors: recognises the format and imports only that format's reader."""

from __future__ import annotations

import os
import struct

from embinit_fairseq.errors import OptionError, VectorFileError
from embinit_fairseq.vectors.compressed import check_exists, is_zip, open_bytes, split_member, zip_members
from embinit_fairseq.vectors.table import VectorReader
from embinit_fairseq.vectors.text_head import header_of, numeric_tail

#: word2vec: text of word2vec or fastText, with a header.
FORMATS = ("glove", "word2vec", "word2vec_bin", "fasttext_bin", "huggingface", "fairseq", "npz")

_FASTTEXT_MAGIC = struct.pack("<i", 793712314)
_PICKLE = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"  # the magic number torch.save wrote before 1.6
_HEAD = 1 << 20


def open_vectors(
    path: str | os.PathLike[str],
    format: str | None = None,
    dim: int | None = None,
    strict: bool = False,
    side: str | None = None,
) -> VectorReader:
    """Open a source of vectors; reads no more than its head.

    path: a file (text also gz, bz2, xz, a zip archive with one member, or `archive.zip:member`) or a directory.
    format: one of FORMATS, None to recognise it from content. dim: the D that is expected. strict: refuse files with
    broken lines. side: `encoder` or `decoder`, which table of a fairseq checkpoint.
    Raises VectorFileError (missing, unreadable, unknown), DimensionError (other D), OptionError (no such format).
    """
    path = os.fspath(path)
    check_exists(split_member(path)[0])
    if format is None:
        format = recognise(path)
    if format not in FORMATS:
        raise OptionError(f"--embed-init-format {format}: no such format. Choose from {', '.join(FORMATS)}.")
    if format in ("glove", "word2vec"):
        from embinit_fairseq.vectors.text import TextVectors

        return TextVectors(path, dim, strict, header=format == "word2vec")
    if format == "npz":
        from embinit_fairseq.vectors.npz import NpzVectors

        return NpzVectors(path, dim, strict)
    return _open_binary(path, format, dim, strict, side)


def _open_binary(path: str, format: str, dim: int | None, strict: bool, side: str | None) -> VectorReader:
    if format == "word2vec_bin":
        from embinit_fairseq.vectors.word2vec_bin import Word2VecBinary

        return Word2VecBinary(path, dim, strict)
    if format == "fasttext_bin":
        from embinit_fairseq.vectors.fasttext_bin import FastTextBinary

        return FastTextBinary(path, dim, strict)
    if format == "huggingface":
        from embinit_fairseq.vectors.huggingface import HuggingFaceDirectory

        return HuggingFaceDirectory(path, dim, strict)
    from embinit_fairseq.vectors.fairseq_checkpoint import FairseqCheckpoint

    return FairseqCheckpoint(path, dim, strict, side=side)


def recognise(path: str) -> str:
    """The format of what is at `path`, from its content; one of FORMATS. Raises VectorFileError if it is none."""
    if os.path.isdir(path):
        return "huggingface"
    archive, member = split_member(path)
    if member is None and is_zip(archive):
        names = zip_members(archive)
        if any(name.endswith("/data.pkl") or name == "data.pkl" for name in names):
            return "fairseq"
        if "words.npy" in names:
            return "npz"
    with open_bytes(path) as stream:
        head = stream.read(_HEAD)
    return _from_head(path, head)


def _from_head(path: str, head: bytes) -> str:
    if not head.strip():
        raise VectorFileError(f"{path}: the file is empty. Download it again or correct --embed-init-path.")
    if head.startswith(_FASTTEXT_MAGIC):
        return "fasttext_bin"
    if head.startswith(_PICKLE):
        return "fairseq"
    first, *body = head.split(b"\n", 4)
    if len(head) == _HEAD and body:
        body.pop()  # probably cut
    text = any(numeric_tail(line) for line in body)
    if header_of(first):
        return "word2vec" if text or not any(body) else "word2vec_bin"
    if text or numeric_tail(first):
        return "glove"
    raise VectorFileError(
        f"{path}: not recognised as a source of vectors. Name what it is with --embed-init-format "
        f"({', '.join(FORMATS)}), or correct --embed-init-path."
    )
