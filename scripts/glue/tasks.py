"""GLUE's tasks: where their files have what, how they are scored and for how long the paper trains.

`show` prints the facts about a task for the shell; `extract` turns its TSV files into one text file per column, a
sentence a line, as fairseq's `sentence_prediction` wants them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

LONGEST_LINE = 1 << 22  # bytes; a few megabytes of gzip may unpack to gigabytes


@dataclass(frozen=True)
class Task:
    """inputs, label: headings of the columns, or their numbers from 0 in a file without headings (CoLA).

    labels: in the order of the classes, none for regression. metrics: as the criterion calls them, the first one
    decides. dev: fairseq's name of a validation set -> its file. loose: broken lines are known and left out.
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

#: Columns as in the files of gluebenchmark.com; metrics and epochs as in Ke et al. 2021, appendix B.
TASKS = {
    "CoLA": Task((3,), 1, ("0", "1"), ("mcc", "accuracy")),
    "SST-2": Task(("sentence",), "label", ("0", "1")),
    "MRPC": Task(("#1 String", "#2 String"), "Quality", ("0", "1"), ("accuracy", "f1")),
    "STS-B": Task(PAIR, "score", (), ("pearson", "spearman"), scale=1 / 5),
    "QQP": Task(("question1", "question2"), "is_duplicate", ("0", "1"), ("accuracy", "f1"), epochs=5, loose=True),
    "MNLI": Task(
        PAIR,
        "gold_label",
        ("contradiction", "neutral", "entailment"),
        epochs=5,
        dev=(("valid", "dev_matched"), ("valid1", "dev_mismatched")),
    ),
    "QNLI": Task(("question", "sentence"), "label", ENTAILMENT, epochs=5),
    "RTE": Task(PAIR, "label", ENTAILMENT),
}


class FileError(Exception):
    """A file of the data set cannot be used; the message names it, the line and the remedy."""


def read_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line number, fields) of a TSV file without quoting, plain or .gz; a byte-order mark is dropped."""
    packed = path.with_name(path.name + ".gz")
    if not path.is_file() and not packed.is_file():
        raise FileError(f"neither {path} nor {packed.name}: set DATA to the folder with GLUE's tasks (CoLA, RTE, ...)")
    number = 0
    try:
        with open(path, "rb") if path.is_file() else gzip.open(packed, "rb") as stream:
            for number, line in enumerate(iter(partial(stream.readline, LONGEST_LINE), b""), start=1):  # "\n" ends it
                if len(line) == LONGEST_LINE:
                    raise FileError(f"{path}, line {number}: longer than {LONGEST_LINE:,} bytes: get the file again")
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n").split("\t")
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FileError(f"{path}, after line {number}: damaged ({error}): get the file again") from error


def read_examples(task: Task, path: Path) -> Iterator[tuple[list[str], str]]:
    """(sentences, label) of each line; raises FileError for a line that is not in the task's layout."""
    rows, columns, wanted = read_rows(path), (*task.inputs, task.label), 1
    if isinstance(task.label, str):
        heading = next(rows, (1, []))[1]
        missing = [name for name in columns if name not in heading]
        if missing:
            raise FileError(
                f"{path}: no column {', '.join(missing)} (found: {', '.join(heading)}): GLUE's layout is needed"
            )
        columns, wanted = [heading.index(name) for name in columns], len(heading)
    else:
        wanted = max(columns) + 1
    skipped, number = 0, 0
    for number, fields in rows:
        sentences, label = [], ""
        if len(fields) == wanted:
            *sentences, label = (" ".join(fields[column].split()) for column in columns)
        if len(fields) == wanted and is_label(task, label):
            yield sentences, label
        elif task.loose or label == "-":  # "-": the annotators did not agree
            skipped += 1
        else:
            found = f"the label {label!r}" if sentences else f"{len(fields)} fields"
            labels = f"one of {', '.join(task.labels)}" if task.labels else "a number"
            raise FileError(
                f"{path}, line {number}: {found}; expected {wanted} fields separated by tabs, label {labels}"
            )
    if number <= 1:
        raise FileError(f"{path}: empty: get the file again")
    if skipped:
        print(f"{path}: {skipped} lines without a usable label left out", file=sys.stderr)


def is_label(task: Task, text: str) -> bool:
    """Is it a class of the task, or a number where there are no classes?"""
    if task.labels:
        return text in task.labels
    try:
        return -1e9 < float(text) < 1e9
    except ValueError:
        return False


def extract(task: Task, source: Path, outputs: list[Path]) -> None:
    """Write the sentences to the first files and the labels to the last one."""
    if len(outputs) != len(task.inputs) + 1:
        raise FileError(f"{len(task.inputs)} inputs and a label need {len(task.inputs) + 1} files, not {len(outputs)}")
    columns: list[list[str]] = [[] for _ in outputs]
    for sentences, label in read_examples(task, source):
        label = label if task.labels else f"{float(label) * task.scale:.6g}"
        for column, value in zip(columns, (*sentences, label)):
            column.append(value)
    for path, column in zip(outputs, columns):
        path.write_text("\n".join(column) + "\n", encoding="utf-8")


def facts(name: str) -> dict[str, object]:
    """What the shell asks for, lists separated by blanks."""
    task = TASKS[name]
    return {
        **{key: value for key, value in asdict(task).items() if key == "epochs"},
        "inputs": len(task.inputs),
        "labels": " ".join(task.labels),
        "classes": len(task.labels) or 1,
        "metrics": " ".join(task.metrics),
        "metric": task.metrics[0],
        "dev": " ".join(f"{name}:{file}" for name, file in task.dev),
    }


def constant(task: Task, path: Path) -> dict[str, float]:
    """What constant answers score on these labels, in percent: the largest class; for F1 the positive one."""
    counts = Counter(path.read_text(encoding="utf-8").split())
    total, positive = sum(counts.values()), counts.get("1", 0)
    scores = {"accuracy": 100 * max(counts.values()) / total, "f1": 200 * positive / (positive + total)}
    return {metric: scores.get(metric, 0.0) for metric in task.metrics}  # correlations with a constant count as 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("names", help="the tasks")
    show = commands.add_parser("show", help="one fact about a task")
    show.add_argument("fact")
    columns = commands.add_parser("extract", help="a TSV file to one text file per column")
    columns.add_argument("--source", type=Path, required=True, help="TSV file; may be there as .gz")
    columns.add_argument("outputs", type=Path, nargs="+", help="files for the sentences and, last, for the label")
    baseline = commands.add_parser("constant", help="what a constant answer would score, as JSON")
    baseline.add_argument("labels", type=Path)
    for command in (show, columns, baseline):
        command.add_argument("--task", choices=list(TASKS), required=True)
    args = parser.parse_args()
    if args.command == "names":
        print(*TASKS)
    elif args.command == "show":
        print(facts(args.task)[args.fact])
    elif args.command == "constant":
        print(json.dumps(constant(TASKS[args.task], args.labels)))
    else:
        try:
            extract(TASKS[args.task], args.source, args.outputs)
        except FileError as error:
            sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
