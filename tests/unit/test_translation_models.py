"""Encoder and decoder of `tupe_transformer` and of the Duo transformer against plain statements and against fairseq's
`transformer`, whose sizes and initial values they have; what options make of them."""

import argparse
import math

import pytest
import small_models as small
import torch
from duo_reference import reference
from fairseq import utils
from fairseq.models.transformer import TransformerModel, base_architecture, transformer_iwslt_de_en
from small_models import (
    ARCHITECTURES,
    EOS,
    MAPPED,
    OFF,
    PAD,
    PREVIOUS,
    SOURCES,
    TIED,
    TIED_OUTPUT,
    batch_of,
    preset,
    task_of,
)
from tupe_reference import assert_same_values_and_gradients, visible_dropout

from embinit_fairseq.embed_init.slots import find_slots, position_std
from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.models._translation import side_of
from embinit_fairseq.modules.position_encoding import PositionEncoding

NAMES, SIDES = ["tupe_transformer", "duo_transformer"], ["encoder", "decoder"]
TUPE, DUO = (ARCHITECTURES[name] for name in NAMES)
CASES = {variant: case for variant, case in small.VARIANTS.items() if case[0] in NAMES}
each_model = pytest.mark.parametrize("name", NAMES)
each_side = pytest.mark.parametrize("left", [False, True], ids=["right", "left"])


def unpadded(rows, sentences, left):
    return torch.cat([row[-len(s) :] if left else row[: len(s)] for row, s in zip(rows, sentences)])


def logits_of(model, left=False, sources=SOURCES, previous=PREVIOUS):
    """The logits of each sentence, computed in one batch; padding cut off."""
    logits, _ = model(batch_of(sources, left), None, batch_of(previous, left))
    return unpadded(logits, previous, left)


def expected_logits(model, sources=SOURCES, previous=PREVIOUS):
    return torch.cat([reference(model, s, p)[0] for s, p in zip(sources, previous)])


def close(ours, expected):
    torch.testing.assert_close(ours, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("variant", CASES)
def test_logits_and_gradients_equal_the_equations_whatever_the_padding(variant):
    """Every second variant is padded on the left."""
    (name, options), left = CASES[variant], list(CASES).index(variant) % 2 == 1
    model = ARCHITECTURES[name].randomised(**options)
    assert_same_values_and_gradients(model, logits_of(model, left), expected_logits(model))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(("tupe_transformer", {}), ("tupe_transformer", {"attention_kernel": "sdpa"})),
        *(("duo_transformer", MAPPED), ("duo_transformer", {"duo_streams": 1, **small.PRE_LN})),
    ],
    ids=str,
)
def test_dropout_acts_where_the_transformer_has_it(name, options, monkeypatch):
    visible_dropout(monkeypatch)
    rates = dict(small.RATES)
    if options.get("attention_kernel") == "sdpa":
        del rates["attention_dropout"]  # inside the fused kernel, where it cannot be seen
    model = ARCHITECTURES[name].randomised(**options, **rates)
    for training in (True, False):
        close(logits_of(model.train(training)), expected_logits(model))


@each_model
@each_side
@torch.no_grad()
def test_attention_and_states_are_in_the_columns_of_their_tokens(name, left):
    """Attention is the mean of heads (and streams), in the columns of the source; with either padding of the target."""
    model = ARCHITECTURES[name].randomised()
    source, states = batch_of(SOURCES, left), []
    for side in (False, True):
        _, extra = model(source, None, batch_of(PREVIOUS, side))
        assert extra["attn"][0].shape == (3, 8, 7)
        assert not extra["attn"][0].masked_select(source.eq(PAD).unsqueeze(1)).any()
        for found, s, p in zip(extra["attn"][0], SOURCES, PREVIOUS):
            rows = slice(-len(p), None) if side else slice(len(p))
            close(found[rows, -len(s) :] if left else found[rows, : len(s)], reference(model, s, p)[1].mean(0))
        states.append([unpadded(x.transpose(0, 1), PREVIOUS, side) for x in extra["inner_states"]])
    torch.testing.assert_close(*states)
    assert len(states[0]) == 1 + len(model.decoder.layers)


@each_model
def test_sentences_that_are_too_long_are_refused_by_the_name_of_the_flag(name):
    model = ARCHITECTURES[name].randomised(max_source_positions=6, max_target_positions=4)
    assert model.max_positions() == (6, 4)
    with pytest.raises(DataError, match=r"source sentence has 7 tokens, the model 6 positions.*--max-source-positions"):
        model(batch_of(SOURCES), None, batch_of([[EOS]] * 3))
    with pytest.raises(DataError, match=r"target sentence has 8 tokens, the model 4 positions.*--max-target-positions"):
        model(batch_of([[EOS]] * 3), None, batch_of(PREVIOUS))
    model(batch_of([SOURCES[0][:6]]), None, batch_of([PREVIOUS[0]]))  # 6 and 4 are not


@pytest.mark.parametrize(
    ("name", "options", "names"),
    [
        ("tupe_transformer", TIED_OUTPUT, ["encoder", "decoder"]),
        ("duo_transformer", {**TIED_OUTPUT, **MAPPED}, [f"{side}{stream}" for side in SIDES for stream in ("", "_p")]),
        ("duo_transformer", TIED, ["encoder decoder", "encoder_p decoder_p"]),
    ],
    ids=str,
)
def test_slots_of_embed_init(name, options, names):
    task = task_of() if options == TIED else task_of(11, 7)
    slots = find_slots(ARCHITECTURES[name].build(task, **options), task)
    assert [" ".join(slot.names) for slot in slots.values()] == names
    for slot in slots.values():
        assert len(slot.vocabulary.symbols) == slot.embedding.num_embeddings
        assert slot.embed_scale == pytest.approx(math.sqrt(8))
        added = 0.6 if name == "duo_transformer" else None  # the standard deviation of sinusoids, 48 rows
        assert position_std(slot.owner) == (added and pytest.approx(added, abs=0.1))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("tupe_transformer", {**TIED, "decoder_embed_dim": 12}, "-embed-dim 8 and --decoder-embed-dim 12 must"),
        ("tupe_transformer", {"rel_pos": True, "max_rel_pos": 3}, "--max-rel-pos 3: .* the distance more than"),
        *(
            ("tupe_transformer", {"positions": kind, "rel_pos": True}, "--rel-pos has no effect here: it needs --pos")
            for kind in ("rope", "alibi")
        ),
        ("tupe_transformer", {"positions": "rope", "decoder_attention_heads": 8}, r"dimension 1 \(8 / 8\): it must be"),
        ("tupe_transformer", {"max_rel_pos": 64}, "--max-rel-pos 64 has no effect here: it needs --rel-pos"),
        ("duo_transformer", {"duo_streams": 3}, "--duo-streams 3: must be 1 or 2"),
        ("duo_transformer", {"duo_streams": 1, "encoder_dim_p": 5}, "--encoder-dim-p is .*drop it or --duo-streams 1"),
        ("duo_transformer", {**TIED, "decoder_dim_s": 7}, r"has 8 columns: drop it, or give --encoder-dim-s 7"),
    ],
    ids=str,
)
def test_contradictions_are_named(name, options, message):
    with pytest.raises(OptionError, match=message):
        ARCHITECTURES[name].build(**options).check_training(None, None)
    DUO.build(**TIED, encoder_dim_s=5, decoder_dim_s=5)  # said twice is none
    TUPE.build(rel_pos=True, rel_pos_bins=16, max_rel_pos=64).check_training(None, None)


@each_model
def test_one_table_needs_one_dictionary(name):
    other = task_of(11, 10)
    other.target_dictionary.add_symbol("other")
    for task, sizes in ((task_of(6, 11), "10 and 15"), (other, "15 and 15")):
        with pytest.raises(OptionError, match=f"{sizes} symbols.*--joined-dictionary.*--share-decoder-input-output"):
            ARCHITECTURES[name].build(task, **TIED)


def stock(words=11, arch=base_architecture, **options):
    """fairseq's model of these sizes, without the options of two streams."""
    given = {key: value for key, value in options.items() if not key.startswith("duo_") and value is not None}
    args = argparse.Namespace(**{"max_source_positions": 1024, "max_target_positions": 1024, **given})
    arch(args)
    return TransformerModel.build_model(args, task_of(words))


def stock_parts(name, values):
    """A parameter of ours, with or without streams -> fairseq's name, and its part of each stream."""
    name = name.replace(".embedding.", ".").replace("_p.weight", ".weight")
    prefix, _, kind = name.rpartition(".")
    stem, _, last = prefix.rpartition(".")
    letters = {"qkv_proj": "qkv", "in_proj": "qkv", "kv_proj": "kv", "q_proj": "q"}.get(last)
    streams = list(values) if values.dim() > (2 if kind == "weight" else 1) else [values]
    for part in streams:
        if letters is None:
            yield name, part
        else:
            yield from ((f"{stem}.{x}_proj.{kind}", y) for x, y in zip(letters, part.chunk(len(letters))))


def number_of(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("ties", "more"), [({}, small.WIDER_DECODER), (TIED_OUTPUT, small.PRE_LN), (TIED, small.LEARNED)], ids=str
)
@torch.no_grad()
def test_one_stream_is_fairseqs_transformer(ties, more, monkeypatch):
    monkeypatch.setattr(utils, "softmax", lambda x, dim, onnx_trace=False: x.softmax(dim))  # in double precision
    model = DUO.randomised(duo_streams=1, **ties, **more)
    assert_is_fairseqs(model, stock(**{**DUO.sizes, **ties, **more}).double().eval())


@pytest.mark.parametrize("positions", ["rope", "alibi"])
@torch.no_grad()
def test_tupe_transformer_differs_from_fairseqs_in_positions_only(positions, monkeypatch):
    """Without positions both compute the same, in training and evaluation: `transformer` is their row of added ones."""
    monkeypatch.setattr(utils, "softmax", lambda x, dim, onnx_trace=False: x.softmax(dim))
    visible_dropout(monkeypatch)
    rates = {**small.RATES, "attention_dropout": 0.0}  # in fairseq's inside a fused kernel, where it cannot be seen
    model = TUPE.randomised(positions=positions, **rates)
    for side in (model.encoder, model.decoder):
        side.positions = PositionEncoding()
    other = stock(**TUPE.sizes, **rates, no_token_positional_embeddings=True).double()
    for training in (True, False):
        assert_is_fairseqs(model.train(training), other.train(training))


def assert_is_fairseqs(model, other):
    theirs, seen = dict(other.named_parameters(remove_duplicate=False)), set()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        for their_name, part in stock_parts(name, parameter):
            theirs[their_name].copy_(part)
            seen.add(their_name)
    assert theirs.keys() - seen <= {"decoder.output_projection.weight"}  # there it is a table of the input
    assert number_of(model) == number_of(other)
    close(logits_of(model), logits_of(other))


@pytest.mark.parametrize(
    ("size", "fairseqs"), [("_iwslt_de_en", transformer_iwslt_de_en), ("_wmt_en_de", base_architecture)]
)
def test_presets_of_tupe_transformer_are_fairseqs(size, fairseqs):
    args, ours = argparse.Namespace(), vars(preset(f"tupe_transformer{size}"))
    fairseqs(args)
    ours["decoder_embed_dim"] = ours["encoder_embed_dim"]
    ours["decoder_ffn_embed_dim"] = ours["decoder_ffn_embed_dim"] or ours["encoder_ffn_embed_dim"]
    shared = ours.keys() & vars(args).keys()
    assert len(shared) == 17
    assert {name: str(ours[name]) for name in shared} == {name: str(getattr(args, name)) for name in shared}


def test_presets_of_the_duo_transformer():
    """Sizes of both sides; weights shared within a stream, norms in the decoder."""
    for name, sizes in {
        **{"": (6, 512, 2048, 8), "_wmt_en_de": (8, 512, 2048, 8), "_wmt_en_fr": (8, 512, 2048, 8)},
        **{"_big": (6, 1024, 4096, 16), "_iwslt_de_en": (6, 512, 1024, 4), "_tiny": (2, 64, 64, 2)},
    }.items():
        cfg = preset(f"duo_transformer{name}", max_source_positions=9, max_target_positions=9)
        for side in (side_of(cfg, each) for each in SIDES):
            layer = side.layer
            assert (side.num_layers, layer.embed_dim, layer.ffn_embed_dim, layer.num_heads) == sizes
        assert cfg.dropout == (0.3 if name == "_big" else 0.1)
        assert (str(cfg.duo_share_weights), str(cfg.duo_norm), str(cfg.duo_fusion)) == ("stream", "decoder", "on")


def same_distribution(ours, theirs):
    """Standard deviation and largest value agree: enough to tell uniform and normal ones of these sizes apart."""
    ours, theirs = ours.detach().double(), theirs.detach().double()
    if theirs.std() == 0:
        return torch.equal(ours, torch.full_like(ours, float(theirs.flatten()[0])))
    near = 5 / math.sqrt(2 * ours.numel())  # five standard errors of a standard deviation
    kind = [float(x.abs().max() / x.std()) for x in (ours, theirs)]  # 1.73 for uniform ones, over 3 for normal ones
    return abs(float(ours.std() / theirs.std()) - 1) < near and abs(kind[0] - kind[1]) < 0.25 * max(kind)


@pytest.mark.parametrize(
    ("more", "decoder_dim"), [({"rel_pos": True}, 64), ({"duo_streams": 1}, 96), (OFF, 64), (OFF, 96)]
)
def test_initial_values_have_the_distributions_of_fairseqs_transformer(more, decoder_dim):
    """Each stream of the Duo transformer, and each of a stream's matrices, has that of the one of fairseq."""
    sizes = {"encoder_embed_dim": 64, "encoder_ffn_embed_dim": 80, "decoder_embed_dim": decoder_dim}
    sizes |= {f"{side}_layers": 1 for side in SIDES} | {f"{side}_attention_heads": 4 for side in SIDES}
    torch.manual_seed(0)
    model = (TUPE if "rel_pos" in more else DUO).build(task_of(200), **sizes, **more)
    theirs, compared = dict(stock(200, **sizes).named_parameters()), {"decoder.output_projection.weight"}
    for key, parameter in model.named_parameters():
        if ".positions." in key or (more == OFF and "output_projection" in key):  # for both streams
            continue
        for their_name, part in stock_parts(key, parameter):
            assert part.shape == theirs[their_name].shape, key
            assert same_distribution(part, theirs[their_name]), key
            compared.add(their_name)
    assert compared == set(theirs)


def test_initial_values_of_untied_positions():
    """Both terms of the logits begin with a standard deviation of 1/sqrt(8) for inputs of unit variance."""
    model = TUPE.build(encoder_embed_dim=64, max_source_positions=400)
    positions, attention = model.encoder.positions, model.encoder.layers[0].self_attn
    q, k, _ = attention.qkv_proj(torch.randn(400, 64)).chunk(3, dim=1)
    words = q[:, :32] @ k[:, :32].T * attention.scale
    for scores in (words, positions.absolute(400)):
        assert float(scores.detach().std()) == pytest.approx(8**-0.5, rel=0.15)


# ---- The Duo transformer's output and sizes


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


#: row of Table 5 -> options, and parameters in millions; docs/results/records/measurements.md prints these
TABLE_5 = {
    "Transformer": ({"duo_streams": 1}, 75.6),
    "+ Meta Embeddings": (OFF, 111.3),
    "+ Weight Sharing": ({**OFF, "duo_share_weights": "stream"}, 98.7),
    "+ Weight Sharing, pair": ({**OFF, "duo_share_weights": "pair"}, 98.7),
    "+ Duo Normalization": ({"duo_fusion": "off"}, 98.7),
    "+ Fusion Layer": ({}, 99.8),
    "+ Fusion Layer, pair": ({"duo_share_weights": "pair", "duo_norm": "encoder"}, 99.8),
}


@pytest.mark.parametrize("row", TABLE_5)
def test_parameters_of_the_ablation(row):
    """One joined dictionary of 32,768 symbols for all tables; on the device without memory."""
    options, millions = TABLE_5[row]
    cfg = preset("duo_transformer_wmt_en_de", **options, **TIED, max_source_positions=9, max_target_positions=9)
    with torch.device("meta"):
        model = DUO.model.build_model(cfg, task_of(32_764))
    assert round(sum(parameter.numel() for parameter in model.parameters()) / 1e6, 1) == millions
