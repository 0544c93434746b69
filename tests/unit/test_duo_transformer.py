"""The Duo transformer: the ways to the logits, parameters of the paper's ablation (Table 5), presets."""

import pytest
import torch
from duo_reference import count, reference
from small_models import ARCHITECTURES, EOS, OFF, SOURCES, TIED, TIED_OUTPUT, batch_of, preset

from embinit_fairseq.models._translation import side_of

DUO = ARCHITECTURES["duo_transformer"]


@pytest.mark.parametrize("way", ["factored", "fused", "prepared"])
@pytest.mark.parametrize("options", [TIED, {**TIED_OUTPUT, "decoder_dim_p": 3}], ids=str)
@torch.no_grad()
def test_all_ways_to_the_output_give_the_same_logits(options, way, monkeypatch):
    """Step by step; the full forward may take another way."""
    model, state = DUO.randomised(**options), {}
    expected, _ = reference(model, SOURCES[0], [EOS, 4, 5])
    if way == "prepared":
        model.make_generation_fast_()
    else:
        monkeypatch.setattr("embinit_fairseq.models.duo_transformer._STEPS", 0 if way == "factored" else 1000)
    encoder_out = model.encoder(batch_of(SOURCES[:1]))
    steps = [model.decoder(torch.tensor([[EOS, 4, 5][:length]]), encoder_out, state)[0] for length in (1, 2, 3)]
    torch.testing.assert_close(torch.cat(steps, dim=1)[0], expected, rtol=1e-11, atol=1e-12)


def test_derived_values_are_no_part_of_a_checkpoint():
    model = DUO.build(**TIED)
    keys = list(model.state_dict())
    model.make_generation_fast_()
    assert list(model.state_dict()) == keys
    assert model.half().decoder.fused_tables.final.dtype == torch.float16  # fairseq's --fp16 may come after it


#: row of Table 5 -> options, arguments of `count`
TABLE_5 = {
    "Transformer": ({"duo_streams": 1}, {"streams": 1}),
    "+ Meta Embeddings": (OFF, {}),
    "+ Weight Sharing": ({**OFF, "duo_share_weights": "stream"}, {"shared": True}),
    "+ Weight Sharing, pair": ({**OFF, "duo_share_weights": "pair"}, {"shared": True}),
    "+ Duo Normalization": ({"duo_fusion": "off"}, {"shared": True}),
    "+ Fusion Layer": ({}, {"shared": True, "fusion": True}),
    "+ Fusion Layer, pair": ({"duo_share_weights": "pair", "duo_norm": "encoder"}, {"shared": True, "fusion": True}),
}
#: in millions, one joined dictionary of 32,768 symbols for all tables, sizes of wmt_en_de: docs/duo.md prints these
IN_MILLIONS = [75.6, 111.3, 98.7, 98.7, 98.7, 99.8, 99.8]


@pytest.mark.parametrize(("row", "millions"), list(zip(TABLE_5, IN_MILLIONS)))
def test_parameters_of_the_ablation(row, millions):
    options, arguments = TABLE_5[row]
    dims = {f"encoder_dim_{stream}": 5 for stream in "sp"[: arguments.get("streams", 2)]}
    for more, tables in (({}, {"tables": "three"}), (TIED, {}), ({**TIED, **dims}, {"dims": [5] * len(dims)})):
        number = sum(parameter.numel() for parameter in DUO.build(**options, **more).parameters())
        assert number == count(2, 8, 6, 15, **tables, **arguments)
    assert round(count(8, 512, 2048, 32_768, **arguments) / 1e6, 1) == millions


def test_presets():
    """Sizes of both sides; weights shared within a stream, norms in the decoder, until something else is measured."""
    for name, sizes in {
        **{"": (6, 512, 2048, 8), "_wmt_en_de": (8, 512, 2048, 8), "_wmt_en_fr": (8, 512, 2048, 8)},
        **{"_big": (6, 1024, 4096, 16), "_iwslt_de_en": (6, 512, 1024, 4), "_tiny": (2, 64, 64, 2)},
    }.items():
        cfg = preset(f"duo_transformer{name}", max_source_positions=9, max_target_positions=9)
        for side in (side_of(cfg, "encoder"), side_of(cfg, "decoder")):
            layer = side.layer
            assert (side.num_layers, layer.embed_dim, layer.ffn_embed_dim, layer.num_heads) == sizes
        assert cfg.dropout == (0.3 if name == "_big" else 0.1)
        assert (str(cfg.duo_share_weights), str(cfg.duo_norm), str(cfg.duo_fusion)) == ("stream", "decoder", "on")
