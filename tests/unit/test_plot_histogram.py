"""`embinit plot histogram`: the densities and lines that are drawn, and their numbers."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch

from embinit_fairseq.analysis.histograms import draw_values, value_histograms
from embinit_fairseq.analysis.transforms import fairseq


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


def test_a_model_of_several_models_has_the_matrices_of_each(printed, tmp_path) -> None:
    """As multilingual_transformer names them; --embed-init has the same slots. Other models may repeat a side."""
    names = [f"models.{pair}.encoder.embed_tokens.weight" for pair in ("de-en", "fr-en")]
    names += [f"multitask_decoders.{task}.embed_tokens.weight" for task in ("letters", "phones")]
    state = {name: torch.full((3, 2), 1.0 + number) for number, name in enumerate(names)}
    torch.save({"model": state}, tmp_path / "c.pt")
    found = printed(*HISTOGRAM[:2], "--output", tmp_path / "h.png", "--checkpoint", tmp_path / "c.pt")["tables"]
    slots = ["de-en.encoder", "fr-en.encoder", "multitask_decoders", "multitask_decoders.phones.embed_tokens"]
    assert [(table["name"].split(", ")[1], table["mean"]) for table in found] == list(zip(slots, (1, 2, 3, 4)))


@pytest.mark.parametrize("scaled", [True, False])
def test_no_value_of_a_small_matrix_is_beyond_the_axis(scaled) -> None:
    """Fewer than 2,000 values: none is in the outermost 0.05 % of a side."""
    matrices = {"a": np.array([[0.25, 0.5]]), "b": np.random.default_rng(0).normal(0, 1e-3, (300, 3))}
    for chosen in (matrices, {"a": matrices["a"]}, {"b": matrices["b"].astype(np.float32)}):
        for histogram in value_histograms(chosen, bins=9, scaled=scaled)[1]:
            assert histogram.outside == 0


def test_a_file_needs_its_flag(refused) -> None:
    for paths in (["c.pt"], []):
        assert "; give --vectors PATH or --checkpoint FILE.pt" in refused(*HISTOGRAM, *paths)


@pytest.mark.parametrize(("sigma", "scale"), [(1.0, "linear"), (0.03, "asinh")])
def test_no_matrix_flattens_another(figures, sigma, scale) -> None:
    """As raw GloVe with Xavier's matrix: each has bins enough, and they hold the values between their edges."""
    generator = np.random.default_rng(0)
    tables = {name: generator.normal(0, std, (200, 50)) for name, std in (("wide", 1.0), ("narrow", sigma))}
    edges, found = value_histograms(tables, bins=41)
    for each, table in zip(found, tables.values()):
        inside = ((table >= edges[0]) & (table <= edges[-1])).mean()
        assert (each.density * np.diff(edges)).sum() == pytest.approx(inside) == pytest.approx(1, abs=2e-3)
        assert (each.density > 0).sum() > 10
    draw_values(edges, found, {50: 0.1}, False, "h.png")
    (axes,) = figures[0].axes
    assert axes.get_xscale() == scale
    lines = [line for line in axes.get_lines() if len(line.get_xdata())]
    xavier, positions = ({x.get_xdata()[0] for x in lines if x.get_linestyle() == style} for style in ("--", ":"))
    assert sorted(xavier) == pytest.approx([-math.sqrt(2 / 250), math.sqrt(2 / 250)])
    assert positions == {-0.1, 0.1}


def test_what_the_axis_leaves_out_is_marked(figures, shown, tables, tmp_path) -> None:
    """The share next to the name, and the outermost value at its side; a sigma is never outside."""
    matrix = np.random.default_rng(0).normal(0, 1, (100, 50))
    matrix[0, 0], matrix[1, 1] = 40.0, -9.0
    edges, found = value_histograms({"a": matrix, "b": np.clip(matrix, -1, 1)}, bins=41)
    draw_values(edges, found, {50: 0.1}, False, "h.png")
    (axes,) = figures[0].axes
    assert [text.get_text().strip("◂▸ ") for text in axes.texts] == ["-9", "40"]
    beyond = np.mean(abs(matrix) > edges[-1])
    assert 0 < beyond < 0.002
    texts = [text.get_text() for text in figures[0].legends[0].get_texts()]
    assert f"{beyond:.2%} beyond" in texts[0]
    assert "beyond" not in texts[1]
    tiny = {"a": np.full((2, 2), 1e-3)}
    draw_values(*value_histograms(tiny, bins=3), {2: 1e-4}, False, "h.png")
    assert figures[1].axes[0].get_xlim()[1] > math.sqrt(2 / 4)
    assert re.search(r"v\.txt .* 0\.\d\d%$", shown(*HISTOGRAM, "--vectors", "v.txt"), re.MULTILINE)
