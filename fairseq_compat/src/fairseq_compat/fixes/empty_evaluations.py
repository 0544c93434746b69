"""fairseq-eval-lm over no token: Perplexity: 1.00; now an error.

Symptom: ``fairseq-eval-lm`` on a text without a token that can be scored (blocks of ``--tokens-per-sample`` that are
    longer than the model's positions are skipped; a ``--shard-id`` may have none) prints ``Loss (base 2): 0.0000,
    Perplexity: 1.00`` and exits with 0.
Where: fairseq_cli/eval_lm.py:188.
Remedy: an error with the cause and the options to check.
"""

from __future__ import annotations

from fairseq_compat.patches import wrap

BROKEN = r"if count > 0 else 0"
FIXED = r"def eval_lm\("


def patch(module):
    @wrap(module)
    def eval_lm(original, *args, **kwargs):
        results = original(*args, **kwargs)
        if results["loss"] == 0:  # the sum of no numbers: every token costs something
            raise ValueError(
                "no token was evaluated, so there is no perplexity: give --tokens-per-sample as many as the model has "
                "positions, or fewer (the default is 1024; longer blocks are skipped), look whether the split of "
                "--gen-subset has text, and at --num-shards and --shard-id"
            )
        return results
