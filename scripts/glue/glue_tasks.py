"""Describe GLUE's tasks: columns of their files, metrics, epochs of Ke et al. 2021.

`names` prints the tasks that a folder has. `extract` writes a task's TSV files as fairseq's `sentence_prediction` reads
them, a sentence per line, with facts about the task:

    train.input0 train.input1 train.label valid.input0 ...    the columns; of MNLI also valid1, the mismatched set
    label.dict                                                the classes in GLUE's order; not of regression
    label.scale                                               factor of the numbers of a regression
    options                                                   of fairseq-train: classes and validation sets
    finetuning                                                of fairseq-train: metrics and epochs, as in Ke et al. 2021
    constant                                                  JSON: scores of a constant answer on valid, and on valid1
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tsv import read_rows

from embinit_fairseq.arguments import ArgumentParser
from embinit_fairseq.errors import DataError, OptionError, one_line
from embinit_fairseq.io import whole_folder, write_text


@dataclass(frozen=True)
class Task:
    """Describe a task.

    Attributes:
        inputs, label: headings of the columns, or their 0-based numbers in a file without headings (CoLA).
        labels: labels in the order of the classes; none for regression.
        metrics: names of the criterion; the first one chooses the checkpoint.
        dev: fairseq's name of a validation set and its file.
        loose: the file has broken lines, which are left out.
    """

    inputs: tuple[str, ...] | tuple[int, ...]
    label: str | int
    labels: tuple[str, ...]
    metrics: tuple[str, ...] = ("accuracy",)
    epochs: int = 10
    dev: tuple[tuple[str, str], ...] = (("valid", "dev"),)
    scale: float = 1.0
    loose: bool = False


ENTAILMENT = ("entailment", "not_entailment")
PAIR = ("sentence1", "sentence2")
CLASSES = ("contradiction", "neutral", "entailment")
MNLI_DEV = (("valid", "dev_matched"), ("valid1", "dev_mismatched"))

#: Columns as in the files of gluebenchmark.com; metrics and epochs as in Ke et al. 2021, appendix B.
TASKS = {
    "CoLA": Task((3,), 1, ("0", "1"), ("mcc", "accuracy")),
    "SST-2": Task(("sentence",), "label", ("0", "1")),
    "MRPC": Task(("#1 String", "#2 String"), "Quality", ("0", "1"), ("accuracy", "f1")),
    "STS-B": Task(PAIR, "score", (), ("pearson", "spearman"), scale=1 / 5),
    "QQP": Task(("question1", "question2"), "is_duplicate", ("0", "1"), ("accuracy", "f1"), epochs=5, loose=True),
    "MNLI": Task(PAIR, "gold_label", CLASSES, epochs=5, dev=MNLI_DEV),
    "QNLI": Task(("question", "sentence"), "label", ENTAILMENT, epochs=5),
    "RTE": Task(PAIR, "label", ENTAILMENT),
}


def read_examples(task: Task, path: Path) -> Iterator[tuple[list[str], str]]:
    """Yield (sentences, label) of each line; DataError for a line that is not in the task's layout."""
    rows, columns = read_rows(path), [*task.inputs, task.label]
    width = 4  # CoLA's
    if isinstance(task.label, str):
        _, heading = next(rows, (1, []))
        if missing := [name for name in columns if name not in heading]:
            description = ", ".join(heading)
            raise DataError(f"{path}: no column {', '.join(missing)} (found: {description}): GLUE's layout is needed")
        columns, width = [heading.index(name) for name in columns], len(heading)
    usable = skipped = 0
    for number, fields in rows:
        values = [" ".join(fields[column].split()) for column in columns] if len(fields) == width else []
        if values and is_label(task, values[-1]):
            usable += 1
            yield values[:-1], values[-1]
        elif task.loose or values[-1:] == ["-"]:  # "-": the annotators did not agree
            skipped += 1
        else:
            description = f"the label {values[-1]!r}" if values else f"{len(fields)} fields"
            labels = f"one of {', '.join(task.labels)}" if task.labels else "a number"
            raise DataError(
                f"{path}, line {number}: {description}; expected {width} fields separated by tabs, label {labels}"
            )
    if not usable:
        raise DataError(f"{path}: no line with a label: get the file again")
    if skipped:
        print(f"{path}: {skipped} lines without a usable label left out", file=sys.stderr)


def is_label(task: Task, text: str) -> bool:
    """Return True for a class of the task, or for a number if the task has no classes."""
    if task.labels:
        return text in task.labels
    try:
        return -1e9 < float(text) < 1e9
    except ValueError:
        return False


def extract(task: Task, source: Path, folder: Path) -> None:
    """Write everything about a task into `folder`. source: the folder of its TSV files."""
    names = [*(f"input{at}" for at in range(len(task.inputs))), "label"]
    labels_of: dict[str, Sequence[str]] = {}
    for split, file in (("train", "train"), *task.dev):
        examples = ([*sentences, label] for sentences, label in read_examples(task, source / f"{file}.tsv"))
        *inputs, labels = zip(*examples)
        if not task.labels:
            labels = [f"{float(label) * task.scale:.6g}" for label in labels]
        for name, column in zip(names, (*inputs, labels)):
            write_lines(folder / f"{split}.{name}", column)
        labels_of[split] = labels
    write_lines(folder / "constant", [json.dumps(constant(task, labels_of["valid"], labels_of.get("valid1")))])
    if task.labels:
        write_lines(folder / "label.dict", [f"{label} 1" for label in task.labels])
    elif task.scale != 1:
        write_lines(folder / "label.scale", [f"{task.scale:g}"])
    subsets, regression = ",".join(name for name, _ in task.dev), "" if task.labels else "--regression-target "
    write_lines(folder / "options", [f"--num-classes {len(task.labels) or 1} --valid-subset {subsets}"])
    finetuning = (
        f"{regression}--glue-metrics {' '.join(task.metrics)} --best-checkpoint-metric {task.metrics[0]} "
        f"--maximize-best-checkpoint-metric --max-epoch {task.epochs}"
    )
    write_lines(folder / "finetuning", [finetuning])


def write_lines(path: Path, lines: list[str] | tuple[str, ...]) -> None:
    """Write lines with their ends."""
    write_text(path, "".join(f"{line}\n" for line in lines))


def constant(task: Task, labels: Sequence[str], others: Sequence[str] | None = None) -> dict[str, float]:
    """Return the scores of constant answers in percent: the largest class; for F1 the positive one.

    others: labels of a second validation set, for the accuracy of the same class, `mismatched`.
    """
    counts = Counter(labels)
    answer, number = counts.most_common(1)[0]
    total, positive = len(labels), counts.get("1", 0)
    scores = {"accuracy": 100 * number / total, "f1": 200 * positive / (positive + total)}
    found = {metric: scores.get(metric, 0.0) for metric in task.metrics}  # correlations with a constant count as 0
    return found if others is None else {**found, "mismatched": 100 * Counter(others)[answer] / len(others)}


def main() -> None:
    """Run one of the two commands."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("names", help="the tasks that a folder has").add_argument("folder", type=Path)
    columns = commands.add_parser("extract", help="the files of a task to one text file per column")
    columns.add_argument("task", help=", ".join(TASKS))
    columns.add_argument("source", type=Path, help="folder with train.tsv and dev.tsv, or .gz of them")
    columns.add_argument("output", type=Path, help="a new folder")
    args = parser.parse_args()
    if args.command == "names":
        names = [name for name in TASKS if (args.folder / name).is_dir()]
        if not names:
            raise OptionError(f"DATA={args.folder} has no folder {', '.join(TASKS)}: set DATA to GLUE's folder")
        print(*names)
        return
    if args.task not in TASKS:
        raise OptionError(f"TASK={args.task}: not known; choose one of {', '.join(TASKS)}")
    with whole_folder(args.output, option="OUTPUT") as folder:
        extract(TASKS[args.task], args.source, folder)


if __name__ == "__main__":
    with one_line():
        main()
