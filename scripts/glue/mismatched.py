"""The accuracy on MNLI's second validation set: from the log of a training into its RUN/result.json.

The matched set decides which epoch is the best one: `accuracy` is that of the mismatched set at this epoch. Kim et al.
2024 report the highest accuracy on each set, whatever the epoch of the other: `highest`, at `epoch`.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from embinit_fairseq.errors import DataError, one_line
from embinit_fairseq.io import write_json
from embinit_fairseq.runs.log import best_place
from embinit_fairseq.runs.record import LOG, RESULT, read_record


def add_scores(run: Path) -> None:
    """Write the scores of a finished run; DataError if the mismatched set was not validated at the best epoch."""
    result, log = read_record(run / RESULT), (run / LOG).read_text(encoding="utf-8", errors="replace")
    records = map(json.loads, re.findall(r"\| INFO \| valid1 \| (\{.*\})$", log, re.MULTILINE))
    # of an epoch that was repeated, the later
    accuracy = {int(record["epoch"]): float(record["valid1_accuracy"]) for record in records}
    best = result["best"].get("epoch")
    if best not in accuracy:
        raise DataError(
            f"{run / LOG}: no accuracy on the mismatched set at epoch {best}: train with --valid-subset valid,valid1"
        )
    highest = best_place(accuracy, higher=True)
    scores = {"accuracy": accuracy[best], "highest": accuracy[highest], "epoch": highest}
    if result["scores"].get("mismatched") != scores:
        result["scores"]["mismatched"] = scores
        write_json(run / RESULT, result)


if __name__ == "__main__":
    with one_line():
        add_scores(Path(sys.argv[1]))
