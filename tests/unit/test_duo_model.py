"""The Duo transformer as fairseq builds it: names, sizes, presets, ties, slots, contradictions, half precision."""

from __future__ import annotations

import dataclasses
import json
import math
import types
from pathlib import Path

import pytest
import torch

pytest.importorskip("fairseq", reason="this is an architecture of fairseq; install it with scripts/setup.sh")
from built_models import options_of, tree_text, without_memory
from duo_reference import MAPPED, VARIANTS, built, config
from fairseq.models import ARCH_MODEL_REGISTRY
from tupe_transformer_reference import EOS, batch_of, dictionary, task_of

import embinit_fairseq  # noqa: F401
from embinit_fairseq.errors import OptionError
from embinit_fairseq.hooks.slots import find_slots, position_std
from embinit_fairseq.models.duo_transformer import _PRESETS, DuoTransformerConfig, side_config

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "duo_transformer.json"
#: flags of the trees in the golden file
TREES = [
    "",
    "--duo-share-weights off --duo-fusion off --encoder-normalize-before --decoder-normalize-before",
    "--share-all-embeddings --encoder-dim-s 300 --encoder-dim-p 50 --encoder-learned-pos --decoder-learned-pos",
    "--duo-share-weights pair",
    "--duo-streams 1 --share-decoder-input-output-embed",
]
SOURCES, PREVIOUS = [[4, 5, 6, 7, EOS], [10, EOS]], [[EOS, 6, 9, 4], [EOS, 5]]


def test_parameters_have_the_names_and_shapes_of_the_golden_tree():
    found = {}
    for flags in TREES:
        model = without_memory("duo_transformer", *flags.split(), "--encoder-layers", "1", "--decoder-layers", "1")
        found[flags] = {name: list(parameter.shape) for name, parameter in model.state_dict().items()}
    expected = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else None
    assert found == expected, f"if this is meant, {GOLDEN.name} becomes:\n{tree_text(found)}"


def test_sizes_of_the_presets():
    def sizes(arch):
        model = without_memory(arch)
        for side, cfg in ((model.encoder, model.encoder.cfg), (model.decoder, model.decoder.cfg)):
            assert len(side.layers) == cfg.num_layers
        both = [
            (cfg.num_layers, cfg.layer.embed_dim, cfg.layer.ffn_embed_dim, cfg.layer.num_heads)
            for cfg in (model.encoder.cfg, model.decoder.cfg)
        ]
        assert both[0] == both[1]
        return both[0]

    assert sizes("duo_transformer") == (6, 512, 2048, 8)
    assert sizes("duo_transformer_wmt_en_de") == sizes("duo_transformer_wmt_en_fr") == (8, 512, 2048, 8)
    assert sizes("duo_transformer_big") == (6, 1024, 4096, 16)
    assert sizes("duo_transformer_iwslt_de_en") == (6, 512, 1024, 4)
    assert sizes("duo_transformer_tiny") == (2, 64, 64, 2)
    assert options_of("duo_transformer_big").dropout == 0.3
    assert options_of("duo_transformer_wmt_en_de").dropout == 0.1


def test_presets_may_be_changed():
    cfg = options_of("duo_transformer_tiny", "--encoder-ffn-embed-dim", "6", "--decoder-layers", "3")
    assert (cfg.encoder_ffn_embed_dim, cfg.decoder_ffn_embed_dim, cfg.decoder_layers) == (6, 64, 3)
    model = without_memory("duo_transformer", *"--encoder-embed-dim 16 --encoder-ffn-embed-dim 6".split())
    assert [table.weight.shape for table in model.decoder.embedding.tables()] == [(10, 16), (10, 16)]
    assert model.decoder.layers[0].fc1.weight.shape == (6, 16)


def test_every_option_arrives():
    flags = """--encoder-embed-dim 8 --encoder-ffn-embed-dim 6 --encoder-layers 1 --encoder-attention-heads 4
        --encoder-normalize-before --encoder-learned-pos --decoder-embed-dim 12 --decoder-ffn-embed-dim 10
        --decoder-layers 3 --decoder-attention-heads 3 --decoder-normalize-before --decoder-learned-pos
        --share-decoder-input-output-embed --no-scale-embedding --dropout 0.2 --attention-dropout 0.3
        --activation-dropout 0.4 --activation-fn gelu --attention-kernel eager --max-source-positions 30
        --max-target-positions 40 --encoder-dim-s 3 --encoder-dim-p 5 --decoder-dim-s 7 --decoder-dim-p 9
        --duo-share-weights off --duo-norm all --duo-fusion off""".split()
    model = ARCH_MODEL_REGISTRY["duo_transformer"].build_model(options_of("duo_transformer", *flags), task_of(6, 9))
    for side, width, ffn, heads, layers, dims, longest in (
        (model.encoder, 8, 6, 4, 1, [3, 5], 30),
        (model.decoder, 12, 10, 3, 3, [7, 9], 40),
    ):
        cfg, layer = side.cfg, side.cfg.layer
        assert (layer.embed_dim, layer.ffn_embed_dim, layer.num_heads, len(side.layers)) == (width, ffn, heads, layers)
        assert [table.embedding_dim for table in side.embedding.tables()] == dims
        assert [change.weight.shape for change in side.embedding.maps()] == [(width, dim) for dim in dims]
        assert side.embedding.embed_positions.weight.shape == (longest + 2, width)
        assert (layer.dropout, layer.attention_dropout, layer.activation_dropout) == (0.2, 0.3, 0.4)
        assert (layer.activation, layer.normalize_before) == ("gelu", True)
        assert (cfg.attention_kernel, cfg.embed_scale, side.embedding.embed_scale) == ("eager", 1.0, 1.0)
        assert (cfg.streams.share_weights, cfg.streams.duo_norm, cfg.fusion) == ("off", True, False)
    assert model.decoder.fusion is model.decoder.fused_tables is model.decoder.output_projection is None
    assert model.decoder.layers[0].encoder_attn.kv_proj.weight.shape == (2, 24, 8)
    assert model.max_positions() == (30, 40)
    for norm, expected in (
        ("off", (False, False)),
        ("encoder", (True, False)),
        ("decoder", (False, True)),
        ("all", (True, True)),
    ):
        model = built(duo_norm=norm)
        assert (model.encoder.cfg.streams.duo_norm, model.decoder.cfg.streams.duo_norm) == expected
    without = built(no_token_positional_embeddings=True)
    assert without.encoder.embedding.embed_positions is without.decoder.embedding.embed_positions is None
    assert position_std(without.encoder.embedding) is None


@pytest.mark.parametrize("arch", ["duo_transformer", *_PRESETS])
def test_every_preset_shares_weights_within_a_stream_and_norms_in_the_decoder(arch):
    """Until it is measured that something else is better. `on` is what `stream` was called."""
    cfg = options_of(arch)
    assert (str(cfg.duo_share_weights), str(cfg.duo_norm), str(cfg.duo_fusion)) == ("stream", "decoder", "on")
    named = {given: options_of(arch, "--duo-share-weights", given) for given in ("on", "stream", "pair", "off")}
    found = {given: side_config(cfg, "encoder").streams.share_weights for given, cfg in named.items()}
    assert found == {"on": "stream", "stream": "stream", "pair": "pair", "off": "off"}


def test_the_kernel_that_compiles_for_every_shape_is_no_choice(capsys):
    with pytest.raises(SystemExit):
        options_of("duo_transformer", "--attention-kernel", "flex")
    assert "invalid choice: 'flex'" in capsys.readouterr().err


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_every_parameter_learns(options):
    """Else training in several processes would need to look for idle ones in every step."""
    model = built(**options).train()
    logits, _ = model(batch_of(SOURCES), None, batch_of(PREVIOUS))
    logits.square().sum().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []
    assert [name for name, parameter in model.named_parameters() if not parameter.grad.any()] == []


def test_tables_are_tied_as_asked():
    def weights(**options):
        model = built(**options)
        output = model.decoder.output_projection
        tables = [[id(table.weight) for table in side.embedding.tables()] for side in (model.encoder, model.decoder)]
        return *tables, None if output is None else id(output.weight)

    source, target, output = weights()
    assert len({*source, *target, output}) == 5
    source, target, output = weights(share_decoder_input_output_embed=True)
    assert len({*source, *target}) == 4
    assert output is None
    source, target, output = weights(share_all_embeddings=True)
    assert source == target
    assert len(set(source)) == 2
    assert output is None
    both = built(share_all_embeddings=True, encoder_dim_s=5, decoder_dim_s=5)  # said twice
    assert both.decoder.embedding.maps()[0].weight.shape == (8, 5)
    assert both.decoder.embedding.maps()[0] is not both.encoder.embedding.maps()[0]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, {name: [name] for name in ("encoder", "encoder_p", "decoder", "decoder_p")}),
        (
            {"share_decoder_input_output_embed": True, **MAPPED},
            {name: [name] for name in ("encoder", "encoder_p", "decoder", "decoder_p")},
        ),
        (
            {"share_all_embeddings": True, "encoder_dim_p": 5},
            {"encoder": ["encoder", "decoder"], "encoder_p": ["encoder_p", "decoder_p"]},
        ),
        ({"duo_streams": 1}, {"encoder": ["encoder"], "decoder": ["decoder"]}),
    ],
    ids=str,
)
def test_slots_of_embed_init(options, names):
    model = built(**options, task=task_of() if "share_all_embeddings" in options else task_of(11, 7))
    slots = find_slots(model, None)
    assert {name: slot.names for name, slot in slots.items()} == names
    for name, slot in slots.items():
        side = model.encoder if name.startswith("encoder") else model.decoder
        assert slot.embedding is side.embedding.tables()[name.endswith("_p")]
        assert len(slot.vocabulary.symbols) == slot.embedding.num_embeddings == len(side.dictionary)
        assert slot.embed_scale == pytest.approx(math.sqrt(8))
        assert position_std(slot.owner) == pytest.approx(0.6, abs=0.1)  # of sinusoids, 48 rows


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"duo_streams": 3}, "--duo-streams 3: must be 1 or 2"),
        ({"duo_streams": 1, "encoder_dim_p": 5}, "--encoder-dim-p is for a second stream: drop it or --duo-streams 1"),
        ({"duo_streams": 1, "decoder_dim_p": 5}, "--decoder-dim-p is for a second stream"),
        ({"encoder_dim_s": 0}, "--encoder-dim-s 0: must be at least 1"),
        ({"decoder_dim_p": -2}, "--decoder-dim-p -2: must be at least 1"),
        (
            {"encoder_attention_heads": 3},
            "--encoder-attention-heads 3 does not divide --encoder-embed-dim 8.*1, 2, 4, 8",
        ),
        ({"decoder_attention_heads": 5}, "--decoder-attention-heads 5 does not divide --decoder-embed-dim 8"),
        ({"decoder_embed_dim": 9}, "--decoder-attention-heads 2 does not divide --decoder-embed-dim 9"),
        ({"encoder_layers": 0}, "--encoder-layers 0"),
        ({"dropout": 1.5}, "--dropout 1.5"),
        ({"decoder_embed_dim": 2}, "--decoder-embed-dim 2: sinusoidal positions need a width of 4"),
        (
            {"share_all_embeddings": True, "encoder_dim_p": 5, "decoder_dim_p": 7},
            r"--decoder-dim-p 7, but the encoder's table, .* has 5 columns: drop it, or give --encoder-dim-p 7",
        ),
        ({"share_all_embeddings": True, "decoder_dim_s": 7}, r"has 8 columns: drop it, or give --encoder-dim-s 7"),
    ],
    ids=str,
)
def test_numbers_that_cannot_be_are_refused_by_the_name_of_their_flag(options, message):
    with pytest.raises(OptionError, match=message):
        built(**options)


def test_one_table_needs_one_dictionary():
    with pytest.raises(OptionError, match=r"10 and 15 symbols.*--joined-dictionary.*--share-decoder-input-output"):
        built(task_of(6, 11), share_all_embeddings=True)
    other = types.SimpleNamespace(source_dictionary=dictionary(), target_dictionary=dictionary(10))
    other.target_dictionary.add_symbol("other")
    with pytest.raises(OptionError, match=r"15 and 15 symbols.*--joined-dictionary"):
        built(other, share_all_embeddings=True)


def test_streams_of_other_widths_share_their_weights():
    """What shares weights are layers, and there both streams have the width: tables of any dimensions are mapped."""
    for share, name, shape in (("stream", "in_proj", (2, 16, 8)), ("pair", "kv_proj", (16, 8))):
        model = built(duo_share_weights=share, **MAPPED)
        for layer in model.encoder.layers:
            assert getattr(layer.self_attn, name).weight.shape == shape
        logits, _ = model(batch_of(SOURCES), None, batch_of(PREVIOUS))
        assert logits.isfinite().all()


def saved_options(**options):
    """As a checkpoint has them: plain values."""
    values = dataclasses.asdict(config(**options))
    return {**{name: getattr(value, "value", value) for name, value in values.items()}, "_name": "duo_transformer"}


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({"duo_norm": "all"}, "--duo-norm decoder (here all)"),
        ({"encoder_attention_heads": 4}, "--encoder-attention-heads 2 (here 4)"),
        ({"duo_norm": "encoder"}, "--duo-norm decoder (here encoder)"),
        ({"duo_share_weights": "off", "duo_fusion": "off"}, "--duo-share-weights stream (here off), --duo-fusion on"),
        ({"duo_share_weights": "pair"}, "--duo-share-weights stream (here pair)"),
        ({"duo_streams": 1}, "--duo-streams 2 (here 1)"),
        ({"encoder_dim_p": 5}, "--encoder-dim-p 8 (here 5)"),
        ({"decoder_normalize_before": True}, "no --decoder-normalize-before (here with it)"),
        ({"no_token_positional_embeddings": True}, "no --no-token-positional-embeddings (here with it)"),
    ],
    ids=str,
)
def test_a_training_begins_with_the_options_of_its_checkpoint(now, said):
    model = built(**now)
    with pytest.raises(OptionError) as error:
        model.check_training("run/checkpoint_last.pt", saved_options())
    assert said in str(error.value)
    assert "run/checkpoint_last.pt was trained with other options" in str(error.value)


def test_on_is_what_stream_was_called():
    """In command lines and in checkpoints, whichever of the two is the older."""
    for before, now in (("on", "stream"), ("stream", "on"), ("on", "on")):
        built(duo_share_weights=now).check_training("x.pt", saved_options(duo_share_weights=before))
    for now in ("pair", "off"):
        with pytest.raises(OptionError, match=rf"--duo-share-weights stream \(here {now}\)"):
            built(duo_share_weights=now).check_training("x.pt", saved_options(duo_share_weights="on"))
    with pytest.raises(OptionError, match=r"--duo-share-weights pair \(here stream\)"):
        built(duo_share_weights="on").check_training("x.pt", saved_options(duo_share_weights="pair"))
    models = [built(duo_share_weights=share) for share in ("on", "stream")]
    for (name, one), (other_name, other) in zip(*(model.named_parameters() for model in models)):
        assert name == other_name
        assert torch.equal(one, other), name


def test_options_that_change_nothing_may_differ_from_the_checkpoints():
    same = {"dropout": 0.5, "attention_kernel": "eager", "max_source_positions": 20, "decoder_embed_dim": 8}
    built(**same, encoder_dim_s=8).check_training("run/checkpoint_last.pt", saved_options())
    built(duo_streams=1, duo_norm="off").check_training("x.pt", saved_options(duo_streams=1, duo_norm="all"))
    learned = {"encoder_learned_pos": True}  # each position has a row
    model = built(max_source_positions=20, **learned)
    with pytest.raises(OptionError, match=r"--max-source-positions 48 \(here 20\)"):
        model.check_training("x.pt", saved_options(**learned))


def test_help_describes_every_option():
    for name, field in DuoTransformerConfig.__dataclass_fields__.items():
        inherited = name in ("_name", "max_source_positions", "max_target_positions")  # the task describes them
        assert inherited or len(field.metadata.get("help", "")) > 15, name
