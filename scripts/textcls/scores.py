"""Copy the scores of fairseq-validate on the test texts (RUN/test.log) to the record of the run.

    python scripts/textcls/scores.py RUN --labels DATA/corpus/labels.txt

Writes loss (bits), accuracy and macro-F1 (percent) to RUN/result.json, with F1 and counts of the classes, and draws
RUN/confusion.png.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from embinit_fairseq.arguments import ArgumentParser
from embinit_fairseq.errors import DataError, one_line
from embinit_fairseq.figures import draw_confusion
from embinit_fairseq.modules.glue_metrics import class_f1
from embinit_fairseq.runs.curves import try_to_draw
from embinit_fairseq.runs.log import logged
from embinit_fairseq.runs.record import add_scores
from embinit_fairseq.vocab.dictionary import read_dictionary


def of_classes(counts: np.ndarray, labels: list[str]) -> tuple[dict[str, Any], float]:
    """Return F1 of each class in percent with the (K, K) counts, and macro-F1, their mean."""
    f1 = 100 * class_f1(counts)
    return {"f1": dict(zip(labels, f1.round(2).tolist())), "confusion": counts.tolist()}, round(float(f1.mean()), 2)


def read_symbols(path: Path) -> list[str]:
    """Return the words or classes of a dictionary, in the order of their numbers, without special symbols."""
    dictionary = read_dictionary(path)
    return [dictionary.symbols[row] for row in np.flatnonzero(dictionary.regular)]


def show(run: Path, scores: dict[str, float], classes: dict[str, Any]) -> None:
    """Print two lines, and draw the figure if matplotlib is installed."""
    best = f"accuracy {scores['test_accuracy']:.2f} %, macro-F1 {scores['test_macro_f1']:.2f} %"
    print(f"{run}: test {best}", "F1: " + ", ".join(f"{k} {v:.2f}" for k, v in classes["f1"].items()), sep="\n")
    counts, labels = np.array(classes["confusion"]), list(classes["f1"])
    try_to_draw(draw_confusion, counts, labels, f"{run.name}: {best}", str(run / "confusion.png"))


def main() -> None:
    """Write the scores of a run."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run that was trained and tested by train.sh")
    parser.add_argument("--labels", type=Path, required=True, help="corpus/labels.txt of prepare.sh")
    args = parser.parse_args()
    tests = logged(args.run / "test.log", "test")
    if not tests:
        raise DataError(f"{args.run}/test.log: no result of fairseq-validate; remove the folder and run train.sh again")
    classes, macro_f1 = of_classes(np.array(tests[-1]["test_confusion"]), read_symbols(args.labels))
    scores = {name: float(tests[-1][name]) for name in ("test_loss", "test_accuracy")} | {"test_macro_f1": macro_f1}
    add_scores(args.run, scores, classes=classes)
    show(args.run, scores, classes)


if __name__ == "__main__":
    with one_line():
        main()
