"""Labels of sentence_prediction that do not fit.

Symptom: a label that is none of the classes ends the training with ``IndexError: Target 2 is out of bounds`` (on a GPU
    with a device-side assert that names nothing), maybe in the first validation; a line with two labels or without one
    with ``stack expects each tensor to be equal size``; a number too few with ``dataset lengths must match``; a word
    among the numbers of ``--regression-target`` with ``could not convert string to float``. ``nan`` trains a model of
    nan.
Versions: all.
Where: fairseq/tasks/sentence_prediction.py:203 and :216, and :111 (``Must set task.num_classes``).
Remedy: labels are read through once when a split is loaded, and errors name file, line and flag.
Upstream: not reported.
Can go: with a fairseq that does this.
"""

from __future__ import annotations

import functools
import math
import os
from contextlib import contextmanager

REASON = "labels that do not fit end in errors that name neither file nor line"
BROKEN = r"class SentencePredictionTask\("


def needed() -> bool:
    return True


def check_classes(labels, examples: int, dictionary, num_classes: int, path: str) -> None:
    """Raise ValueError for a binarised line of labels that is not one of the first ``num_classes`` of a dictionary."""
    folder = os.path.dirname(path)
    known = dictionary.symbols[dictionary.nspecial : dictionary.nspecial + num_classes]
    check_number(len(labels), examples, path)
    for line, tokens in enumerate(labels, start=1):
        words = [token for token in tokens.tolist() if token != dictionary.eos()]
        if len(words) != 1:
            raise ValueError(f"{path}, line {line}: {len(words)} labels instead of one; mend it and binarise it again")
        symbol = dictionary[words[0]]
        if words[0] < dictionary.nspecial:
            raise ValueError(
                f"{path}, line {line}: this label is not in {folder}/dict.txt; mend the line, or the dictionary, and "
                "binarise it again"
            )
        if words[0] >= dictionary.nspecial + num_classes:
            raise ValueError(
                f"{path}, line {line}: the label {symbol!r} is none of the {num_classes} classes of --num-classes "
                f"({', '.join(known)}; their order is that of {folder}/dict.txt); give more classes, or mend the labels"
            )


def check_numbers(lines, examples: int, num_classes: int, path: str) -> None:
    """Raise ValueError for a line of a text file that does not hold ``num_classes`` finite numbers."""
    count = 0
    for count, line in enumerate(lines, start=1):
        words = line.split()
        if len(words) != num_classes:
            raise ValueError(
                f"{path}, line {count}: {len(words)} numbers, but --num-classes is {num_classes}: {line.strip()!r}"
            )
        for word in words:
            try:
                finite = math.isfinite(float(word))
            except ValueError:
                finite = False
            if not finite:
                raise ValueError(f"{path}, line {count}: {word!r} is no number that --regression-target can learn")
    check_number(count, examples, path)


def check_number(lines: int, examples: int, path: str) -> None:
    """Raise ValueError if there is not a line of labels for each example."""
    if lines != examples:
        raise ValueError(f"{path}: {lines} lines of labels for the {examples} examples of input0")


def check(task, split: str, combine: bool, load_indexed_dataset) -> None:
    """Read through the labels of a split, if it has some."""
    cfg = task.cfg
    inputs = load_indexed_dataset(os.path.join(cfg.data, "input0", split), task.source_dictionary, combine=combine)
    path = os.path.join(cfg.data, "label", split)
    if inputs is None:
        return  # fairseq says which one is missing
    if not cfg.regression_target:
        labels = load_indexed_dataset(path, task.label_dictionary, combine=combine)
        if labels is not None:
            check_classes(labels, len(inputs), task.label_dictionary, cfg.num_classes, path)
    elif os.path.exists(f"{path}.label"):
        with open(f"{path}.label") as lines:
            check_numbers(lines, len(inputs), cfg.num_classes, f"{path}.label")


@contextmanager
def patching(module):
    yield
    task = module.SentencePredictionTask
    original, original_setup = task.load_dataset, task.setup_task.__func__

    @functools.wraps(original)
    def load_dataset(self, split, combine=False, **kwargs):
        check(self, split, combine, module.data_utils.load_indexed_dataset)
        return original(self, split, combine=combine, **kwargs)

    @functools.wraps(original_setup)
    def setup_task(cls, cfg, **kwargs):
        if cfg.num_classes < 1:
            raise ValueError("--task sentence_prediction needs --num-classes: the number of labels, or 1 for a number")
        return original_setup(cls, cfg, **kwargs)

    task.load_dataset, task.setup_task = load_dataset, classmethod(setup_task)
