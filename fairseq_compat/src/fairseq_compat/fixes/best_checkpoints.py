"""--keep-best-checkpoints N keeps fewer than N, or all with a metric below zero.

Symptom: (a) a checkpoint is kept only if it is as good as the worst one that is kept, also while there are fewer than
    N: after the losses 2.0, 2.5, 2.4 the folder has one of three. (b) With a metric below zero all that were once the
    best stay, as fairseq does not find their files.
Where: fairseq/checkpoint_utils.py:83 (``worst_best``), :86 and :173 (a pattern without a minus).
Remedy: fairseq finds all files of the metric. While there are fewer than N it also finds one that does not exist and is
    worse than all others.
Upstream: fairseq issue 2195 (open).
"""

from __future__ import annotations

from fairseq_compat.patches import wrap

BROKEN = r"worst_best = getattr\(save_checkpoint"
FIXED = r"def save_checkpoint\("

#: beginning of fairseq's pattern of the best checkpoints, and its number
BEST, NUMBER = r"checkpoint\.best_", r"(\d+\.?\d*)"


def patch(module):
    saving = None  # the options and the suffix of the checkpoint that is being saved

    @wrap(module)
    def save_checkpoint(original, cfg, trainer, *args, **kwargs):
        nonlocal saving
        saving = cfg, trainer.checkpoint_suffix
        try:
            return original(cfg, trainer, *args, **kwargs)
        finally:
            saving = None

    @wrap(module)
    def checkpoint_paths(original, path, pattern=r"checkpoint(\d+)\.pt", keep_match=False):
        if saving is None or not pattern.startswith(BEST):
            return original(path, pattern, keep_match)
        cfg, suffix = saving
        paths = original(path, pattern.replace(NUMBER, f"(-?{NUMBER[1:]}"))  # from the highest value to the lowest
        if len(paths) >= cfg.keep_best_checkpoints:
            return paths
        if cfg.maximize_best_checkpoint_metric:
            return [*paths, f"_-inf{suffix}.pt"]
        return [f"_inf{suffix}.pt", *paths]
