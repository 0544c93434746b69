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
        ("0.5x", "untied", "1", None, [2.0, 2.5]),
        ("2x", "absent", "1", None, [5.0]),  # not there yet
    ):
        slot = {"absorption_ratio": ratio and 9.0, "matched_absorption_ratio": ratio}
        slots = {"encoder": slot, "decoder": {"absorption_ratio": ratio and 2 * ratio}}
        epochs = {str(at): {"valid_loss": loss, "train_loss": loss - 1} for at, loss in enumerate(losses, 1)}
        labels = {"init": "xavier", "sigma": factor, "positions": positions, "seed": seed}
        name = f"xavier.{factor}.{positions}.seed{seed}"
        write_run(folder / name, labels, losses, epochs=epochs, init={"slots": slots})
    return folder


def test_losses_by_scale_are_the_best_up_to_an_epoch(tmp_path, capsys, figures):
    assert scale_figure.main([str(runs(tmp_path / "runs")), "--epochs", "2", "--output", "scale.png"]) == 0
    out, said = capsys.readouterr()
    head, _, *rows = out.splitlines()
    assert head == "| sigma, of Xavier's | absorption ratio (encoder, decoder) | xavier, added | xavier, untied |"
    assert rows == [
        "| 0.5 | - | - | 2.000 (1.000) |",
        "| 1 | 0.50, 1.00 | 3.100 ± 0.141 (2.100), 2 seeds | - |",
        "| 8 | 4.00, 8.00 | 4.500 (3.500) | 4.400 (3.400) |",
    ]
    assert "xavier 0.5x" in said  # its ratio is known from a run that adds positions alone
    (axes,) = figures[0].axes
    assert axes.get_xscale() == "log"
    low, high = axes.containers[0].lines[2][0].get_segments()[0][:, 1]
    assert (high - low) / 2 == pytest.approx(0.1414, abs=1e-3)
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
    epochs = {str(at): {"valid_loss": loss, "train_loss": 1.0} for at, loss in enumerate(losses, 1)}
    slots = {side: {"absorption_ratio": 1.0} for side in ("encoder", "decoder")}
    given = {"init": "xavier", "positions": "added", "seed": "1", **labels}
    write_run(tmp_path / "a", given, losses, epochs=epochs, init={"slots": slots})
    with pytest.raises(DataError, match=words):
        scale_figure.read(tmp_path, 2)
    with pytest.raises(SystemExit):
        scale_figure.main([str(tmp_path), "--epochs", "0", "--output", "a.png"])
