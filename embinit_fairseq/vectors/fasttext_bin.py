"""fastText's binary models: a word's vector is the mean of its own row and the rows of its character n-grams.

Letters: V rows that were read, D columns.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BufferedReader

import numpy as np

from embinit_fairseq.errors import OptionError, VectorFileError, counted
from embinit_fairseq.vectors.binary_checks import check_dimension, check_finite, existing_file
from embinit_fairseq.vectors.binary_scan import RecordScan
from embinit_fairseq.vectors.compressed import readable
from embinit_fairseq.vectors.fasttext_head import FastTextHead, read_head
from embinit_fairseq.vectors.fasttext_ngrams import ngram_buckets
from embinit_fairseq.vectors.mapped_rows import mapped_rows
from embinit_fairseq.vectors.table import Origin, VectorTable, Wanted

_END_OF_SENTENCE = "</s>"  # the one word that fastText does not cut
_CHUNK = 4096  # words whose rows are held at a time


@dataclass(frozen=True)
class _Layout:
    """Where the matrix of all rows is: words first, then buckets."""

    offset: int  # bytes from the beginning of the file
    rows: int
    kept: np.ndarray | None  # (n, 2): bucket, its place among those that were kept; ordered by bucket. None: all kept


class FastTextBinary:
    """A `.bin` model of fastText (not quantised). Only the rows of wanted words and of their n-grams are read.

    dim: the width that is needed (None: any). strict: refuse words that are not UTF-8 instead of counting them.
    Raises VectorFileError for a file that is none, DimensionError for another width.
    """

    format = "fasttext_bin"

    def __init__(self, path: str, dim: int | None = None, strict: bool = False) -> None:
        self.path = os.fspath(path)
        self.strict = strict
        file = existing_file(self.path)
        self._size = file.stat().st_size
        with readable(self.path), open(file, "rb") as stream:
            self._head = read_head(self.path, stream.read(FastTextHead.SIZE), self._size)
        self.dim = self._head.dim
        check_dimension(self.path, self.dim, dim)

    def read(self, wanted: Wanted | None = None) -> VectorTable:
        """The wanted words (None: all) with the vectors that fastText itself gives them, in the file's order."""
        places: dict[str, int] = {}
        duplicates = 0
        scan, found = self._scan(wanted)
        for place, word in found:
            if word in places:
                duplicates += 1
            else:
                places[word] = place
        words = list(places)
        matrix, _ = self._means(words, np.fromiter(places.values(), np.int64, len(words)))
        check_finite(self.path, words, matrix)
        origin = Origin(
            self.path, self.format, self._head.words, self.dim, duplicates=duplicates, broken_lines=scan.broken
        )
        return VectorTable(words, matrix, origin)

    def compose(self, surfaces: Sequence[str]) -> dict[str, np.ndarray]:
        """The mean of each word's n-gram rows, which is fastText's vector for unknown words: word -> (D,) float32.

        Words without any n-gram are left out. Raises OptionError where the model was trained without n-grams.
        """
        if not self._head.has_ngrams:
            raise OptionError(
                f"{self.path}: trained without character n-grams (-maxn 0), so --embed-init-oov subword has nothing to "
                "compose words from. Choose xavier, mean, gaussian or zeros, or another model."
            )
        words = [word for word in dict.fromkeys(surfaces) if not any("\ud800" <= sign <= "\udfff" for sign in word)]
        matrix, counts = self._means(words, None)
        known = np.flatnonzero(counts)
        check_finite(self.path, [words[index] for index in known], matrix[known])
        return {words[index]: matrix[index].copy() for index in known}

    def _scan(self, wanted: Wanted | None) -> tuple[RecordScan, list[tuple[int, str]]]:
        """Go through the dictionary: the scanner, and (row, word) of the wanted words. Learns the layout on the way."""
        head = self._head
        with readable(self.path), open(self.path, "rb") as stream:
            stream.seek(head.SIZE)
            scan = RecordScan(self.path, stream, head.entries, b"\0", head.ENTRY, wanted, self.strict)
            found = [(number, word) for number, word, _ in scan if number < head.words]  # labels come last
            if "_layout" not in self.__dict__:
                stream.seek(head.SIZE + scan.consumed)
                self._layout = self._read_layout(stream)
        return scan, found

    @cached_property
    def _layout(self) -> _Layout:
        self._scan(Wanted())
        return self.__dict__["_layout"]

    def _read_layout(self, stream: BufferedReader) -> _Layout:
        """What stands between the dictionary and the matrix: kept buckets, a flag, the matrix's shape."""
        head = self._head
        pairs = np.frombuffer(stream.read(8 * max(head.pruned, 0)), dtype="<i4")
        tail = stream.read(17)
        if len(pairs) != 2 * max(head.pruned, 0) or len(tail) < 17:
            raise VectorFileError(f"{self.path}: cut short behind the dictionary. Download it again.")
        if tail[0]:
            raise VectorFileError(
                f"{self.path}: quantised models (.ftz) cannot be used: their vectors are approximations in a packed "
                "form. Take the .bin or .vec file of the model."
            )
        rows, dim = struct.unpack("<2q", tail[1:])
        ngrams = head.bucket if head.pruned < 0 else head.pruned
        if dim != head.dim or rows != head.words + ngrams:
            raise VectorFileError(
                f"{self.path}: damaged: a matrix of {rows}x{dim} does not fit {head.words} words, {ngrams} buckets and "
                f"{head.dim} columns. Download it again."
            )
        offset = stream.tell()
        missing = offset + 4 * rows * dim - self._size
        if missing > 0:
            raise VectorFileError(
                f"{self.path}: cut short: its matrix lacks {counted(missing, 'byte')}. Download it again."
            )
        return _Layout(offset, rows, self._kept(pairs.reshape(-1, 2).astype(np.int64)))

    def _kept(self, pairs: np.ndarray) -> np.ndarray | None:
        if self._head.pruned < 0:
            return None
        if len(pairs) and not (pairs[:, 1].min() >= 0 and pairs[:, 1].max() < len(pairs)):
            raise VectorFileError(
                f"{self.path}: damaged: its pruned buckets point outside the matrix. Download it again."
            )
        return pairs[np.argsort(pairs[:, 0], kind="stable")]

    def _means(self, words: list[str], own: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """(mean of each word's rows (V, D) float32, number of those rows (V,)). own: rows of the words themselves."""
        layout = self._layout
        means = np.zeros((len(words), self.dim), dtype=np.float32)
        counts = np.zeros(len(words), dtype=np.int64)
        with readable(self.path):
            for begin in range(0, len(words), _CHUNK):
                part = slice(begin, begin + _CHUNK)
                owner, rows = self._rows(words[part], None if own is None else own[part])
                needed, place = np.unique(rows, return_inverse=True)
                stored = mapped_rows(self.path, layout.offset, 4 * self.dim, needed).view("<f4")
                counts[part] = np.bincount(owner, minlength=len(words[part]))
                _sums(stored, place, counts[part], means[part])
                del stored  # before the next ones are fetched
        means /= np.maximum(counts, 1).astype(np.float32)[:, None]
        return means, counts

    def _rows(self, words: list[str], own: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """(index of the word (n,), row of the matrix (n,)) of everything a word's mean is made of, ordered by word."""
        head = self._head
        owner = rows = np.empty(0, dtype=np.int64)
        if head.has_ngrams:
            owner, bucket = ngram_buckets(words, head.minn, head.maxn, head.bucket)
            cut = np.fromiter((word != _END_OF_SENTENCE for word in words), bool, len(words))[owner]
            if self._layout.kept is not None:
                keys = self._layout.kept[:, 0]
                found = np.minimum(np.searchsorted(keys, bucket), len(keys) - 1)
                cut &= keys[found] == bucket
                bucket = self._layout.kept[found, 1]
            owner, rows = owner[cut], head.words + bucket[cut]
        if own is None:
            return owner, rows
        owner = np.concatenate([np.arange(len(words)), owner])
        order = np.argsort(owner, kind="stable")
        return owner[order], np.concatenate([own, rows])[order]


def _sums(stored: np.ndarray, place: np.ndarray, counts: np.ndarray, out: np.ndarray) -> None:
    """Sums of groups of rows of `stored` (n, D): the first counts[0] of `place` go to out[0] (V, D), and so on."""
    scratch = np.empty((int(counts.max(initial=0)), stored.shape[1]), dtype=np.float32)
    end = 0
    for index, count in enumerate(counts.tolist()):
        begin, end = end, end + count
        rows = scratch[:count]  # one word's rows stay in the first-level cache
        stored.take(place[begin:end], axis=0, out=rows, mode="clip")
        np.add.reduce(rows, axis=0, out=out[index])
