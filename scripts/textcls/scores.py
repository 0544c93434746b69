"""What fairseq-validate has said about the test texts (RUN/test.log) becomes a part of the run's record.

    python scripts/textcls/scores.py RUN

Writes loss (bits) and accuracy (percent) to RUN/result.json, where tables find them.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs from a checkout, installed or not

from embinit_fairseq.errors import DataError, one_line
from embinit_fairseq.runs.record import RESULT, read_record, write_record

_TESTED = re.compile(r"\| INFO \| test \| (\{.*\})$", re.MULTILINE)


def test_scores(log: Path) -> dict[str, float]:
    """test_loss and test_accuracy, by the last line of a log of fairseq-validate that has them."""
    found = _TESTED.findall(log.read_text(encoding="utf-8")) if log.is_file() else []
    if not found:
        raise DataError(f"{log}: no result of fairseq-validate; remove the folder and run train.sh again")
    logged = json.loads(found[-1])
    return {name: float(logged[name]) for name in ("test_loss", "test_accuracy")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run that was trained and tested by train.sh")
    run = parser.parse_args().run
    record, scores = read_record(run / RESULT), test_scores(run / "test.log")
    if record.get("scores") != scores:
        write_record(run / RESULT, {**record, "scores": scores})
    print(f"{run}: test accuracy {scores['test_accuracy']:.2f} %")


if __name__ == "__main__":
    with one_line():
        main()
