"""The most frequent words of a dictionary or of a plain text, as the rows of an embedding layer."""

from __future__ import annotations

from collections import Counter

import numpy as np

from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.vectors.compressed import open_bytes
from embinit_fairseq.vectors.table import VectorReader
from embinit_fairseq.vocab.dictionary import Vocabulary, read_dictionary


def frequent_words(path: str, top: int | None = None) -> Vocabulary:
    """The `top` most frequent words (None: all) of a fairseq dict.txt or of a text (plain, gz, bz2, xz, zip).

    A file whose every line is `symbol count` is a dictionary; anything else is text, split at white space. Words are
    sorted by falling count, equal counts by first occurrence. The result has no special rows. Raises DataError for
    an empty file or bytes that are not UTF-8, OptionError for top < 1.
    """
    if top is not None and top < 1:
        raise OptionError(f"--top must be at least 1, not {top}")
    counts = _dictionary_counts(path) if _looks_like_dictionary(path) else _text_counts(path)
    if not counts:
        raise DataError(f"{path}: no words in it; give a fairseq dict.txt or a tokenised text")
    words = sorted(counts, key=lambda word: -counts[word])[:top]
    return Vocabulary(words, np.array([counts[word] for word in words]))


def is_dictionary(vectors: VectorReader) -> bool:
    """Was a dictionary opened as text vectors of one dimension?"""
    return vectors.dim == 1 and vectors.format == "glove" and _looks_like_dictionary(vectors.path)


def _looks_like_dictionary(path: str) -> bool:
    with open_bytes(path) as lines:
        first = [line.split() for _, line in zip(range(100), lines) if line.strip()]
    return bool(first) and all(len(fields) in (2, 3) and fields[1].isdigit() for fields in first)


def _dictionary_counts(path: str) -> dict[str, int]:
    vocabulary = read_dictionary(path)
    regular = np.flatnonzero(vocabulary.regular)
    return {vocabulary.symbols[row]: int(vocabulary.counts[row]) for row in regular}


def _text_counts(path: str) -> dict[str, int]:
    counts: Counter[str] = Counter()
    with open_bytes(path) as lines:
        for number, line in enumerate(lines, start=1):
            try:
                counts.update(line.decode("utf-8").split())
            except UnicodeDecodeError as error:
                raise DataError(f"{path}, line {number}: not UTF-8 ({error.reason}); convert the text") from error
    return counts
