"""DATA1:DATA2 with different dictionaries trains on other words; now refused.

Symptom: several folders, one per epoch (``fairseq-train shard1:shard2``), that were binarised each with a dictionary of
    its own: all are read with the first one, without an error as long as its symbols are enough. From the second epoch
    on every number is another word.
Where: fairseq/tasks/masked_lm.py:128, and other tasks that take ``paths[0]``.
Remedy: dictionaries of one name are compared when the task is set up; an error names the file and ``--srcdict``.
"""

from __future__ import annotations

import filecmp
import os

from fairseq_compat.patches import wrap

BROKEN = r"^def setup_task\("


def symbols_in(path: str) -> list[str]:
    """Return the symbols of a dictionary, whose counts may differ."""
    with open(path, encoding="utf-8") as lines:
        return [line.rpartition(" ")[0] for line in lines]


def check_folders(folders: list[str]) -> None:
    """Raise ValueError if a dictionary differs between the first folder and another one."""
    first = folders[0] if len(folders) > 1 else ""
    names = [name for name in os.listdir(first) if name.startswith("dict.")] if os.path.isdir(first) else []
    for name in sorted(names):
        path = os.path.join(first, name)
        for other in (os.path.join(folder, name) for folder in folders[1:]):
            if not os.path.isfile(other) or filecmp.cmp(path, other, shallow=False):
                continue
            if symbols_in(other) != symbols_in(path):
                raise ValueError(
                    f"{other}: other symbols than {path}, with which all folders are read, so that words would become "
                    f"other words: binarise each folder with one dictionary (fairseq-preprocess --srcdict {path})"
                )


def patch(module):
    from fairseq import utils

    @wrap(module)
    def setup_task(original, cfg, **kwargs):
        data = getattr(cfg, "data", None)
        check_folders(utils.split_paths(data) if isinstance(data, str) else [])
        return original(cfg, **kwargs)
