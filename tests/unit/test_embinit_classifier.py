"""The encoder-only classifier against a plain statement of its equations; its heads, its sizes, its use from Python."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from fairseq.data import Dictionary
from torch.nn import functional

from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.models.embinit_classifier import ClassifierHub, EmbinitClassifier, EmbinitClassifierConfig


def dictionary_of(words):
    dictionary = Dictionary()
    for word in words:
        dictionary.add_symbol(word)
    return dictionary


def model_with(**options):
    torch.manual_seed(0)
    values = {"encoder_embed_dim": 8, "encoder_ffn_embed_dim": 6, "encoder_layers": 2, "encoder_attention_heads": 2}
    cfg = EmbinitClassifierConfig(**{**values, **options})
    model = EmbinitClassifier.build_model(cfg, SimpleNamespace(source_dictionary=dictionary_of("abcdefgh")))
    model.register_classification_head("h", num_classes=3)
    return model.double().eval()


def reference(model, tokens):
    """The equations for one unpadded sentence, (src_len,) -> (classes,), one head at a time."""
    weights = model.state_dict()
    dim, heads = 8, 2
    cfg, positions = model.cfg, []
    for position in range(2, 2 + len(tokens)):  # fairseq counts from padding_idx + 1
        rates = [math.exp(-math.log(10000) * i / (dim // 2 - 1)) for i in range(dim // 2)]
        positions.append([math.sin(position * r) for r in rates] + [math.cos(position * r) for r in rates])
    positions = torch.tensor(positions)
    if cfg.encoder_learned_pos:
        positions = weights["encoder.embed_positions.weight"][2 : 2 + len(tokens)]
    if cfg.no_token_positional_embeddings:
        positions = torch.zeros_like(positions)
    x = weights["encoder.embed_tokens.weight"][tokens] * (1 if cfg.no_scale_embedding else math.sqrt(dim)) + positions
    for layer in range(2):
        w = {k.split(f"layers.{layer}.")[1]: v for k, v in weights.items() if f"layers.{layer}." in k}
        linear = lambda name, value, w=w: value @ w[f"{name}.weight"].T + w[f"{name}.bias"]  # noqa: E731
        norm = lambda name, value, w=w: functional.layer_norm(value, (dim,), w[f"{name}.weight"], w[f"{name}.bias"])  # noqa: E731
        q, k, v = (linear(f"self_attn.{name}_proj", x) for name in "qkv")
        outputs = []
        for head in range(heads):
            part = slice(head * dim // heads, (head + 1) * dim // heads)
            scores = q[:, part] @ k[:, part].T / math.sqrt(dim // heads)
            outputs.append(scores.softmax(-1) @ v[:, part])
        x = norm("self_attn_layer_norm", x + linear("self_attn.out_proj", torch.cat(outputs, 1)))
        x = norm("final_layer_norm", x + linear("fc2", linear("fc1", x).relu()))
    pooled = x.mean(0) if model.cfg.pooling == "mean" else x[0]
    head = "classification_heads.h.projection"
    return pooled @ weights[f"{head}.weight"].T + weights[f"{head}.bias"]


@pytest.mark.parametrize(
    "options",
    [
        {"pooling": "mean"},
        {"pooling": "cls"},
        {"no_scale_embedding": True},
        {"no_token_positional_embeddings": True},
        {"encoder_learned_pos": True},
    ],
    ids=str,
)
def test_logits_equal_the_equations_whatever_the_padding(options):
    model = model_with(**options)
    sentences = [torch.tensor([4, 5, 6, 7, 2]), torch.tensor([8, 9, 2])]
    batch = torch.full((2, 7), 1)
    for row, sentence in enumerate(sentences):
        batch[row, : len(sentence)] = sentence
    logits, _ = model(batch, features_only=True, classification_head_name="h")
    for row, sentence in enumerate(sentences):
        # sinusoids are kept in single precision
        torch.testing.assert_close(logits[row], reference(model, sentence), rtol=1e-6, atol=1e-6)


def test_layers_start_with_xaviers_law():
    """Kim A.2: all non-embedding parameters."""
    layer = model_with(encoder_embed_dim=64, encoder_ffn_embed_dim=128).encoder.layers[0]
    for linear in (layer.fc1, layer.fc2, layer.self_attn.q_proj, layer.self_attn.v_proj, layer.self_attn.out_proj):
        bound = math.sqrt(6 / sum(linear.weight.shape))
        assert 0.98 * bound < float(linear.weight.abs().max()) <= bound


def test_first_token_pooling_needs_a_first_token():
    cfg = EmbinitClassifierConfig(pooling="cls")
    task = SimpleNamespace(source_dictionary=dictionary_of("ab"), cfg=SimpleNamespace(init_token=None))
    with pytest.raises(OptionError, match="--init-token 0"):
        EmbinitClassifier.build_model(cfg, task)


def test_heads_follow_the_paper_and_must_divide_the_width():
    for dim, heads in ((300, 10), (512, 8), (768, 8)):
        model = model_with(encoder_embed_dim=dim, encoder_attention_heads=None, encoder_layers=1)
        assert model.encoder.layers[0].self_attn.num_heads == heads
    with pytest.raises(OptionError, match="--encoder-attention-heads 3 does not divide --encoder-embed-dim 8"):
        model_with(encoder_attention_heads=3)


@pytest.mark.parametrize(("rows", "dim", "millions"), [(13_000, 300, 6), (11_000, 768, 18)])
def test_parameter_count_of_the_papers_sizes(rows, dim, millions):
    """Kim Table 5: 6M with 13k x 300, 18M with 11k x 768 (SST-2)."""
    task = SimpleNamespace(source_dictionary=dictionary_of(map(str, range(rows))))
    with torch.device("meta"):
        model = EmbinitClassifier.build_model(EmbinitClassifierConfig(encoder_embed_dim=dim), task)
        model.register_classification_head("h", num_classes=2)
    assert round(sum(p.numel() for p in model.parameters()) / 1e6) == millions


def hub_with(columns, **options):
    labels = dictionary_of(["no", "yes", "maybe"])
    task = SimpleNamespace(
        source_dictionary=dictionary_of("abcdefgh"),
        label_dictionary=labels,
        cfg=SimpleNamespace(init_token=None, separator_token=None),
    )
    model = model_with(**options)
    model.register_classification_head("h", num_classes=columns)
    return ClassifierHub(task, model.double())


def test_the_hub_names_labels_and_gives_the_number_of_a_regression():
    hub = hub_with(3)
    assert set(hub.predict("a b", head="h")) == {"no", "yes", "maybe"}
    hub = hub_with(1)
    expected = hub.model(hub.encode("a b")[None], classification_head_name="h")[0].item()
    assert hub.predict("a b", head="h") == {"score": expected}


def test_the_hub_says_what_it_cannot_do():
    hub = hub_with(3, max_positions=5, encoder_learned_pos=True)
    with pytest.raises(OptionError, match="no classification head 'sentence_classification_head'; there are: h"):
        hub.predict("a b")
    with pytest.raises(DataError, match="the input has 6 tokens, the model has 5 positions: shorten it"):
        hub.predict("a b c d e", head="h")
    assert hub.predict("a b c d", head="h")
    for sentences in ((), ("a", "b", "c")):
        with pytest.raises(DataError, match=f"{len(sentences)} sentences were given: one is needed, or two of a pair"):
            hub.predict(*sentences, head="h")
