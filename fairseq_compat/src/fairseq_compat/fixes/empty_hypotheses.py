"""Translations without a word, and their score.

Symptom: ``fairseq-generate`` ends with a segmentation fault (non-autoregressive models can produce nothing), and
    ``--scoring bleu`` with ``ZeroDivisionError`` where nothing but that was produced.
Versions: all.
Where: fairseq/clib/libbleu/libbleu.cpp:41 (``bleu_rtrim`` of a length of 0), called by fairseq/scoring/bleu.py:121;
    :148 (``brevity``).
Remedy: an empty translation has no n-gram and no length; its reference has one. Without a word BLEU is 0.
Upstream: not reported.
Can go: with a fairseq that does this.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager

REASON = "an empty hypothesis ends generation with a segmentation fault"
BROKEN = r"self\.C\.bleu_add\("


def needed() -> bool:
    return True


def trimmed_length(tokens, pad: int, eos: int) -> int:
    """Length without padding at the beginning, and without padding and ends of sentences at the end (one token stays).

    As libbleu counts, but 0 for padding alone.
    """
    numbers = tokens.view(-1).tolist()
    while numbers and numbers[0] == pad:
        del numbers[0]
    while len(numbers) > 1 and numbers[-1] in (pad, eos):
        del numbers[-1]
    return len(numbers)


@contextmanager
def patching(module):
    yield
    scorer = module.Scorer
    original = scorer.add

    @functools.wraps(original)
    def add(self, ref, pred):
        lengths = [trimmed_length(tokens, self.pad, self.eos) for tokens in (ref, pred)]
        if all(lengths):
            return original(self, ref, pred)
        self.stat.reflen += lengths[0]
        self.stat.predlen += lengths[1]
        for order in range(1, 5):
            name = f"count{order}"
            setattr(self.stat, name, getattr(self.stat, name) + max(0, lengths[1] - order + 1))

    original_brevity, original_string = scorer.brevity, scorer.result_string

    def brevity(self):
        return original_brevity(self) if self.stat.predlen else 0.0

    def result_string(self, order=4):
        if self.stat.reflen:
            return original_string(self, order)
        return f"BLEU{order} = 0.00 (no reference has a word: syslen={self.stat.predlen}, reflen=0)"

    scorer.add, scorer.brevity, scorer.result_string = add, brevity, result_string
