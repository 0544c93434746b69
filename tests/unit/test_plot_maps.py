"""Test `embinit plot positions` and `correlations`: maps equal the model's, patterns, figures, errors."""

from __future__ import annotations

import gzip
import math
import sys
from argparse import Namespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from embinit_fairseq.analysis.correlations import TERMS, first_layer
from embinit_fairseq.analysis.positions import PATTERNS, head_patterns, position_map
from embinit_fairseq.analysis.trained_model import trained_model
from embinit_fairseq.errors import CheckpointError
from embinit_fairseq.figures import limits
from embinit_fairseq.modules import position_encoding as encodings
from embinit_fairseq.modules.encoder_layer import LayerConfig
from embinit_fairseq.modules.sentence_encoder import EncoderConfig, SentenceEncoder

C, HEADS, LONGEST = 8, 2, 12
D = C // HEADS
WORDS = ["the", "cat", "sat", "on", "a", "mat"]
POSITIONS = "encoder.sentence_encoder.positions."
#: options of tupe_* that fairseq-train writes, as far as figures need them
OPTIONS = {"_name": "tupe_tiny", "position_encoding": "untied", "tupe_tie_cls": False, "tupe_reset": "official"}
OPTIONS |= {"max_rel_pos": 6, "encoder_attention_heads": HEADS, "max_positions": LONGEST}


def randomised(module: nn.Module, seed: int = 0) -> nn.Module:
    """In double precision, every parameter N(0, 1): gains and biases too, which start as ones and zeros."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.double().parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return module.eval()


def untied(reset: str | None = "official", num_buckets: int = 0, seed: int = 0, sizes=(C, HEADS, LONGEST), **options):
    """Positions of TUPE-A or TUPE-R."""
    given = {"reset": reset, "num_buckets": num_buckets, "max_distance": 6, **options}
    return randomised(encodings.UntiedPositions(encodings.PositionSizes(*sizes, **given)), seed)


def checkpoint(prefix: str, module: nn.Module, **options) -> dict:
    """What fairseq-train would write, as far as it is read here."""
    state = {f"{prefix}{name}": value for name, value in module.state_dict().items()}
    state.setdefault(f"{prefix.removesuffix('positions.')}embed_tokens.weight", torch.zeros(1, 1))
    return {"args": None, "cfg": {"_name": None, "model": {**OPTIONS, **options}}, "model": state}


def translation(num_buckets: int = 8) -> tuple[dict, dict]:
    """A checkpoint like those of tupe_transformer (other options, other names), and the positions of its parts."""
    parts = {"encoder": untied(None, num_buckets, 1), "decoder": untied(None, num_buckets, 2, bidirectional=False)}
    state = {f"{part}.positions.{key}": value for part in parts for key, value in parts[part].state_dict().items()}
    options = {"_name": "tupe_transformer", "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS}
    options |= {"max_rel_pos": 6, "max_source_positions": LONGEST, "max_target_positions": LONGEST}
    return {"cfg": {"model": options}, "model": state}, parts


def without_bias(kind: str) -> dict:
    """A checkpoint of an encoding that adds nothing to the logits."""
    return checkpoint(POSITIONS, encodings.POSITION_ENCODINGS[kind].build(SIZES), position_encoding=kind)


def bert_a(embedding_normalize: bool = True, normalize_before: bool = False) -> tuple[dict, SentenceEncoder]:
    """A checkpoint of bert_a_* and its encoder; the dictionary holds WORDS, and <mask> has a row."""
    layer = LayerConfig(embed_dim=C, ffn_embed_dim=C, num_heads=HEADS, normalize_before=normalize_before)
    table, positions = nn.Embedding(4 + len(WORDS) + 1, C, 1), encodings.AddedPositions(SIZES)
    encoder = randomised(SentenceEncoder(EncoderConfig(layer, 2, embedding_normalize), table, positions, bos=0))
    options = {"_name": "bert_a_tiny", "position_encoding": "added", "encoder_normalize_before": normalize_before}
    return checkpoint("encoder.sentence_encoder.", encoder, **options), encoder


def map_of(given: dict, *arguments, **options):
    return position_map(trained_model(given, "c.pt"), *arguments, **options)


def layer_of(given: dict):
    return first_layer(trained_model(given, "c.pt"))


def bias(module: nn.Module, length: int = LONGEST) -> np.ndarray:
    return module.bias(length).detach().numpy()


@pytest.fixture
def plot(tmp_path):
    """The arguments of `embinit plot FIGURE` for a checkpoint that is saved."""

    def argv(figure: str, given: dict) -> list[str]:
        torch.save(given, tmp_path / "c.pt")
        return ["plot", figure, "--checkpoint", str(tmp_path / "c.pt"), "--output", str(tmp_path / "p.png")]

    return argv


def panels_of(figure) -> list:
    return [axes for axes in figure.axes if axes.get_title()]


ENCODINGS = {
    "TUPE-A": (untied, {}),
    "TUPE-R": (lambda: untied(num_buckets=8), {}),
    "TUPE-R, as in the paper": (lambda: untied("paper", 8), {"tupe_reset": "paper"}),
    "TUPE-A, tied": (lambda: untied(None), {"tupe_tie_cls": True}),
    "TUPE-R, tied": (lambda: untied(None, 8), {"tupe_tie_cls": True}),
    "TUPE-A + RoPE": (untied, {"rotary": True}),
    "BERT-R": (
        lambda: randomised(encodings.AddedRelativePositions(SIZES)),
        {"position_encoding": "added_relative"},
    ),
}
SIZES = encodings.PositionSizes(C, HEADS, LONGEST, 8, 6)
#: and encodings without a line above that add a bias
ENCODINGS |= {
    known.name: (lambda known=known: randomised(known.build(SIZES)), {"position_encoding": kind})
    for kind, known in encodings.POSITION_ENCODINGS.items()
    if known.name not in ("TUPE", *ENCODINGS) and known.build(SIZES).bias(3) is not None
}


@pytest.mark.parametrize("name", ENCODINGS)
def test_the_map_is_what_the_model_adds(name):
    make, options = ENCODINGS[name]
    module = make()
    for length in (3, None):
        found = map_of(checkpoint(POSITIONS, module, **options), length=length)
        np.testing.assert_allclose(found.scores, bias(module, length or LONGEST), rtol=1e-12)
    assert found.encoding.split(",")[0] == name.split(",")[0]
    assert (found.has_cls, found.untied) == (True, name.startswith("TUPE") and "tied" not in name)


@pytest.mark.parametrize("num_buckets", [0, 8])
def test_translation_has_a_map_in_both_parts_and_a_decoder_does_not_see_ahead(num_buckets):
    given, parts = translation(num_buckets)
    past = np.tri(LONGEST, dtype=bool)
    for part in ("encoder", "decoder"):
        found = map_of(given, part)
        np.testing.assert_allclose(found.scores[:, past], bias(parts[part])[:, past], rtol=1e-12)
        assert np.isneginf(found.scores[:, ~past]).all() == (part == "decoder")
        assert (found.part, found.has_cls, found.encoding) == (part, False, "TUPE-R" if num_buckets else "TUPE-A")


def test_translation_with_positions_without_parameters():
    state = {f"{part}.embed_tokens.weight": torch.zeros(1, 1) for part in ("encoder", "decoder")}
    given = {**translation(0)[0], "model": state}
    given["cfg"]["model"]["positions"] = "alibi"
    expected = bias(encodings.AlibiPositions(SIZES).double())
    for part in state:
        found, seen = map_of(given, part.split(".")[0]), np.tri(LONGEST, dtype=bool) | part.startswith("e")
        np.testing.assert_array_equal(found.scores, np.where(seen, expected, -np.inf))
        assert (found.encoding, found.has_cls) == ("ALiBi", False)
    given["cfg"]["model"]["positions"] = "rope"
    with pytest.raises(CheckpointError, match="depend on words"):
        map_of(given)


def test_checkpoints_that_do_not_suit():
    good = checkpoint(POSITIONS, untied())
    diverged = {**good["model"], f"{POSITIONS}absolute.layer_norm.bias": torch.full((C,), np.nan)}
    for state, expected in (
        ({"model": good["model"]}, "lacks the model's options"),
        ({**good, "model": diverged}, "layer_norm.bias holds NaN"),
    ):
        with pytest.raises(CheckpointError, match=rf"c\.pt.*{expected}"):
            map_of(state)


def test_the_figure_has_one_panel_per_head_with_its_pattern(plot, printed, figures):
    heads = untied(sizes=(12, 6, 9))
    record = printed(*plot("positions", checkpoint(POSITIONS, heads, encoder_attention_heads=6)))
    panels, expected = panels_of(figures[0]), bias(heads, 9)
    assert [axes.get_title() for axes in panels] == [f"head {h['head']}: {h['pattern']}" for h in record["heads"]]
    for axes, scores in zip(panels, expected):
        np.testing.assert_allclose(axes.images[0].get_array(), scores)
        assert len(axes.lines) == 2  # after the row and the column of [CLS]
    assert limits(np.array([np.nan, *range(101)])) == (1.0, 99.0)  # without the outermost hundredth on either side
    assert limits(np.ones(3)) == (0.5, 1.5)
    ((low, high),) = {axes.images[0].get_clim() for axes in panels}
    assert (low, panels[0].images[0].get_cmap().name) == (-high, "RdBu_r")  # white is 0
    numbers = dict(arch="tupe_tiny", encoding="TUPE-A", part="encoder", length=9, causal=False, cls_untied=True)
    assert record.items() >= numbers.items()
    for head, scores in zip(record["heads"], expected):
        shares = np.exp(scores[1:, 0]) / np.exp(scores[1:]).sum(axis=1)
        numbers = [head[key] for key in ("from_cls", "to_cls", "max", "cls_share")]
        assert numbers == pytest.approx([scores[0, 4], scores[4, 0], scores[1:, 1:].max(), shares.mean()])


def test_what_cannot_be_drawn(refused, tmp_path, plot, monkeypatch):
    good, other = checkpoint(POSITIONS, untied()), translation()[0]
    stock = {"cfg": {"model": Namespace(arch="transformer_iwslt_de_en")}, "model": {"encoder.version": torch.ones(1)}}
    for state, flags, part in (
        (good, ["--checkpoint", tmp_path / "no.pt"], f"--checkpoint {tmp_path}/no.pt: no such file"),
        (good, ["--checkpoint", tmp_path], f"--checkpoint {tmp_path}: a folder"),
        (stock, [], "transformer_iwslt_de_en, which has no positional correlation"),
        (bert_a()[0], [], "embinit plot correlations"),
        *(
            (without_bias(kind), [], f"no map{more}")
            for kind, more in (("rope", ""), ("none", ": it has no positions"))
        ),
        (good, ["--part", "decoder"], f"--part decoder: {tmp_path}/c.pt (tupe_tiny)"),
        (good, ["--output", tmp_path / "p.pdf"], "ends in .png"),
        (good, ["--output", tmp_path / "no/p.png"], "mkdir"),
        *((good, ["--length", size], f"--length {size}: ") for size in (2, 13)),  # two and [CLS]
        (other, ["--length", 1], "has 2 to 12 positions"),
    ):
        assert part in refused(*plot("positions", state), *flags)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install matplotlib" in refused(*plot("positions", good))


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
    *((name, lambda n, s=s: bump(s * 0.12, 0.04, n)) for name, s in (("previous", -1), ("next", 1))),
    *((name, lambda n, s=s: 3.0 * (s * offsets(n) > 0)) for name, s in (("previous", -1), ("next", 1))),
    *((name, lambda n, s=s: 12.0 * (offsets(n) == s)) for name, s in (("previous", -1), ("next", 1))),
    ("other", lambda n: 12.0 * (np.arange(n) == n // 2) + np.zeros((n, 1))),
]
seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=10)
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


@settings(max_examples=40)
@given(seed=seeds, n=st.integers(2, 7), size=st.floats(0, 20), causal=st.booleans())
def test_numbers_against_a_plain_statement(seed, n, size, causal):
    scores = np.random.default_rng(seed).normal(0, size, (3, n, n))
    if causal:
        scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)
    for pattern, head in zip(head_patterns(scores), scores):
        found = (pattern.width, pattern.keys, pattern.direction, pattern.distance)
        assert found == pytest.approx(plain_numbers(head), abs=1e-12)
        assert pattern.name in PATTERNS


TOKENS = [0, 4, 6, 3, 5, 9, 2]


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
    given, encoder = bert_a(embedding_normalize, normalize_before)
    layer, logits = layer_of(given), model_logits(encoder, TOKENS)
    for head, expected in ((0, logits[0]), (1, logits[1]), (None, logits.mean(0))):
        torch.testing.assert_close(layer.terms(TOKENS, head).sum(0), expected, rtol=1e-11, atol=1e-11)
    w = {key.removeprefix("encoder.sentence_encoder."): value.numpy() for key, value in given["model"].items()}
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
    (tmp_path / "text").write_text("the cat sat\n\nthe dog sat on a mat\na mat\n")
    (tmp_path / "dict.txt").write_text("".join(f"{word} 5\n" for word in WORDS))
    return [*plot("correlations", bert_a()[0]), "--dict", str(tmp_path / "dict.txt")]


def test_a_text_is_averaged_over_the_sentences_that_reach_a_place(printed, tmp_path, argv, figures):
    sentences, layer = [[0, 4, 5, 6, 2], [0, 4, 3, 6, 7, 8, 9, 2], [0, 8, 9, 2]], layer_of(bert_a()[0])
    each = [np.full((len(TERMS), 8, 8), np.nan) for _ in sentences]
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
    (tmp_path / "long").write_text("the cat\n" + 11 * "the ")
    for flags, part in (
        (["--sentence", "Le chat"], "--sentence: none of its words is in --dict"),
        (["--sentence", "  "], "--sentence: no words in it"),
        (["--text", tmp_path / "long"], "long, line 2: 13 tokens"),
        (["--sentence", "the", "--layer", 2], "--layer 2: "),
        (["--sentence", "the", "--head", 3], "--head 3: the model has heads 1 to 2"),
        (["--sentence", "the", "--length", 1], "--length 1: "),
    ):
        assert part in refused(*argv, *flags)
    plot("correlations", checkpoint(POSITIONS, untied()))
    assert "embinit plot positions" in refused(*argv, "--sentence", "the cat")
    plot("correlations", bert_a()[0])
    (tmp_path / "dict.txt").write_text("the 5\ncat 5\nsat 5\non 5\n")
    assert "8 rows with" in refused(*argv, "--sentence", "the cat")
