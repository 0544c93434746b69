"""Encoder and decoder of `tupe_transformer` and of the Duo transformer against plain statements; what options make of
them; sizes and initial values, which are those of fairseq's `transformer`."""

from __future__ import annotations

import argparse
import math
import types

import duo_reference
import pytest
import torch
import tupe_transformer_reference

pytest.importorskip("fairseq", reason="these are architectures of fairseq; install it with scripts/setup.sh")
from fairseq.models.transformer import TransformerModel, base_architecture, transformer_iwslt_de_en
from small_models import (
    ARCHITECTURES,
    DUO_SWITCHES,
    EOS,
    MAPPED,
    OFF,
    PAD,
    PRE_LN,
    TIED,
    TIED_OUTPUT,
    VARIANTS,
    batch_of,
    dictionary,
    preset,
    task_of,
)
from tupe_reference import assert_same_values_and_gradients, visible_dropout

from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.hooks.slots import find_slots, position_std
from embinit_fairseq.modules.decoder_layer import leading_padding, rotate_left

STATEMENTS = {"tupe_transformer": tupe_transformer_reference, "duo_transformer": duo_reference}
TUPE, DUO = (ARCHITECTURES[name] for name in STATEMENTS)
SOURCES = [[4, 5, 6, 7, 8, 9, EOS], [10, 4, EOS], [7, 7, 12, 5, EOS]]
PREVIOUS = [[EOS, 6, 9, 4], [EOS, 5, 5, 8, 11, 4, 13, 6], [EOS]]
RATES = {"dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.3}
CASES = {variant: case for variant, case in VARIANTS.items() if case[0] in STATEMENTS}
each_variant = pytest.mark.parametrize(("name", "options"), CASES.values(), ids=CASES)
each_model = pytest.mark.parametrize("name", STATEMENTS)
each_side = pytest.mark.parametrize("left", [False, True], ids=["right", "left"])


def unpadded(rows, sentences, left):
    return torch.cat([row[-len(s) :] if left else row[: len(s)] for row, s in zip(rows, sentences)])


def logits_of(model, sources=SOURCES, previous=PREVIOUS, left_source=False, left_target=False, width=0):
    """The logits of each sentence, computed in one batch; padding cut off."""
    logits, _ = model(batch_of(sources, left_source, width), None, batch_of(previous, left_target))
    return unpadded(logits, previous, left_target)


def expected_logits(name, model, sources=SOURCES, previous=PREVIOUS):
    return torch.cat([STATEMENTS[name].reference(model, s, p)[0] for s, p in zip(sources, previous)])


# ---- What is computed -----------------------------------------------------------------------------------------------


@each_variant
@each_side
def test_logits_and_gradients_equal_the_equations_whatever_the_padding(name, options, left):
    model = ARCHITECTURES[name].randomised(**options)
    ours = logits_of(model, left_source=left, left_target=left)
    assert_same_values_and_gradients(model, ours, expected_logits(name, model))


@pytest.mark.parametrize("switches", DUO_SWITCHES, ids=str)
def test_combinations_of_the_switches_of_the_duo_transformer(switches):
    model = DUO.randomised(**switches)
    sources, previous = SOURCES[1:], PREVIOUS[::2]
    expected = expected_logits("duo_transformer", model, sources, previous)
    assert_same_values_and_gradients(model, logits_of(model, sources, previous, left_source=True), expected)


@each_variant
def test_dropout_acts_where_the_transformer_has_it(name, options, monkeypatch):
    visible_dropout(monkeypatch)
    rates = dict(RATES)
    if options.get("attention_kernel") == "sdpa":
        del rates["attention_dropout"]  # inside the fused kernel, where it cannot be seen
    model = ARCHITECTURES[name].randomised(**options, **rates)
    for training in (True, False):
        ours = logits_of(model.train(training))
        torch.testing.assert_close(ours, expected_logits(name, model), rtol=1e-11, atol=1e-12)


@each_variant
@torch.no_grad()
def test_the_future_has_no_influence(name, options):
    model, one = ARCHITECTURES[name].randomised(**options), batch_of([[EOS, 6, 9, 4, 5, 7]])
    for at in range(1, 6):
        other = one.clone()
        other[0, at:] = 12
        ours, changed = (model(batch_of(SOURCES[:1]), None, each)[0] for each in (one, other))
        assert torch.equal(ours[:, :at], changed[:, :at])
        assert not torch.equal(ours[:, at:], changed[:, at:])


@each_model
@each_side
@pytest.mark.parametrize("order", [{}, PRE_LN], ids=["post-LN", "pre-LN"])
def test_the_encoder_keeps_the_columns_of_its_input(name, order, left):
    """Streams stand side by side."""
    model = ARCHITECTURES[name].randomised(**order)
    out = model.encoder(batch_of(SOURCES, left), None, return_all_hiddens=True)
    ours = unpadded(out["encoder_out"][0].transpose(0, 1), SOURCES, left)
    expected = torch.cat([torch.cat(STATEMENTS[name].encoder(model, source), dim=1) for source in SOURCES])
    torch.testing.assert_close(ours, expected, rtol=1e-11, atol=1e-12)
    assert torch.equal(out["encoder_padding_mask"][0], batch_of(SOURCES, left).eq(PAD))
    assert out["src_lengths"][0].tolist() == [[7], [3], [5]]
    states, other = out["encoder_states"], model.encoder(batch_of(SOURCES, not left), None, return_all_hiddens=True)
    assert [state.shape for state in states] == [(7, 3, expected.shape[1])] * 3
    assert torch.equal(states[-1], out["encoder_out"][0])
    for one, same in zip(states, other["encoder_states"]):
        ours, theirs = (unpadded(x.transpose(0, 1), SOURCES, side) for x, side in ((one, left), (same, not left)))
        torch.testing.assert_close(ours, theirs)
    alone = model.encoder(batch_of(SOURCES[:1]))
    assert alone["encoder_padding_mask"] == alone["encoder_states"] == []


@each_variant
@each_side
@torch.no_grad()
def test_attention_and_states_stand_at_their_tokens(name, options, left):
    """Attention is the mean of heads (and streams), in the columns of the source; with either padding of the target."""
    model = ARCHITECTURES[name].randomised(**options)
    source = batch_of(SOURCES, left)
    (_, extra), (_, other) = (model(source, None, batch_of(PREVIOUS, side)) for side in (False, True))
    attn = extra["attn"][0]
    assert attn.shape == (3, 8, 7)
    assert not attn.masked_select(source.eq(PAD).unsqueeze(1)).any()
    for row, (s, p) in enumerate(zip(SOURCES, PREVIOUS)):
        expected = STATEMENTS[name].reference(model, s, p)[1].mean(0)
        for found, rows in ((attn, slice(len(p))), (other["attn"][0], slice(-len(p), None))):
            columns = slice(-len(s), None) if left else slice(len(s))
            torch.testing.assert_close(found[row, rows, columns], expected, rtol=1e-11, atol=1e-12)
    assert len(extra["inner_states"]) == len(other["inner_states"]) == 1 + len(model.decoder.layers)
    for one, same in zip(extra["inner_states"], other["inner_states"]):
        ours, theirs = (unpadded(x.transpose(0, 1), PREVIOUS, side) for x, side in ((one, False), (same, True)))
        torch.testing.assert_close(ours, theirs)


@each_model
@torch.no_grad()
def test_attention_of_a_chosen_layer_and_of_the_first_heads(name):
    model, source, previous = ARCHITECTURES[name].randomised(), batch_of(SOURCES[:1]), batch_of(PREVIOUS[:1])
    encoder_out = model.encoder(source)
    for layer, layers in ((0, 1), (1, 2), (None, 2)):
        weights = STATEMENTS[name].reference(model, SOURCES[0], PREVIOUS[0], layers)[1]
        for heads in (1, 2, None):
            _, extra = model.decoder(previous, encoder_out, alignment_layer=layer, alignment_heads=heads)
            torch.testing.assert_close(extra["attn"][0][0], weights[:heads].mean(0), rtol=1e-11, atol=1e-12)


def test_rows_are_rotated_by_the_padding_in_front_only():
    tokens = torch.tensor([[PAD, PAD, 5, PAD], [5, PAD, 6, PAD], [PAD] * 4])
    shift = leading_padding(tokens.eq(PAD))
    assert shift.tolist() == [2, 0, 4]
    rotated = rotate_left(tokens, shift)
    assert rotated.tolist() == [[5, PAD, PAD, PAD], [5, PAD, 6, PAD], [PAD] * 4]
    assert torch.equal(rotate_left(rotated, -shift), tokens)


@each_model
@torch.no_grad()
def test_kernels(name):
    """One query at a time is faster without fusing on a CPU; flex would compile for the shape of every batch."""
    x = torch.zeros(1)

    def kernel(training, step=False, **options):
        side = ARCHITECTURES[name].build(**options).decoder.cfg
        if name == "tupe_transformer":
            return side.kernel(x, training=training, step=step)
        return side.prepare(x, training, None, None, step=step).kernel

    assert [kernel(False), kernel(False, True)] == ["sdpa", "eager"]
    assert kernel(False, True, attention_kernel="sdpa") == "sdpa"
    with torch.enable_grad():
        assert kernel(True) == "eager"
    assert "flex" not in type(ARCHITECTURES[name].config()).__dataclass_fields__["attention_kernel"].type.__members__


@each_model
def test_sentences_that_are_too_long_are_refused_by_the_name_of_the_flag(name):
    model = ARCHITECTURES[name].randomised(max_source_positions=6, max_target_positions=4)
    assert model.max_positions() == (6, 4)
    with pytest.raises(DataError, match=r"source sentence has 7 tokens, the model 6 positions.*--max-source-positions"):
        model(batch_of(SOURCES), None, batch_of([[EOS]] * 3))
    with pytest.raises(DataError, match=r"target sentence has 8 tokens, the model 4 positions.*--max-target-positions"):
        model(batch_of([[EOS]] * 3), None, batch_of(PREVIOUS))
    model(batch_of([SOURCES[0][:6]]), None, batch_of([PREVIOUS[0]]))  # 6 and 4 are not


# ---- What options make of it ----------------------------------------------------------------------------------------


def test_names_of_sharing_and_tables_of_the_duo_transformer():
    parameters = [dict(DUO.build(duo_share_weights=share).named_parameters()) for share in ("on", "stream")]
    assert all(torch.equal(value, parameters[1][key]) for key, value in parameters[0].items())
    model = DUO.build(no_token_positional_embeddings=True)
    assert model.encoder.embedding.embed_positions is model.decoder.embedding.embed_positions is None
    assert position_std(model.encoder.embedding) is None
    both = DUO.build(**TIED, encoder_dim_s=5, decoder_dim_s=5)  # said twice
    assert both.decoder.embedding.maps()[0].weight.shape == (8, 5)
    assert both.decoder.embedding.maps()[0] is not both.encoder.embedding.maps()[0]


def tables_of(model):
    """Identities of the embedding matrices of encoder and decoder, and of the output's."""
    sides = [
        side.embedding.tables() if hasattr(side, "embedding") else [side.embed_tokens]
        for side in (model.encoder, model.decoder)
    ]
    output = model.decoder.output_projection
    return *([id(table.weight) for table in tables] for tables in sides), None if output is None else id(output.weight)


@each_model
def test_embedding_matrices_are_tied_as_asked(name):
    build, streams = ARCHITECTURES[name].build, 1 if name == "tupe_transformer" else 2
    source, target, output = tables_of(build())
    assert len({*source, *target, output}) == 2 * streams + 1
    source, target, output = tables_of(build(**TIED_OUTPUT))
    assert len({*source, *target}) == 2 * streams
    assert output == (target[0] if streams == 1 else None)
    source, target, output = tables_of(build(**TIED))
    assert source == target
    assert output == (target[0] if streams == 1 else None)
    for side in (build(**TIED).encoder, build().decoder):
        for table in side.embedding.tables() if streams == 2 else [side.embed_tokens]:
            assert not table.weight[PAD].any()


EACH = {name: [name] for name in ("encoder", "encoder_p", "decoder", "decoder_p")}
ONE_OF_EACH = {"encoder": ["encoder"], "decoder": ["decoder"]}


@pytest.mark.parametrize(
    ("name", "options", "names"),
    [
        ("tupe_transformer", {}, ONE_OF_EACH),
        ("tupe_transformer", TIED_OUTPUT, ONE_OF_EACH),
        ("tupe_transformer", TIED, {"encoder": ["encoder", "decoder"]}),
        ("duo_transformer", {}, EACH),
        ("duo_transformer", {**TIED_OUTPUT, **MAPPED}, EACH),
        ("duo_transformer", TIED, {"encoder": ["encoder", "decoder"], "encoder_p": ["encoder_p", "decoder_p"]}),
        ("duo_transformer", {"duo_streams": 1}, ONE_OF_EACH),
    ],
    ids=str,
)
def test_slots_of_embed_init(name, options, names):
    task = task_of() if "share_all_embeddings" in options else task_of(11, 7)
    model = ARCHITECTURES[name].build(task, **options)
    slots = find_slots(model, task)
    assert {slot: found.names for slot, found in slots.items()} == names
    for slot, found in slots.items():
        side = model.encoder if slot.startswith("encoder") else model.decoder
        table = side.embedding.tables()[slot.endswith("_p")] if hasattr(side, "embedding") else side.embed_tokens
        assert found.embedding is table
        assert len(found.vocabulary.symbols) == table.num_embeddings == len(side.dictionary)
        assert found.embed_scale == pytest.approx(math.sqrt(8))
        if name == "duo_transformer":
            assert position_std(found.owner) == pytest.approx(0.6, abs=0.1)  # of sinusoids, 48 rows
        else:
            assert position_std(found.owner) is None, "nothing is added to the embeddings"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "tupe_transformer",
            {**TIED, "decoder_embed_dim": 12},
            "--encoder-embed-dim 8 and --decoder-embed-dim 12 must be the same",
        ),
        ("tupe_transformer", {"rel_pos": True, "rel_pos_bins": 7}, "--rel-pos-bins 7"),
        ("tupe_transformer", {"rel_pos": True, "max_rel_pos": 3}, "--max-rel-pos 3: .* the distance more than"),
        ("duo_transformer", {"duo_streams": 3}, "--duo-streams 3: must be 1 or 2"),
        ("duo_transformer", {"duo_streams": 1, "encoder_dim_p": 5}, "--encoder-dim-p is .*drop it or --duo-streams 1"),
        ("duo_transformer", {"duo_streams": 1, "decoder_dim_p": 5}, "--decoder-dim-p is for a second stream"),
        ("duo_transformer", {"decoder_embed_dim": 9}, "heads 2 does not divide --decoder-embed-dim 9"),
        ("duo_transformer", {"decoder_embed_dim": 2}, "--decoder-embed-dim 2: sinusoidal positions need a width of 4"),
        ("duo_transformer", {**TIED, "encoder_dim_p": 5, "decoder_dim_p": 7}, "--decoder-dim-p 7, .*--encoder-dim-p 7"),
        ("duo_transformer", {**TIED, "decoder_dim_s": 7}, r"has 8 columns: drop it, or give --encoder-dim-s 7"),
    ],
    ids=str,
)
def test_contradictions_are_named(name, options, message):
    with pytest.raises(OptionError, match=message):
        ARCHITECTURES[name].build(**options)


@each_model
def test_one_table_needs_one_dictionary(name):
    with pytest.raises(OptionError, match=r"10 and 15 symbols.*--joined-dictionary.*--share-decoder-input-output"):
        ARCHITECTURES[name].build(task_of(6, 11), **TIED)
    other = types.SimpleNamespace(source_dictionary=dictionary(), target_dictionary=dictionary(10))
    other.target_dictionary.add_symbol("other")
    with pytest.raises(OptionError, match=r"15 and 15 symbols.*--joined-dictionary"):
        ARCHITECTURES[name].build(other, **TIED)


def test_relative_options_without_relative_positions_have_no_effect():
    for option in ("rel_pos_bins", "max_rel_pos"):
        flag = "--" + option.replace("_", "-")
        with pytest.raises(OptionError, match=f"{flag} 64 has no effect here: it needs --rel-pos"):
            TUPE.build(**{option: 64}).check_training(None, None)
    TUPE.build(rel_pos=True, rel_pos_bins=16, max_rel_pos=64).check_training(None, None)


# ---- Sizes and initial values ---------------------------------------------------------------------------------------


def stock(arch=base_architecture, words=6, **sizes):
    args = argparse.Namespace(max_source_positions=1024, max_target_positions=1024, **sizes)
    arch(args)
    return TransformerModel.build_model(args, task_of(words))


@pytest.mark.parametrize(
    ("size", "fairseqs"),
    [("", base_architecture), ("_iwslt_de_en", transformer_iwslt_de_en), ("_wmt_en_de", base_architecture)],
)
def test_sizes_are_fairseqs_plus_positions(size, fairseqs):
    """A side's positions: 1024 rows, a layer norm, two matrices with biases; of width 512.

    fairseq_compat takes away the copies of its encoder layers' weights that fairseq 0.12.2 never trains.
    """
    longest = {"max_source_positions": 1024, "max_target_positions": 1024}
    with torch.device("meta"):
        model = TUPE.model.build_model(preset(f"tupe_transformer{size}", **longest), task_of(6))
        theirs = stock(fairseqs)
    ours, expected = (sum(p.numel() for p in each.parameters()) for each in (model, theirs))
    assert ours == expected + 2 * (1024 * 512 + 2 * 512 + 2 * (512 * 512 + 512))


def same_distribution(ours, theirs):
    """Standard deviation and largest value agree: enough to tell uniform and normal ones of these sizes apart."""
    ours, theirs = ours.detach().double(), theirs.detach().double()
    if theirs.std() == 0:
        return torch.equal(ours, torch.full_like(ours, float(theirs.flatten()[0])))
    near = 5 / math.sqrt(2 * ours.numel())  # five standard errors of a standard deviation
    kind = [float(x.abs().max() / x.std()) for x in (ours, theirs)]  # 1.73 for uniform ones, over 3 for normal ones
    return abs(float(ours.std() / theirs.std()) - 1) < near and abs(kind[0] - kind[1]) < 0.25 * max(kind)


@pytest.mark.parametrize("name", [*STATEMENTS, "two streams"])
@pytest.mark.parametrize("decoder_dim", [64, 96])
def test_initial_values_have_the_distributions_of_fairseqs_transformer(name, decoder_dim):
    """Each stream of the Duo transformer, and each of a stream's matrices, has that of the one of fairseq."""
    sizes = {"encoder_embed_dim": 64, "encoder_ffn_embed_dim": 80, "decoder_embed_dim": decoder_dim}
    sizes |= {
        f"{side}_{key}": n for side in ("encoder", "decoder") for key, n in (("layers", 1), ("attention_heads", 4))
    }
    more = {"tupe_transformer": {"rel_pos": True}, "duo_transformer": {"duo_streams": 1}, "two streams": OFF}[name]
    torch.manual_seed(0)
    model = ARCHITECTURES[name if name in STATEMENTS else "duo_transformer"].build(task_of(200), **sizes, **more)
    theirs, compared = dict(stock(words=200, **sizes).named_parameters()), set()
    for key, parameter in model.named_parameters():
        prefix, _, kind = key.replace(".embedding.", ".").replace("_p.weight", ".weight").rpartition(".")
        if ".positions." in key or (
            name == "two streams" and prefix == "decoder.output_projection"
        ):  # for both streams
            continue
        stem, _, last = prefix.rpartition(".")
        letters = {"qkv_proj": "qkv", "in_proj": "qkv", "kv_proj": "kv", "q_proj": "q"}.get(last)
        stacked = parameter.dim() > (2 if kind == "weight" else 1)  # a matrix for each stream
        streams = list(parameter) if stacked else [parameter]
        for stream in streams:
            parts = stream.chunk(len(letters)) if letters else [stream]
            for part, letter in zip(parts, letters or " "):
                their_name = f"{stem}.{letter}_proj.{kind}" if letters else f"{prefix}.{kind}"
                assert part.shape == theirs[their_name].shape, key
                assert same_distribution(part, theirs[their_name]), key
                compared.add(their_name)
    assert compared | {"decoder.output_projection.weight"} == set(theirs)


def test_initial_values_of_untied_positions():
    """Both terms of the logits begin with a standard deviation of 1/sqrt(8) for inputs of unit variance."""
    model = TUPE.build(encoder_embed_dim=64, rel_pos=True, rel_pos_bins=32, max_rel_pos=128, max_source_positions=400)
    positions = model.encoder.positions.requires_grad_(False)
    assert float(positions.absolute.embed_positions.weight.std()) == pytest.approx(1 / 8, rel=0.05)
    assert float(positions.relative.embed_buckets.weight.std()) == pytest.approx(1 / 8, rel=0.4)  # 64 numbers
    assert not positions.absolute.q_proj.bias.any()
    attention = model.encoder.layers[0].self_attn.requires_grad_(False)
    q, k, _ = attention.qkv_proj(torch.randn(400, 64)).chunk(3, dim=1)
    words = q[:, :32] @ k[:, :32].T * attention.scale
    assert float(words.std()) == pytest.approx(8**-0.5, rel=0.15)
    assert float(positions.absolute(400).scores.std()) == pytest.approx(8**-0.5, rel=0.15)
