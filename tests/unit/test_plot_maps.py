"""Test `embinit plot positions` and `correlations`: maps equal the model's, patterns, figures, errors."""

from __future__ import annotations

import gzip
import math
import sys
from argparse import Namespace

import numpy as np
import pytest
import torch
from expand_checkpoints import replaced
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import ARCHITECTURES, WIDER_DECODER, plain, task_of

from embinit_fairseq.analysis.correlations import TERMS, first_layer
from embinit_fairseq.analysis.positions import PATTERNS, head_patterns, position_map
from embinit_fairseq.analysis.trained_model import trained_model
from embinit_fairseq.errors import EmbinitError
from embinit_fairseq.figures import limits, title

HEADS, LONGEST, WORDS = 2, 10, 6
ENCODERS = ARCHITECTURES["tupe"].variants
RELATIVE = {"rel_pos": True, "rel_pos_bins": 8, "max_rel_pos": 12}


def trained(name: str = "tupe", **options) -> tuple[dict, torch.nn.Module]:
    """A checkpoint of a tiny model with the words w0 ... w5, and the model."""
    architecture = ARCHITECTURES[name]
    model = architecture.randomised(task_of(WORDS, masking=architecture.task == "masked_lm"), **options)
    return {"args": None, "cfg": {"model": plain(model.cfg)}, "model": model.state_dict()}, model


def bert_a(**options) -> tuple[dict, torch.nn.Module]:
    checkpoint, model = trained(position_encoding="added", **options)
    return checkpoint, model.encoder.sentence_encoder


def map_of(checkpoint: dict, *arguments, **options):
    return position_map(trained_model(checkpoint, "c.pt"), *arguments, **options)


def bias(module: torch.nn.Module, length: int = LONGEST) -> np.ndarray | None:
    scores = module.positions.bias(length)
    return None if scores is None else scores.detach().numpy()


@pytest.fixture
def plot(tmp_path):
    """The arguments of `embinit plot FIGURE` for a checkpoint that is saved."""

    def argv(figure: str, checkpoint: dict) -> list[str]:
        torch.save(checkpoint, tmp_path / "c.pt")
        return ["plot", figure, "--checkpoint", str(tmp_path / "c.pt"), "--output", str(tmp_path / "p.png")]

    return argv


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/runs/a.seed1/checkpoints/checkpoint_best.pt", "a.seed1/checkpoints/checkpoint_best.pt"),
        ("/runs/a/checkpoint_best.pt", "a/checkpoint_best.pt"),
        ("/checkpoints/c.pt", "checkpoints/c.pt"),
        ("/c.pt", "c.pt"),
    ],
)
def test_the_title_names_the_run_of_the_checkpoint(path, name):
    from matplotlib.figure import Figure

    figure = Figure()
    title(figure, path, "four heads")
    assert figure.get_suptitle() == f"four heads\n{name}"


def panels_of(figure) -> list:
    return [axes for axes in figure.axes if axes.get_title()]


@pytest.mark.parametrize("variant", ENCODERS)
def test_the_map_is_what_the_model_adds(variant):
    """Encodings that add nothing to the logits have none."""
    checkpoint, model = trained(**ENCODERS[variant])
    encoder = model.encoder.sentence_encoder
    if bias(encoder) is None:
        with pytest.raises(EmbinitError, match="no map"):
            map_of(checkpoint)
        return
    for length in (3, None):
        found = map_of(checkpoint, length=length)
        np.testing.assert_allclose(found.scores, bias(encoder, length or LONGEST), rtol=1e-12)
    assert found.encoding.split(",")[0] == variant.split(",")[0]
    assert (found.has_cls, found.untied) == (True, variant.startswith("TUPE") and "tie-cls" not in variant)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("TUPE-A", WIDER_DECODER),
        ("TUPE-R", RELATIVE),
        ("ALiBi", {"positions": "alibi"}),
        ("ALiBi", {"positions": "alibi", **WIDER_DECODER}),
    ],
    ids=str,
)
def test_translation_has_a_map_in_both_parts_and_a_decoder_does_not_see_ahead(name, options):
    checkpoint, model = trained("tupe_transformer", **options)
    past = np.tri(LONGEST, dtype=bool)
    for part in ("encoder", "decoder"):
        found, expected = map_of(checkpoint, part, LONGEST), bias(getattr(model, part))
        np.testing.assert_allclose(found.scores[:, past], expected[:, past], rtol=1e-12)
        assert np.isneginf(found.scores[:, ~past]).all() == (part == "decoder")
        assert (found.part, found.has_cls, found.encoding) == (part, False, name)


def test_a_map_without_a_matrix_of_positions_is_as_long_as_its_part():
    checkpoint, _ = trained("tupe_transformer", positions="alibi", max_source_positions=6, max_target_positions=9)
    assert [map_of(checkpoint, part).scores.shape[-1] for part in ("encoder", "decoder")] == [6, 9]


@pytest.mark.parametrize("rotary", [False, True])
def test_a_rotary_models_map_says_what_it_leaves_out(plot, printed, shown, figures, rotary):
    checkpoint, _ = trained(rotary=rotary)
    assert ("rotation" in printed(*plot("positions", checkpoint))["left_out"]) == rotary
    assert ("not in the map: the rotation" in shown(*plot("positions", checkpoint))) == rotary
    assert ("without the rotation" in figures[0].get_suptitle()) == rotary


def test_the_figure_has_one_panel_per_head_with_its_pattern(plot, printed, figures):
    checkpoint, model = trained(encoder_embed_dim=12, encoder_attention_heads=6)
    record = printed(*plot("positions", checkpoint))
    panels, expected = panels_of(figures[0]), bias(model.encoder.sentence_encoder)
    assert [axes.get_title() for axes in panels] == [f"head {h['head']}: {h['pattern']}" for h in record["heads"]]
    for axes, scores in zip(panels, expected):
        np.testing.assert_allclose(axes.images[0].get_array(), scores)
        assert len(axes.lines) == 2  # after the row and the column of [CLS]
    assert limits(np.array([np.nan, *range(101)])) == (1.0, 99.0)  # without the outermost hundredth on either side
    assert limits(np.ones(3)) == (0.5, 1.5)
    ((low, high),) = {axes.images[0].get_clim() for axes in panels}
    assert (low, panels[0].images[0].get_cmap().name) == (-high, "RdBu_r")  # white is 0
    numbers = dict(arch="tupe_tiny", encoding="TUPE-A", part="encoder", length=LONGEST, causal=False, cls_untied=True)
    assert record.items() >= numbers.items()
    for head, scores in zip(record["heads"], expected):
        shares = np.exp(scores[1:, 0]) / np.exp(scores[1:]).sum(axis=1)
        numbers = [head[key] for key in ("from_cls", "to_cls", "max", "cls_share")]
        assert numbers == pytest.approx([scores[0, 4], scores[4, 0], scores[1:, 1:].max(), shares.mean()])
    printed(*plot("positions", checkpoint), "--softmax")
    for axes, scores in zip(panels_of(figures[1]), expected):
        attention = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(axes.images[0].get_array(), attention * LONGEST)  # uniform attention is 1
        low, high = axes.images[0].get_clim()
        assert low == pytest.approx(1 / high)  # white is 1


def test_what_cannot_be_drawn(refused, tmp_path, plot, monkeypatch):
    good, translates = trained()[0], trained("tupe_transformer")[0]
    stock = {"cfg": {"model": Namespace(arch="transformer_iwslt_de_en")}, "model": {"encoder.version": torch.ones(1)}}
    name = "encoder.sentence_encoder.positions.absolute.layer_norm.bias"
    diverged = {**good["model"], name: torch.full((8,), np.nan)}
    for state, flags, part in (
        (good, ["--checkpoint", tmp_path / "no.pt"], f"--checkpoint {tmp_path}/no.pt: no such file"),
        (good, ["--checkpoint", tmp_path], f"--checkpoint {tmp_path}: a folder"),
        ({"model": good["model"]}, [], "lacks the model's options"),
        ({**good, "model": diverged}, [], "layer_norm.bias holds NaN"),
        (stock, [], "transformer_iwslt_de_en, which has no positional correlation"),
        (bert_a()[0], [], "embinit plot correlations"),
        (trained(position_encoding="none")[0], [], "no map: it has no positions"),
        (trained("tupe_transformer", positions="rope")[0], [], "depend on words"),
        (good, ["--part", "decoder"], f"--part decoder: {tmp_path}/c.pt (tupe_tiny)"),
        (good, ["--output", tmp_path / "p.pdf"], "ends in .png"),
        (good, ["--output", tmp_path / "no/p.png"], "mkdir"),
        (good, ["--length", 2], "--length 2: "),  # two and [CLS]
        (good, ["--length", 11], "--length 11: "),
        (translates, ["--length", 1], "has 2 to 48 positions"),
    ):
        assert part in refused(*replaced(plot("positions", state), *flags))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install matplotlib" in refused(*plot("positions", good))


# ---- Patterns


def offsets(n: int) -> np.ndarray:
    return np.arange(n) - np.arange(n)[:, None]  # key - query


def bump(centre: float, width: float, n: int) -> np.ndarray:
    """(n, n): a Gaussian around query + centre; both as shares of n."""
    return -(((offsets(n) / n - centre) / width) ** 2) / 2


KNOWN = [
    ("globally", lambda n: np.zeros((n, n))),
    ("globally", lambda n: 0.5 * np.sin(np.arange(n)) + np.zeros((n, 1))),
    ("locally", lambda n: bump(0, 0.03, n)),
    ("locally", lambda n: 12.0 * (abs(offsets(n)) == n // 8)),  # farther than it is wide, and near
    ("broadly", lambda n: bump(0, 0.12, n)),
    ("previous", lambda n: bump(-0.12, 0.04, n)),
    ("previous", lambda n: 3.0 * (offsets(n) < 0)),
    ("next", lambda n: bump(0.12, 0.04, n)),
    ("next", lambda n: 12.0 * (offsets(n) == 1)),
    ("other", lambda n: 12.0 * (np.arange(n) == n // 2) + np.zeros((n, 1))),
]
seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=6)
@given(seed=seeds, n=st.sampled_from((16, 63, 120)))
def test_names_of_known_maps_survive_small_noise(seed, n):
    generator, scores = np.random.default_rng(seed), np.stack([case(n) for _, case in KNOWN])
    # a shift of a whole row means nothing to a softmax, whatever its size
    noise = generator.normal(0, 0.1, scores.shape) + generator.normal(0, 5, (*scores.shape[:2], 1))
    for changed in (scores, scores + noise):
        assert [pattern.name for pattern in head_patterns(changed)] == [name for name, _ in KNOWN]


def plain_numbers(scores: np.ndarray) -> tuple[float, float, float, float]:
    """width, keys, direction, distance of one head, with loops."""
    n = len(scores)
    spread = allowed = direction = distance = uniform = 0.0
    for i in range(n):
        seen = [j for j in range(n) if scores[i, j] > -math.inf]
        total = sum(math.exp(scores[i, j]) for j in seen)
        weights = {j: math.exp(scores[i, j]) / total for j in seen}
        spread += math.exp(-sum(w * math.log(w) for w in weights.values() if w))
        allowed += len(seen)
        direction += sum(w * np.sign(j - i) for j, w in weights.items())
        distance += sum(w * abs(i - j) for j, w in weights.items())
        uniform += sum(abs(i - j) for j in seen) / len(seen)
    return spread / allowed, spread / n, direction / n, distance / uniform


@settings(max_examples=25)
@given(seed=seeds, n=st.integers(2, 7), size=st.floats(0, 20), causal=st.booleans())
def test_numbers_against_a_plain_statement(seed, n, size, causal):
    scores = np.random.default_rng(seed).normal(0, size, (3, n, n))
    if causal:
        scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)
    for pattern, head in zip(head_patterns(scores), scores):
        found = (pattern.width, pattern.keys, pattern.direction, pattern.distance)
        assert found == pytest.approx(plain_numbers(head), abs=1e-12)
        assert pattern.name in PATTERNS


# ---- Correlations

TOKENS = [0, 4, 6, 3, 5, 9, 2]
D = 4


def model_logits(encoder, tokens) -> torch.Tensor:
    """(HEADS, T, T): what the first attention of the real encoder computes before its softmax."""
    attention, caught = encoder.layers[0].self_attn, []
    attention.qkv_proj.register_forward_hook(lambda module, given, result: caught.append(result[0]))
    with torch.no_grad():
        encoder(torch.tensor([tokens]))
    q, k, _ = caught[0].chunk(3, dim=-1)
    q, k = (x.view(len(tokens), HEADS, D).transpose(0, 1) for x in (q, k))
    return attention.scale * q @ k.transpose(1, 2)


def split_norms(word, position, norms):
    """The parts of word, position and neither after layer norms with (gain, bias), for one token (C,)."""
    parts = [word, position, np.zeros_like(word)]
    for gain, bias in norms:
        deviation = np.sqrt(sum(parts).var() + 1e-5)
        parts = [gain * (part - part.mean()) / deviation for part in parts]
        parts[2] = parts[2] + bias
    return parts


@pytest.mark.parametrize(("embedding_normalize", "normalize_before"), [(False, False), (True, False), (True, True)])
def test_each_term_against_a_plain_statement_and_their_sum_against_the_model(embedding_normalize, normalize_before):
    checkpoint, encoder = bert_a(embedding_normalize=embedding_normalize, encoder_normalize_before=normalize_before)
    layer, logits = first_layer(trained_model(checkpoint, "c.pt")), model_logits(encoder, TOKENS)
    for head, expected in ((0, logits[0]), (1, logits[1]), (None, logits.mean(0))):
        torch.testing.assert_close(layer.terms(TOKENS, head).sum(0), expected, rtol=1e-11, atol=1e-11)
    w = {key.removeprefix("encoder.sentence_encoder."): value.numpy() for key, value in checkpoint["model"].items()}
    names = ["emb_layer_norm"] * embedding_normalize + ["layers.0.self_attn_layer_norm"] * normalize_before
    norms = [(w[f"{name}.weight"], w[f"{name}.bias"]) for name in names]
    weight, bias = (w[f"layers.0.self_attn.qkv_proj.{name}"].reshape(3, HEADS, D, -1) for name in ("weight", "bias"))
    query, key, query_bias, key_bias = weight[0, 1], weight[1, 1], bias[0, 1, :, 0], bias[1, 1, :, 0]
    words, places = w["embed_tokens.weight"][TOKENS], w["positions.embed_positions.weight"]
    parts = [split_norms(word, place, norms) for word, place in zip(words, places)]
    found = layer.terms(TOKENS, 1).numpy()
    for i, (word_i, position_i, constant_i) in enumerate(parts):
        for j, (word_j, position_j, constant_j) in enumerate(parts):
            four = [(query @ a) @ (key @ b) for a in (word_i, position_i) for b in (word_j, position_j)]
            b_i, b_j = query @ constant_i + query_bias, key @ constant_j + key_bias
            rest = b_i @ (key @ (word_j + position_j)) + (query @ (word_i + position_i)) @ b_j + b_i @ b_j
            np.testing.assert_allclose(found[:, i, j], np.array([*four, rest]) / np.sqrt(D), rtol=1e-9, atol=1e-9)


@pytest.fixture
def argv(tmp_path, plot):
    """The command for a bert_a and its dictionary; a text next to them."""
    (tmp_path / "text").write_text("w0 w1 w2\n\nw0 dog w2 w3 w4 w5\nw4 w5\n")
    (tmp_path / "dict.txt").write_text("".join(f"w{number} 5\n" for number in range(WORDS)))
    return [*plot("correlations", bert_a()[0]), "--dict", str(tmp_path / "dict.txt")]


def test_a_text_is_averaged_over_the_sentences_that_reach_a_place(printed, tmp_path, argv, figures):
    sentences = [[0, 4, 5, 6, 2], [0, 4, 3, 6, 7, 8, 9, 2], [0, 8, 9, 2]]
    layer, each = first_layer(trained_model(bert_a()[0], "c.pt")), [np.full((len(TERMS), 8, 8), np.nan) for _ in "123"]
    for padded, tokens in zip(each, sentences):
        padded[:, : len(tokens), : len(tokens)] = layer.terms(tokens)
    terms = np.nanmean(each, axis=0)
    (tmp_path / "text.gz").write_bytes(gzip.compress((tmp_path / "text").read_bytes()))
    record = printed(*argv, "--text", tmp_path / "text.gz", "--own-scale")
    assert [axes.get_title() for axes in panels_of(figures[0])] == list(TERMS[:4])
    numbers = {"mean": terms[0].mean(), "std": terms[0].std(), "std_over_keys": terms[0].var(axis=1).mean() ** 0.5}
    assert record["terms"][TERMS[0]] == pytest.approx(numbers)
    for axes, term in zip(panels_of(figures[0]), terms):
        np.testing.assert_allclose(axes.images[0].get_array(), term)
    assert len(figures[0].axes) == 8  # a colour bar each
    assert (record["head"], record["sentences"], record["sentences_of_full_length"]) == ("mean", 3, 1)
    shorter = printed(*argv, "--text", tmp_path / "text", "--sentences", 2, "--length", 4)
    assert (shorter["sentences"], shorter["length"], shorter["sentences_of_full_length"]) == (2, 4, 2)


def test_what_has_no_correlations(refused, tmp_path, argv, plot):
    (tmp_path / "long").write_text("w0 w1\n" + 11 * "w0 ")
    for flags, part in (
        (["--sentence", "Le chat"], "--sentence: none of its words is in --dict"),
        (["--sentence", "  "], "--sentence: no words in it"),
        (["--text", tmp_path / "long"], "long, line 2: 13 tokens"),
        (["--sentence", "w0", "--layer", 2], "--layer 2: "),
        (["--sentence", "w0", "--head", 3], "--head 3: the model has heads 1 to 2"),
        (["--sentence", "w0", "--length", 1], "--length 1: "),
    ):
        assert part in refused(*argv, *flags)
    (tmp_path / "dict.txt").write_text("w0 5\nw1 5\n")
    assert "6 rows with" in refused(*argv, "--sentence", "w0 w1")
    plot("correlations", trained()[0])
    assert "embinit plot positions" in refused(*argv, "--sentence", "w0 w1")
