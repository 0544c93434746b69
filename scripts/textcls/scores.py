"""What fairseq-validate has said about the test texts (RUN/test.log) becomes a part of the run's record.

    python scripts/textcls/scores.py RUN --labels DATA/corpus/labels.txt

Writes loss (bits), accuracy and macro-F1 (percent) to RUN/result.json, where tables find them, with F1 and counts
of the classes, and draws RUN/confusion.png.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs from a checkout, installed or not

from embinit_fairseq.errors import DataError, one_line
from embinit_fairseq.figures import draw_confusion
from embinit_fairseq.plots.curves import try_to_draw
from embinit_fairseq.runs.record import RESULT, read_record, write_record
from embinit_fairseq.vocab.dictionary import read_dictionary

_TESTED = re.compile(r"\| INFO \| test \| (\{.*\})$", re.MULTILINE)


def tested(log: Path) -> dict[str, Any]:
    """The last line of a log of fairseq-validate that has test_loss, test_accuracy and test_confusion."""
    found = _TESTED.findall(log.read_text(encoding="utf-8")) if log.is_file() else []
    logged = json.loads(found[-1]) if found else {}
    if "test_confusion" not in logged:
        raise DataError(f"{log}: no result of fairseq-validate; remove the folder and run train.sh again")
    return logged


def of_classes(counts: np.ndarray, labels: list[str]) -> dict[str, Any]:
    """F1 of each class in percent, 0 for one that neither occurs nor is predicted, and the (K, K) counts."""
    both = counts.sum(axis=0) + counts.sum(axis=1)
    f1 = 200 * np.diag(counts) / np.maximum(both, 1)
    return {"f1": dict(zip(labels, f1.round(2).tolist())), "confusion": counts.tolist()}


def macro_f1(classes: dict[str, Any]) -> float:
    """The mean of the classes' F1, in percent."""
    return round(float(np.mean(list(classes["f1"].values()))), 2)


def read_labels(path: Path) -> list[str]:
    """Names of the classes, in the order of their numbers."""
    found = read_dictionary(path)
    return [found.symbols[row] for row in np.flatnonzero(found.regular)]


def show(run: Path, scores: dict[str, float], classes: dict[str, Any]) -> None:
    """Two lines, and the picture where there is matplotlib."""
    best = f"accuracy {scores['test_accuracy']:.2f} %, macro-F1 {scores['test_macro_f1']:.2f} %"
    print(f"{run}: test {best}", "F1: " + ", ".join(f"{k} {v:.2f}" for k, v in classes["f1"].items()), sep="\n")
    counts, labels = np.array(classes["confusion"]), list(classes["f1"])
    try_to_draw(draw_confusion, counts, labels, f"{run.name}: {best}", str(run / "confusion.png"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run that was trained and tested by train.sh")
    parser.add_argument("--labels", type=Path, required=True, help="corpus/labels.txt of prepare.sh")
    args = parser.parse_args()
    record, logged = read_record(args.run / RESULT), tested(args.run / "test.log")
    classes = of_classes(np.array(logged["test_confusion"]), read_labels(args.labels))
    scores = {name: float(logged[name]) for name in ("test_loss", "test_accuracy")}
    scores["test_macro_f1"] = macro_f1(classes)
    if (record.get("scores"), record.get("classes")) != (scores, classes):
        write_record(args.run / RESULT, {**record, "scores": scores, "classes": classes})
    show(args.run, scores, classes)


if __name__ == "__main__":
    with one_line():
        main()
