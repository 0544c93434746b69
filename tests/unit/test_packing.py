"""Tokens without padding: which ones, in which order, and what it saves."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_encoders import BOS, FFN, C, encoder, padded
from torch.utils.flop_counter import FlopCounterMode

from embinit_fairseq.modules.encoder_layer import Packing, packing_of

masks = st.integers(1, 7).flatmap(
    lambda length: st.lists(st.lists(st.booleans(), min_size=length, max_size=length), min_size=1, max_size=5)
)


@settings(deadline=None, max_examples=50)
@given(masks)
def test_packing_and_spreading(rows):
    padding_mask = torch.tensor(rows)
    x = torch.randn(*padding_mask.shape, 3, dtype=torch.float64, requires_grad=True)
    packing = Packing(padding_mask)
    packed = packing.pack(x)
    assert torch.equal(packed, x[~padding_mask])
    spread = packing.spread(packed)
    assert torch.equal(spread, x.masked_fill(padding_mask.unsqueeze(-1), 0.0))
    weights = torch.randn_like(x)
    (spread * weights).sum().backward()
    assert torch.equal(x.grad, weights.masked_fill(padding_mask.unsqueeze(-1), 0.0))


@pytest.mark.parametrize(
    ("padding", "packed"), [(0, False), (3, False), (4, True), (40, True)], ids=["none", "few", "1/16", "many"]
)
def test_only_where_it_saves_something(monkeypatch, padding, packed):
    padding_mask = torch.zeros(8, 8, dtype=torch.bool)
    for at in range(padding):
        padding_mask[at % 8, 7 - at // 8] = True
    assert (packing_of(padding_mask, 64 - padding) is not None) == packed
    module = encoder(attention_kernel="eager").requires_grad_(False)
    tokens = torch.full((8, 8), 4).index_fill(1, torch.tensor(0), BOS).masked_fill(padding_mask, module.padding_idx)
    with FlopCounterMode(display=False) as counted:
        module(tokens)
    monkeypatch.setattr("embinit_fairseq.modules.encoder_layer.WORTHWHILE", 2)
    with FlopCounterMode(display=False) as padded_out:
        module(tokens)
    assert (counted.get_total_flops() < padded_out.get_total_flops()) == packed


def test_no_mask_no_packing():
    assert packing_of(None, 10) is None


@pytest.mark.parametrize("masks", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("training", [False, True])
def test_linear_maps_take_the_tokens_alone(monkeypatch, training, masks):
    """Of 4 sentences with 2, 2, 2 and 8 tokens: 14 tokens, not 32. All else is as before."""
    sentences, layers = [[BOS, 2]] * 3 + [[BOS, 4, 5, 6, 7, 8, 9, 2]], 2
    module = encoder("tupe_a", layers, attention_kernel="eager").train(training)
    module.requires_grad_(training)  # for no gradients: under no_grad the counter does not work
    masked_tokens = padded(sentences).eq(6) if masks else None

    def products():
        with FlopCounterMode(display=False) as counted:
            module(padded(sentences), masked_tokens)
        return counted.get_total_flops()

    packed = products()
    monkeypatch.setattr("embinit_fairseq.modules.encoder_layer.WORTHWHILE", 2)
    assert products() - packed == layers * 2 * (32 - 14) * (4 * C * C + 2 * C * FFN)


def test_behind_the_embeddings_all_but_attention_sees_the_tokens_alone():
    """Layer norm, dropout and projection of the embeddings, and what is in the layers: 14 tokens of 32 places."""
    module = encoder("tupe_a", 1, embedding_normalize=True)
    module.embed_proj = torch.nn.Linear(C, C, dtype=torch.float64)
    seen = {}
    for name, part in module.named_modules():
        part.register_forward_hook(lambda _, inputs, output, name=name: seen.update({name: output}))
    module(padded([[BOS, 2]] * 3 + [[BOS, 4, 5, 6, 7, 8, 9, 2]]))
    shapes = {name: tuple(output.shape[:-1]) for name, output in seen.items() if isinstance(output, torch.Tensor)}
    tokens = {name for name, shape in shapes.items() if shape == (14,)}
    layer = {"self_attn", "self_attn_layer_norm", "fc1", "fc2", "final_layer_norm", "dropout", "activation_dropout"}
    assert tokens >= {"emb_layer_norm", "dropout", "embed_proj", "layers.0", *(f"layers.0.{name}" for name in layer)}
    assert {name for name, shape in shapes.items() if shape == (4, 8)} == {"embed_tokens"}
