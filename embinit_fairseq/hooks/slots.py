"""Slots: the token-embedding tables of a finished model, found without knowing its architecture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from embinit_fairseq.errors import SlotError
from embinit_fairseq.vocab.dictionary import Vocabulary


@dataclass
class Slot:
    """One table: name, the embedding, the dictionary of its rows, the module it belongs to, slots tied to it."""

    name: str
    embedding: nn.Embedding
    vocabulary: Vocabulary
    owner: nn.Module
    tied: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """All names under which a user may speak of this table."""
        return [self.name, *self.tied]

    @property
    def embed_scale(self) -> float:
        """What the model multiplies embeddings with: sqrt(D) in transformers, 1 where nothing is said."""
        return float(getattr(self.owner, "embed_scale", 1.0))


def find_slots(model: nn.Module, task: Any) -> dict[str, Slot]:
    """Name -> slot; tables that share their parameter are one slot with several names (`Slot.tied`).

    A model may say itself what its slots are: `embedding_slots() -> {name: (embedding, dictionary, owner)}`.
    Raises SlotError for a model without a table that `--embed-init` can fill.
    """
    slots: dict[str, Slot] = {}
    for name, embedding, dictionary, owner in _candidates(model, task):
        _check(name, embedding, dictionary)
        same = next((slot for slot in slots.values() if slot.embedding.weight is embedding.weight), None)
        if same is not None:
            same.tied.append(name)
        else:
            slots[name] = Slot(name, embedding, vocabulary_of(dictionary), owner)
    if not slots:
        raise SlotError(
            f"--embed-init: {type(model).__name__} has no token-embedding table that can be initialised "
            "(looked for encoder.embed_tokens and decoder.embed_tokens); drop --embed-init for this --arch"
        )
    return slots


def _candidates(model: nn.Module, task: Any) -> Iterator[tuple[str, Any, Any, nn.Module]]:
    if hasattr(model, "embedding_slots"):
        for name, (embedding, dictionary, owner) in model.embedding_slots().items():
            yield name, embedding, dictionary, owner
        return
    for side in ("encoder", "decoder"):
        part = getattr(model, side, None)
        if part is None:
            continue
        # RoBERTa and its relatives keep the transformer inside their encoder
        owner = next((o for o in (part, getattr(part, "sentence_encoder", None)) if hasattr(o, "embed_tokens")), None)
        if owner is not None:
            yield side, owner.embed_tokens, _dictionary_of(part, model, task, side), owner


def _dictionary_of(part: nn.Module, model: nn.Module, task: Any, side: str) -> Any:
    is_language_model = side == "decoder" and getattr(model, "encoder", None) is None
    if is_language_model:  # its inputs are of the source dictionary, its outputs of the target's
        return task.source_dictionary
    return getattr(part, "dictionary", None) or (
        task.source_dictionary if side == "encoder" else task.target_dictionary
    )


def _check(name: str, embedding: Any, dictionary: Any) -> None:
    if not isinstance(embedding, nn.Embedding):
        raise SlotError(
            f"--embed-init: the slot {name!r} of this --arch is a {type(embedding).__name__}, not one table with a row "
            "a word (adaptive or character inputs); such a model cannot be initialised, drop --embed-init"
        )
    if dictionary is None or embedding.num_embeddings != len(dictionary):
        size = "no dictionary" if dictionary is None else f"a dictionary of {len(dictionary)}"
        raise SlotError(
            f"--embed-init: the slot {name!r} has {embedding.num_embeddings} rows but {size}; "
            "rows and words must be one to one, drop --embed-init for this --arch"
        )


def vocabulary_of(dictionary: Any) -> Vocabulary:
    """A fairseq Dictionary as a Vocabulary.

    Special rows: the four of every dictionary, further ones in front of dict.txt, and `<mask>`, which tasks append
    behind it. Other symbols that tasks append (language tags) cannot be told from words and are treated as such.
    """
    roles = {}
    for role in ("bos", "pad", "eos", "unk"):
        row = getattr(dictionary, f"{role}_index", None)
        if row is not None:
            roles[row] = role
    for row in range(getattr(dictionary, "nspecial", 0)):
        roles.setdefault(row, "extra")
    mask = dictionary.indices.get("<mask>")
    if mask is not None:
        roles[mask] = "mask"
    return Vocabulary(list(dictionary.symbols), dictionary.count, roles)


def position_std(owner: nn.Module) -> float | None:
    """Sample standard deviation of the position encoding that is added to a slot's embeddings; None without one."""
    positions = getattr(owner, "embed_positions", None)
    if positions is None:
        return None
    if isinstance(positions, nn.Embedding):  # learned: rows up to the padding row are never used
        first = 0 if positions.padding_idx is None else positions.padding_idx + 1
        weights = positions.weight.detach()[first:]
    elif hasattr(positions, "get_embedding"):  # sinusoidal: a table of the longest input allowed, 1,024 at most
        length = min(int(getattr(positions, "max_positions", 1024) or 1024), 1024)
        if callable(getattr(owner, "max_positions", None)):
            length = min(length, int(owner.max_positions()))
        weights = positions.get_embedding(length, positions.embedding_dim, None)
    else:
        return None
    return float(weights.double().std(unbiased=True)) if weights.numel() > 1 else None


@torch.no_grad()
def write_table(slot: Slot, table) -> None:
    """Copy an (N, D) float32 array into the parameter, in place, so that ties and registrations stay."""
    weight = slot.embedding.weight
    weight.copy_(torch.from_numpy(table).to(device=weight.device, dtype=weight.dtype))
