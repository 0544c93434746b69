"""A translation without a word: segmentation fault, KeyError: 'bleu', or too high a BLEU.

Symptom: (a) ``fairseq-generate`` ends with a segmentation fault (non-autoregressive models can produce nothing), and
    ``--scoring bleu`` with ``ZeroDivisionError`` if there are only such translations. (b) ``--eval-bleu`` forgets the
    references of a batch without any n-gram, so that BLEU is too high; if no batch has one it logs no BLEU, and
    ``--best-checkpoint-metric bleu`` ends with ``KeyError: 'bleu'``.
Where: fairseq/clib/libbleu/libbleu.cpp:41 (``bleu_rtrim`` of a length of 0), called by fairseq/scoring/bleu.py:121;
    :148 (``brevity``); fairseq/tasks/translation.py:413 (``max(totals) > 0``).
Remedy: an empty translation has no n-gram and no length; its reference has one. Without a word BLEU is 0.
Upstream: (b) fairseq issue 3338 (open).
"""

from __future__ import annotations

from fairseq_compat.patches import wrap
from fairseq_compat.pure.libbleu import trimmed

BROKEN = r"self\.C\.bleu_add\(|max\(totals\) > 0"

#: numbers of each order of n-grams that a batch of --eval-bleu logs
COUNTS, TOTALS = "_bleu_counts", "_bleu_totals"


def patch_scorer(module) -> None:
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


def patch_validation(module) -> None:
    """Log a batch of ``--eval-bleu`` without an n-gram as fairseq logs the others."""
    log_scalar = module.metrics.log_scalar

    def bleu_of(meters) -> float:
        from sacrebleu.metrics import BLEU

        counts, totals = (meters[name].sum for name in (COUNTS, TOTALS))
        sys_len, ref_len = (int(meters[f"_bleu_{side}_len"].sum) for side in ("sys", "ref"))
        return round(BLEU.compute_bleu(counts, totals, sys_len, ref_len, smooth_method="exp").score, 2)

    @wrap(module.TranslationTask)
    def reduce_metrics(original, self, logging_outputs, criterion):
        original(self, logging_outputs, criterion)
        batches = [log for log in logging_outputs if "_bleu_ref_len" in log]
        if not batches or any(log[f"{TOTALS}_0"] for log in batches):
            return
        for name in (COUNTS, TOTALS):
            log_scalar(name, module.np.zeros(module.EVAL_BLEU_ORDER, dtype=int))
        for side in ("sys", "ref"):
            log_scalar(f"_bleu_{side}_len", sum(int(log[f"_bleu_{side}_len"]) for log in batches))
        module.metrics.log_derived("bleu", bleu_of)


PATCHES = {"fairseq.scoring.bleu": patch_scorer, "fairseq.tasks.translation": patch_validation}
