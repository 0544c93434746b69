"""MNLI's second validation set in the log of a training -> RUN/mismatched.json, scores for run_result.py.

The matched set decides which epoch is the best one: `accuracy` is that of the mismatched set at this epoch. Kim et al.
2024 report the highest accuracy on each set, whatever the epoch of the other: `highest`, at `epoch`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from glue.table import mismatched_accuracy
from run_result import write_json

from embinit_fairseq.errors import EmbinitError
from embinit_fairseq.runs.logs import best_place, read_log


def mismatched(log: Path) -> dict[str, float | int]:
    """Percentages and an epoch; EmbinitError or SystemExit for a log that lacks a set."""
    best, accuracy = read_log(log).best_epoch("valid_accuracy", higher=True), mismatched_accuracy(log)
    if best not in accuracy:
        raise SystemExit(
            f"error: {log}: no accuracy on the mismatched set at epoch {best}: train with --valid-subset valid,valid1"
        )
    highest = best_place(accuracy, higher=True)
    return {"accuracy": accuracy[best], "highest": accuracy[highest], "epoch": highest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="folder with train.log")
    run = parser.parse_args().run
    try:
        write_json(run / "mismatched.json", {"mismatched": mismatched(run / "train.log")})
    except EmbinitError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
