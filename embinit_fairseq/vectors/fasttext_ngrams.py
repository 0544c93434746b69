"""The character n-grams of words, as fastText hashes them (Bojanowski et al. 2017, section 3.2), many words at a time.

A word w is read as `<w>`; its n-grams of minn to maxn characters go to buckets by their 32-bit FNV-1a hash. fastText's
own quirk is kept: bytes count as *signed*, so those above 127 enter the hash with 24 leading ones. An n-gram of one
character that is the `<` or the `>` does not count.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_FNV_BASIS = np.uint32(2166136261)
_FNV_PRIME = np.uint32(16777619)
_LONGEST_CHARACTER = 4  # bytes of UTF-8


def ngram_buckets(words: Sequence[str], minn: int, maxn: int, bucket: int) -> tuple[np.ndarray, np.ndarray]:
    """(index of the word (n,) int64, bucket (n,) int64) of all n-grams of all words, ordered by word.

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
    """The hashes after the bytes of one more character each."""
    for byte in range(_LONGEST_CHARACTER):
        longer = size[character] > byte
        if not longer.any():
            break
        value = signed[np.minimum(position[character] + byte, len(signed) - 1)]
        hashed = np.where(longer, (hashed ^ value) * _FNV_PRIME, hashed)
    return hashed
