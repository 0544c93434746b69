"""What the Duo transformer becomes with one stream, or with two that are equal: fairseq's own `transformer`."""

from __future__ import annotations

import argparse
import itertools
import math

import pytest
import torch

pytest.importorskip("fairseq", reason="this is an architecture of fairseq; install it with scripts/setup.sh")
from built_models import number_of
from decoding import SOURCES
from duo_reference import LEARNED, PRE_LN, SIZES, WIDER_DECODER, built, randomised
from fairseq import utils
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from fairseq.models.transformer import TransformerModel, base_architecture
from tupe_transformer_reference import EOS, PAD, batch_of, task_of

PREVIOUS = [[EOS, 6, 9, 4], [EOS, 5, 5, 8, 11, 4, 13, 6], [EOS]]
TARGETS = [[6, 9, 4, EOS], [5, 5, 8, 11, 4, 13, 6, EOS], [EOS]]
TIES = {"untied": {}, "tied": {"share_decoder_input_output_embed": True}, "all": {"share_all_embeddings": True}}


@pytest.fixture(autouse=True)
def double_precision(monkeypatch):
    """fairseq's softmax works in single precision whatever it is given; here in that of its input."""
    monkeypatch.setattr(utils, "softmax", lambda x, dim, onnx_trace=False: x.softmax(dim))
    monkeypatch.setattr(utils, "log_softmax", lambda x, dim, onnx_trace=False: x.log_softmax(dim))


def stock(words=11, **options):
    """fairseq's model of the same sizes; what it does not know (the options of two streams) is left out."""
    args = argparse.Namespace(**{**SIZES, **{k: v for k, v in options.items() if not k.startswith("duo_")}})
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
    model = randomised(duo_streams=1, **options)
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


@pytest.mark.parametrize("share", ["off", "stream", "pair"])
@pytest.mark.parametrize("norm", ["off", "encoder", "decoder", "all"])
@pytest.mark.parametrize(("fusion", "ties"), [*itertools.product(["on", "off"], TIES)])
@pytest.mark.parametrize("more", [{}, PRE_LN], ids=["post-LN", "pre-LN"])
def test_equal_streams_are_fairseqs_transformer_with_another_output_matrix(share, norm, fusion, ties, more):
    """P = S: each stream is the stock model (W_K = W_V if a stream has one for both), and the logits are y M^T with

    M = O (W_F^S + W_F^P), O = E (W_O^S + W_O^P) if tied; without fusion O^S + O^P, or 2 E if tied.
    """
    options = {"duo_share_weights": share, "duo_norm": norm, "duo_fusion": fusion, **TIES[ties], **more}
    model = randomised(**options)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if has_streams(name, parameter):
                parameter[1] = parameter[0]
            elif name.endswith("embed_tokens_p.weight"):
                parameter.copy_(model.get_parameter(name.replace("_p.weight", ".weight")))
    other = stock(**more).double().eval()  # with an output matrix of its own
    theirs = dict(other.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        for names, value, _ in common_parameters(model, share):
            for name in names:
                theirs[name].copy_(value)
        theirs["decoder.output_projection.weight"].copy_(output_matrix(model))
    for ours, expected in zip(loss_of(model), loss_of(other)):
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-11)
    gradients = {}
    for names, _, gradient in common_parameters(model, share):
        gradients[names] = gradients.get(names, 0) + gradient
    assert {name for names in gradients for name in names} == set(theirs) - {"decoder.output_projection.weight"}
    for names, gradient in gradients.items():
        if ties == "untied" or "embed_tokens" not in names[0]:  # tied ones are in the output matrix, too
            expected = sum(theirs[name].grad for name in names)
            torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-10, msg=str(names))


def common_parameters(model, share):
    """fairseq's names for one of our matrices, the matrix (of the first stream), its gradient (of both, if any)."""
    for name, parameter in model.named_parameters(remove_duplicate=False):
        stem, _, kind = name.replace(".embedding.", ".").rpartition(".")
        attention, _, part = stem.rpartition(".")
        if any(own in name for own in ("fusion", "fused_tables", "output_projection")):
            continue
        value, gradient = parameter.detach(), parameter.detach() if parameter.grad is None else parameter.grad
        if not is_projection(name):
            yield (f"{stem.removesuffix('_p')}.{kind}",), value, gradient
            continue
        if has_streams(name, parameter):
            value, gradient = value[0], gradient.sum(0)
        keys_values = ["kv"] if share == "stream" else ["k", "v"]
        groups = {"in_proj": ["q", *keys_values], "q_proj": ["q"], "kv_proj": keys_values}[part]
        for group, *parts in zip(groups, value.chunk(len(groups)), gradient.chunk(len(groups))):
            yield tuple(f"{attention}.{letter}_proj.{kind}" for letter in group), *parts


def output_matrix(model):
    """(V, C): what each of two equal streams meets, as one matrix."""
    decoder = model.decoder
    table, width = decoder.embedding.embed_tokens.weight, decoder.cfg.layer.embed_dim
    if decoder.output_projection is not None:
        matrix = decoder.output_projection.weight
    elif decoder.fused_tables is not None:
        matrix = table @ sum(decoder.fused_tables.proj.weight.split(table.shape[1], 1)).T
    else:
        return 2 * table
    if decoder.fusion is not None:
        return matrix @ sum(decoder.fusion.proj.weight.split(width, 1))
    return sum(matrix.split(width, 1))


def same_law(ours, theirs):
    """Standard deviation and kurtosis (normal 3, uniform 1.8) agree within five standard errors."""
    ours, theirs = ours.detach().double(), theirs.detach().double()
    if theirs.std() == 0:
        return torch.equal(ours, torch.full_like(ours, float(theirs.flatten()[0])))
    fourth = [float((x**4).mean() / x.var() ** 2) for x in (ours, theirs)]
    near = 5 / math.sqrt(2 * ours.numel())
    return abs(float(ours.std() / theirs.std()) - 1) < near and abs(fourth[0] - fourth[1]) < 7 * near


@pytest.mark.parametrize(("streams", "share"), [(1, "off"), (2, "off"), (2, "pair")])
@pytest.mark.parametrize("decoder_dim", [64, 96])
def test_first_values_have_the_laws_of_fairseqs_transformer(streams, share, decoder_dim):
    sizes = {"encoder_embed_dim": 64, "encoder_ffn_embed_dim": 80, "decoder_embed_dim": decoder_dim}
    sizes |= {
        f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in (("layers", 1), ("attention_heads", 4))
    }
    torch.manual_seed(0)
    model = built(task_of(200), duo_streams=streams, duo_share_weights=share, **sizes)
    theirs, compared = dict(stock(200, **sizes).named_parameters()), set()
    for name, parameter in model.named_parameters():
        if "fusion" in name:
            continue
        for stream in parameter if has_streams(name, parameter) else [parameter]:
            for their_name, part in stock_names(name, stream).items():
                their_name = their_name.replace("tokens_p", "tokens")
                assert part.shape == theirs[their_name].shape, name
                assert same_law(part, theirs[their_name]), name
                compared.add(their_name)
    assert compared == set(theirs)
    for table in (*model.encoder.embedding.tables(), *model.decoder.embedding.tables()):
        assert not table.weight[PAD].any()


def test_first_values_of_what_fairseq_does_not_have():
    """Logits and mapped embeddings begin with about the variance that fairseq's have."""
    torch.manual_seed(0)
    dims = {"encoder_dim_s": 48, "encoder_dim_p": 64, "encoder_embed_dim": 96, "encoder_attention_heads": 4}
    model = built(task_of(500), share_all_embeddings=True, decoder_attention_heads=4, **dims).requires_grad_(False)
    tables = [table.weight for table in model.decoder.embedding.tables()]
    assert float(model.decoder.fused_tables(tables).std()) == pytest.approx(96**-0.5, rel=0.05)
    for table, change in zip(tables, model.decoder.embedding.maps()):
        expected = math.sqrt(2 / (table.shape[1] + 96))  # of a table of width 96: sqrt(1 / 96)
        assert float(change(table).std()) == pytest.approx(expected, rel=0.1)
        assert not change.bias.any()
    assert same_law(model.decoder.fusion.proj.weight, torch.empty(96, 192).uniform_(-1, 1) * math.sqrt(6 / (96 + 192)))
    for options in ({}, {"duo_fusion": "off"}):
        output = built(task_of(500), **options, encoder_embed_dim=96).decoder.output_projection.weight.detach()
        assert float(output.std()) == pytest.approx(output.shape[1] ** -0.5, rel=0.05)
