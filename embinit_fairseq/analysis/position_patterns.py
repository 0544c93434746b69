"""Names for what a head attends to by position alone: the five patterns of Ke et al. 2021, section 4.2, by numbers.

H: heads, n: positions, A = softmax over the keys of the positional scores (n, n); m_i: keys that query i may see.
All numbers are relative to uniform attention or to n, so the length of the map hardly matters:

    width      sum_i exp(entropy of row i) / sum_i m_i         in (0, 1]; 1: uniform
    direction  mean over i of (mass after i) - (mass before i)  in [-1, 1]; 0: symmetric
    distance   mean |i - j| under A / under uniform attention   0: the diagonal; 1: uniform

    globally   width >= 0.8
    previous   otherwise direction <= -0.5
    next       otherwise direction >= 0.5
    other      otherwise distance > 0.6 and distance > width: elsewhere than around the query (the same few
               positions for all queries, say); a band around the query is nearer than it is wide
    locally    otherwise width <= 0.3
    broadly    otherwise

Where a query sees no later keys (decoders), everything lies before it and the direction says nothing: there `previous`
and `next` are not given.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from embinit_fairseq.errors import OptionError

#: name -> what it says
PATTERNS = {
    "globally": "attending globally",
    "locally": "attending locally",
    "broadly": "attending broadly",
    "previous": "attending to the previous positions",
    "next": "attending to the next positions",
    "other": "none of the five patterns",
}
GLOBAL_WIDTH, LOCAL_WIDTH, DIRECTED, NEAR = 0.8, 0.3, 0.5, 0.6


@dataclass(frozen=True)
class HeadPattern:
    """keys: sum_i exp(entropy) / n, how many keys a query attends to on average; the rest: see the module."""

    name: str
    width: float
    keys: float
    direction: float
    distance: float


def attention(scores: np.ndarray) -> np.ndarray:
    """Softmax over the last axis; minus infinity where a key may not be seen (each query sees one at least)."""
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def head_patterns(scores: np.ndarray) -> list[HeadPattern]:
    """scores (H, n, n): query i, key j, minus infinity where j may not be seen -> one pattern a head.

    Leave row and column of [CLS] out: they are reset to constants. Raises OptionError for n < 2.
    """
    n = scores.shape[-1]
    if n < 2:
        raise OptionError(f"a pattern needs at least 2 positions besides [CLS], not {n}: give a larger --length")
    seen = np.isfinite(scores[0])
    uniform = seen / seen.sum(axis=1, keepdims=True)
    offset = np.arange(n) - np.arange(n)[:, None]  # j - i
    weights = attention(scores)
    logarithms = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
    keys = np.exp(-(weights * logarithms).sum(axis=-1)).sum(axis=-1) / n
    width = keys * n / seen.sum()
    direction = (weights * np.sign(offset)).sum(axis=(1, 2)) / n
    distance = (weights * abs(offset)).sum(axis=(1, 2)) / (uniform * abs(offset)).sum()
    directed = bool(seen.all())
    return [
        HeadPattern(_name(w, direct, far, directed), float(w), float(count), float(direct), float(far))
        for w, count, direct, far in zip(width, keys, direction, distance)
    ]


def _name(width: float, direction: float, distance: float, directed: bool) -> str:
    if width >= GLOBAL_WIDTH:
        return "globally"
    if directed and abs(direction) >= DIRECTED:
        return "next" if direction > 0 else "previous"
    if distance > max(NEAR, width):
        return "other"
    return "locally" if width <= LOCAL_WIDTH else "broadly"
