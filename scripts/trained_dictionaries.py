"""Are the dictionaries of prepared data those that a run was trained with? Symbols of others mean other words to it.

A dictionary of the same length, but of other text, gives no error of fairseq's, only a wrong BLEU.
"""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path

from run_result import file_sha256


def check(data: Path, run: Path) -> None:
    """data: folder with bin; run: what train.sh wrote. Raises SystemExit that names the dictionary and both folders."""
    record = run / "training.json"
    if not record.is_file():
        raise SystemExit(f"error: --run {run}: no training.json in it; run train.sh first")
    training = json.loads(record.read_text(encoding="utf-8"))
    wanted = {name: value for name, value in training["data"].items() if name.startswith("dict.")}
    trained_on = shlex.split(training["command"])[1]
    for name, value in wanted.items():
        path = data / "bin" / name
        found = file_sha256(path) if path.is_file() else "missing"
        if found != value:
            raise SystemExit(
                f"error: --data {data}: bin/{name} ({found}) is not the dictionary that --run {run} was trained with "
                f"({value}, SHA-256): give the data of that training, which were in {trained_on}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="what prepare.sh made")
    parser.add_argument("--run", type=Path, required=True, help="what train.sh made")
    args = parser.parse_args()
    check(args.data, args.run)


if __name__ == "__main__":
    main()
