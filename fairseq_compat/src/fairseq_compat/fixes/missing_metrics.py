"""A missing --best-checkpoint-metric: KeyError, the epoch is lost; now it is saved, and metrics are named.

Symptom: ``--best-checkpoint-metric bleu`` without ``--eval-bleu``, a misspelled name, or a value of another criterion:
    ``KeyError: 'bleu'`` at the first validation, before a checkpoint is saved.
Where: fairseq_cli/train.py:453 (``validate``), :464 (``get_valid_stats``).
Remedy: the checkpoint is saved as one without validation; then an error names the values that there are. The names are
    known only after a validation.
Upstream: fairseq issue 3881 (open).
"""

from __future__ import annotations

from collections import OrderedDict

from fairseq_compat.patches import wrap

BROKEN = r"valid_losses\.append\(stats\[cfg\.checkpoint\.best_checkpoint_metric\]\)"
FIXED = r"def validate_and_save\("

#: values of a validation that say nothing about the model
COUNTS = frozenset("num_updates wps wpb bsz ups".split())


class Values(OrderedDict):
    """The values of a validation; the value of a metric that is not there is None, and is remembered."""

    lacking: dict[str, list[str]] = {}

    def __missing__(self, name: str) -> None:
        self.lacking[name] = [value for value in self if value not in COUNTS and not value.startswith("best_")]


def patch(module):
    @wrap(module)
    def get_valid_stats(original, cfg, trainer, stats, tracking_best):
        tracking_best = tracking_best and cfg.checkpoint.best_checkpoint_metric in stats
        return Values(original(cfg, trainer, stats, tracking_best))

    @wrap(module)
    def should_stop_early(original, cfg, valid_loss):
        return bool(Values.lacking) or original(cfg, valid_loss)  # what stops is saved before

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
