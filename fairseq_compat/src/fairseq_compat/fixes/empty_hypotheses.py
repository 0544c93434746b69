"""An empty hypothesis ends generation with a segmentation fault.

Symptom: ``fairseq-generate`` ends with a segmentation fault (non-autoregressive models can produce nothing), and
    ``--scoring bleu`` with ``ZeroDivisionError`` if there are only such translations.
Where: fairseq/clib/libbleu/libbleu.cpp:41 (``bleu_rtrim`` of a length of 0), called by fairseq/scoring/bleu.py:121;
    :148 (``brevity``).
Remedy: an empty translation has no n-gram and no length; its reference has one. Without a word BLEU is 0.
"""

from __future__ import annotations

from fairseq_compat.patches import wrap
from fairseq_compat.pure.libbleu import trimmed

BROKEN = r"self\.C\.bleu_add\("


def patch(module):
    @wrap(module.Scorer)
    def add(original, self, ref, pred):
        lengths = [len(trimmed(tokens.view(-1).tolist(), self.pad, self.eos)) for tokens in (ref, pred)]
        if all(lengths):
            return original(self, ref, pred)
        self.stat.reflen += lengths[0]
        self.stat.predlen += lengths[1]
        for order in range(1, 5):
            name = f"count{order}"
            setattr(self.stat, name, getattr(self.stat, name) + max(0, lengths[1] - order + 1))

    @wrap(module.Scorer)
    def brevity(original, self):
        return original(self) if self.stat.predlen else 0.0

    @wrap(module.Scorer)
    def result_string(original, self, order=4):
        if self.stat.reflen:
            return original(self, order)
        return f"BLEU{order} = 0.00 (no reference has a word: syslen={self.stat.predlen}, reflen=0)"
