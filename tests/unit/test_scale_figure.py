"""scripts/multi30k/scale_figure.py: losses against the scale of the embeddings."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
from run_folders import write_run

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "multi30k"))

import scale_figure

from embinit_fairseq.errors import DataError


def runs(folder: Path) -> Path:
    for factor, positions, seed, ratio, losses in (
        ("1x", "added", "1", 0.5, [4.0, 3.0, 2.9]),
        ("1x", "added", "2", 0.5, [3.2, 4.0, 3.3]),
        ("8x", "added", "1", 4.0, [5.0, 4.5, 4.6]),
        ("8x", "untied", "1", None, [5.0, 4.4, 4.0]),
        ("2x", "absent", "1", None, [5.0]),  # not there yet
    ):
        slot = {"absorption_ratio": ratio and 9.0, "matched_absorption_ratio": ratio}
        epochs = {str(at): {"valid_loss": loss} for at, loss in enumerate(losses, 1)}
        labels = {"init": "xavier", "sigma": factor, "positions": positions, "seed": seed}
        name = f"xavier.{factor}.{positions}.seed{seed}"
        write_run(folder / name, labels, losses, epochs=epochs, init={"slots": {"encoder": slot}})
    return folder


def test_losses_by_scale_are_the_best_up_to_an_epoch(tmp_path, capsys):
    picture = tmp_path / "scale.png"
    assert scale_figure.main([str(runs(tmp_path / "runs")), "--epochs", "2", "--output", str(picture)]) == 0
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head == "| sigma, of Xavier's | absorption ratio | xavier, added | xavier, untied |"
    assert rows == ["| 1 | 0.50 | 3.100 ± 0.141 (2) | - |", "| 8 | 4.00 | 4.500 | 4.400 |"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(DataError, match="--epochs"):
        scale_figure.read(tmp_path / "runs", 9)


@pytest.mark.parametrize(
    ("labels", "losses", "words"),
    [
        ({"sigma": "1x"}, [3.0, math.nan], "not finite"),
        ({"sigma": "1x"}, [math.nan, 3.0], "not finite"),
        ({"sigma": "big"}, [3.0, 3.0], "labels"),
        ({}, [3.0, 3.0], "labels"),
    ],
)
def test_what_has_diverged_or_is_of_another_grid_is_named(tmp_path, labels, losses, words):
    epochs = {str(at): {"valid_loss": loss} for at, loss in enumerate(losses, 1)}
    slot = {"absorption_ratio": 1.0}
    given = {"init": "xavier", "positions": "added", "seed": "1", **labels}
    write_run(tmp_path / "a", given, losses, epochs=epochs, init={"slots": {"encoder": slot}})
    with pytest.raises(DataError, match=words):
        scale_figure.read(tmp_path, 2)
    with pytest.raises(SystemExit):
        scale_figure.main([str(tmp_path), "--epochs", "0", "--output", "a.png"])
