"""The newest checkpoints of a run by their number of updates: their names, or their mean (`embinit average`)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs from a checkout, installed or not

from embinit_fairseq.checkpoints.averaging import average, last_checkpoints
from embinit_fairseq.errors import EmbinitError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoints", type=Path, required=True, help="folder checkpoints of a run")
    parser.add_argument("--number", type=int, required=True, help="how many, the newest ones")
    parser.add_argument("--list", action="store_true", help="print which ones they are; write nothing")
    parser.add_argument("output", type=Path, nargs="?", help="file to write")
    args = parser.parse_args()
    if not args.list and args.output is None:
        parser.error("give a file to write, or --list")
    try:
        paths = last_checkpoints(args.checkpoints, args.number, "updates")
        if args.list:
            print("\n".join(path.name for path in paths))
        else:
            average(paths, args.output, force=True)
    except EmbinitError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
