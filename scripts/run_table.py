"""What the tables of all experiments share: their options, the finished runs, the files they write."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout, installed or not

from embinit_fairseq.errors import EmbinitError
from embinit_fairseq.files import write_json, write_text
from embinit_fairseq.runs.record import RESULT, TRAINING, read_record


def read_arguments(description: str) -> argparse.Namespace:
    """--runs and --output of a program that makes a table; description: its documentation."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs' folders")
    parser.add_argument("--output", type=Path, required=True, help="folder for results.md, results.json and pictures")
    return parser.parse_args()


def read_results(runs: Path) -> tuple[list[dict], list[str]]:
    """Finished results sorted by seed, and the names of unfinished runs; SystemExit if nothing is finished."""
    results, unfinished = [], []
    for folder in sorted(path.parent for path in runs.rglob(TRAINING)):
        name = folder.relative_to(runs).as_posix()
        if not (folder / RESULT).is_file():
            unfinished.append(name)
            continue
        try:
            result = read_record(folder / RESULT)
        except EmbinitError as error:
            raise SystemExit(f"error: {error}") from error
        result["run"] = name
        result["time"]["wall_min"] = result["time"]["wall_s"] / 60
        results.append(result)
    if not results:
        raise SystemExit(f"error: --runs {runs} has no finished run (<run>/result.json)")
    return sorted(results, key=lambda result: int(result["labels"]["seed"])), unfinished


def write_results(output: Path, text: str, record: dict) -> None:
    """results.md and results.json in `output`; the text is printed, too."""
    output.mkdir(parents=True, exist_ok=True)
    write_text(output / "results.md", text)
    write_json(output / "results.json", record)
    print(text)
