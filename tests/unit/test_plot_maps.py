"""`embinit plot positions` and `correlations`: maps are those of the model, patterns have names, pictures, errors."""

from __future__ import annotations

import gzip
import math
from argparse import Namespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from embinit_fairseq.analysis.correlations import TERMS, first_layer, mean_terms, term_statistics
from embinit_fairseq.analysis.position_maps import position_map
from embinit_fairseq.analysis.position_patterns import PATTERNS, head_patterns
from embinit_fairseq.analysis.trained_model import trained_model
from embinit_fairseq.errors import CheckpointError, OptionError
from embinit_fairseq.modules import position_encoding as encodings
from embinit_fairseq.modules.encoder_layer import LayerConfig
from embinit_fairseq.modules.sentence_encoder import EncoderConfig, SentenceEncoder

C, HEADS, LONGEST = 8, 2, 12
D = C // HEADS
WORDS = ["the", "cat", "sat", "on", "a", "mat"]
POSITIONS = "encoder.sentence_encoder.positions."
#: options of tupe_* that fairseq-train writes, as far as pictures read them
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
    return randomised(encodings.untied_positions(*sizes, **given), seed)


def checkpoint(prefix: str, module: nn.Module, **options) -> dict:
    """What fairseq-train would write, as far as it is read here."""
    state = {f"{prefix}{name}": value for name, value in module.state_dict().items()}
    return {"args": None, "cfg": {"_name": None, "model": {**OPTIONS, **options}}, "model": state}


def translation(num_buckets: int = 8) -> tuple[dict, dict]:
    """A checkpoint like those of tupe_transformer (other options, other names), and the positions of its parts."""
    parts = {"encoder": untied(None, num_buckets, 1), "decoder": untied(None, num_buckets, 2, bidirectional=False)}
    state = {f"{part}.positions.{key}": value for part in parts for key, value in parts[part].state_dict().items()}
    options = {"_name": "tupe_transformer", "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS}
    options |= {"max_rel_pos": 6, "max_source_positions": LONGEST, "max_target_positions": LONGEST}
    return {"cfg": {"model": options}, "model": state}, parts


def bert_a(embedding_normalize: bool = True, normalize_before: bool = False) -> tuple[dict, SentenceEncoder]:
    """A checkpoint of bert_a_* and its encoder; the dictionary holds WORDS, and <mask> has a row."""
    layer = LayerConfig(embed_dim=C, ffn_embed_dim=C, num_heads=HEADS, normalize_before=normalize_before)
    table, positions = nn.Embedding(4 + len(WORDS) + 1, C, 1), encodings.AddedPositions(C, LONGEST)
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
    """The arguments of `embinit plot PICTURE` for a checkpoint that is saved."""

    def argv(picture: str, given: dict) -> list[str]:
        torch.save(given, tmp_path / "c.pt")
        return ["plot", picture, "--checkpoint", str(tmp_path / "c.pt"), "--output", str(tmp_path / "p.png")]

    return argv


def panels_of(figure) -> list:
    return [axes for axes in figure.axes if axes.get_title()]


ENCODINGS = {
    "TUPE-A": (untied, {}),
    "TUPE-R": (lambda: untied(num_buckets=8), {}),
    "TUPE-R, as in the paper": (lambda: untied("paper", 8), {"tupe_reset": "paper"}),
    "TUPE-A, tied": (lambda: untied(None), {"tupe_tie_cls": True}),
    "TUPE-R, tied": (lambda: untied(None, 8), {"tupe_tie_cls": True}),
    "BERT-R": (lambda: randomised(encodings.RelativePositions(HEADS, 8, 6)), {"position_encoding": "relative"}),
}


@pytest.mark.parametrize("name", ENCODINGS)
def test_the_map_is_what_the_model_adds(name):
    make, options = ENCODINGS[name]
    module = make()
    for length in (3, None):
        found = map_of(checkpoint(POSITIONS, module, **options), length=length)
        np.testing.assert_allclose(found.scores, bias(module, length or LONGEST), rtol=1e-12)
    assert found.encoding.split(",")[0] == name.split(",")[0]
    assert (found.has_cls, found.untied) == (True, "tied" not in name and name != "BERT-R")
    np.testing.assert_array_equal(found.ordinary, found.scores[:, 1:, 1:])


@pytest.mark.parametrize("num_buckets", [0, 8])
def test_translation_has_a_map_in_both_parts_and_a_decoder_does_not_see_ahead(num_buckets):
    given, parts = translation(num_buckets)
    past = np.tri(LONGEST, dtype=bool)
    for part in ("encoder", "decoder"):
        found = map_of(given, part)
        np.testing.assert_allclose(found.scores[:, past], bias(parts[part])[:, past], rtol=1e-12)
        assert np.isneginf(found.scores[:, ~past]).all() == (part == "decoder")
        assert (found.part, found.has_cls, found.encoding) == (part, False, "TUPE-R" if num_buckets else "TUPE-A")
    assert map_of(given).part == "encoder"


def test_electras_generator_half_precision_and_options_of_the_old_kind():
    module, small = untied().half(), untied(sizes=(4, 1, LONGEST))
    given = checkpoint(POSITIONS, module, generator_attention_heads=1)
    given["model"] |= {f"generator.sentence_encoder.positions.{k}": v for k, v in small.state_dict().items()}
    found = map_of(given, "generator", 5)
    np.testing.assert_allclose(found.scores, bias(small, 5), rtol=1e-12)
    assert found.has_cls
    given["args"] = Namespace(arch="tupe_base", **given.pop("cfg")["model"])
    assert trained_model(given, "c.pt").arch == "tupe_base"
    np.testing.assert_allclose(map_of(given).scores, bias(module.double()), rtol=1e-12)


class Slopes(encodings.PositionEncoding):
    """ALiBi (Press et al. 2022): minus a head's slope times the distance, without a parameter."""

    def bias(self, tgt_len: int) -> torch.Tensor:
        places = torch.arange(tgt_len, dtype=torch.float64)
        return -torch.tensor([0.5, 0.25])[:, None, None] * (places - places[:, None]).abs()


def test_an_encoding_without_parameters_has_a_map(monkeypatch):
    known = encodings.KnownEncoding("ALiBi", "slopes", lambda sizes: Slopes())
    monkeypatch.setitem(encodings.POSITION_ENCODINGS, "slopes", known)
    table = nn.ModuleDict({"embed_tokens": nn.Embedding(5, C)})
    found = map_of(checkpoint("encoder.sentence_encoder.", table, position_encoding="slopes"), length=5)
    assert (found.encoding, found.part, found.has_cls, found.untied) == ("ALiBi", "encoder", True, False)
    np.testing.assert_array_equal(found.scores[:, 0, 4], [-2.0, -1.0])


def put(name: str, *shape: int, value: object = None):
    return lambda c: c["model"].update({name: torch.ones(shape) if value is None else value})


ABSOLUTE, LAYER = POSITIONS + "absolute.", "encoder.sentence_encoder.layers.0.self_attn.qkv_proj."


def option(**changes):
    return lambda c: c["cfg"]["model"].update(changes)


POSITIONS_DAMAGED = [
    (lambda c: c.pop("model"), "lacks a model"),
    (lambda c: c.pop("cfg"), "lacks the model's options"),
    (lambda c: c["cfg"]["model"].pop("tupe_reset"), "options of its tupe_tiny lack tupe_reset"),
    (option(encoder_attention_heads=3), "not fit its options"),
    (option(encoder_attention_heads=0), "encoder_attention_heads is 0, not a number"),
    (option(encoder_attention_heads="two"), "encoder_attention_heads is 'two', not a"),
    (option(tupe_reset="ours"), "tupe_reset is 'ours', none of official, paper"),
    (lambda c: c["model"].pop(ABSOLUTE + "q_proj.bias"), "absolute.q_proj.bias"),
    (lambda c: c["model"][ABSOLUTE + "layer_norm.bias"].fill_(np.nan), "layer_norm.bias holds NaN"),
    (put(ABSOLUTE + "q_proj.bias", value=[1.0]), "q_proj.bias is a list, not a tensor"),
    (put(ABSOLUTE + "embed_positions.weight", 3), "weight is not a matrix"),
    *((option(max_rel_pos=far), "(its option|the options in it cannot be .*) ?.*max.rel.pos") for far in (0, 2, True)),
]
LAYER_DAMAGED = [
    (lambda c: c["model"].pop("encoder.sentence_encoder.embed_tokens.weight"), "first layer is incomplete"),
    (lambda c: c["model"].pop(LAYER + "bias"), "is incomplete"),
    (option(encoder_attention_heads=3), "do not fit each other"),
    (option(encoder_attention_heads=0), "encoder_attention_heads is 0"),
    (put("encoder.sentence_encoder.embed_tokens.weight", 8), "embed_tokens.weight is not a matrix"),
    (put(POSITIONS + "embed_positions.weight", 12, 7), "do not fit each other"),
    (put(LAYER + "weight", 24, 7), "do not fit each other"),
    (put(LAYER + "bias", 15), "do not fit each other"),
    (put("encoder.sentence_encoder.emb_layer_norm.bias", 7), "do not fit each other"),
]


@pytest.mark.parametrize(("change", "expected"), [*POSITIONS_DAMAGED, *LAYER_DAMAGED])
def test_damaged_checkpoints(change, expected):
    of_layer = (change, expected) in LAYER_DAMAGED
    given = bert_a()[0] if of_layer else checkpoint(POSITIONS, untied(num_buckets=8 * ("max.rel" in expected)))
    change(given)
    with pytest.raises(CheckpointError, match=rf"c\.pt.*{expected}"):
        layer_of(given) if of_layer else map_of(given)


@pytest.mark.parametrize(("cls", "expected"), [(True, "3 to 12"), (False, "2 to 12")])
def test_lengths_that_the_model_does_not_have(plot, shown, cls, expected):
    """Two positions besides [CLS], which translation has not: less has no pattern, and is drawn by nobody."""
    given = checkpoint(POSITIONS, untied()) if cls else translation()[0]
    for length in (0, int(expected[0]) - 1, 13):
        with pytest.raises(OptionError, match=f"--length {length}: .* has {expected} positions"):
            map_of(given, length=length)
    assert shown(*plot("positions", given), "--length", expected[0], "--softmax")


def test_the_picture_has_a_panel_a_head_with_its_pattern(plot, printed, figures):
    heads = untied(sizes=(12, 6, 9))
    record = printed(*plot("positions", checkpoint(POSITIONS, heads, encoder_attention_heads=6)))
    panels, expected = panels_of(figures[0]), bias(heads, 9)
    assert [axes.get_title() for axes in panels] == [f"head {h['head']}: {h['pattern']}" for h in record["heads"]]
    # six panels in two rows of four columns: labels stand below the lowest and left of the first
    for number, (axes, scores) in enumerate(zip(panels, expected)):
        np.testing.assert_allclose(axes.images[0].get_array(), scores)
        assert len(axes.lines) == 2  # behind the row and the column of [CLS]
        labels = [[label.get_text() for label in get()[:1]] for get in (axes.get_xticklabels, axes.get_yticklabels)]
        assert labels == [["[CLS]"] * (number >= 2), ["[CLS]"] * (number in (0, 4))]
    assert len({axes.images[0].get_clim() for axes in panels}) == 1
    assert len(figures[0].axes) == 7  # one colour bar
    numbers = dict(arch="tupe_tiny", encoding="TUPE-A", part="encoder", length=9, causal=False, cls_untied=True)
    assert record.items() >= numbers.items()
    for head, scores in zip(record["heads"], expected):
        shares = np.exp(scores[1:, 0]) / np.exp(scores[1:]).sum(axis=1)
        numbers = [head[key] for key in ("from_cls", "to_cls", "max", "cls_share")]
        assert numbers == pytest.approx([scores[0, 4], scores[4, 0], scores[1:, 1:].max(), shares.mean()])


def test_the_attention_is_drawn_relative_to_uniform(plot, shown, figures):
    given, parts = translation()
    shown(*plot("positions", given), "--softmax", "--part", "decoder", "--length", 5)
    image, scores = figures[0].axes[0].images[0].get_array().filled(np.nan), bias(parts["decoder"], 5)[0]
    for query in range(5):
        weights = np.exp(scores[query, : query + 1])
        np.testing.assert_allclose(image[query, : query + 1], weights / weights.sum() * (query + 1))
    assert np.isnan(image[np.triu_indices(5, 1)]).all()
    assert figures[0].axes[0].lines[:] == []  # translation has no [CLS]


def test_many_heads_fit(plot, shown, figures):
    shown(*plot("positions", checkpoint(POSITIONS, untied(sizes=(34, 17, 6)), encoder_attention_heads=17)), "--softmax")
    (figure,) = figures
    figure.draw_without_rendering()
    assert len(panels_of(figure)) == 17
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    assert min(box.x0 for box in boxes) >= 0
    assert max(box.x1 for box in boxes) <= figure.bbox.width
    titles = [axes.title.get_window_extent() for axes in panels_of(figure)]
    assert not any(a.overlaps(b) for at, a in enumerate(titles) for b in titles[:at])


def test_what_cannot_be_drawn(refused, tmp_path, plot, monkeypatch):
    (tmp_path / "d.png").mkdir()
    good, added = checkpoint(POSITIONS, untied()), bert_a()[0]
    stock = {"cfg": {"model": Namespace(arch="transformer_iwslt_de_en")}, "model": {"encoder.version": torch.ones(1)}}
    four = {**added, "cfg": {"model": {"_name": "bert_ad_tiny", "position_encoding": "four_terms"}}}
    for state, flags, *parts in (
        (good, ["--checkpoint", tmp_path / "no.pt"], f"--checkpoint {tmp_path}/no.pt: no such file"),
        (good, ["--checkpoint", tmp_path], f"--checkpoint {tmp_path}: a folder", "checkpoint_best.pt"),
        (stock, [], "transformer_iwslt_de_en, which has no positional correlation"),
        (added, [], "bert_a_tiny (BERT-A", "embinit plot correlations"),
        (four, [], "bert_ad_tiny (BERT-A^d"),
        (good, ["--part", "decoder"], f"--part decoder: {tmp_path}/c.pt (tupe_tiny)"),
        (good, ["--output", tmp_path / "no/p.png"], f"there is no folder {tmp_path}/no"),
        (good, ["--output", tmp_path / "p.pdf"], "ends in .png"),
        (good, ["--output", tmp_path / "d.png"], "a folder; name a file"),
    ):
        error = refused(*plot("positions", state), *flags)
        assert all(part in error for part in parts), error
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    assert "need matplotlib" in refused(*plot("positions", good))
    assert not (tmp_path / "p.png").exists()


LENGTHS = (16, 63, 120)


def offsets(n: int) -> np.ndarray:
    return np.arange(n) - np.arange(n)[:, None]  # key - query


def bump(centre: float, width: float, n: int) -> np.ndarray:
    """(n, n): a Gaussian around query + centre; both as shares of n."""
    return -(((offsets(n) / n - centre) / width) ** 2) / 2


def at(n: int, *keys: int) -> np.ndarray:
    """Everybody looks at the same places."""
    return 12.0 * np.isin(np.arange(n), keys) + np.zeros((n, 1))


KNOWN = [
    ("globally", lambda n: np.zeros((n, n))),
    ("globally", lambda n: 0.5 * np.sin(np.arange(n)) + np.zeros((n, 1))),
    ("locally", lambda n: bump(0, 0.03, n)),
    ("locally", lambda n: 12.0 * (offsets(n) == 0)),
    ("broadly", lambda n: bump(0, 0.12, n)),
    *((name, lambda n, s=s: bump(s * 0.12, 0.04, n)) for name, s in (("previous", -1), ("next", 1))),
    *((name, lambda n, s=s: 3.0 * (s * offsets(n) > 0)) for name, s in (("previous", -1), ("next", 1))),
    *((name, lambda n, s=s: 12.0 * (offsets(n) == s)) for name, s in (("previous", -1), ("next", 1))),
    ("other", lambda n: at(n, n // 2)),
    ("other", lambda n: at(n, 0, n - 1)),
]
seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=10, deadline=None)
@given(seed=seeds, n=st.sampled_from(LENGTHS))
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


@settings(max_examples=40, deadline=None)
@given(seed=seeds, n=st.integers(2, 7), size=st.floats(0, 20), causal=st.booleans())
def test_numbers_against_a_plain_statement(seed, n, size, causal):
    scores = np.random.default_rng(seed).normal(0, size, (3, n, n))
    if causal:
        scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)
    for pattern, head in zip(head_patterns(scores), scores):
        found = (pattern.width, pattern.keys, pattern.direction, pattern.distance)
        assert found == pytest.approx(plain_numbers(head), abs=1e-12)
        assert pattern.name in PATTERNS


@pytest.mark.parametrize("n", LENGTHS)
def test_without_later_keys_there_is_no_direction(n):
    """In a decoder all lies before the query: names say how wide a head looks."""
    causal = np.where(np.tri(n, dtype=bool), 0.0, -np.inf)
    maps = [np.zeros((n, n)), bump(0, 0.02, n), 12.0 * (offsets(n) == -1), bump(0, 0.15, n), at(n, 0)]
    patterns = head_patterns(np.stack(maps) + causal)
    assert [pattern.name for pattern in patterns] == ["globally", "locally", "locally", "broadly", "other"]
    assert (patterns[0].width, patterns[0].distance) == pytest.approx((1, 1))
    with pytest.raises(OptionError, match="at least 2 positions"):
        head_patterns(np.zeros((1, 1, 1)))


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
    for head in range(HEADS):
        torch.testing.assert_close(layer.terms(TOKENS, head).sum(0), logits[head], rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(layer.terms(TOKENS).sum(0), logits.mean(0), rtol=1e-11, atol=1e-11)
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
    halves = {**given, "model": {name: value.half() for name, value in given["model"].items()}}
    torch.testing.assert_close(layer_of(halves).terms(TOKENS), layer.terms(TOKENS), rtol=0.1, atol=0.1)


def test_means_are_over_the_sentences_that_reach_a_place():
    layer, sentences = layer_of(bert_a()[0]), [[0, 4, 2], [0, 5, 6, 7, 2], [0, 9, 2]]
    terms, count = mean_terms(layer, sentences, 0)
    assert terms.shape == (len(TERMS), 5, 5)
    assert count.tolist() == [[3, 3, 3, 1, 1]] * 3 + [[1] * 5] * 2
    each = [layer.terms(sentence, 0).numpy() for sentence in sentences]
    np.testing.assert_allclose(terms[:, :3, :3], sum(term[:, :3, :3] for term in each) / 3)
    np.testing.assert_allclose(terms[:, 3:], each[1][:, 3:])


@pytest.fixture
def argv(tmp_path, plot):
    """The command for a bert_a and its dictionary; a text beside them."""
    (tmp_path / "text").write_text("the cat sat\n\nthe dog sat on a mat\na mat\n")
    (tmp_path / "dict.txt").write_text("".join(f"{word} 5\n" for word in WORDS))
    return [*plot("correlations", bert_a()[0]), "--dict", str(tmp_path / "dict.txt")]


def test_a_sentence_has_its_words_beside_four_panels(printed, argv, figures):
    record = printed(*argv, "--sentence", "the $cat$ sat", "--head", 2)
    expected, panels = layer_of(bert_a()[0]).terms([0, 4, 3, 6, 2], 1).numpy(), panels_of(figures[0])
    assert [axes.get_title() for axes in panels] == list(TERMS[:4])
    for axes, term in zip(panels, expected):
        np.testing.assert_allclose(axes.images[0].get_array(), term)
    assert len({axes.images[0].get_clim() for axes in panels}) == 1
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["[CLS]", "the", "<unk>", "sat", "</s>"]
    for name, term in zip(TERMS, expected):
        numbers = {"mean": term.mean(), "std": term.std(), "std_over_keys": np.sqrt(term.var(axis=1).mean())}
        assert record["terms"][name] == pytest.approx(numbers)
    numbers = {"layer": 1, "head": 2, "sentences": 1, "length": 5, "words": 3, "unknown_words": 1}
    assert record.items() >= numbers.items()


def test_words_may_look_like_formulas(shown, tmp_path, argv):
    """Matplotlib would take what stands between dollars for TeX, and fail on this."""
    (tmp_path / "dict.txt").write_text("".join(f"{word} 5\n" for word in [r"$\frac$", "$", *"bcde"]))
    out = shown(*argv, "--sentence", r"$\frac$ $ $")
    assert all(part in out for part in ("bert_a_tiny, layer 1, the mean over the heads", *TERMS))
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_a_text_is_averaged(printed, tmp_path, argv, figures):
    text = tmp_path / "text"
    record = printed(*argv, "--text", text, "--own-scale")
    sentences = [[0, 4, 5, 6, 2], [0, 4, 3, 6, 7, 8, 9, 2], [0, 8, 9, 2]]
    terms, _ = mean_terms(layer_of(bert_a()[0]), sentences)
    for axes, term in zip(panels_of(figures[0]), terms):
        np.testing.assert_allclose(axes.images[0].get_array(), term)
    assert len(figures[0].axes) == 8  # a colour bar each
    assert record["terms"] == {name: pytest.approx(value) for name, value in term_statistics(terms).items()}
    assert (record["head"], record["sentences"], record["sentences_of_full_length"]) == ("mean", 3, 1)
    shorter = printed(*argv, "--text", text, "--sentences", 2, "--length", 4)
    assert (shorter["sentences"], shorter["length"], shorter["sentences_of_full_length"]) == (2, 4, 2)
    (tmp_path / "text.gz").write_bytes(gzip.compress(text.read_bytes()))
    assert printed(*argv, "--text", f"{text}.gz")["terms"] == record["terms"]


def test_what_has_no_correlations(refused, shown, tmp_path, argv, plot, figures):
    stock, endless = {"cfg": {"model": {"_name": "roberta_base"}}, "model": {}}, bert_a()[0]
    endless["model"]["encoder.sentence_encoder.embed_tokens.weight"][4 + WORDS.index("cat")] = np.inf
    text, sentence = ["--text", tmp_path / "text"], ["--sentence", "the cat"]
    for content, state, flags, *parts in (
        (None, None, ["--sentence", "Le chat"], "--sentence: none of its words is in --dict"),
        (None, None, ["--sentence", "  "], "--sentence: no words in it"),
        (None, None, ["--text", tmp_path / "tex"], "--text", "no such file (did you mean text"),
        (None, None, [], "is required"),
        (b"\n\n", None, text, f"{tmp_path}/text: no words in it"),
        (b"the cat\n\xff\xfe\n", None, text, f"{tmp_path}/text, line 2: not UTF-8"),
        (b"the cat\n" + 11 * b"the ", None, text, "text, line 2: 13 tokens", "12 positions", "--length 12"),
        (None, None, [*sentence, "--layer", 2], "--layer 2: "),
        (None, None, [*sentence, "--head", 3], "--head 3: the model has heads 1 to 2"),
        (None, None, [*sentence, "--head", 0], "neither a head's number (from 1) nor mean"),
        (None, None, [*sentence, "--length", 1], "--length must be at least 2"),
        (None, None, [*sentence, "--sentences", 0], "--sentences must be at least 1"),
        (None, endless, sentence, "c.pt: embeddings hold NaN or infinity"),
        (None, checkpoint(POSITIONS, untied()), sentence, "checkpoint of tupe_tiny (TUPE)", "embinit plot positions"),
        (None, stock, sentence, "is a checkpoint of roberta_base: only bert_a_*"),
    ):
        if content is not None:
            (tmp_path / "text").write_bytes(content)
        plot("correlations", state or bert_a()[0])
        error = refused(*argv, *flags)
        assert all(part in error for part in parts), error
    plot("correlations", bert_a()[0])
    shown(*argv, *text, "--length", 12)
    (tmp_path / "dict.txt").write_text("the 5\ncat 5\nsat 5\non 5\n")
    error = refused(*argv, *sentence)
    assert "describes 8 rows" in error
    assert "c.pt has 11" in error
