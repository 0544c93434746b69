"""embinit plot curves: what is drawn, and its numbers."""

from __future__ import annotations

import math

import pytest
from run_folders import write_run

from embinit_fairseq.runs import curves


def points(line) -> list:
    return line.get_xydata().tolist()


def test_means_and_their_best_places(tmp_path, printed, refused) -> None:
    """Two runs, one trained for longer; the band reaches from the lowest to the highest."""
    for seed, losses in (("1", [3.0, 1.0, 2.0]), ("2", [5.0, 4.0, 2.0, 1.0])):
        write_run(tmp_path / seed, {"init": "none", "seed": seed}, losses)
    (table,) = printed("plot", "curves", tmp_path, "--output", tmp_path / "a.png")["tables"]
    (row,) = table["rows"]
    assert (row["means"], row["best"], row["value"]) == ({"1": 4.0, "2": 2.5, "3": 2.0}, 3, 2.0)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    band = curves.new_panels(1)[1][0]
    curves.draw_mean(band, "a", {1: [3.0, 5.0], 2: [1.0, 4.0]})
    extent = band.collections[0].get_paths()[0].get_extents()
    assert (extent.y0, extent.y1) == (1.0, 5.0)
    write_run(tmp_path / "none", {"init": "none", "seed": "1"}, [], best={"valid_loss": 1.0, "epoch": 1})
    assert "no curve" in refused("plot", "curves", tmp_path / "none", "--output", tmp_path / "b.png")


def test_losses_in_the_unit_and_the_training_dashed(tmp_path, printed, shown, figures) -> None:
    logged = {"1": (3.0, 2.0, 3.0), "2": (1.0, 0.0, 5.0)}
    epochs = {epoch: dict(zip(("valid_loss", "train_loss", "valid_bleu"), row)) for epoch, row in logged.items()}
    call = ("plot", "curves", write_run(tmp_path / "a", {"init": "none", "seed": "1"}, [3.0, 1.0], epochs=epochs))
    options = ("--output", tmp_path / "a.png", "--unit", "perplexity")
    assert "(1 run): best mean valid_loss 1.000 at epoch 2 (of the training 0.000)" in shown(*call, *options)
    line, ring, training = figures[0].axes[0].get_lines()
    assert list(map(points, (line, ring, training))) == [[[1, 8.0], [2, 2.0]], [[2, 2.0]], [[1, 4.0], [2, 1.0]]]
    assert (training.get_linestyle(), training.get_color()) == ("--", line.get_color())
    printed(*call, *options, "--metric", "valid_bleu")
    assert list(map(points, figures[1].axes[0].get_lines())) == [[[1, 3.0], [2, 5.0]], [[2, 5.0]]]
    titles = ["val. loss (bits)", "val. bleu"]
    for options, panels in (((), 2), (("--metric", "valid_loss"), 1)):  # validation BLEU has a panel of its own
        printed("compare", call[2], "--output", tmp_path / "out", *options)
        assert [axes.get_ylabel() for axes in figures[-1].axes] == titles[:panels]
    assert curves.UNITS["nats"](3.0) == pytest.approx(3 * math.log(2))
    assert curves.UNITS["perplexity"](5000.0) == math.inf


def test_many_rows_differ_in_colour_or_line_and_their_legend_hides_none(tmp_path, printed, figures) -> None:
    for number in range(25):
        name, losses = f"a rather long name of run number {number}", [3.0 + number / 5, 1.0 + number / 5]
        write_run(tmp_path / str(number), {"init": name, "seed": "1"}, losses)
    printed("plot", "curves", tmp_path, "--output", tmp_path / "a.png")
    (axes,) = figures[0].axes
    lines = [line for line in axes.get_lines() if line.get_label().endswith(" (1)")]
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == len(lines) == 25
    figures[0].draw_without_rendering()
    legend, panel = axes.get_legend().get_window_extent(), axes.get_window_extent()
    assert panel.x1 <= legend.x0 < legend.x1 <= figures[0].bbox.x1
    assert panel.width > 0.6 * figures[0].dpi * 6  # the axes keep their room


def test_seconds_are_means_over_seeds(tmp_path, printed, figures, refused) -> None:
    def run(seed: str, seconds: list) -> None:
        logged = {"1": (3.0, 2.0, 10.0), "2": (1.0, 0.5, 20.0)}
        epochs = {
            epoch: {"valid_loss": valid, "train_loss": train, "valid_num_updates": at, "train_num_updates": at}
            for epoch, (valid, train, at) in logged.items()
        }
        times = {at: {"wall_s": wall_s, "cpu_s": None} for at, wall_s in zip(("10", "20"), seconds)}
        write_run(tmp_path / "runs" / seed, {"init": "none", "seed": seed}, [3.0, 1.0], epochs=epochs, times=times)

    call = ("plot", "curves", tmp_path / "runs", "--x", "seconds", "--output", tmp_path / "a.png")

    def drawn() -> tuple[str, list]:
        printed(*call)
        (axes,) = figures[-1].axes
        line, _, training = axes.get_lines()
        return axes.get_xlabel(), list(map(points, (line, training)))

    run("1", [50.0, 90.0])
    run("2", [150.0, 270.0])
    assert drawn() == ("seconds", [[[100, 3], [180, 1]], [[100, 2], [180, 0.5]]])
    run("2", [150.0, None])
    assert drawn()[1] == [[[100, 3]], [[100, 2]]]
    run("2", [None, None])
    assert "--x updates" in refused(*call)
