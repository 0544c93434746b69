"""Table and picture of loss against the scale of the embeddings."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "multi30k"))

import scale_figure

from embinit_fairseq.errors import DataError


def write(folder: Path, init: str, factor: str, place: str, seed: int, losses: list[float], ratio: float) -> None:
    slot = {"absorption_ratio": None if place != "added" else ratio / 2, "matched_absorption_ratio": None}
    if place == "added" and init == "pretrained_xavier":
        slot["matched_absorption_ratio"] = ratio
    record = {
        "labels": {"init": init, "sigma": factor, "positions": place, "seed": str(seed)},
        "epochs": {str(epoch): {"valid_loss": loss} for epoch, loss in enumerate(losses, 1)},
        "init": {"slots": {"encoder": slot}},
    }
    run = folder / f"{init}.{factor}.{place}.{seed}"
    run.mkdir()
    (run / "result.json").write_text(json.dumps(record))


def test_best_loss_up_to_an_epoch_beside_the_ratio_of_matched_rows(tmp_path: Path, capsys) -> None:
    for place, last in (("added", 2.5), ("absent", 3.0)):
        write(tmp_path, "pretrained_xavier", "0.125x", place, 1, [4.0, 3.5, 1.0], 0.05)  # the third is beyond --epochs
        write(tmp_path, "pretrained_xavier", "8x", place, 1, [4.0, last], 3.2)
        write(tmp_path, "pretrained_xavier", "8x", place, 2, [4.0, last + 0.2], 3.2)
    write(tmp_path, "pretrained_xavier", "8x", "untied", 1, [4.0], 3.2)  # not long enough
    assert scale_figure.main([str(tmp_path), "--epochs", "2", "--output", str(tmp_path / "a.png")]) == 0
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert rows[0][2:] == ["pretrained_xavier, added", "pretrained_xavier, absent"]
    assert rows[2:] == [
        ["0.125", "0.05", "3.500", "3.500"],
        ["8", "3.20", "2.600 ± 0.141 (2)", "3.100 ± 0.141 (2)"],
    ]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_nothing_long_enough(tmp_path: Path) -> None:
    write(tmp_path, "xavier", "1x", "added", 1, [4.0], 0.4)
    with pytest.raises(DataError, match="--epochs"):
        scale_figure.read(tmp_path, 6)
