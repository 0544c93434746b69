"""Data with train1 or valid1: negative dimensions are not allowed; Valid paths ... will be ignored.

Symptom: (a) a folder of a translation task with ``train1.*`` next to ``train.*`` (and ``--combine-valid-subsets`` with
    ``valid1.*``) ends with ``ValueError: negative dimensions are not allowed``, unless ``--upsample-primary`` is given.
    (b) ``--valid-subset valid,valid1`` of a translation task: ``Valid paths ['valid1.de-en.de', ...] will be ignored``.
Where: (a) fairseq/tasks/translation.py:213 (-1, which is a number of repetitions at :120);
    (b) fairseq/data/data_utils.py:594 (compares names of files with names of splits).
Remedy: (a) -1 is 1, as fairseq's documentation says; (b) the names of splits are compared.
Upstream: (a) fairseq issue 3644 (open).
"""

from __future__ import annotations

from fairseq_compat.patches import wrap

BROKEN = r"sample_ratios\[0\] = upsample_primary|p not in specified_subsets"


def patch_validation(module) -> None:
    @wrap(module)
    def _find_extra_valid_paths(original, dataset_path):
        return {name.partition(".")[0] for name in original(dataset_path)}


def patch_training(module) -> None:
    @wrap(module)
    def load_langpair_dataset(original, *args, **options):
        if options.get("upsample_primary") == -1:
            options["upsample_primary"] = 1
        return original(*args, **options)


PATCHES = {"fairseq.data.data_utils": patch_validation, "fairseq.tasks.translation": patch_training}
