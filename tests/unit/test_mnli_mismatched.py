"""scripts/mnli/mismatched.py: which epoch's accuracy on MNLI's second validation set is reported."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from mnli.mismatched import mismatched

START = "{'_name': None, 'common': {'_name': None}, 'dataset': {'valid_subset': 'valid,valid1'}}"


def write_log(path: Path, epochs: list[tuple[int, dict[str, float]]]) -> Path:
    """epochs: number and accuracy on each set, in the order of the training."""
    lines = [("fairseq_cli.train", START)]
    for epoch, accuracies in epochs:
        for name, value in accuracies.items():
            record = {"epoch": epoch, f"{name}_accuracy": str(value), f"{name}_num_updates": str(10 * epoch)}
            lines.append((name, json.dumps(record)))
    path.write_text("".join(f"2025-01-01 00:00:00 | INFO | {logger} | {text}\n" for logger, text in lines))
    return path


def test_the_matched_set_decides_and_the_highest_is_kept_beside_it(tmp_path: Path) -> None:
    values = [(50.0, 48.0), (61.0, 58.0), (61.0, 59.5), (60.0, 62.0), (59.0, 62.0), (58.0, 10.0)]
    epochs = [(at, {"valid": matched, "valid1": other}) for at, (matched, other) in enumerate(values, 1)]
    log = write_log(tmp_path / "train.log", epochs)
    assert mismatched(log) == {"accuracy": 59.5, "highest": 62.0, "epoch": 5}  # of equal ones the last, as fairseq


def test_of_an_epoch_that_was_repeated_the_later_counts(tmp_path: Path) -> None:
    epochs = [(1, {"valid": 50.0, "valid1": 99.0}), (1, {"valid": 52.0, "valid1": 40.0})]
    assert mismatched(write_log(tmp_path / "train.log", epochs)) == {"accuracy": 40.0, "highest": 40.0, "epoch": 1}


def test_a_training_without_the_second_set_is_named(tmp_path: Path) -> None:
    log = write_log(tmp_path / "train.log", [(1, {"valid": 50.0, "valid1": 48.0}), (2, {"valid": 60.0})])
    with pytest.raises(SystemExit, match=r"train.log: no accuracy on the mismatched set at epoch 2: .*valid,valid1"):
        mismatched(log)
