"""Validations and checkpoints by number of updates, from what `fairseq-train --log-format json` printed.

As a program: exit code 0 if the run saved a checkpoint at or behind that update, else 1.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

_VALIDATION = re.compile(r"\| INFO \| valid \| (\{.*\})$")
_SAVED = re.compile(r"\| Saved checkpoint .* @ (\d+) updates, score")


def read_validations(log: Path) -> dict[int, float]:
    """Updates -> validation loss (bits per predicted token). Of repeated ones, after a restart, the last counts."""
    losses = {}
    with open(log, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if match := _VALIDATION.search(line.rstrip("\n")):
                record = json.loads(match.group(1))
                losses[int(record["valid_num_updates"])] = float(record["valid_loss"])
    return dict(sorted(losses.items()))


def saved_updates(log: Path) -> int:
    """The largest number of updates of a checkpoint that was written completely; 0 if there is none."""
    if not log.is_file():
        return 0
    with open(log, encoding="utf-8", errors="replace") as lines:
        return max((int(match.group(1)) for match in map(_SAVED.search, lines) if match), default=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, required=True, help="folder of the run")
    parser.add_argument("--updates", type=int, required=True, help="updates it shall have")
    args = parser.parse_args()
    checkpoint = args.run / "checkpoints" / "checkpoint_last.pt"
    sys.exit(0 if checkpoint.is_file() and saved_updates(args.run / "train.log") >= args.updates else 1)


if __name__ == "__main__":
    main()
