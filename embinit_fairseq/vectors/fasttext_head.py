"""The parts of a fastText binary in front of its vectors: magic number, version, training arguments, counts.

Little-endian and without padding: https://github.com/facebookresearch/fastText, files args.cc, dictionary.cc,
fasttext.cc (versions 11 and 12).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from embinit_fairseq.errors import VectorFileError

MAGIC = 793712314
_VERSIONS = (11, 12)
_SUPERVISED = 3
_ENTRY = 9  # bytes of a dictionary entry behind its word: count (int64), type (int8)
#: magic, version; dim, ws, epoch, minCount, neg, wordNgrams, loss, model, bucket, minn, maxn, lrUpdateRate, t;
#: entries, words, labels, tokens, pruned buckets (-1: not pruned)
_HEAD = struct.Struct("<2i12id3i2q")
_WIDEST = 1_000_000  # columns


@dataclass(frozen=True)
class FastTextHead:
    """What is needed of the head. The dictionary's entries follow at byte `SIZE`."""

    dim: int
    bucket: int
    minn: int
    maxn: int
    entries: int  # words, then labels
    words: int
    pruned: int  # buckets that were kept, -1: all

    SIZE = _HEAD.size
    ENTRY = _ENTRY

    @property
    def has_ngrams(self) -> bool:
        """Whether words have n-gram rows at all."""
        return self.maxn > 0 and self.bucket > 0 and self.pruned != 0


def read_head(path: str, content: bytes, size: int) -> FastTextHead:
    """The head of a fastText binary, from the file's beginning; VectorFileError if it is none or cannot be right.

    size: bytes of the whole file.
    """
    if content[:2] in (b"\x1f\x8b", b"PK", b"BZ") or content.startswith(b"\xfd7zXZ"):
        raise VectorFileError(f"{path}: packed; fastText binaries are read in place. Unpack it first (gunzip, unzip).")
    if len(content) >= 4 and content[:4] != struct.pack("<i", MAGIC):
        raise VectorFileError(
            f"{path}: no fastText binary (it begins with {content[:8]!r}). Name the file's format with "
            "--embed-init-format."
        )
    if len(content) < _HEAD.size:
        raise VectorFileError(f"{path}: cut short inside the head. Download it again.")
    fields = _HEAD.unpack(content[: _HEAD.size])
    version, dim, model, bucket, minn, maxn = (fields[index] for index in (1, 2, 9, 10, 11, 12))
    entries, words, labels, _, pruned = fields[15:]
    if version not in _VERSIONS:
        raise VectorFileError(
            f"{path}: fastText's file version {version} is not known (known: {_VERSIONS}). Save the model with "
            "fastText 0.9, or use its .vec file."
        )
    plausible = (
        0 < dim <= _WIDEST
        and bucket >= 0
        and 0 < words <= entries
        and words + labels == entries
        and entries * (1 + _ENTRY) + 8 * max(pruned, 0) <= size - _HEAD.size
        and pruned >= -1
    )
    if not plausible:
        raise VectorFileError(
            f"{path}: damaged or cut short: its head announces {words} words among {entries} entries, {bucket} "
            f"buckets and {dim} columns, the file has {size} bytes. Download it again."
        )
    if version == 11 and model == _SUPERVISED:
        maxn = 0  # version 11 had no n-grams of characters in classifiers
    return FastTextHead(dim, bucket, minn, maxn, entries, words, pruned)
