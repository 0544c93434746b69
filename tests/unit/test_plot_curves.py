"""embinit plot curves and embinit plot histogram: what is drawn, and the numbers behind it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from run_folders import write_run

from embinit_fairseq.analysis.histograms import value_histograms
from embinit_fairseq.analysis.transforms import fairseq
from embinit_fairseq.plots import histograms
from embinit_fairseq.runs import curves


def points(line) -> list:
    return line.get_xydata().tolist()


def test_means_and_their_best_places(tmp_path, printed, refused) -> None:
    """Two runs, one trained for longer."""
    for seed, losses in (("1", [3.0, 1.0, 2.0]), ("2", [5.0, 4.0, 2.0, 1.0])):
        write_run(tmp_path / seed, {"init": "none", "seed": seed}, losses)
    ((row,),) = (each["rows"] for each in printed("plot", "curves", tmp_path, "--output", tmp_path / "a.png")["tables"])
    assert (row["means"], row["best"], row["value"]) == ({"1": 4.0, "2": 2.5, "3": 2.0}, 3, 2.0)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    write_run(tmp_path / "none", {"init": "none", "seed": "1"}, [], best={"valid_loss": 1.0, "epoch": 1})
    assert "no curve" in refused("plot", "curves", tmp_path / "none", "--output", tmp_path / "b.png")


def test_losses_in_the_unit_and_the_training_dashed(tmp_path, printed, shown, figures) -> None:
    logged = {"1": (3.0, 2.0, 3.0), "2": (1.0, 0.0, 5.0)}
    epochs = {epoch: dict(zip(("valid_loss", "train_loss", "valid_bleu"), each)) for epoch, each in logged.items()}
    call = ("plot", "curves", write_run(tmp_path / "a", {"init": "none", "seed": "1"}, [3.0, 1.0], epochs=epochs))
    options = ("--output", tmp_path / "a.png", "--unit", "perplexity")
    assert "(1 run): best mean valid_loss 1.000 at epoch 2 (of the training 0.000)" in shown(*call, *options)
    line, ring, training = figures[0].axes[0].get_lines()
    assert [points(each) for each in (line, ring, training)] == [[[1, 8.0], [2, 2.0]], [[2, 2.0]], [[1, 4.0], [2, 1.0]]]
    assert (training.get_linestyle(), training.get_color()) == ("--", line.get_color())
    printed(*call, *options, "--metric", "valid_bleu")
    assert [points(each) for each in figures[1].axes[0].get_lines()] == [[[1, 3.0], [2, 5.0]], [[2, 5.0]]]
    printed("compare", call[2], "--output", tmp_path / "out")  # beside what chose the checkpoints validation BLEU
    assert [axes.get_ylabel() for axes in figures[2].axes] == ["val. loss (bits)", "val. bleu"]
    assert curves.UNITS["nats"](3.0) == pytest.approx(3 * math.log(2))
    assert curves.UNITS["perplexity"](5000.0) == math.inf


def test_a_band_reaches_from_the_lowest_to_the_highest(tmp_path, printed, figures) -> None:
    for seed, losses in (("1", [3.0, 1.0]), ("2", [5.0, 4.0])):
        write_run(tmp_path / seed, {"init": "none", "seed": seed}, losses)
    printed("plot", "curves", tmp_path, "--output", tmp_path / "a.png")
    band = figures[0].axes[0].collections[0].get_paths()[0].get_extents()
    assert (band.y0, band.y1) == (1.0, 5.0)


def test_many_rows_differ_in_colour_or_line_and_their_legend_hides_none(tmp_path, printed, figures) -> None:
    names = [f"a rather long name of run number {number}" for number in range(25)]
    for number, name in enumerate(names):
        losses = [3.0 + number / 5, 1.0 + number / 5]
        epochs = {str(at): {"valid_loss": loss, "train_loss": loss - 1} for at, loss in enumerate(losses, 1)}
        write_run(tmp_path / str(number), {"init": name, "seed": "1"}, losses, epochs=epochs)
    printed("plot", "curves", tmp_path, "--output", tmp_path / "a.png")
    (figure,) = figures
    (axes,) = figure.axes
    lines = [line for line in axes.get_lines() if line.get_label() in {f"{name} (1)" for name in names}]
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == len(lines) == 25
    thin = [line for line in axes.get_lines() if line.get_linewidth() == 1]
    kinds = {(line.get_color(), str(line._unscaled_dash_pattern)) for line in (*lines, *thin)}
    assert len(kinds) == len(lines) + len(thin) == 50  # nor is one of a training like any
    figure.draw_without_rendering()
    legend, panel = axes.get_legend().get_window_extent(), axes.get_window_extent()
    assert legend.x0 >= panel.x1
    assert figure.bbox.x1 >= legend.x1
    assert legend.y0 >= figure.bbox.y0
    assert panel.width > 0.6 * figure.dpi * 6  # the axes keep their room


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """A file of vectors and a checkpoint with two tables, in the current folder."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    vectors = generator.normal(0.05, 0.4, size=(50, 4)).astype(np.float32)
    (tmp_path / "v.txt").write_text("".join(f"w{i} {' '.join(map(str, row))}\n" for i, row in enumerate(vectors)))
    names = ("encoder.embed_tokens.weight", "decoder.embedding.embed_tokens_p.weight", "decoder.output.weight")
    state = {name: torch.from_numpy(generator.normal(0, 0.02, size=(30, 8)).astype(np.float32)) for name in names}
    torch.save({"model": state}, "c.pt")
    return vectors, state


HISTOGRAM = ("plot", "histogram", "--output", "h.png")


def test_histograms_are_densities_of_all_values(tables, printed, tmp_path) -> None:
    vectors, state = tables
    record = printed(*HISTOGRAM, "--vectors", "v.txt", "--checkpoint", "c.pt", "--bins", "21")
    edges, found = np.array(record["edges"]), record["tables"]
    assert len(edges) == 22
    assert [table["name"].split(", ")[-1] for table in found] == ["v.txt", "encoder", "decoder_p"]
    for table, matrix in zip(found, (vectors, *(value.numpy() for value in list(state.values())[:2]))):
        inside = matrix[(matrix >= edges[0]) & (matrix <= edges[-1])]
        density, _ = np.histogram(inside, bins=edges, density=True)
        assert np.array(table["density"]) == pytest.approx(density * inside.size / matrix.size)
        sigma, positions = matrix.astype(float).std(ddof=1), fairseq(1024, matrix.shape[1]).std(ddof=1)
        expected = [1 - inside.size / matrix.size, sigma, math.sqrt(2 / sum(matrix.shape))]
        expected.append(positions / math.sqrt(matrix.shape[1]))
        assert [table[key] for key in ("outside", "std", "xavier_std", "position_std")] == pytest.approx(expected)
    assert (tmp_path / "h.png").read_bytes().startswith(b"\x89PNG")
    (only,) = printed(*HISTOGRAM, "--checkpoint", "c.pt", "--slot", "encoder", "--scaled")["tables"]
    assert only["std"] == pytest.approx(found[1]["std"] * math.sqrt(8))
    (tmp_path / "dict.txt").write_text("w3 5\nw7 2\nother 1\n")  # only rows of a dictionary
    (table,) = printed(*HISTOGRAM, "--vectors", "v.txt", "--dict", "dict.txt")["tables"]
    assert (table["rows"], table["max"]) == (2, pytest.approx(float(vectors[[3, 7]].max())))


def test_every_matrix_is_drawn_once_under_a_name_of_its_own(tables, printed, tmp_path) -> None:
    """Two runs whose files have one name, and a model with one matrix for both sides."""
    _, state = tables
    tied = {"encoder.embed_tokens.weight": state["decoder.output.weight"]}
    tied["decoder.embed_tokens.weight"] = tied["encoder.embed_tokens.weight"].clone()
    for run, model in (("a", state), ("b", tied)):
        (tmp_path / run / "checkpoints").mkdir(parents=True)
        torch.save({"model": model}, tmp_path / run / "checkpoints/best.pt")
        (tmp_path / run / "v.txt").write_text((tmp_path / "v.txt").read_text())
    files = "--vectors a/v.txt b/v.txt --checkpoint a/checkpoints/best.pt b/checkpoints/best.pt".split()
    names = [table["name"] for table in printed(*HISTOGRAM, *files)["tables"]]
    places = [f"{run}/checkpoints/best.pt, " for run in "aab"]
    slots = ["encoder", "decoder_p", "encoder = decoder"]
    assert names == ["a/v.txt", "b/v.txt", *map("".join, zip(places, slots))]
    (only,) = printed(*HISTOGRAM, "--checkpoint", "b/checkpoints/best.pt", "--slot", "decoder")["tables"]
    assert only["name"] == "checkpoints/best.pt, decoder"


@pytest.mark.parametrize(("sigma", "scale"), [(1.0, "linear"), (0.03, "asinh")])
def test_no_table_flattens_another(figures, sigma, scale) -> None:
    """As raw GloVe does with Xavier's matrix: each has bins enough, and they hold what lies between their edges."""
    generator = np.random.default_rng(0)
    tables = {name: generator.normal(0, std, (200, 50)) for name, std in (("wide", 1.0), ("narrow", sigma))}
    edges, found = value_histograms(tables, bins=41)
    for each, table in zip(found, tables.values()):
        inside = ((table >= edges[0]) & (table <= edges[-1])).mean()
        assert (each.density * np.diff(edges)).sum() == pytest.approx(inside) == pytest.approx(1, abs=2e-3)
        assert (each.density > 0).sum() > 10
    histograms.draw_values(edges, found, {50: 0.1}, False, "h.png")
    (axes,) = figures[0].axes
    assert axes.get_xscale() == scale
    assert [text.get_text() for text in figures[0].legends[0].get_texts()][:2] == [
        f"{each.name}: sigma {each.moments['std']:.3g}" for each in found
    ]


def test_scaling_changes_the_axis_only_and_lines_are_at_the_sigmas(figures) -> None:
    table = {"a": np.random.default_rng(0).normal(size=(40, 9)).astype(np.float32)}
    edges, (plain,) = value_histograms(table, bins=11)
    for by in (1, 3):
        wide, (found,) = value_histograms(table, bins=11, scaled=by == 3)
        assert wide == pytest.approx(by * edges)
        assert found.density == pytest.approx(plain.density / by)
        histograms.draw_values(wide, [found], {9: 0.5}, by == 3, "h.png")
        lines = [line for line in figures.pop().axes[0].get_lines() if len(line.get_xdata())]
        xavier, positions = ([x.get_xdata()[0] for x in lines if x.get_linestyle() == style] for style in ("--", ":"))
        assert xavier == pytest.approx([-by * math.sqrt(2 / 49), by * math.sqrt(2 / 49)])
        assert positions == [-0.5, 0.5]


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
        return axes.get_xlabel(), [points(each) for each in (line, training)]

    run("1", [50.0, 90.0])
    run("2", [150.0, 270.0])
    assert drawn() == ("seconds", [[[100, 3], [180, 1]], [[100, 2], [180, 0.5]]])
    run("2", [150.0, None])
    assert drawn()[1] == [[[100, 3]], [[100, 2]]]
    run("2", [None, None])
    assert "--x updates" in refused(*call)
