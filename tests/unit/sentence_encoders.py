"""Tiny sentence encoders with every position encoding, batches for them, and the plain statement of the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from tupe_reference import encode, randomise

from embinit_fairseq.modules.encoder_layer import LayerConfig
from embinit_fairseq.modules.position_encoding import (
    AddedPositions,
    FourTermPositions,
    PositionEncoding,
    RelativePositions,
    untied_positions,
)
from embinit_fairseq.modules.sentence_encoder import EncoderConfig, SentenceEncoder

C, HEADS, FFN, SYMBOLS, LONGEST = 6, 2, 5, 11, 9
BOS, PAD, MASK = 0, 1, 10
SENTENCES = [[BOS, 4, 5, 6, 7, 2], [BOS, 8, 2], [BOS]]
#: name -> (position encoding, how the reference says it)
ENCODINGS = {
    "none": (lambda: PositionEncoding(), {"kind": "none"}),
    "bert_a": (lambda: AddedPositions(C, LONGEST), {"kind": "added"}),
    "bert_r": (lambda: RelativePositions(HEADS, 32, 128), {"kind": "relative"}),
    "bert_ad": (lambda: FourTermPositions(C, LONGEST), {"kind": "four_terms"}),
    "tupe_a": (lambda: untied_positions(C, HEADS, LONGEST), {"kind": "untied", "reset": "official"}),
    "tupe_r": (
        lambda: untied_positions(C, HEADS, LONGEST, num_buckets=32),
        {"kind": "untied", "reset": "official", "relative": True},
    ),
    "tupe_r_paper": (
        lambda: untied_positions(C, HEADS, LONGEST, reset="paper", num_buckets=32),
        {"kind": "untied", "reset": "paper", "relative": True},
    ),
    "tupe_a_tie_cls": (lambda: untied_positions(C, HEADS, LONGEST, reset=None), {"kind": "untied"}),
}
each_encoding = pytest.mark.parametrize("name", ENCODINGS)


def encoder(name="tupe_r", num_layers=2, pre_ln=False, **options):
    """Double precision, every parameter different from every other; in evaluation mode."""
    positions = ENCODINGS[name][0]()
    layer_options = {key: options.pop(key) for key in list(options) if key.endswith(("dropout", "activation"))}
    layer = LayerConfig(C, FFN, HEADS, num_terms=positions.num_terms, normalize_before=pre_ln, **layer_options)
    torch.manual_seed(0)
    embed_tokens = nn.Embedding(SYMBOLS, C, PAD)
    config = EncoderConfig(layer, num_layers, **options)
    return randomise(SentenceEncoder(config, embed_tokens, positions, BOS)).eval()


def padded(sentences=SENTENCES, length=None):
    batch = torch.full((len(sentences), length or max(map(len, sentences))), PAD)
    for row, sentence in enumerate(sentences):
        batch[row, : len(sentence)] = torch.tensor(sentence)
    return batch


def unpadded(features, sentences=SENTENCES):
    """Features (batch, length, C) of real tokens only, one sentence after the other."""
    return torch.cat([row[: len(sentence)] for row, sentence in zip(features, sentences)])


def plain(module, name, sentences=SENTENCES, state=-1, **options):
    """The same from the plain statement, which never sees padding."""
    w = dict(module.named_parameters())
    return torch.cat([encode(w, torch.tensor(s), HEADS, **ENCODINGS[name][1], **options)[state] for s in sentences])
