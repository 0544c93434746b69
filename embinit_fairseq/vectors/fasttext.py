"""Read fastText's binary models: a word's vector is the mean of its own row and the rows of its character n-grams.

Letters: V rows that were read, D columns.
"""

from __future__ import annotations

import os
import struct
from collections import namedtuple
from collections.abc import Sequence
from io import BufferedReader

import numpy as np

from embinit_fairseq.errors import VectorFileError, counted
from embinit_fairseq.vectors.binary_records import RecordScan, mapped_rows
from embinit_fairseq.vectors.compressed import readable
from embinit_fairseq.vectors.table import (
    FIRST_ROWS,
    Origin,
    VectorReader,
    VectorTable,
    Wanted,
    check_dimension,
    check_finite,
)

# ---- The head: magic number, version, training arguments, counts ----------------------------------------------------
# Little-endian and without padding: https://github.com/facebookresearch/fastText, files args.cc, dictionary.cc,
# fasttext.cc (versions 11 and 12).

MAGIC = struct.pack("<i", 793712314)
_SUPERVISED = 3
#: bytes of a dictionary entry after its word: count (int64), type (int8)
_ENTRY = 9
#: entries are words, then labels; pruned: buckets of a quantised model
_Head = namedtuple(
    "_Head",
    "magic version dim ws epoch min_count neg word_ngrams loss model bucket minn maxn lr_update_rate t entries words"
    " labels tokens pruned",
)
_HEAD = struct.Struct("<2i12id3i2q")
_NOT_PRUNED = -1
#: after the dictionary: whether the matrix is quantised, its rows and columns
_BETWEEN = struct.Struct("<?2q")
_QUANTISED = "a quantised model (.ftz), whose vectors are approximations; take the .bin or .vec file of the model"


def read_head(path: str, content: bytes) -> _Head:
    """Unpack the first bytes of a fastText binary; VectorFileError if the file is not one, or is quantised."""
    if content[:2] in (b"\x1f\x8b", b"PK", b"BZ") or content.startswith(b"\xfd7zXZ"):
        raise VectorFileError(f"{path}: compressed, and fastText binaries are read in place; unpack it (gunzip, unzip)")
    if len(content) < _HEAD.size or not content.startswith(MAGIC):
        raise VectorFileError(
            f"{path}: not a fastText binary, or cut short (it begins with {content[:8]!r}); name the file's format, or "
            "download it again"
        )
    head = _Head._make(_HEAD.unpack(content))
    if head.version not in (11, 12):
        raise VectorFileError(
            f"{path}: fastText's file version {head.version} is not known; save the model with fastText 0.9, or use "
            "its .vec file"
        )
    if head.pruned != _NOT_PRUNED:
        raise VectorFileError(f"{path}: {_QUANTISED}")
    # version 11 had no n-grams of characters in classifiers
    return head._replace(maxn=0) if head.version == 11 and head.model == _SUPERVISED else head


# ---- The character n-grams of words, as fastText hashes them (Bojanowski et al. 2017, section 3.2) ------------------
# A word w is read as `<w>`; its n-grams of minn to maxn characters have the buckets of their 32-bit FNV-1a hash.
# Two peculiarities of fastText are kept. Bytes count as *signed*, so those above 127 enter the hash with 24 leading
# ones. An n-gram of one character that is the `<` or the `>` does not count.

_FNV_BASIS = np.uint32(2166136261)
_FNV_PRIME = np.uint32(16777619)
#: bytes of a character in UTF-8
_LONGEST_CHARACTER = 4


def ngram_buckets(words: Sequence[str], minn: int, maxn: int, bucket: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the n-grams of all words, many words at a time: (index of the word, bucket), both (n,) int64, by word.

    An n-gram that occurs twice in a word counts twice. Words must be encodable as UTF-8.
    """
    text = "".join([f"<{word}>" for word in words])
    raw = np.frombuffer(text.encode("utf-8"), dtype=np.uint8)
    signed = raw.view(np.int8).astype(np.int32).view(np.uint32)
    position = np.flatnonzero((raw & 0xC0) != 0x80)  # first byte of each character
    size = np.diff(position, append=len(raw))  # its bytes
    length = np.fromiter(map(len, words), np.int64, len(words)) + 2  # characters of each word
    word_of = np.repeat(np.arange(len(words)), length)
    end = np.repeat(np.cumsum(length), length)  # for each character, where its word ends

    start = np.arange(len(position))  # first character of each n-gram
    hashed = np.full(len(start), _FNV_BASIS, dtype=np.uint32)
    owners, buckets = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for n in range(1, maxn + 1):
        fits = start + n <= end[start]
        start, hashed = start[fits], hashed[fits]
        if not len(start):
            break
        hashed = _append(hashed, start + n - 1, position, size, signed)
        if n >= minn:
            inner = np.ones(len(start), dtype=bool)
            if n == 1:
                inner = (start + length[word_of[start]] != end[start]) & (start + 1 != end[start])
            owners.append(word_of[start[inner]])
            buckets.append((hashed[inner] % np.uint32(bucket)).astype(np.int64))
    owner = np.concatenate(owners)
    order = np.argsort(owner, kind="stable")
    return owner[order], np.concatenate(buckets)[order]


def _append(
    hashed: np.ndarray, character: np.ndarray, position: np.ndarray, size: np.ndarray, signed: np.ndarray
) -> np.ndarray:
    """Return the hashes after the bytes of one more character each."""
    for byte in range(_LONGEST_CHARACTER):
        longer = size[character] > byte
        if not longer.any():
            break
        value = signed[np.minimum(position[character] + byte, len(signed) - 1)]
        hashed = np.where(longer, (hashed ^ value) * _FNV_PRIME, hashed)
    return hashed


# ---- The reader -----------------------------------------------------------------------------------------------------

#: the one word without n-grams
_END_OF_SENTENCE = "</s>"
#: words whose rows are in memory at a time
_CHUNK = 4096


class FastTextBinary(VectorReader):
    """A `.bin` model of fastText, not quantised. Only the rows of wanted words and of their n-grams are read.

    Args:
        path: the file.
        dim: the expected D (None: any).
        strict: refuse words that are not UTF-8 instead of counting them.
    """

    format = "fasttext_bin"

    def __init__(self, path: str, dim: int | None = None, strict: bool = False) -> None:
        self.path = path
        self.strict = strict
        with readable(path), open(path, "rb") as stream:
            self._head = read_head(path, stream.read(_HEAD.size))
        self.dim: int = self._head.dim
        check_dimension(path, self.dim, dim)
        #: where the matrix of all rows begins, words first, then buckets; None before the dictionary was read
        self._offset: int | None = None

    def first_words(self) -> list[str]:
        """Return the words of the first rows."""
        with readable(self.path), open(self.path, "rb") as stream:
            stream.seek(_HEAD.size)
            count = min(self._head.words, FIRST_ROWS)
            return [word for _, word, _ in RecordScan(self.path, stream, count, b"\0", _ENTRY, None, False)]

    def read(self, wanted: Wanted | None = None) -> VectorTable:
        """Return the wanted words (None: all) with the vectors that fastText gives them, in the file's order."""
        rows: dict[str, int] = {}
        duplicates = 0
        with readable(self.path), open(self.path, "rb") as stream:
            stream.seek(_HEAD.size)
            scan = RecordScan(self.path, stream, self._head.entries, b"\0", _ENTRY, wanted, self.strict)
            for row, word, _ in scan:
                if row < self._head.words:  # labels come last
                    duplicates += word in rows
                    rows.setdefault(word, row)
            self._offset = self._check_layout(stream.tell() - len(scan.rest), stream)
        words = list(rows)
        matrix, _ = self._means(words, np.fromiter(rows.values(), np.int64, len(words)))
        check_finite(self.path, words, matrix)
        origin = Origin(
            self.path, self.format, self._head.words, self.dim, duplicates=duplicates, broken_lines=scan.broken
        )
        return VectorTable(words, matrix, origin)

    def compose(self, surfaces: Sequence[str]) -> dict[str, np.ndarray]:
        """Return fastText's vectors of unknown words, the mean of their n-gram rows: word -> (D,) float32.

        Raises:
            OptionError: if the model was trained without n-grams (-maxn 0).
        """
        if not self._has_ngrams:
            return super().compose(surfaces)
        words = [word for word in dict.fromkeys(surfaces) if not any("\ud800" <= sign <= "\udfff" for sign in word)]
        matrix, counts = self._means(words, None)
        composed = np.flatnonzero(counts)
        check_finite(self.path, [words[index] for index in composed], matrix[composed])
        return {words[index]: matrix[index].copy() for index in composed}

    @property
    def _has_ngrams(self) -> bool:
        return self._head.maxn > 0 and self._head.bucket > 0

    def _check_layout(self, place: int, stream: BufferedReader) -> int:
        """Read a flag and the matrix's shape, which follow the dictionary at `place`; return the matrix's place."""
        head = self._head
        stream.seek(place)
        between = stream.read(_BETWEEN.size)
        if len(between) < _BETWEEN.size:
            raise VectorFileError(f"{self.path}: cut short after the dictionary; download it again")
        is_quantised, rows, dim = _BETWEEN.unpack(between)
        if is_quantised:
            raise VectorFileError(f"{self.path}: {_QUANTISED}")
        if dim != head.dim or rows != head.words + head.bucket or min(dim, head.words, head.bucket + 1) < 1:
            raise VectorFileError(
                f"{self.path}: damaged: a matrix of {rows}x{dim} does not fit {head.words} words, {head.bucket} "
                f"buckets and {head.dim} columns; download it again"
            )
        offset = place + _BETWEEN.size
        missing = offset + 4 * rows * dim - os.stat(self.path).st_size
        if missing > 0:
            raise VectorFileError(
                f"{self.path}: cut short: its matrix lacks {counted(missing, 'byte')}; download it again"
            )
        return offset

    def _means(self, words: list[str], own: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean of each word's rows (V, D) float32, and their number (V,). own: rows of whole words."""
        if self._offset is None:
            self.read(Wanted())
        assert self._offset is not None
        means = np.zeros((len(words), self.dim), dtype=np.float32)
        counts = np.zeros(len(words), dtype=np.int64)
        with readable(self.path):
            for begin in range(0, len(words), _CHUNK):
                part = slice(begin, begin + _CHUNK)
                owner, rows = self._rows(words[part], None if own is None else own[part])
                needed, place = np.unique(rows, return_inverse=True)
                stored = mapped_rows(self.path, self._offset, 4 * self.dim, needed).view("<f4")
                counts[part] = np.bincount(owner, minlength=len(words[part]))
                _sums(stored, place, counts[part], means[part])
                del stored  # before the next ones are read
        means /= np.maximum(counts, 1).astype(np.float32)[:, None]
        return means, counts

    def _rows(self, words: list[str], own: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of the means, ordered by word: (index of the word, row of the matrix), both (n,)."""
        head = self._head
        owner = rows = np.empty(0, dtype=np.int64)
        if self._has_ngrams:
            owner, bucket = ngram_buckets(words, head.minn, head.maxn, head.bucket)
            counts = np.fromiter((word != _END_OF_SENTENCE for word in words), bool, len(words))[owner]
            owner, rows = owner[counts], head.words + bucket[counts]
        if own is None:
            return owner, rows
        owner = np.concatenate([np.arange(len(words)), owner])
        order = np.argsort(owner, kind="stable")
        return owner[order], np.concatenate([own, rows])[order]


def _sums(stored: np.ndarray, place: np.ndarray, counts: np.ndarray, out: np.ndarray) -> None:
    """Sum groups of rows of `stored` (n, D): the first counts[0] of `place` into out[0] of out (V, D), and so on."""
    scratch = np.empty((int(counts.max(initial=0)), stored.shape[1]), dtype=np.float32)
    end = 0
    for index, count in enumerate(counts.tolist()):
        begin, end = end, end + count
        rows = scratch[:count]  # one word's rows stay in the first-level cache
        stored.take(place[begin:end], axis=0, out=rows, mode="clip")
        np.add.reduce(rows, axis=0, out=out[index])
