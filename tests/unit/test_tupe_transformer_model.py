"""tupe_transformer as fairseq builds it: sizes, names, first values, presets, ties, contradictions."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import pytest
import torch

pytest.importorskip("fairseq", reason="this is an architecture of fairseq; install it with scripts/setup.sh")
from built_models import number_of, options_of, tree_text, without_memory
from fairseq.models.transformer import TransformerModel, base_architecture
from tupe_transformer_reference import EOS, batch_of, built, config, task_of

import embinit_fairseq  # noqa: F401
from embinit_fairseq.errors import OptionError
from embinit_fairseq.hooks.slots import find_slots, position_std
from embinit_fairseq.models.tupe_transformer import TupeTransformerConfig, TupeTransformerModel

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "tupe_transformer.json"
#: flags of the trees in the golden file
TREES = ["", "--rel-pos --encoder-normalize-before --decoder-normalize-before"]
POSITIONS = {"max_source_positions": 1024, "max_target_positions": 1024}


def stock(words=6, **sizes):
    args = argparse.Namespace(**{**POSITIONS, **sizes})
    base_architecture(args)
    return TransformerModel.build_model(args, task_of(words))


def test_parameters_have_the_names_and_shapes_of_the_golden_tree():
    found = {}
    for flags in TREES:
        model = without_memory("tupe_transformer", *flags.split(), "--encoder-layers", "1", "--decoder-layers", "1")
        found[flags] = {name: list(parameter.shape) for name, parameter in model.state_dict().items()}
    expected = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else None
    assert found == expected, f"if this is meant, {GOLDEN.name} becomes:\n{tree_text(found)}"


@pytest.mark.parametrize(
    ("arch", "stock_arch"),
    [
        ("tupe_transformer", "transformer"),
        ("tupe_transformer_iwslt_de_en", "transformer_iwslt_de_en"),
        ("tupe_transformer_wmt_en_de", "transformer_wmt_en_de"),
    ],
)
def test_sizes_are_fairseqs_plus_positions(arch, stock_arch):
    """A side's positions: 1024 rows, a layer norm, two matrices with biases; of width 512.

    fairseq_compat takes away the copies of its encoder layers' weights that fairseq 0.12.2 never trains.
    """
    c = 512
    expected = number_of(without_memory(stock_arch)) + 2 * (1024 * c + 2 * c + 2 * (c * c + c))
    assert number_of(without_memory(arch)) == expected


def test_presets_may_be_changed_and_the_decoder_follows_the_encoder():
    cfg = options_of("tupe_transformer_iwslt_de_en", "--encoder-ffn-embed-dim", "6", "--encoder-embed-dim", "8")
    assert (cfg.encoder_ffn_embed_dim, cfg.decoder_ffn_embed_dim, cfg.decoder_attention_heads) == (6, 1024, 4)
    model = without_memory("tupe_transformer", *"--encoder-embed-dim 16 --encoder-ffn-embed-dim 6".split())
    assert model.decoder.embed_tokens.weight.shape == (10, 16)
    assert model.decoder.layers[0].fc1.weight.shape == (6, 16)


def test_every_option_arrives():
    flags = """--encoder-embed-dim 8 --encoder-ffn-embed-dim 6 --encoder-layers 1 --encoder-attention-heads 4
        --encoder-normalize-before --decoder-embed-dim 12 --decoder-ffn-embed-dim 10 --decoder-layers 3
        --decoder-attention-heads 3 --decoder-normalize-before --share-decoder-input-output-embed --no-scale-embedding
        --dropout 0.2 --attention-dropout 0.3 --activation-dropout 0.4 --activation-fn gelu --rel-pos --rel-pos-bins 16
        --max-rel-pos 20 --attention-kernel eager --max-source-positions 30 --max-target-positions 40""".split()
    model = TupeTransformerModel.build_model(options_of("tupe_transformer", *flags), task_of(6, 9))
    encoder, decoder = model.encoder.cfg, model.decoder.cfg
    layers = encoder.layer, decoder.layer
    assert [layer.embed_dim for layer in layers] == [8, 12]
    assert [layer.ffn_embed_dim for layer in layers] == [6, 10]
    assert [layer.num_heads for layer in layers] == [4, 3]
    assert (len(model.encoder.layers), len(model.decoder.layers)) == (1, 3)
    for layer in layers:
        assert layer.normalize_before
        assert (layer.dropout, layer.attention_dropout, layer.activation_dropout) == (0.2, 0.3, 0.4)
        assert layer.activation == "gelu"
    for side in (model.encoder, model.decoder):
        assert side.embed_scale == 1.0
        assert side.cfg.attention_kernel == "eager"
        assert (side.positions.relative.num_buckets, side.positions.relative.max_distance) == (16, 20)
    assert model.encoder.positions.relative.bidirectional
    assert not model.decoder.positions.relative.bidirectional
    assert model.decoder.output_projection.weight is model.decoder.embed_tokens.weight
    assert model.decoder.layers[0].encoder_attn.kv_proj.weight.shape == (24, 8)
    assert model.max_positions() == (30, 40)


def test_the_kernel_that_compiles_for_every_shape_is_no_choice(capsys):
    with pytest.raises(SystemExit):
        options_of("tupe_transformer", "--attention-kernel", "flex")
    assert "invalid choice: 'flex'" in capsys.readouterr().err


def same_law(ours, theirs):
    """Standard deviation and largest value agree: enough to tell the uniform and normal laws of these sizes apart."""
    ours, theirs = ours.detach().double(), theirs.detach().double()
    if theirs.std() == 0:
        return torch.equal(ours, torch.full_like(ours, float(theirs.flatten()[0])))
    near = 5 / math.sqrt(2 * ours.numel())  # five standard errors of a standard deviation
    kind = [float(x.abs().max() / x.std()) for x in (ours, theirs)]  # 1.73 for uniform laws, over 3 for normal ones
    return abs(float(ours.std() / theirs.std()) - 1) < near and abs(kind[0] - kind[1]) < 0.15 * max(kind)


@pytest.mark.parametrize("decoder_dim", [64, 96])
def test_first_values_have_the_laws_of_fairseqs_transformer(decoder_dim):
    sizes = {"encoder_embed_dim": 64, "encoder_ffn_embed_dim": 80, "decoder_embed_dim": decoder_dim}
    sizes |= {
        f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in (("layers", 1), ("attention_heads", 4))
    }
    torch.manual_seed(0)
    model, other = built(task_of(200), **sizes, rel_pos=True), stock(200, **sizes)
    theirs, compared = dict(other.named_parameters()), 0
    for name, parameter in model.named_parameters():
        if ".positions." in name:
            continue
        prefix, _, kind = name.rpartition(".")
        if prefix.endswith(("qkv_proj", "kv_proj")):
            stem, letters = prefix.rsplit(".", 1)
            pairs = zip(parameter.chunk(len(letters) - 5), (f"{stem}.{x}_proj.{kind}" for x in letters.split("_")[0]))
        else:
            pairs = [(parameter, name)]
        for part, their_name in pairs:
            assert part.shape == theirs[their_name].shape, name
            assert same_law(part, theirs[their_name]), name
            compared += 1
    assert compared == len(theirs)
    for table in (model.encoder.embed_tokens, model.decoder.embed_tokens):
        assert not table.weight[1].any()


def test_first_values_of_positions():
    """Both terms of the logits begin with a standard deviation of 1/sqrt(8) for inputs of unit variance."""
    torch.manual_seed(0)
    model = built(encoder_embed_dim=64, rel_pos=True, rel_pos_bins=32, max_rel_pos=128, max_source_positions=400)
    positions = model.encoder.positions
    positions.requires_grad_(False)
    assert float(positions.absolute.embed_positions.weight.std()) == pytest.approx(1 / 8, rel=0.05)
    assert float(positions.relative.embed_buckets.weight.std()) == pytest.approx(1 / 8, rel=0.4)  # 64 numbers
    attention = model.encoder.layers[0].self_attn.requires_grad_(False)
    q, k, _ = attention.qkv_proj(torch.randn(400, 64)).chunk(3, dim=1)
    words = q[:, :32] @ k[:, :32].T * attention.scale
    assert float(words.std()) == pytest.approx(8**-0.5, rel=0.15)
    assert float(positions.absolute(400).scores.std()) == pytest.approx(8**-0.5, rel=0.15)


@pytest.mark.parametrize("flags", [{}, {"rel_pos": True, "share_all_embeddings": True}], ids=str)
def test_every_parameter_learns(flags):
    """Else training in several processes would need to look for idle ones in every step."""
    model = built(**flags)
    logits, _ = model(batch_of([[4, 5, 6, EOS], [7, EOS]]), None, batch_of([[EOS, 4, 5], [EOS, 6]]))
    logits.square().sum().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_tables_are_tied_as_asked():
    def tables(**flags):
        model = built(**flags)
        decoder = model.decoder
        return [model.encoder.embed_tokens.weight, decoder.embed_tokens.weight, decoder.output_projection.weight]

    source, target, output = tables()
    assert source is not target
    assert target is not output
    source, target, output = tables(share_decoder_input_output_embed=True)
    assert source is not target
    assert target is output
    source, target, output = tables(share_all_embeddings=True)
    assert source is target is output
    assert not output[1].any()


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ({}, {"encoder": ["encoder"], "decoder": ["decoder"]}),
        ({"share_decoder_input_output_embed": True}, {"encoder": ["encoder"], "decoder": ["decoder"]}),
        ({"share_all_embeddings": True}, {"encoder": ["encoder", "decoder"]}),
    ],
    ids=str,
)
def test_slots_of_embed_init(flags, names):
    model = built(**flags)
    slots = find_slots(model, task_of())
    assert {name: slot.names for name, slot in slots.items()} == names
    for slot in slots.values():
        assert slot.embed_scale == pytest.approx(math.sqrt(8))
        assert position_std(slot.owner) is None, "nothing is added to the embeddings"


def test_contradictions_are_named():
    def build(task, **flags):
        return TupeTransformerModel.build_model(config(**flags), task)

    with pytest.raises(OptionError, match=r"10 and 15 symbols.*--joined-dictionary"):
        build(task_of(6, 11), share_all_embeddings=True)
    with pytest.raises(OptionError, match=r"--encoder-embed-dim 8 and --decoder-embed-dim 12 must be the same"):
        build(task_of(), share_all_embeddings=True, decoder_embed_dim=12)
    with pytest.raises(OptionError, match="--decoder-attention-heads 5 does not divide --decoder-embed-dim 8"):
        build(task_of(), decoder_attention_heads=5)
    with pytest.raises(OptionError, match="--rel-pos-bins 7"):
        build(task_of(), rel_pos=True, rel_pos_bins=7)


def test_help_describes_every_option():
    for name, field in TupeTransformerConfig.__dataclass_fields__.items():
        inherited = name in ("_name", "max_source_positions", "max_target_positions")  # the task describes them
        assert inherited or len(field.metadata.get("help", "")) > 15, name
