"""The tupe_* and bert_* architectures as fairseq builds them: sizes, names, initial values, presets."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

pytest.importorskip("fairseq", reason="these are architectures of fairseq; install it with scripts/setup.sh")
from built_models import tree_text
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from tupe_models import built, configuration, small, task_with

from embinit_fairseq.models.tupe import TupeConfig, TupeModel

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
FAMILIES = ("tupe", "bert_a", "bert_r", "bert_ad")
#: flags of each family whose parameters differ
VARIANTS = {
    "tupe_tiny": [
        "",
        "--rel-pos",
        "--rel-pos --tupe-reset paper",
        "--tupe-tie-cls",
        "--rel-pos --tupe-tie-cls",
        "--embedding-normalize",
        "--encoder-normalize-before",
    ],
    "bert_a_tiny": ["", "--embedding-normalize --encoder-normalize-before"],
    "bert_r_tiny": ["", "--rel-pos-bins 16"],
    "bert_ad_tiny": [""],
}
EVERY_VARIANT = [(arch, flags) for arch, variants in VARIANTS.items() for flags in variants]
each_variant = pytest.mark.parametrize(("arch", "flags"), EVERY_VARIANT)


def size_of(**options):
    """Parameters of a model with 32768 symbols, without allocating them."""
    with torch.device("meta"):
        model = TupeModel.build_model(TupeConfig(**options), task_with(32768))
    return sum(parameter.numel() for parameter in model.parameters())


def test_sizes_of_the_authors_code():
    """Base geometry, 32768 symbols, 512 positions, --embedding-normalize; TUPE-R: 33 constants for 12 heads."""
    assert size_of(embedding_normalize=True) == 112_423_424
    assert size_of(embedding_normalize=True, rel_pos=True) == 112_423_424 + 396


def test_sizes_of_the_comparison_set():
    """By hand, from those of TUPE-A: 513 x 768 positions, their layer norm and two matrices with biases."""
    without = 112_423_424 - 513 * 768 - 2 * 768 - 2 * (768 * 768 + 768)
    same = {"embedding_normalize": True}
    assert size_of(**same, tupe_tie_cls=True) == 112_423_424 - 768
    assert size_of(**same, tupe_tie_cls=True, rel_pos=True) == 112_423_424 - 768 + 32 * 12
    assert size_of(**same, tupe_reset="paper", rel_pos=True) == 112_423_424 + 32 * 12
    assert size_of(**same, position_encoding="added") == without + 512 * 768
    assert size_of(**same, position_encoding="relative") == without + 32 * 12
    assert size_of(**same, position_encoding="four_terms") == without + 512 * 768 + 2 * 768 + 2 * 768 * 768


def test_size_of_bert_large_by_hand():
    """24 layers of 12 C^2 + 13 C, embeddings, head C^2 + 3 C + V; TUPE-A adds 513 C + 2 C + 2 (C^2 + C)."""
    c, v = 1024, 32768
    layers = 24 * (4 * (c * c + c) + 2 * 4 * c * c + 5 * c + 4 * c)
    expected = layers + v * c + (c * c + c + 2 * c + v) + 513 * c + 2 * c + 2 * (c * c + c)
    assert size_of(**vars(configuration("tupe_large"))) == expected


@pytest.mark.parametrize("arch", VARIANTS)
def test_parameters_have_the_names_and_shapes_of_the_golden_tree(arch):
    """The file holds the whole tree without flags, and for each variant what is different (null: is not there)."""
    trees = {flags: tree(arch, flags) for flags in VARIANTS[arch]}
    found = {
        flags: {k: of.get(k) for k in {**of, **trees[""]} if of.get(k) != trees[""].get(k)}
        for flags, of in trees.items()
    }
    found[""] = trees[""]
    path = GOLDEN / f"{arch}.json"
    expected = json.loads(path.read_text()) if path.exists() else None
    assert found == expected, f"if this is meant, {path.name} becomes:\n{tree_text(found)}"


def tree(arch, flags):
    model = small(arch, flags)
    model.register_classification_head("sentence_classification_head", num_classes=3)
    return {name: list(parameter.shape) for name, parameter in model.state_dict().items()}


@each_variant
def test_every_parameter_is_there_once_and_takes_part(arch, flags):
    """The only parameter with two names is the tied one; none is a copy that no equation uses."""
    model = small(arch, flags)
    names = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    tied = [pair for pair in names.values() if len(pair) > 1]
    assert tied == [["encoder.sentence_encoder.embed_tokens.weight", "encoder.lm_head.weight"]]
    storages = {parameter.data_ptr() for parameter in model.parameters()}
    assert len(storages) == len(list(model.parameters()))
    assert not list(model.buffers())
    logits, _ = model(torch.tensor([[0, 5, 6, 7, 2]]))
    logits.log_softmax(-1)[..., 5].sum().backward()
    without = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert without == []


@each_variant
def test_initial_values(arch, flags):
    """N(0, 0.02) for every matrix, zero for the row of <pad> and for biases, 1 and 0 for layer norms."""
    model = built(arch, *flags.split(), *"--encoder-embed-dim 64 --encoder-ffn-embed-dim 128".split(), symbols=200)
    for name, parameter in model.named_parameters():
        values = parameter.detach().double()
        if "layer_norm" in name:
            assert bool((values == (1 if name.endswith("weight") else 0)).all()), name
        elif name.endswith("bias"):
            assert not values.any(), name
        else:
            if name.endswith("embed_tokens.weight"):
                assert not values[1].any()
                values = torch.cat([values[:1], values[2:]])
            assert_normal(values, name)


def assert_normal(values, name):
    """Mean 0, standard deviation 0.02 and the fourth moment of a normal law, each within five standard errors."""
    z, count = values.flatten() / 0.02, values.numel()
    assert abs(float(z.mean())) < 5 / math.sqrt(count), name
    assert abs(float((z**2).mean()) - 1) < 5 * math.sqrt(2 / count), name
    assert abs(float((z**4).mean()) - 3) < 5 * math.sqrt(96 / count), name
    assert bool((values.abs().amax(-1) > 0).all()), f"{name}: no row is zero"


def test_a_head_starts_as_pytorch_starts_linear_layers():
    model = built("tupe_tiny")
    model.register_classification_head("h", num_classes=40)
    for layer in (model.classification_heads["h"].dense, model.classification_heads["h"].out_proj):
        bound = 1 / math.sqrt(layer.in_features)
        assert 0.98 * bound < float(layer.weight.detach().abs().max()) <= bound
        assert float(layer.bias.detach().abs().max()) > 0


PRESETS = {
    "base": {"layers": 12, "embed_dim": 768, "ffn_embed_dim": 3072, "attention_heads": 12},
    "large": {"layers": 24, "embed_dim": 1024, "ffn_embed_dim": 4096, "attention_heads": 16},
    "tiny": {"layers": 4, "embed_dim": 256, "ffn_embed_dim": 1024, "attention_heads": 4},
}
POSITIONS = {"tupe": "untied", "bert_a": "added", "bert_r": "relative", "bert_ad": "four_terms"}


@pytest.mark.parametrize("size", PRESETS)
@pytest.mark.parametrize("family", FAMILIES)
def test_presets(family, size):
    cfg = configuration(f"{family}_{size}")
    assert {key: getattr(cfg, f"encoder_{key}") for key in PRESETS[size]} == PRESETS[size]
    assert str(cfg.position_encoding) == POSITIONS[family]
    assert cfg.max_positions == (128 if size == "tiny" else 512)
    assert (cfg.dropout, cfg.attention_dropout, cfg.activation_dropout, cfg.pooler_dropout) == (0.1, 0.1, 0.0, 0.1)
    assert not cfg.rel_pos
    assert not cfg.tupe_tie_cls
    assert not cfg.encoder_normalize_before
    assert str(cfg.tupe_reset) == "official"
    assert (cfg.rel_pos_bins, cfg.max_rel_pos) == (32, 128)


def test_presets_can_be_overridden_on_the_command_line():
    flags = "--encoder-layers 3 --encoder-embed-dim 12 --encoder-ffn-embed-dim 7 --encoder-attention-heads 3"
    flags = [*flags.split(), "--max-positions", "33", "--dropout", "0.3", "--rel-pos"]
    parser = options.get_training_parser()
    arguments = ["data", "--task", "masked_lm", "--arch", "tupe_large", *flags]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, arguments)).model
    model = TupeModel.build_model(cfg, task_with(12))
    encoder = model.encoder.sentence_encoder
    assert len(encoder.layers) == 3
    assert encoder.layers[0].fc1.weight.shape == (7, 12)
    assert encoder.layers[0].self_attn.num_heads == 3
    assert encoder.positions.absolute.embed_positions.num_embeddings == 34
    assert encoder.dropout.p == 0.3
    assert model.max_positions() == 33
    assert {key: cfg[key] for key in vars(TupeConfig()) if key != "_name"} == {
        key: value for key, value in vars(configuration("tupe_large", *flags)).items() if key != "_name"
    }


def test_every_option_arrives_where_it_acts():
    flags = """--dropout 0.11 --attention-dropout 0.12 --activation-dropout 0.13 --pooler-dropout 0.14
        --pooler-activation-fn relu --activation-fn relu --attention-kernel sdpa --checkpoint-activations
        --rel-pos --rel-pos-bins 8 --max-rel-pos 20"""
    model = small("tupe_tiny", flags)
    encoder, head = model.encoder.sentence_encoder, model.encoder.lm_head
    layer = encoder.layers[0]
    assert [encoder.dropout.p, layer.dropout.p, layer.self_attn.dropout] == [0.11, 0.11, 0.12]
    assert [layer.activation_dropout.p, encoder.cfg.layer.attention_dropout] == [0.13, 0.12]
    assert layer.activation is head.activation is torch.nn.functional.relu
    assert (encoder.cfg.attention_kernel, encoder.cfg.checkpoint_activations) == ("sdpa", True)
    assert (encoder.positions.relative.num_buckets, encoder.positions.relative.max_distance) == (8, 20)
    model.register_classification_head("h", num_classes=2, inner_dim=5)
    classifier = model.classification_heads["h"]
    assert (classifier.dropout.p, classifier.activation) == (0.14, torch.nn.functional.relu)
    assert classifier.dense.weight.shape == (5, 8)
    relative = small("bert_r_tiny", "--rel-pos-bins 8 --max-rel-pos 20").encoder.sentence_encoder.positions.relative
    assert (relative.num_buckets, relative.max_distance) == (8, 20)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("arch", VARIANTS)
def test_half_precision_of_the_whole_model(arch, dtype):
    model = small(arch, "").eval()
    tokens, masked = torch.tensor([[0, 5, 11, 7, 2], [0, 11, 2, 1, 1]]), torch.zeros(2, 5, dtype=torch.bool)
    masked[0, 2] = masked[1, 1] = True
    exact, _ = model(tokens, masked_tokens=masked)
    logits, _ = model.to(dtype)(tokens, masked_tokens=masked)
    assert logits.dtype == dtype
    assert logits.shape == (2, 12)
    torch.testing.assert_close(logits.float(), exact, rtol=0, atol=0.02)
    probabilities = model.get_normalized_probs((logits, {}), log_probs=False)
    assert probabilities.dtype == torch.float32
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(2))
    torch.testing.assert_close(model.get_normalized_probs((logits, {}), log_probs=True).exp(), probabilities)


def test_inner_states_and_features():
    model = small("tupe_tiny").eval()
    tokens = torch.tensor([[0, 5, 6, 2]])
    features, extra = model(tokens, features_only=True, return_all_hiddens=True)
    assert features.shape == (1, 4, 8)
    assert [tuple(state.shape) for state in extra["inner_states"]] == [(1, 4, 8)] * 2
    logits, extra = model(tokens, src_lengths=torch.tensor([4]), prev_output_tokens=None)
    assert torch.equal(logits, model.encoder.lm_head(features))
    assert extra["inner_states"] is None
    model.register_classification_head("h", num_classes=3)
    model.eval()
    assert torch.equal(model(tokens, classification_head_name="h")[0], model.classification_heads["h"](features))
