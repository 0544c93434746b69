"""Validations and checkpoints by number of updates, from what `fairseq-train --log-format json` printed.

As a program: exit code 0 if the run saved a checkpoint at or behind that update, else 1.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs from a checkout, installed or not

from embinit_fairseq.runs.logs import read_log


def read_validations(log: Path) -> dict[int, float]:
    """Updates -> validation loss (bits per predicted token). Of repeated ones, after a restart, the last counts."""
    return {updates: values["valid_loss"] for updates, values in read_log(log).validations.items()}


def saved_updates(log: Path) -> int:
    """The largest number of updates of a checkpoint that was written completely; 0 if there is none."""
    return read_log(log).saved_updates if log.is_file() else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, required=True, help="folder of the run")
    parser.add_argument("--updates", type=int, required=True, help="updates it shall have")
    args = parser.parse_args()
    checkpoint = args.run / "checkpoints" / "checkpoint_last.pt"
    sys.exit(0 if checkpoint.is_file() and saved_updates(args.run / "train.log") >= args.updates else 1)


if __name__ == "__main__":
    main()
