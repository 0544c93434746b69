"""Which tables `--embed-init` finds in a model, without a model of fairseq."""

from __future__ import annotations

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models import FairseqMultiModel

from embinit_fairseq.errors import SlotError
from embinit_fairseq.hooks.slots import find_slots


class Side(torch.nn.Module):
    def __init__(self, scale) -> None:
        super().__init__()
        self.dictionary = Dictionary()
        self.embed_tokens = torch.nn.Embedding(len(self.dictionary), 4)
        self.embed_scale = scale


def model_of(kind, scale=2.0):
    """kind: a class of modules; its encoder and decoder are found by their names."""
    model = kind.__new__(kind)
    torch.nn.Module.__init__(model)
    model.encoder, model.decoder = Side(scale), Side(scale)
    return model


@pytest.mark.parametrize(("scale", "expected"), [(None, 1.0), (2.0, 2.0), (torch.tensor(3.0), 3.0)])
def test_the_scale_of_a_slot(scale, expected):
    """xlm_base has one that is None."""
    slots = find_slots(model_of(torch.nn.Module, scale), None)
    assert {name: slot.embed_scale for name, slot in slots.items()} == {"encoder": expected, "decoder": expected}


def test_a_model_of_several_pairs_is_refused_by_name():
    """Its encoder and decoder are those of the first pair."""

    class Several(FairseqMultiModel):
        encoder = decoder = None

    model = model_of(Several)
    model.models = torch.nn.ModuleDict({"de-en": torch.nn.Module(), "en-de": torch.nn.Module()})
    with pytest.raises(SlotError, match=r"Several .*de-en, en-de.*drop --embed-init"):
        find_slots(model, None)
