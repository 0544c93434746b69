"""`embinit plot correlations`: the four terms against the model's own logits, means over texts, pictures, errors."""

from __future__ import annotations

import gzip
import json

import numpy as np
import plot_checkpoints as made
import pytest
import torch
from plot_checkpoints import failure as failure_of

from embinit_fairseq.analysis.correlations import TERMS, first_layer, mean_terms, term_statistics
from embinit_fairseq.analysis.trained_model import trained_model
from embinit_fairseq.cli.main import main
from embinit_fairseq.errors import CheckpointError, OptionError
from embinit_fairseq.plots import style

TOKENS = [0, 4, 6, 3, 5, 9, 2]
D = made.C // made.HEADS


def model_logits(encoder, tokens) -> torch.Tensor:
    """(HEADS, T, T): what the first attention of the real encoder computes before its softmax."""
    attention, caught = encoder.layers[0].self_attn, []
    hook = attention.qkv_proj.register_forward_hook(lambda module, given, result: caught.append(result[0]))
    with torch.no_grad():
        encoder(torch.tensor([tokens]))
    hook.remove()
    q, k, _ = caught[0].chunk(3, dim=-1)
    q, k = (x.view(len(tokens), made.HEADS, D).transpose(0, 1) for x in (q, k))
    return attention.scale * q @ k.transpose(1, 2)


def split_norms(word, position, norms):
    """The parts of word, position and neither after layer norms with (gain, bias), for one token (C,)."""
    parts = [word, position, np.zeros_like(word)]
    for gain, bias in norms:
        deviation = np.sqrt(sum(parts).var() + 1e-5)
        parts = [gain * (part - part.mean()) / deviation for part in parts]
        parts[2] = parts[2] + bias
    return parts


@pytest.mark.parametrize("normalize_before", [False, True])
@pytest.mark.parametrize("embedding_normalize", [False, True])
def test_each_term_against_a_plain_statement_and_their_sum_against_the_model(embedding_normalize, normalize_before):
    checkpoint, encoder = made.bert_a(embedding_normalize, normalize_before)
    layer, logits = first_layer(trained_model(checkpoint, "c.pt")), model_logits(encoder, TOKENS)
    for head in range(made.HEADS):
        torch.testing.assert_close(layer.terms(TOKENS, head).sum(0), logits[head], rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(layer.terms(TOKENS).sum(0), logits.mean(0), rtol=1e-11, atol=1e-11)
    w = {key.removeprefix("encoder.sentence_encoder."): value.numpy() for key, value in checkpoint["model"].items()}
    names = ["emb_layer_norm"] * embedding_normalize + ["layers.0.self_attn_layer_norm"] * normalize_before
    norms = [(w[f"{name}.weight"], w[f"{name}.bias"]) for name in names]
    weight, bias = (w[f"layers.0.self_attn.qkv_proj.{name}"] for name in ("weight", "bias"))
    head = slice(D, 2 * D)  # the second
    query, key = weight[: made.C][head], weight[made.C : 2 * made.C][head]
    found = layer.terms(TOKENS, 1).numpy()
    words = w["embed_tokens.weight"][TOKENS]
    parts = [split_norms(word, p, norms) for word, p in zip(words, w["positions.embed_positions.weight"])]
    for i, (word_i, position_i, constant_i) in enumerate(parts):
        for j, (word_j, position_j, constant_j) in enumerate(parts):
            four = [(query @ a) @ (key @ b) for a in (word_i, position_i) for b in (word_j, position_j)]
            b_i, b_j = query @ constant_i + bias[: made.C][head], key @ constant_j + bias[made.C : 2 * made.C][head]
            rest = b_i @ (key @ (word_j + position_j)) + (query @ (word_i + position_i)) @ b_j + b_i @ b_j
            np.testing.assert_allclose(found[:, i, j], np.array([*four, rest]) / np.sqrt(D), rtol=1e-9, atol=1e-9)


def test_half_precision_is_read():
    checkpoint, _ = made.bert_a()
    halves = {**checkpoint, "model": {key: value.half() for key, value in checkpoint["model"].items()}}
    exact, rounded = (first_layer(trained_model(c, "c.pt")).terms(TOKENS) for c in (checkpoint, halves))
    torch.testing.assert_close(rounded, exact, rtol=0.1, atol=0.1)


def test_means_are_over_the_sentences_that_reach_a_place():
    layer = first_layer(trained_model(made.bert_a()[0], "c.pt"))
    sentences = [[0, 4, 2], [0, 5, 6, 7, 2], [0, 9, 2]]
    terms, count = mean_terms(layer, sentences, 0)
    assert terms.shape == (len(TERMS), 5, 5)
    assert count.tolist() == [[3, 3, 3, 1, 1]] * 3 + [[1] * 5] * 2
    each = [layer.terms(sentence, 0).numpy() for sentence in sentences]
    np.testing.assert_allclose(terms[:, :3, :3], sum(term[:, :3, :3] for term in each) / 3)
    np.testing.assert_allclose(terms[:, 3:], each[1][:, 3:])
    with pytest.raises(OptionError, match="--head 3: the model has heads 1 to 2"):
        mean_terms(layer, sentences, 2)


def test_statistics_of_known_terms():
    """A row constant is invisible to a softmax over the keys: it has a sigma, but none over the keys."""
    rows = np.array([[1.0, 1, 1], [2, 2, 2], [6, 6, 6]])
    statistics = term_statistics(np.stack([rows, rows.T, rows + rows.T, 0 * rows, 0 * rows]))
    sigma = np.sqrt(14 / 3)  # of 1, 2, 6
    values = [(3, sigma, 0), (3, sigma, sigma), (6, np.sqrt(2) * sigma, sigma), (0, 0, 0), (0, 0, 0)]
    for name, (mean, std, over_keys) in zip(TERMS, values):
        assert statistics[name] == pytest.approx({"mean": mean, "std": std, "std_over_keys": over_keys})


def put(name, *shape):
    return lambda checkpoint: checkpoint["model"].update({f"encoder.sentence_encoder.{name}": torch.ones(shape)})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda c: c["model"].pop("encoder.sentence_encoder.embed_tokens.weight"), "first layer is incomplete"),
        (lambda c: c["model"].pop("encoder.sentence_encoder.layers.0.self_attn.qkv_proj.bias"), "is incomplete"),
        (lambda c: c["cfg"]["model"].update(encoder_attention_heads=3), "do not fit each other"),
        (lambda c: c["cfg"]["model"].update(encoder_attention_heads=0), "encoder_attention_heads is 0"),
        (put("embed_tokens.weight", 8), "embed_tokens.weight is not a matrix"),
        (put("positions.embed_positions.weight", 12, 7), "do not fit each other"),
        (put("layers.0.self_attn.qkv_proj.weight", 24, 7), "do not fit each other"),
        (put("layers.0.self_attn.qkv_proj.bias", 15), "do not fit each other"),
        (put("emb_layer_norm.bias", 7), "do not fit each other"),
    ],
)
def test_damaged_checkpoints(change, expected):
    checkpoint, _ = made.bert_a()
    change(checkpoint)
    with pytest.raises(CheckpointError, match=rf"c\.pt: .*{expected}"):
        first_layer(trained_model(checkpoint, "c.pt"))


@pytest.fixture
def argv(tmp_path):
    """The command for a saved bert_a, its dictionary and a picture; a text beside them."""
    torch.save(made.bert_a()[0], tmp_path / "c.pt")
    (tmp_path / "text").write_text("the cat sat\n\nthe dog sat on a mat\na mat\n")
    dictionary = made.write_dictionary(tmp_path)
    files = ["--checkpoint", str(tmp_path / "c.pt"), "--dict", dictionary, "--output", str(tmp_path / "p.png")]
    return ["correlations", *files]


@pytest.fixture
def figures(monkeypatch):
    drawn = []
    monkeypatch.setattr(style, "save", lambda figure, path: drawn.append(figure))
    return drawn


def run_json(capsys, argv: list[str], *more: str) -> dict:
    assert main(["plot", *argv, *more, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def panels_of(figure) -> list:
    return [axes for axes in figure.axes if axes.get_title()]


def test_a_sentence_has_its_words_beside_four_panels(capsys, argv, figures):
    record = run_json(capsys, argv, "--sentence", "the $cat$ sat", "--head", "2")
    expected = first_layer(trained_model(made.bert_a()[0], "c.pt")).terms([0, 4, 3, 6, 2], 1).numpy()
    panels = panels_of(figures[0])
    assert [axes.get_title() for axes in panels] == list(TERMS[:4])
    for axes, term in zip(panels, expected):
        np.testing.assert_allclose(axes.images[0].get_array(), term)
    assert len({axes.images[0].get_clim() for axes in panels}) == 1
    words = [label.get_text() for label in panels[0].get_yticklabels()]
    assert words == ["[CLS]", "the", "<unk>", "sat", "</s>"]
    for name, term in zip(TERMS, expected):
        assert record["terms"][name]["mean"] == pytest.approx(term.mean())
        assert record["terms"][name]["std"] == pytest.approx(term.std())
    rest = {key: record[key] for key in ("layer", "head", "sentences", "length", "words", "unknown_words")}
    assert rest == {"layer": 1, "head": 2, "sentences": 1, "length": 5, "words": 3, "unknown_words": 1}


def test_words_may_look_like_formulas(capsys, tmp_path, argv):
    """Matplotlib would take what stands between dollars for TeX, and fail on this."""
    made.write_dictionary(tmp_path, [r"$\frac$", "$", "b", "c", "d", "e"])
    assert main(["plot", *argv, "--sentence", r"$\frac$ $ $"]) == 0
    out = capsys.readouterr().out
    assert all(part in out for part in ("bert_a_tiny, layer 1, the mean over the heads", *TERMS))
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_a_text_is_averaged(capsys, tmp_path, argv, figures):
    text = str(tmp_path / "text")
    record = run_json(capsys, argv, "--text", text, "--own-scale")
    sentences = [[0, 4, 5, 6, 2], [0, 4, 3, 6, 7, 8, 9, 2], [0, 8, 9, 2]]
    terms, _ = mean_terms(first_layer(trained_model(made.bert_a()[0], "c.pt")), sentences)
    for axes, term in zip(panels_of(figures[0]), terms):
        np.testing.assert_allclose(axes.images[0].get_array(), term)
    assert len(figures[0].axes) == 8  # a colour bar each
    assert record["terms"] == {name: pytest.approx(value) for name, value in term_statistics(terms).items()}
    assert (record["head"], record["sentences"], record["sentences_of_full_length"]) == ("mean", 3, 1)
    shorter = run_json(capsys, argv, "--text", text, "--sentences", "2", "--length", "4")
    assert (shorter["sentences"], shorter["length"], shorter["sentences_of_full_length"]) == (2, 4, 2)
    with gzip.open(tmp_path / "text.gz", "wb") as file:
        file.write((tmp_path / "text").read_bytes())
    assert run_json(capsys, argv, "--text", f"{text}.gz")["terms"] == record["terms"]


def test_errors_of_text(capsys, tmp_path, argv, figures):
    text = tmp_path / "text"
    for content, flags, *parts in (
        (None, ["--sentence", "Le chat"], "--sentence: none of its words is in --dict"),
        (None, ["--sentence", "  "], "--sentence: no words in it"),
        (None, ["--text", str(tmp_path / "tex")], "--text", "no such file (did you mean text"),
        (None, ["--text", str(text), "--sentence", "a"], "not allowed with"),
        (None, [], "is required"),
        (b"\n\n", ["--text", str(text)], f"{text}: no words in it"),
        (b"the cat\n\xff\xfe\n", ["--text", str(text)], f"{text}, line 2: not UTF-8"),
        (
            b"the cat\n" + 11 * b"the ",
            ["--text", str(text)],
            f"{text}, line 2: 13 tokens",
            "12 positions",
            "--length 12",
        ),
    ):
        if content is not None:
            text.write_bytes(content)
        error = failure_of(capsys, *argv, *flags)
        assert all(part in error for part in parts), error
    assert main(["plot", *argv, "--text", str(text), "--length", "12"]) == 0


def test_errors_of_dictionary_options_and_models(capsys, tmp_path, argv):
    stock = {"cfg": {"model": {"_name": "roberta_base"}}, "model": {}}
    endless, _ = made.bert_a()
    endless["model"]["encoder.sentence_encoder.embed_tokens.weight"][4 + made.WORDS.index("cat")] = np.inf
    for flags, words, checkpoint, *parts in (
        (["--layer", "2"], None, None, "--layer 2: "),
        (["--head", "3"], None, None, "--head 3: the model has heads 1 to 2"),
        (["--head", "0"], None, None, "neither a head's number (from 1) nor mean"),
        (["--head", "first"], None, None, "neither a head's number"),
        (["--length", "1"], None, None, "--length must be at least 2"),
        (["--sentences", "0"], None, None, "--sentences must be at least 1"),
        ([], None, endless, "c.pt: embeddings hold NaN or infinity"),
        ([], None, made.tupe(made.untied()), "is a checkpoint of tupe_tiny (TUPE)", "embinit plot positions"),
        ([], None, stock, "is a checkpoint of roberta_base: only bert_a_*"),
        ([], made.WORDS[:4], made.bert_a()[0], "describes 8 rows", "c.pt has 11"),
    ):
        if checkpoint is not None:
            torch.save(checkpoint, tmp_path / "c.pt")
        if words is not None:
            made.write_dictionary(tmp_path, words)
        error = failure_of(capsys, *argv, "--sentence", "the cat", *flags)
        assert all(part in error for part in parts), error
    (tmp_path / "dict.txt").unlink()
    assert "dict.txt: no such file" in failure_of(capsys, *argv, "--sentence", "the cat")
    assert not (tmp_path / "p.png").exists()
