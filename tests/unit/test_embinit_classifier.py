"""The encoder-only classifier against a plain statement of its equations; its sizes, its use from Python."""

from __future__ import annotations

import math

import pytest
import torch
from omegaconf import OmegaConf
from small_models import ARCHITECTURES, dictionary, task_of
from tupe_reference import linear, normed

from embinit_fairseq.checkpoints.trained_preparation import RECORDS, records_of_task
from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.models.embinit_classifier import ClassifierHub, EmbinitClassifier, EmbinitClassifierConfig
from embinit_fairseq.vocab.preparation_record import record_preparation


def model_with(classes=3, **options):
    model = ARCHITECTURES["embinit_classifier"].build(**options)
    model.register_classification_head("h", num_classes=classes)
    return model.double().eval()


def reference(model, tokens, dim=8, heads=2):
    """The equations for one unpadded sentence, (src_len,) -> (classes,), one head at a time."""
    w, cfg = model.state_dict(), model.cfg
    rates = [math.exp(-math.log(10000) * i / (dim // 2 - 1)) for i in range(dim // 2)]
    places = range(2, 2 + len(tokens))  # fairseq counts from padding_idx + 1
    positions = torch.tensor([[math.sin(p * r) for r in rates] + [math.cos(p * r) for r in rates] for p in places])
    if cfg.encoder_learned_pos:
        positions = w["encoder.embed_positions.weight"][places]
    if cfg.no_token_positional_embeddings:
        positions = torch.zeros_like(positions)
    x = w["encoder.embed_tokens.weight"][tokens] * (1 if cfg.no_scale_embedding else math.sqrt(dim)) + positions
    for layer in ("encoder.layers.0", "encoder.layers.1"):
        q, k, v = (linear(w, f"{layer}.self_attn.{name}_proj", x) for name in "qkv")
        outputs = []
        for head in range(heads):
            part = slice(head * dim // heads, (head + 1) * dim // heads)
            outputs.append((q[:, part] @ k[:, part].T / math.sqrt(dim // heads)).softmax(-1) @ v[:, part])
        x = x + linear(w, f"{layer}.self_attn.out_proj", torch.cat(outputs, 1))
        x = normed(w, f"{layer}.self_attn_layer_norm", x)
        x = x + linear(w, f"{layer}.fc2", linear(w, f"{layer}.fc1", x).relu())
        x = normed(w, f"{layer}.final_layer_norm", x)
    return linear(w, "classification_heads.h.projection", x.mean(0) if cfg.pooling == "mean" else x[0])


OPTIONS = ["no_scale_embedding", "no_token_positional_embeddings", "encoder_learned_pos"]


@pytest.mark.parametrize("options", [{"pooling": "cls"}, {}, *({name: True} for name in OPTIONS)], ids=str)
def test_logits_equal_the_equations_whatever_the_padding(options):
    model = model_with(**options)
    batch = torch.tensor([[4, 5, 6, 7, 2, 1, 1], [8, 9, 2, 1, 1, 1, 1]])
    logits, _ = model(batch, features_only=True, classification_head_name="h")
    for found, sentence in zip(logits, batch):
        # sinusoids are kept in single precision
        torch.testing.assert_close(found, reference(model, sentence[sentence != 1]), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("rows", "dim", "heads", "millions"), [(13_000, 300, 10, 6), (11_000, 768, 8, 18)])
def test_the_papers_sizes_are_the_defaults(rows, dim, heads, millions):
    """Kim Table 5: 6M with 13k x 300, 18M with 11k x 768 (SST-2); A.2: layers start with Xavier's distribution."""
    model = EmbinitClassifier.build_model(EmbinitClassifierConfig(encoder_embed_dim=dim), task_of(rows - 4))
    model.register_classification_head("h", num_classes=2)
    layer = model.encoder.layers[0]
    assert layer.self_attn.num_heads == heads
    for each in (layer.fc1, layer.fc2, layer.self_attn.q_proj, layer.self_attn.out_proj):
        bound = math.sqrt(6 / sum(each.weight.shape))
        assert 0.98 * bound < each.weight.detach().abs().max() <= bound
    assert round(sum(p.numel() for p in model.parameters()) / 1e6) == millions


NO_OPTIONS = OmegaConf.create({"tokenizer": None, "bpe": None})


def hub_with(classes, **options):
    task = task_of(init_token=None, separator_token=None)
    task.label_dictionary = dictionary(3)
    return ClassifierHub(NO_OPTIONS, task, [model_with(classes, **options)])


def test_the_hub_names_labels_gives_the_number_of_a_regression_and_says_what_cannot_be():
    hub = hub_with(1)
    logits, _ = hub.model(hub.encode("w1 w2")[None], classification_head_name="h")
    assert hub.predict("w1 w2", head="h") == {"score": logits.item()}
    hub = hub_with(3, max_positions=5, encoder_learned_pos=True)
    assert set(hub.predict("w1 " * 4, head="h")) == {"w0", "w1", "w2"}
    with pytest.raises(DataError, match="6 tokens, the model has 5 positions: shorten it"):
        hub.predict("w1 " * 5, head="h")
    with pytest.raises(OptionError, match="--init-token 0"):
        ARCHITECTURES["embinit_classifier"].build(task_of(init_token=None), pooling="cls")


@pytest.mark.parametrize("name", ["embinit_classifier", "duo_classifier"])
def test_hubs_prepare_raw_text_as_the_record_or_the_user_says(name, tmp_path):
    """Raw text has the ids that the prepared text has."""
    (tmp_path / "input0").mkdir()
    (tmp_path / "input0/dict.txt").write_text("".join(f"w{number} 1\n" for number in range(6)))
    task = task_of(6, init_token=None, separator_token=2, data=str(tmp_path))
    model = ARCHITECTURES[name].build(task)
    words = task.source_dictionary.encode_line("w1 w2 w3", add_if_not_exist=False).tolist()
    unknown = [task.source_dictionary.unk()] * 3 + [2]

    def ids(*texts, **how):
        setattr(task, RECORDS, records_of_task(task, {}))  # as fairseq's loading of checkpoints does with the plugin
        return type(model).hub(NO_OPTIONS, task, [model], **how).encode(*texts).tolist()

    assert ids("W1 w2 W3") == [unknown[0], *words[1:2], *unknown[:1], 2], "without a record text has finished words"
    assert ids("W1 w2 W3", preparation="lowercase") == words
    record_preparation(tmp_path / "input0", {"dict.txt": [{"step": "lowercase"}]})
    assert ids("W1 w2 W3", "W1 W2 w3") == [*words, 2, *words]
    assert ids("W1 W2 W3", preparation="none") == unknown
