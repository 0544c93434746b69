"""Labels that do not fit: Target 2 is out of bounds; now with file and line.

Symptom: a label of sentence_prediction or sentence_ranking that is none of the classes ends the training with
    ``IndexError: Target 2 is out of bounds`` (on a GPU with a device-side assert), maybe in the first validation; a
    line with two labels or without one with ``stack expects each tensor to be equal size``; a word among the numbers of
    ``--regression-target`` with ``could not convert string to float``. ``nan`` trains a model of nan. Texts and labels
    of different numbers: ``dataset lengths must match``; no labels: ``KeyError: 'target'``. Labels that were binarised
    without the training's dictionary get other numbers (the most frequent label is 0): a right model has an accuracy
    of 0.01.
Where: fairseq/tasks/sentence_prediction.py:203 and :216, fairseq/tasks/sentence_ranking.py:179.
Remedy: labels are read through once when a split is loaded, and errors name file, line and flag. Checkpoints have the
    labels in the order of the classes; to use one with labels in another order is an error.
Upstream: fairseq issues 1082 (open), 2062.
"""

from __future__ import annotations

import math
import os

from fairseq_compat.patches import explain_failures, wrap

BROKEN = r"class Sentence(PredictionTask|RankingTask|PredictionCriterion)\("


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


def check_ranks(lines, num_classes: int, path: str) -> None:
    """Raise ValueError for a line of a text file that is not the number of an answer."""
    for number, line in enumerate(lines, start=1):
        if line.strip() not in map(str, range(num_classes)):
            raise ValueError(
                f"{path}, line {number}: found {line.strip()!r}, expected the number of the right one of the "
                f"--num-classes {num_classes} answers, from 0 to {num_classes - 1}"
            )


def uneven(error: Exception, task, split: str, *_args, **_options) -> str | None:
    """Return the numbers of texts and labels of a split, if they differ."""
    from fairseq.data import data_utils

    options, counts = task.cfg or task.args, {}
    has_numbers = getattr(options, "regression_target", True)
    for name in sorted(os.listdir(options.data)) if isinstance(error, AssertionError) else ():
        path = os.path.join(options.data, name, split)
        if name == "label" and has_numbers and os.path.exists(f"{path}.label"):
            with open(f"{path}.label", encoding="utf-8") as lines:
                counts[f"{path}.label"] = sum(1 for _ in lines)
        elif os.path.exists(f"{path}.idx"):
            counts[path] = len(data_utils.load_indexed_dataset(path))
    if len(set(counts.values())) < 2:
        return None
    line_counts = ", ".join(f"{path} has {count:,} lines" for path, count in counts.items())
    return f"{line_counts}; expected as many in each, line by line: correct the text and binarise it again"


def unlabelled(error: Exception, criterion, _model, sample, *_args, **_options) -> str | None:
    """Name the missing files if a split has no labels."""
    if not isinstance(error, KeyError) or "target" in sample:
        return None
    return (
        f"{criterion.task.cfg.data}/label has no labels of this split: binarise them (or give another --valid-subset); "
        "--regression-target is for numbers only"
    )


def without_classes(error: Exception, _task, cfg, **_options) -> str | None:
    """Return the remedy if data have no dictionary of classes."""
    file = os.path.join(cfg.data, "label", "dict.txt")
    if not isinstance(error, FileNotFoundError) or error.filename != file:
        return None
    return f"{file}: no such file, expected the classes; add --regression-target for numbers, or binarise the labels"


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


def patch_prediction(module) -> None:
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

    explain_failures(module.SentencePredictionTask, "load_dataset", uneven)
    explain_failures(module.SentencePredictionTask, "setup_task", without_classes)


def patch_ranking(module) -> None:
    @wrap(module.SentenceRankingTask)
    def load_dataset(original, self, split, *args, **options):
        path = os.path.join(self.args.data, "label", f"{split}.label")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as lines:
                check_ranks(lines, self.args.num_classes, path)
        return original(self, split, *args, **options)

    explain_failures(module.SentenceRankingTask, "load_dataset", uneven)


def patch_criterion(module) -> None:
    explain_failures(module.SentencePredictionCriterion, "forward", unlabelled)


PATCHES = {
    "fairseq.tasks.sentence_prediction": patch_prediction,
    "fairseq.tasks.sentence_ranking": patch_ranking,
    "fairseq.criterions.sentence_prediction": patch_criterion,
}
