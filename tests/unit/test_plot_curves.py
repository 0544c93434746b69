"""embinit plot curves and embinit plot histogram: what is drawn, and the numbers behind it."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from run_folders import write_run

from embinit_fairseq.analysis.histograms import value_histograms
from embinit_fairseq.analysis.transforms import fairseq
from embinit_fairseq.cli.main import main
from embinit_fairseq.plots import curves, histograms, style


def printed(capsys, *arguments: object) -> dict:
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def failure(capsys, *arguments: object) -> str:
    assert main([*map(str, arguments)]) == 2
    return capsys.readouterr().err


@pytest.fixture
def figures(monkeypatch):
    """Those that would have been written."""
    found = []
    monkeypatch.setattr(style, "save", lambda figure, path: found.append(figure))
    return found


def test_means_and_their_best_places(tmp_path, capsys) -> None:
    for seed, losses in ((1, [3.0, 1.0, 2.0]), (2, [5.0, 4.0, 2.0, 1.0])):  # one was trained for longer
        write_run(tmp_path / str(seed), {"init": "none", "seed": str(seed)}, losses)
    (table,) = printed(capsys, "plot", "curves", tmp_path, "--output", tmp_path / "a.png")["tables"]
    assert table["rows"][0]["means"] == {"1": 4.0, "2": 2.5, "3": 2.0}
    assert (table["rows"][0]["best"], table["rows"][0]["value"], table["place"]) == (3, 2.0, "epoch")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_line_with_a_band_and_a_ring(tmp_path) -> None:
    _, (axes,) = curves.new_panels(1)
    curves.draw_mean(axes, "name", {1: [2.0, 4.0], 2: [1.0, 2.0], 3: [3.0, 3.5]}, higher=False)
    line, ring = axes.get_lines()
    assert line.get_xydata().tolist() == [[1, 3.0], [2, 1.5], [3, 3.25]]
    assert ring.get_xydata().tolist() == [[2, 1.5]]
    band = {tuple(point) for point in axes.collections[0].get_paths()[0].vertices.tolist()}
    assert {(1, 2.0), (1, 4.0), (2, 1.0), (2, 2.0), (3, 3.0), (3, 3.5)} <= band


@pytest.mark.parametrize(("metric", "best"), [("valid_loss", [[2, 2.0]]), ("valid_bleu", [[1, 3.0]])])
def test_losses_are_drawn_in_the_unit_and_the_ring_where_they_are_best(tmp_path, capsys, figures, metric, best) -> None:
    epochs = {epoch: {"valid_loss": bits, "valid_bleu": bits} for epoch, bits in (("1", 3.0), ("2", 1.0))}
    write_run(tmp_path / "a", {"init": "none", "seed": "1"}, [3.0, 1.0], epochs=epochs)
    options = ["--metric", metric, "--unit", "perplexity", "--output", tmp_path / "a.png"]
    printed(capsys, "plot", "curves", tmp_path / "a", *options)
    line, ring = figures[0].axes[0].get_lines()
    assert line.get_xydata().tolist() == ([[1, 8.0], [2, 2.0]] if metric == "valid_loss" else [[1, 3.0], [2, 1.0]])
    assert ring.get_xydata().tolist() == best


def test_the_training_is_dashed_in_the_colour_of_its_row(tmp_path, capsys, figures) -> None:
    epochs = {epoch: {"valid_loss": bits, "train_loss": bits - 1} for epoch, bits in (("1", 3.0), ("2", 1.0))}
    write_run(tmp_path / "a", {"init": "none", "seed": "1"}, [3.0, 1.0], epochs=epochs)
    options = ["--output", tmp_path / "a.png", "--unit", "perplexity"]
    record = printed(capsys, "plot", "curves", tmp_path / "a", *options)
    line, _, training = figures[0].axes[0].get_lines()
    assert training.get_xydata().tolist() == [[1, 4.0], [2, 1.0]]
    assert (training.get_linestyle(), training.get_color()) == ("--", line.get_color())
    assert record["tables"][0]["rows"][0]["training"] == {"1": 2.0, "2": 0.0}
    assert main(["plot", "curves", str(tmp_path / "a"), *map(str, options)]) == 0
    assert "(1 run): best mean valid_loss 1.000 at epoch 2 (of the training 0.000)" in capsys.readouterr().out


def test_compare_draws_validation_bleu_beside_what_chose_the_checkpoints(tmp_path, capsys, figures) -> None:
    epochs = {epoch: {"valid_loss": 1.0, "valid_bleu": bleu} for epoch, bleu in (("1", 3.0), ("2", 5.0))}
    write_run(tmp_path / "a", {"init": "none", "seed": "1"}, [1.0, 1.0], epochs=epochs)
    printed(capsys, "compare", tmp_path / "a", "--output", tmp_path / "out")
    loss, bleu = figures[0].axes
    assert (loss.get_ylabel(), bleu.get_ylabel()) == ("val. loss (bits)", "val. bleu")
    line, ring = bleu.get_lines()
    assert (line.get_xydata().tolist(), ring.get_xydata().tolist()) == ([[1, 3.0], [2, 5.0]], [[2, 5.0]])


def test_units() -> None:
    assert [convert(3.0) for convert in curves.UNITS.values()] == pytest.approx([3.0, 3 * math.log(2), 8.0])
    assert curves.UNITS["perplexity"](5000.0) == math.inf
    assert curves.UNITS["perplexity"](1023.5) == pytest.approx(2.0**1023.5)


def test_a_ring_is_not_where_a_mean_is_no_number() -> None:
    _, (axes,) = curves.new_panels(1)
    curves.draw_mean(axes, "name", {1: [1.0], 2: [math.nan], 3: [2.0]}, higher=False)
    assert axes.get_lines()[1].get_xydata().tolist() == [[1, 1.0]]
    curves.draw_mean(axes, "diverged", {1: [math.nan]}, higher=False)
    assert len(axes.get_lines()) == 3  # no ring


@pytest.fixture
def tables(tmp_path):
    """A file of vectors and a checkpoint with two tables."""
    generator = np.random.default_rng(0)
    vectors = generator.normal(0.05, 0.4, size=(50, 4)).astype(np.float32)
    (tmp_path / "v.txt").write_text("".join(f"w{i} {' '.join(map(str, row))}\n" for i, row in enumerate(vectors)))
    names = ("encoder.embed_tokens.weight", "decoder.embedding.embed_tokens_p.weight", "decoder.output.weight")
    state = {name: torch.from_numpy(generator.normal(0, 0.02, size=(30, 8)).astype(np.float32)) for name in names}
    torch.save({"model": state}, tmp_path / "c.pt")
    return tmp_path, vectors, state


def test_histograms_are_densities_of_all_values(tables, capsys) -> None:
    folder, vectors, state = tables
    files = ["--vectors", folder / "v.txt", "--checkpoint", folder / "c.pt"]
    options = ["--output", folder / "h.png", "--bins", "21"]
    record = printed(capsys, "plot", "histogram", *files, *options)
    edges, found = np.array(record["edges"]), record["tables"]
    assert len(edges) == 22
    assert [table["name"].split(", ")[-1] for table in found] == ["v.txt", "encoder", "decoder_p"]
    for table, matrix in zip(found, (vectors, *(value.numpy() for value in list(state.values())[:2]))):
        inside = matrix[(matrix >= edges[0]) & (matrix <= edges[-1])]
        density, _ = np.histogram(inside, bins=edges, density=True)
        assert np.array(table["density"]) == pytest.approx(density * inside.size / matrix.size)
        assert table["outside"] == pytest.approx(1 - inside.size / matrix.size)
        assert table["std"] == pytest.approx(matrix.astype(float).std(ddof=1))
        assert table["xavier_std"] == pytest.approx(math.sqrt(2 / sum(matrix.shape)))
        positions = fairseq(1024, matrix.shape[1]).std(ddof=1)
        assert table["position_std"] == pytest.approx(positions / math.sqrt(matrix.shape[1]))
    assert (folder / "h.png").read_bytes().startswith(b"\x89PNG")
    (only,) = printed(capsys, "plot", "histogram", *files[2:], *options, "--slot", "encoder", "--scaled")["tables"]
    for name in ("std", "position_std", "xavier_std"):
        assert only[name] == pytest.approx(found[1][name] * math.sqrt(8))


def test_scaling_changes_the_axis_only() -> None:
    table = {"a": np.random.default_rng(0).normal(size=(40, 9)).astype(np.float32)}
    edges, (plain,) = value_histograms(table, bins=11)
    wide, (scaled,) = value_histograms(table, bins=11, scaled=True)
    assert wide == pytest.approx(3 * edges)
    assert scaled.density == pytest.approx(plain.density / 3)


@pytest.mark.parametrize("scaled", [False, True])
def test_lines_at_the_sigmas(figures, scaled) -> None:
    table = {"a": np.random.default_rng(0).normal(size=(40, 9)).astype(np.float32)}
    histograms.draw_values(*value_histograms(table, 11, scaled), {9: 0.5}, scaled, "h.png")
    lines = [line for line in figures[0].axes[0].get_lines() if len(line.get_xdata())]
    found = {style: [line.get_xdata()[0] for line in lines if line.get_linestyle() == style] for style in ("--", ":")}
    xavier = math.sqrt(2 / (40 + 9)) * (3 if scaled else 1)
    assert found == {"--": pytest.approx([-xavier, xavier]), ":": [-0.5, 0.5]}


def test_only_rows_of_a_dictionary(tables, capsys) -> None:
    folder, vectors, _ = tables
    (folder / "dict.txt").write_text("w3 5\nw7 2\nother 1\n")
    options = ["--vectors", folder / "v.txt", "--dict", folder / "dict.txt", "--output", folder / "h.png"]
    (table,) = printed(capsys, "plot", "histogram", *options)["tables"]
    assert table["rows"] == 2
    assert table["max"] == pytest.approx(float(vectors[[3, 7]].max()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --vectors PATH or --checkpoint FILE.pt"),
        (["--vectors", "v.txt", "--slot", "encoder"], "--slot encoder"),
        (["--checkpoint", "c.pt", "--slot", "nowhere"], "encoder, decoder_p"),
        (["--vectors", "v.txt", "--bins", "1"], "--bins 1: must be at least 2"),
        (["--vectors", "v.txt", "--bins", "100000000"], "--bins 100000000: must be at least 2 and"),
        (["--vectors", "v.txt", "--position-rows", "0"], "--position-rows 0: must be at least 1"),
        (["--vectors", "v.txt", "--position-rows", "99999999999"], "at most 65,536"),
        (["--vectors", "v.txt", "--output", "h.jpg"], "ends in .png"),
    ],
)
def test_wrong_options_of_histogram(tables, capsys, monkeypatch, arguments, message) -> None:
    monkeypatch.chdir(tables[0])
    assert message in failure(capsys, "plot", "histogram", "--output", "h.png", *arguments)
    assert not (tables[0] / "h.png").exists()


def test_runs_without_a_curve_are_refused(tmp_path, capsys) -> None:
    write_run(tmp_path / "a", {"init": "none", "seed": "1"}, [], best={"valid_loss": 1.0, "epoch": 1})
    message = failure(capsys, "plot", "curves", tmp_path, "--output", tmp_path / "a.png")
    assert "no curve" in message
    assert not (tmp_path / "a.png").exists()
