"""`embinit plot positions`: maps from a checkpoint are those of the model's positions; pictures, numbers, errors."""

from __future__ import annotations

import json
from argparse import Namespace

import numpy as np
import plot_checkpoints as made
import pytest
import torch
from fairseq.data import Dictionary
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from plot_checkpoints import failure

from embinit_fairseq.analysis.position_maps import position_map
from embinit_fairseq.analysis.trained_model import trained_model
from embinit_fairseq.architectures.tupe import build_sentence_encoder, function_options
from embinit_fairseq.cli.main import main
from embinit_fairseq.errors import CheckpointError, OptionError
from embinit_fairseq.models.tupe import TupeConfig
from embinit_fairseq.modules.position_encoding import POSITION_ENCODINGS, KnownEncoding, PositionEncoding
from embinit_fairseq.plots import style

ENCODINGS = {
    "TUPE-A": (lambda: made.untied(), {}),
    "TUPE-R": (lambda: made.untied(num_buckets=8), {"rel_pos": True}),
    "TUPE-R, as in the paper": (lambda: made.untied("paper", 8), {"rel_pos": True, "tupe_reset": "paper"}),
    "TUPE-A, tied": (lambda: made.untied(None), {"tupe_tie_cls": True}),
    "TUPE-R, tied": (lambda: made.untied(None, 8), {"tupe_tie_cls": True, "rel_pos": True}),
    "BERT-R": (made.relative, {"position_encoding": "relative"}),
}


@pytest.mark.parametrize("length", [3, made.LONGEST, None])
@pytest.mark.parametrize("name", ENCODINGS)
def test_the_map_is_what_the_model_adds(name, length):
    make, options = ENCODINGS[name]
    module = make()
    found = position_map(trained_model(made.tupe(module, **options), "c.pt"), length=length)
    expected = module.bias(length or made.LONGEST).detach().numpy()
    assert found.encoding.split(",")[0] == name.split(",")[0]
    np.testing.assert_allclose(found.scores, expected, rtol=1e-12)
    assert (found.has_cls, found.untied) == (True, "tied" not in name and name != "BERT-R")
    np.testing.assert_array_equal(found.ordinary, found.scores[:, 1:, 1:])


def translation(num_buckets: int = 8) -> tuple[dict, dict]:
    """A checkpoint like those of tupe_transformer (other options, other names), and the positions of its parts."""
    parts = {
        "encoder": made.untied(None, num_buckets, seed=1),
        "decoder": made.untied(None, num_buckets, seed=2, bidirectional=False),
    }
    state = {f"{part}.positions.{key}": value for part in parts for key, value in parts[part].state_dict().items()}
    options = {"_name": "tupe_transformer", "encoder_attention_heads": made.HEADS, "max_rel_pos": 6}
    options.update(decoder_attention_heads=made.HEADS, max_source_positions=12, max_target_positions=12)
    return {"cfg": {"model": options}, "model": state}, parts


@pytest.mark.parametrize("num_buckets", [0, 8])
def test_translation_has_a_map_in_both_parts_and_a_decoder_does_not_see_ahead(num_buckets):
    checkpoint, parts = translation(num_buckets)
    model = trained_model(checkpoint, "c.pt")
    for part in ("encoder", "decoder"):
        found, expected = position_map(model, part), parts[part].bias(12).detach().numpy()
        past = np.tri(12, dtype=bool)
        np.testing.assert_allclose(found.scores[:, past], expected[:, past], rtol=1e-12)
        assert np.isneginf(found.scores[:, ~past]).all() == (part == "decoder")
        assert (found.part, found.has_cls, found.encoding) == (part, False, "TUPE-R" if num_buckets else "TUPE-A")
    assert position_map(model).part == "encoder"


def test_electra_has_a_map_in_its_generator_too():
    small = made.randomised(made.untied_positions(4, 1, made.LONGEST))
    checkpoint = made.tupe(made.untied(), generator_attention_heads=1)
    prefix = "generator.sentence_encoder.positions."
    checkpoint["model"].update({f"{prefix}{key}": value for key, value in small.state_dict().items()})
    found = position_map(trained_model(checkpoint, "c.pt"), "generator", 5)
    np.testing.assert_allclose(found.scores, small.bias(5).detach().numpy(), rtol=1e-12)
    assert found.has_cls


def test_half_precision_and_options_of_the_old_kind():
    module = made.untied().half()
    checkpoint = made.tupe(module)
    checkpoint.update(args=Namespace(arch="tupe_base", **checkpoint.pop("cfg")["model"]))
    model = trained_model(checkpoint, "c.pt")
    assert model.arch == "tupe_base"
    np.testing.assert_allclose(position_map(model).scores, module.double().bias(12).detach().numpy(), rtol=1e-12)


ABSOLUTE = "encoder.sentence_encoder.positions.absolute."


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda c: c.pop("model"), "lacks a model"),
        (lambda c: c.pop("cfg"), "lacks the model's options"),
        (lambda c: c["cfg"]["model"].pop("tupe_reset"), "options of its tupe_tiny lack tupe_reset"),
        (lambda c: c["cfg"]["model"].update(encoder_attention_heads=3), "not fit its options"),
        (lambda c: c["cfg"]["model"].update(encoder_attention_heads=0), "encoder_attention_heads is 0, not a number"),
        (lambda c: c["cfg"]["model"].update(encoder_attention_heads="two"), "encoder_attention_heads is 'two', not a"),
        (lambda c: c["cfg"]["model"].update(tupe_reset="ours"), "tupe_reset is 'ours', none of official, paper"),
        (lambda c: c["model"].pop(ABSOLUTE + "q_proj.bias"), "absolute.q_proj.bias"),
        (lambda c: c["model"][ABSOLUTE + "layer_norm.bias"].fill_(np.nan), "layer_norm.bias holds NaN"),
        (lambda c: c["model"].update({ABSOLUTE + "q_proj.bias": [1.0]}), "q_proj.bias is a list, not a tensor"),
        (lambda c: c["model"].update({ABSOLUTE + "embed_positions.weight": torch.ones(3)}), "weight is not a matrix"),
    ],
)
def test_damaged_checkpoints(change, expected):
    checkpoint = made.tupe(made.untied())
    change(checkpoint)
    with pytest.raises(CheckpointError, match=rf"c\.pt.*{expected}"):
        position_map(trained_model(checkpoint, "c.pt"))


@pytest.mark.parametrize("distance", [0, 2, "far", True])
def test_damaged_distances(distance):
    checkpoint = made.tupe(made.untied(num_buckets=8), max_rel_pos=distance)
    with pytest.raises(CheckpointError, match=r"c\.pt: (its option|the options in it cannot be .*) ?.*max.rel.pos"):
        position_map(trained_model(checkpoint, "c.pt"))


@pytest.mark.parametrize(
    ("part", "lengths", "expected"), [("cls", (0, 2, 13), "3 to 12"), ("none", (1, 13), "2 to 12")]
)
def test_lengths_that_the_model_does_not_have(tmp_path, part, lengths, expected):
    """Two positions besides [CLS], which translation has not: less has no pattern, and is drawn by nobody."""
    checkpoint = made.tupe(made.untied()) if part == "cls" else translation()[0]
    for length in lengths:
        with pytest.raises(OptionError, match=f"--length {length}: .* has {expected} positions"):
            position_map(trained_model(checkpoint, "c.pt"), length=length)
    torch.save(checkpoint, tmp_path / "c.pt")
    argv = ["plot", "positions", "--checkpoint", str(tmp_path / "c.pt"), "--output", str(tmp_path / "p.png")]
    assert main([*argv, "--length", expected[0], "--softmax"]) == 0


@pytest.fixture
def saved(tmp_path):
    def save(checkpoint: dict) -> str:
        torch.save(checkpoint, tmp_path / "c.pt")
        return str(tmp_path / "c.pt")

    return save


@pytest.fixture
def figures(monkeypatch):
    """The figures that are drawn, beside being saved."""
    drawn, save = [], style.save
    monkeypatch.setattr(style, "save", lambda figure, path: (drawn.append(figure), save(figure, path)))
    return drawn


def test_the_picture_has_a_panel_a_head_with_its_pattern(capsys, tmp_path, saved, figures):
    heads = made.randomised(made.untied_positions(12, 6, 9))
    path = saved(made.tupe(heads, encoder_attention_heads=6))
    picture = tmp_path / "p.png"
    argv = ["plot", "positions", "--checkpoint", path, "--output", str(picture)]
    assert main([*argv, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["c.pt", "p.png"]
    panels = [axes for axes in figures[0].axes if axes.images and axes.get_title()]
    assert [axes.get_title() for axes in panels] == [f"head {h['head']}: {h['pattern']}" for h in record["heads"]]
    expected = heads.bias(9).detach().numpy()
    for axes, scores in zip(panels, expected):
        np.testing.assert_allclose(axes.images[0].get_array(), scores)
        assert len(axes.lines) == 2  # behind the row and the column of [CLS]
    # six panels in two rows of four columns: labels stand below the lowest and left of the first
    for number, axes in enumerate(panels):
        below, left = (
            [label.get_text() for label in get()[:1]] for get in (axes.get_xticklabels, axes.get_yticklabels)
        )
        assert (below, left) == (["[CLS]"] * (number >= 2), ["[CLS]"] * (number in (0, 4)))
    assert len({axes.images[0].get_clim() for axes in panels}) == 1
    assert len(figures[0].axes) == 7  # one colour bar

    numbers = {key: record[key] for key in ("arch", "encoding", "part", "length", "causal", "cls_untied")}
    assert numbers == dict(arch="tupe_tiny", encoding="TUPE-A", part="encoder", length=9, causal=False, cls_untied=True)
    for head, scores in zip(record["heads"], expected):
        assert head["from_cls"] == pytest.approx(scores[0, 4])
        assert head["to_cls"] == pytest.approx(scores[4, 0])
        assert head["max"] == pytest.approx(scores[1:, 1:].max())
        shares = np.exp(scores[1:, 0]) / np.exp(scores[1:]).sum(axis=1)
        assert head["cls_share"] == pytest.approx(shares.mean())


def test_the_attention_is_drawn_relative_to_uniform(tmp_path, saved, figures):
    checkpoint, parts = translation()
    argv = ["plot", "positions", "--checkpoint", saved(checkpoint), "--output", str(tmp_path / "p.png")]
    assert main([*argv, "--softmax", "--part", "decoder", "--length", "5"]) == 0
    image = np.ma.filled(figures[0].axes[0].images[0].get_array(), np.nan)
    scores = parts["decoder"].bias(5).detach().numpy()[0]
    for query in range(5):
        weights = np.exp(scores[query, : query + 1])
        np.testing.assert_allclose(image[query, : query + 1], weights / weights.sum() * (query + 1))
    assert np.isnan(image[np.triu_indices(5, 1)]).all()
    assert figures[0].axes[0].lines[:] == []  # translation has no [CLS]


@pytest.mark.parametrize(("num_heads", "flags"), [(1, []), (5, ["--softmax"]), (20, [])])
def test_any_number_of_heads_fits(tmp_path, saved, figures, num_heads, flags):
    module = made.randomised(made.untied_positions(2 * num_heads, num_heads, 6))
    path = saved(made.tupe(module, encoder_attention_heads=num_heads))
    assert main(["plot", "positions", "--checkpoint", path, "--output", str(tmp_path / "p.png"), *flags]) == 0
    (figure,) = figures
    assert sum(bool(axes.get_title()) for axes in figure.axes) == num_heads
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = [axes.get_tightbbox(renderer) for axes in figure.axes]
    assert min(box.x0 for box in boxes) >= 0
    assert max(box.x1 for box in boxes) <= figure.bbox.width
    titles = [axes.title.get_window_extent(renderer) for axes in figure.axes if axes.get_title()]
    assert not any(a.overlaps(b) for at, a in enumerate(titles) for b in titles[:at])


def test_errors_of_checkpoints(capsys, tmp_path, saved):
    (tmp_path / "text.pt").write_text("hello")
    stock = {"cfg": {"model": Namespace(arch="transformer_iwslt_de_en")}, "model": {"encoder.version": torch.ones(1)}}
    bert_a = made.bert_a()[0]
    four = {**bert_a, "cfg": {"model": {"_name": "bert_ad_tiny", "position_encoding": "four_terms"}}}
    for given, *parts in (
        (tmp_path / "no.pt", f"--checkpoint {tmp_path}/no.pt: no such file"),
        (tmp_path, f"--checkpoint {tmp_path}: a folder", "checkpoint_best.pt"),
        (tmp_path / "text.pt", "not a fairseq"),
        (stock, "transformer_iwslt_de_en, which has no positional correlation"),
        (bert_a, "bert_a_tiny (BERT-A", "embinit plot correlations"),
        (four, "bert_ad_tiny (BERT-A^d"),
    ):
        path = saved(given) if isinstance(given, dict) else str(given)
        error = failure(capsys, "positions", "--checkpoint", path, "--output", str(tmp_path / "p.png"))
        assert all(part in error for part in parts), error
    assert not (tmp_path / "p.png").exists()


def test_errors_of_options(capsys, tmp_path, saved, monkeypatch):
    path = saved(made.tupe(made.untied()))
    (tmp_path / "d.png").mkdir()
    for picture, flags, part in (
        ("p.png", ["--part", "decoder"], f"--part decoder: {path} (tupe_tiny)"),
        ("p.png", ["--part", "middle"], "--part"),
        ("p.png", ["--length", "13"], "--length 13"),
        ("p.png", ["--length", "2", "--softmax"], "--length 2: "),
        ("no/p.png", [], f"there is no folder {tmp_path}/no"),
        ("p.pdf", [], "ends in .png"),
        ("d.png", [], "a folder; name a file"),
    ):
        argv = ["positions", "--checkpoint", path, "--output", str(tmp_path / picture), *flags]
        assert part in failure(capsys, *argv)
    assert "positions, correlations" in failure(capsys, "curvature").replace("'", "")
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    argv = ["positions", "--checkpoint", path, "--output", str(tmp_path / "p.png")]
    assert "need matplotlib" in failure(capsys, *argv)
    assert not (tmp_path / "p.png").exists()


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (OSError(28, "No space left on device"), 2)])
def test_a_save_that_fails_leaves_the_old_picture(tmp_path, saved, monkeypatch, capsys, error, code):
    def fails(figure, file, **_):
        file.write(b"half")
        raise error

    monkeypatch.setattr(Figure, "savefig", fails)
    picture, path = tmp_path / "p.png", saved(made.tupe(made.untied()))
    picture.write_bytes(b"old")
    assert main(["plot", "positions", "--checkpoint", path, "--output", str(picture)]) == code
    assert picture.read_bytes() == b"old"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["c.pt", "p.png"]
    assert code == 130 or f"--output {picture}" in capsys.readouterr().err


class Slopes(PositionEncoding):
    """ALiBi (Press et al. 2022): minus a head's slope times the distance, without a parameter."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", 2.0 ** -torch.arange(1, num_heads + 1, dtype=torch.float64))

    def bias(self, tgt_len: int) -> torch.Tensor:
        places = torch.arange(tgt_len, device=self.slopes.device)
        return -self.slopes[:, None, None] * (places - places[:, None]).abs()


def test_an_encoding_is_added_by_one_line_and_has_a_map_without_parameters(monkeypatch, saved):
    monkeypatch.setitem(
        POSITION_ENCODINGS, "slopes", KnownEncoding("ALiBi", "slopes", lambda sizes: Slopes(sizes.num_heads))
    )
    cfg = TupeConfig(
        position_encoding="slopes", encoder_layers=1, encoder_embed_dim=8, encoder_ffn_embed_dim=8,
        encoder_attention_heads=2, max_positions=9,
    )  # fmt: skip
    encoder = build_sentence_encoder(cfg, Dictionary())
    state = {f"encoder.sentence_encoder.{name}": value for name, value in encoder.state_dict().items()}
    checkpoint = {"cfg": {"model": {**vars(cfg), "_name": "tupe"}}, "model": state}
    found = position_map(trained_model(checkpoint, "c.pt"), length=5)
    assert (found.encoding, found.part, found.has_cls, found.untied) == ("ALiBi", "encoder", True, False)
    np.testing.assert_array_equal(found.scores[:, 0, 4], [-2.0, -1.0])
    assert "max_positions" not in function_options(cfg)
    assert torch.isfinite(encoder(torch.tensor([[0, 3, 3, 2]]))[0]).all()
