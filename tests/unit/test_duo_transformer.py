"""The Duo transformer: with one stream it is fairseq's own `transformer`; three streams in a circle; the ways to the
logits; parameters of the paper's ablation; presets."""

from __future__ import annotations

import argparse
import itertools
import math

import pytest
import torch

pytest.importorskip("fairseq", reason="this is an architecture of fairseq; install it with scripts/setup.sh")
from duo_reference import count, reference
from fairseq import utils
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from fairseq.models.transformer import TransformerModel, base_architecture
from small_models import (
    ARCHITECTURES,
    EOS,
    LEARNED,
    PAD,
    PRE_LN,
    TIED,
    TIED_OUTPUT,
    WIDER_DECODER,
    batch_of,
    preset,
    task_of,
)
from torch.utils.flop_counter import FlopCounterMode
from tupe_reference import randomise

from embinit_fairseq.modules.attention_kernels import prepare
from embinit_fairseq.modules.duo import DuoCrossAttention, DuoSelfAttention, back_to_values, values_for_queries

DUO = ARCHITECTURES["duo_transformer"]
SOURCES = [[4, 5, 6, 7, 8, 9, EOS], [10, 4, EOS], [7, 7, 12, 5, EOS]]
PREVIOUS = [[EOS, 6, 9, 4], [EOS, 5, 5, 8, 11, 4, 13, 6], [EOS]]
TARGETS = [[6, 9, 4, EOS], [5, 5, 8, 11, 4, 13, 6, EOS], [EOS]]
TIES = {"untied": {}, "tied": TIED_OUTPUT, "all": TIED}


@pytest.fixture
def double_precision(monkeypatch):
    """fairseq's softmax works in single precision whatever it is given; here in that of its input."""
    monkeypatch.setattr(utils, "softmax", lambda x, dim, onnx_trace=False: x.softmax(dim))
    monkeypatch.setattr(utils, "log_softmax", lambda x, dim, onnx_trace=False: x.log_softmax(dim))


def number_of(model):
    return sum(parameter.numel() for parameter in model.parameters())


def stock(words=11, **options):
    """fairseq's model of the same sizes; what it does not know (the options of two streams) is left out."""
    given = {k: v for k, v in {**DUO.sizes, **options}.items() if not k.startswith("duo_") and v is not None}
    args = argparse.Namespace(**given)
    base_architecture(args)
    return TransformerModel.build_model(args, task_of(words))


def stock_names(name, value):
    """A parameter of one stream -> fairseq's names and parts of it."""
    name = name.replace(".embedding.", ".")
    stem, _, kind = name.rpartition(".")
    if stem.endswith("in_proj"):
        letters = "qkv"
    elif stem.endswith("kv_proj"):
        letters = "kv"
    elif stem.endswith("q_proj"):
        letters = "q"
    else:
        return {name: value}
    return {
        f"{stem.rpartition('.')[0]}.{letter}_proj.{kind}": part
        for letter, part in zip(letters, value.chunk(len(letters)))
    }


def copied_into(model, other):
    """fairseq's model with the parameters of a model of one stream."""
    own = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        own |= stock_names(name, parameter.detach()[0] if has_streams(name, parameter) else parameter.detach())
    theirs = dict(other.named_parameters(remove_duplicate=False))
    missing = set(theirs) - set(own)
    assert all(name == "decoder.output_projection.weight" for name in missing)  # there it is a table of the input
    assert set(own) <= set(theirs)
    with torch.no_grad():
        for name, value in own.items():
            theirs[name].copy_(value)
    return other


def is_projection(name):
    return name.rpartition(".")[0].endswith(("in_proj", "q_proj", "kv_proj"))


def has_streams(name, parameter):
    """Whether it holds a matrix (or a bias) for each stream."""
    return is_projection(name) and parameter.ndim == (3 if name.endswith("weight") else 2)


def loss_of(model):
    logits, _ = model(batch_of(SOURCES, left=True), None, batch_of(PREVIOUS))
    log_probabilities = model.get_normalized_probs((logits, None), log_probs=True)
    loss, _ = label_smoothed_nll_loss(
        log_probabilities.view(-1, log_probabilities.shape[-1]), batch_of(TARGETS).view(-1, 1), 0.1, ignore_index=PAD
    )
    loss.backward()
    real = batch_of(PREVIOUS).ne(PAD)
    return logits[real], loss


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize(
    ("ties", "more"),
    [
        *itertools.product(TIES, [{}, PRE_LN, LEARNED]),
        *itertools.product(["untied", "tied"], [WIDER_DECODER]),  # fairseq's has no map from a table to another width
    ],
    ids=str,
)
def test_one_stream_is_fairseqs_transformer(ties, more):
    options = {**TIES[ties], **more}
    model = DUO.randomised(duo_streams=1, **options)
    other = copied_into(model, stock(**options).double()).eval()
    assert number_of(model) == number_of(other)
    for ours, theirs in zip(loss_of(model), loss_of(other)):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)
    compared, theirs = 0, dict(other.named_parameters(remove_duplicate=False))
    for name, parameter in model.named_parameters():
        gradient = parameter.grad[0] if has_streams(name, parameter) else parameter.grad
        for their_name, part in stock_names(name, gradient).items():
            torch.testing.assert_close(part, theirs[their_name].grad, rtol=1e-10, atol=1e-12, msg=name)
            compared += 1
    assert compared == len(list(other.parameters()))


# ---- Streams and the ways to the logits ------------------------------------------------------------------------------


def test_three_streams_hand_on_their_values_in_a_circle():
    """With two it does not show which way they go. Stream s asks its own keys and takes the values of s + 1."""
    attention = randomise(DuoSelfAttention(3, 8, 2, share_weights="off"))
    x = torch.randn(3, 2, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    plain = prepare("eager", None, None)
    ours = attention(x, plain).detach().clone()
    for stream in range(3):
        weight, bias = attention.in_proj.weight, attention.in_proj.bias
        after = (stream + 1) % 3
        q, k = (x[stream] @ weight[stream].T + bias[stream])[..., :16].chunk(2, dim=-1)
        v = (x[after] @ weight[after].T + bias[after])[..., 16:]
        for head in (slice(0, 4), slice(4, 8)):
            y = (q[..., head] @ k[..., head].transpose(1, 2) / 2).softmax(-1) @ v[..., head]
            ours[stream] = ours[stream] - y @ attention.out_proj.weight[:, head].T
        torch.testing.assert_close(ours[stream], attention.out_proj.bias.expand(2, 5, 8))
    assert back_to_values(torch.tensor([[0], [1], [2]])).tolist() == [[2], [0], [1]]
    assert torch.equal(back_to_values(values_for_queries(x)), x)


def test_sinusoids_are_those_of_vaswani_in_fairseqs_order():
    """sin in the first half of the columns, cos in the second; the wavelengths go from 2 pi to 10,000 times that."""
    model = DUO.build(encoder_embed_dim=8, no_scale_embedding=True).eval()
    with torch.no_grad():
        for table in model.encoder.embedding.tables():
            table.weight.zero_()
        x = model.encoder.embedding(batch_of([[5, 6, 7, EOS], [8, EOS]], left=True))
    for stream in x:
        for row, column, position in ((0, 0, 2), (0, 3, 5), (1, 2, 2), (1, 3, 3)):
            angles = [position / 10000 ** (k / 3) for k in range(4)]
            expected = torch.tensor([*map(math.sin, angles), *map(math.cos, angles)])
            torch.testing.assert_close(stream[row, column], expected, rtol=0, atol=1e-6)


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
        monkeypatch.setattr("embinit_fairseq.architectures.duo._STEPS", 0 if way == "factored" else 1000)
    encoder_out = model.encoder(batch_of(SOURCES[:1]))
    steps = [model.decoder(torch.tensor([[EOS, 4, 5][:length]]), encoder_out, state)[0] for length in (1, 2, 3)]
    torch.testing.assert_close(torch.cat(steps, dim=1)[0], expected, rtol=1e-11, atol=1e-12)


@torch.no_grad()
def test_the_fused_table_is_made_once_a_batch_and_once_for_all_when_weights_are_final(monkeypatch):
    model, made = DUO.randomised(**TIED), []
    tables = model.decoder.fused_tables
    original = type(tables).forward
    monkeypatch.setattr(type(tables), "forward", lambda self, given: made.append(self.kept) or original(self, given))
    monkeypatch.setattr("embinit_fairseq.architectures.duo._STEPS", 1000)
    for _ in range(2):
        encoder_out, state = model.encoder(batch_of(SOURCES)), {}
        for length in (1, 2, 3):
            model.decoder(torch.full((3, length), EOS), encoder_out, state)
    assert made == [None, None]
    keys = list(model.state_dict())
    model.make_generation_fast_()
    assert list(model.state_dict()) == keys, "what is derived does not belong into a checkpoint"
    assert tables.kept.shape == (15, 8)
    half = model.half().decoder.fused_tables.kept
    assert half.dtype == torch.float16, "fairseq's --fp16 may come after it (from_pretrained)"


@pytest.mark.parametrize(
    "dims", [{}, {"decoder_dim_s": 40, "decoder_dim_p": 3}, {"decoder_dim_s": 1, "decoder_dim_p": 2}]
)
@torch.no_grad()
def test_few_rows_are_multiplied_with_one_table_after_the_other(dims):
    """Whichever takes fewer multiplications, counted by PyTorch, also when the fused table is there already."""
    model = DUO.randomised(**TIED_OUTPUT, **dims)
    fused, tables = model.decoder.fused_tables, [table.weight for table in model.decoder.embedding.tables()]

    def operations(job):
        with FlopCounterMode(display=False) as counter:
            job()
        return counter.get_total_flops()

    for kept in (False, True):
        if kept:
            fused.keep_(tables)
        chosen = set()
        for rows in (1, 2, 5, 7, 8, 9, 20, 100):
            f = torch.zeros(rows, 8, dtype=torch.float64)
            whole = operations(lambda f=f: f @ fused(tables).T)
            factored = operations(lambda f=f: fused.factored(f, tables))
            assert fused.is_cheaper_factored(rows, tables) == (factored < whole), rows
            chosen.add(factored < whole)
        if kept or sum(fused.dims) < 8:  # making the table is free, or never pays
            assert len(chosen) == 1
        else:
            assert chosen == {True, False}


# ---- Parameters of the ablation, the paper's Table 5: docs/duo.md prints them ----------------------------------------


SIZES_OF_THE_PAPER = {"duo_transformer_wmt_en_de": (8, 512, 2048), "duo_transformer_big": (6, 1024, 4096)}
#: row of Table 5 -> options, what `count` is told
TABLE_5 = {
    "Transformer": ({"duo_streams": 1}, {"streams": 1}),
    "+ Meta Embeddings": ({"duo_share_weights": "off", "duo_norm": "off", "duo_fusion": "off"}, {}),
    "+ Weight Sharing": ({"duo_norm": "off", "duo_fusion": "off"}, {"shared": True}),
    "+ Weight Sharing, pair": ({"duo_share_weights": "pair", "duo_norm": "off", "duo_fusion": "off"}, {"shared": True}),
    "+ Duo Normalization": ({"duo_fusion": "off"}, {"shared": True}),
    "+ Fusion Layer": ({}, {"shared": True, "fusion": True}),
    "+ Fusion Layer, pair": ({"duo_share_weights": "pair", "duo_norm": "encoder"}, {"shared": True, "fusion": True}),
}
#: in millions, one joined dictionary of 32,768 symbols: docs/duo.md prints these
IN_MILLIONS = {
    ("duo_transformer_wmt_en_de", "one"): [75.6, 111.3, 98.7, 98.7, 98.7, 99.8, 99.8],
    ("duo_transformer_big", "one"): [209.9, 300.1, 262.4, 262.4, 262.4, 266.6, 266.6],
    ("duo_transformer_big", "300"): [186.8, 253.9, 216.1, 216.1, 216.1, 218.9, 218.9],
    ("duo_transformer_big", "three"): [277.0, 434.4, 396.6, 396.6, 396.6, 365.1, 365.1],
}


@pytest.mark.parametrize(("row", "options", "told"), [(row, *TABLE_5[row]) for row in TABLE_5])
@pytest.mark.parametrize(("arch", "tables"), IN_MILLIONS)
def test_parameters_of_the_ablation(arch, tables, row, options, told):
    """Of a small model with these switches, and by the same equation those of the paper's size."""

    def expected(layers, d, ffn, words, dim):
        dims = [dim] * told.get("streams", 2) if tables == "300" else None
        return count(layers, d, ffn, words, tables="three" if tables == "three" else "one", dims=dims, **told)

    more = {} if tables == "three" else dict(TIED)
    more |= {f"encoder_dim_{stream}": 5 for stream in "sp"[: options.get("duo_streams", 2)]} if tables == "300" else {}
    model = DUO.build(**options, **more)
    assert number_of(model) == expected(2, 8, 6, 15, 5)
    millions = expected(*SIZES_OF_THE_PAPER[arch], 32_768, 300) / 1e6
    assert round(millions, 1) == IN_MILLIONS[arch, tables][list(TABLE_5).index(row)]


def test_presets():
    """Sizes of both sides; weights shared within a stream, norms in the decoder, until something else is measured."""
    for name, sizes in {
        **{"": (6, 512, 2048, 8), "_wmt_en_de": (8, 512, 2048, 8), "_wmt_en_fr": (8, 512, 2048, 8)},
        **{"_big": (6, 1024, 4096, 16), "_iwslt_de_en": (6, 512, 1024, 4), "_tiny": (2, 64, 64, 2)},
    }.items():
        arch = f"duo_transformer{name}"
        cfg = preset(arch, max_source_positions=9, max_target_positions=9)
        with torch.device("meta"):
            model = DUO.model.build_model(cfg, task_of())
        for side in (model.encoder, model.decoder):
            layer = side.cfg.layer
            assert (len(side.layers), layer.embed_dim, layer.ffn_embed_dim, layer.num_heads) == sizes
        assert cfg.dropout == (0.3 if name == "_big" else 0.1)
        assert (str(cfg.duo_share_weights), str(cfg.duo_norm), str(cfg.duo_fusion)) == ("stream", "decoder", "on")
    cfg = preset("duo_transformer_tiny", encoder_ffn_embed_dim=6, decoder_layers=3)
    assert (cfg.encoder_ffn_embed_dim, cfg.decoder_ffn_embed_dim, cfg.decoder_layers) == (6, 64, 3)


def test_a_way_of_sharing_that_the_attentions_do_not_know_is_no_other_one():
    with pytest.raises(ValueError, match="'none'"):
        DuoSelfAttention(2, 4, 1, share_weights="none")
    with pytest.raises(ValueError, match="'none'"):
        DuoCrossAttention(2, 4, 1, 4, share_weights="none")
