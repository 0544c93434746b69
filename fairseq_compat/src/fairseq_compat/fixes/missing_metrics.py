"""A missing --best-checkpoint-metric: KeyError, the epoch is lost; now it is saved, and metrics are named.

Symptom: ``--best-checkpoint-metric bleu`` without ``--eval-bleu``, a misspelled name, or a value of another criterion:
    ``KeyError: 'bleu'`` at the first validation, before a checkpoint is saved. Without
    ``--maximize-best-checkpoint-metric`` the checkpoint of the lowest BLEU is ``checkpoint_best.pt``.
Where: fairseq_cli/train.py:453 (``validate``), :464 (``get_valid_stats``), fairseq/checkpoint_utils.py:53.
Remedy: the checkpoint is saved as one without validation; then an error names the values that there are. The names are
    known only after a validation. A line on stderr says that the worst checkpoint counts as the best.
Upstream: fairseq issue 3881 (open).
"""

from __future__ import annotations

import sys
from collections import OrderedDict

from fairseq_compat.patches import wrap

BROKEN = r"valid_losses\.append\(stats\[cfg\.checkpoint\.best_checkpoint_metric\]\)"
FIXED = r"def validate_and_save\("

#: values of a validation that say nothing about the model
COUNTS = frozenset("num_updates wps wpb bsz ups".split())

#: last word of the name of a value -> True if more is better
HIGHER = dict.fromkeys(("bleu", "chrf", "accuracy", "f1", "mcc"), True) | dict.fromkeys(("loss", "ppl", "wer"), False)


class Values(OrderedDict):
    """Hold the values of a validation; a missing metric has the value None and is remembered."""

    lacking: dict[str, list[str]] = {}

    def __missing__(self, name: str) -> None:
        self.lacking[name] = [value for value in self if value not in COUNTS and not value.startswith("best_")]


def patch(module):
    @wrap(module)
    def main(original, cfg, *args, **kwargs):
        options = getattr(cfg, "checkpoint", cfg)
        name, higher = options.best_checkpoint_metric, options.maximize_best_checkpoint_metric
        if HIGHER.get(name.rpartition("_")[2], higher) != higher:
            change = "leave out" if higher else "add"
            print(
                f"warning: --best-checkpoint-metric {name}: the worst checkpoint will be checkpoint_best.pt; {change} "
                "--maximize-best-checkpoint-metric",
                file=sys.stderr,
            )
        return original(cfg, *args, **kwargs)

    @wrap(module)
    def get_valid_stats(original, cfg, trainer, stats, tracking_best):
        tracking_best = tracking_best and cfg.checkpoint.best_checkpoint_metric in stats
        return Values(original(cfg, trainer, stats, tracking_best))

    @wrap(module)
    def should_stop_early(original, cfg, valid_loss):
        return bool(Values.lacking) or original(cfg, valid_loss)  # a training that stops is saved before

    @wrap(module)
    def validate_and_save(original, *args, **kwargs):
        Values.lacking.clear()
        result = original(*args, **kwargs)
        for name, others in Values.lacking.items():
            raise ValueError(
                f"--best-checkpoint-metric {name}: the validation has no such value, but {', '.join(others)}; give one "
                "of these, or the option that computes it (bleu: --eval-bleu), and continue the training"
            )
        return result
