"""Counts common n-grams like ``fairseq.libbleu``; `LIBRARY` has the functions of the library that ctypes loads."""

from __future__ import annotations

import ctypes
from collections import Counter
from types import SimpleNamespace
from typing import Any

ORDERS = range(1, 5)


def trimmed(tokens: list[int], pad: int, eos: int) -> list[int]:
    """Return tokens without padding at the beginning, padding and ends of sentences at the end (one token stays)."""
    start, end = 0, len(tokens)
    while start < end and tokens[start] == pad:
        start += 1
    while end - start > 1 and tokens[end - 1] in (pad, eos):
        end -= 1
    return tokens[start:end]


def _tokens(length: Any, address: Any, pad: int, eos: int) -> tuple[int, ...]:
    tokens = list((ctypes.c_int * length.value).from_address(address.value)) if length.value else []
    return tuple(trimmed(tokens, pad, eos))


def _ngrams(tokens: tuple[int, ...], order: int) -> Counter[tuple[int, ...]]:
    return Counter(tokens[at : at + order] for at in range(len(tokens) - order + 1))


def bleu_zero_init(stat: Any) -> None:
    """Forget all counts."""
    ctypes.memset(stat, 0, ctypes.sizeof(stat._obj))


def bleu_one_init(stat: Any) -> None:
    """Forget all counts, and begin with one for n-grams of two and more (smoothing)."""
    bleu_zero_init(stat)
    for order in ORDERS[1:]:
        setattr(stat._obj, f"count{order}", 1)
        setattr(stat._obj, f"match{order}", 1)


def bleu_add(stat: Any, reflen: Any, ref: Any, predlen: Any, pred: Any, pad: Any, eos: Any) -> None:
    """Add a sentence: its lengths, n-grams of the hypothesis, and n-grams that the reference has, too."""
    reference, hypothesis = (_tokens(*text, pad.value, eos.value) for text in ((reflen, ref), (predlen, pred)))
    counts = stat._obj
    counts.reflen += len(reference)
    counts.predlen += len(hypothesis)
    for order in ORDERS:
        ngrams = _ngrams(hypothesis, order)
        common = ngrams & _ngrams(reference, order)
        setattr(counts, f"count{order}", getattr(counts, f"count{order}") + sum(ngrams.values()))
        setattr(counts, f"match{order}", getattr(counts, f"match{order}") + sum(common.values()))


LIBRARY = SimpleNamespace(bleu_zero_init=bleu_zero_init, bleu_one_init=bleu_one_init, bleu_add=bleu_add)
