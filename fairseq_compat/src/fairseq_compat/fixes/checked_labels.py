"""Labels that do not fit: Target 2 is out of bounds; now with file and line.

Symptom: a label of sentence_prediction that is none of the classes ends the training with ``IndexError: Target 2 is out
    of bounds`` (on a GPU with a device-side assert), maybe in the first validation; a line with two labels or without
    one with ``stack expects each tensor to be equal size``; a word among the numbers of ``--regression-target`` with
    ``could not convert string to float``. ``nan`` trains a model of nan. Labels that were binarised without the
    training's dictionary get other numbers (the most frequent label is 0): a right model has an accuracy of 0.01.
Where: fairseq/tasks/sentence_prediction.py:203 and :216.
Remedy: labels are read through once when a split is loaded, and errors name file, line and flag. Checkpoints have the
    labels in the order of the classes; to use one with labels in another order is an error.
Upstream: fairseq issues 1082 (open), 2062.
"""

from __future__ import annotations

import math
import os

from fairseq_compat.patches import wrap

BROKEN = r"class SentencePredictionTask\("


def check_classes(labels, dictionary, num_classes: int, path: str) -> None:
    """Raise ValueError for a binarised line that is not one of the first `num_classes` labels of a dictionary."""
    start, end = dictionary.nspecial, dictionary.nspecial + num_classes
    for line, tokens in enumerate(labels, start=1):
        numbers = [number for number in tokens.tolist() if number != dictionary.eos()]
        if len(numbers) != 1 or not start <= numbers[0] < end:
            raise ValueError(
                f"{path}, line {line}: {' '.join(dictionary[number] for number in numbers)!r} is not one of the "
                f"{num_classes} classes of --num-classes ({', '.join(dictionary.symbols[start:end])}, the first labels "
                f"of {os.path.dirname(path)}/dict.txt); give more classes, or correct the text and binarise it again"
            )


def check_numbers(lines, num_classes: int, path: str) -> None:
    """Raise ValueError for a line of a text file that does not hold `num_classes` finite numbers."""
    for number, line in enumerate(lines, start=1):
        try:
            values = [float(word) for word in line.split()]
        except ValueError:
            values = []
        if len(values) != num_classes or not all(map(math.isfinite, values)):
            raise ValueError(
                f"{path}, line {number}: found {line.strip()!r}, expected as many finite numbers as --num-classes says "
                f"({num_classes}); correct the line, or leave --regression-target out for classes"
            )


def labels_of(task) -> list[str]:
    """Return the labels of the classes in their order; none for a regression."""
    start = task.label_dictionary.nspecial
    return [] if task.cfg.regression_target else task.label_dictionary.symbols[start : start + task.cfg.num_classes]


def check_order(trained: list[str], own: list[str], data: str) -> None:
    """Raise ValueError if a label is another class than in the training."""
    for number, label in enumerate(own):
        if label in trained and trained.index(label) != number:
            raise ValueError(
                f"{data}/label/dict.txt: the label {label!r} is class {number}, in the training of this checkpoint "
                f"{trained.index(label)} ({', '.join(trained)}): binarise labels with the label/dict.txt of the "
                "training (fairseq-preprocess --srcdict)"
            )


def patch(module):
    @wrap(module.SentencePredictionTask)
    def state_dict(original, self):
        return {**original(self), "labels": labels_of(self)}

    @wrap(module.SentencePredictionTask)
    def load_state_dict(original, self, state_dict):
        check_order(state_dict.get("labels") or [], labels_of(self), self.cfg.data)
        original(self, {name: value for name, value in state_dict.items() if name != "labels"})

    @wrap(module.SentencePredictionTask)
    def load_dataset(original, self, split, combine=False, **kwargs):
        cfg, path = self.cfg, os.path.join(self.cfg.data, "label", split)
        if not cfg.regression_target:
            labels = module.data_utils.load_indexed_dataset(path, self.label_dictionary, combine=combine)
            check_classes(labels or (), self.label_dictionary, cfg.num_classes, path)
        elif os.path.exists(f"{path}.label"):
            with open(f"{path}.label", encoding="utf-8-sig") as lines:
                check_numbers(lines, cfg.num_classes, f"{path}.label")
        return original(self, split, combine=combine, **kwargs)
