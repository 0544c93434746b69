"""Copy the accuracy on MNLI's second validation set from the log of a training into its RUN/result.json.

The matched set decides which epoch is the best one: `accuracy` is the mismatched set's at this epoch. Kim et al.
2024 report the highest accuracy on each set, whatever the epoch of the other: `highest`, at `epoch`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from embinit_fairseq.errors import DataError, one_line
from embinit_fairseq.runs.log import best_place, logged
from embinit_fairseq.runs.record import LOG, RESULT, add_scores, read_record


def add_mismatched(run: Path) -> None:
    """Write the scores of a finished run; DataError if the mismatched set was not validated at the best epoch."""
    # if an epoch was repeated, the later one counts
    accuracy = {int(values["epoch"]): float(values["valid1_accuracy"]) for values in logged(run / LOG, "valid1")}
    best = read_record(run / RESULT)["best"].get("epoch")
    if best not in accuracy:
        raise DataError(
            f"{run / LOG}: no accuracy on the mismatched set at epoch {best}: train with --valid-subset valid,valid1"
        )
    highest = best_place(accuracy, higher=True)
    scores = {"accuracy": accuracy[best], "highest": accuracy[highest], "epoch": highest}
    add_scores(run, {"mismatched": scores})


if __name__ == "__main__":
    with one_line():
        add_mismatched(Path(sys.argv[1]))
