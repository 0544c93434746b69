"""Join short sentences of a document to their neighbours: "concatenate the short sequences" (Ke et al., appendix B).

The rule is ours: one pass, linear time. A sentence of fewer than SHORT words goes to the neighbour with which it makes
the shorter whole, to the following one if both are alike; where the first of the two ends in a full stop or the like,
the whole counts as five words longer. None is made that has more than LONGEST words.
"""

from __future__ import annotations

import math

SHORT = 5
LONGEST = 250
_AFTER_END = 5
_ENDS = (".", "!", "?", '"')


def _cost(first: list[str], second: list[str]) -> float:
    length = len(first) + len(second)
    return math.inf if length > LONGEST else length + _AFTER_END * (first[-1] in _ENDS)


def join_short(sentences: list[list[str]]) -> list[list[str]]:
    """The same words in the same order; sentences are not empty."""
    joined: list[list[str]] = []
    waiting = list(reversed(sentences))
    while waiting:
        sentence = waiting.pop()
        before = after = math.inf
        if len(sentence) < SHORT:
            before = _cost(joined[-1], sentence) if joined else math.inf
            after = _cost(sentence, waiting[-1]) if waiting else math.inf
        if before == after == math.inf:
            joined.append(sentence)
        elif after <= before:
            waiting[-1] = sentence + waiting[-1]
        else:
            joined[-1] = joined[-1] + sentence
    return joined
