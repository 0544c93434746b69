"""Find the token-embedding matrices (slots) of a finished model, whatever its architecture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from embinit_fairseq.errors import SlotError
from embinit_fairseq.vocab.dictionary import Vocabulary, vocabulary_of


@dataclass
class Slot:
    """Describe one token-embedding matrix.

    name: `encoder`, `decoder`, ... embedding: the module with the (N, D) matrix. vocabulary: the N symbols of its rows.
    owner: the module that uses it. tied: further names, of slots that share the parameter. is_output: the output layer,
    too, has this parameter.
    """

    name: str
    embedding: nn.Embedding
    vocabulary: Vocabulary
    owner: nn.Module
    tied: list[str] = field(default_factory=list)
    is_output: bool = False

    @property
    def names(self) -> list[str]:
        """Return all names of this embedding matrix."""
        return [self.name, *self.tied]

    @property
    def embed_scale(self) -> float:
        """Return the factor of the embeddings in the model: sqrt(D) in transformers, 1 where the model has none."""
        scale = getattr(self.owner, "embed_scale", None)  # xlm_base has one that is None
        return 1.0 if scale is None else float(scale)


def find_slots(model: nn.Module, task: Any) -> dict[str, Slot]:
    """Return name -> slot; embedding matrices that share their parameter are one slot with several names.

    A model of several models (one per pair of languages) has the slots of all, `de-en.encoder` and so on. A model may
    define its own: `embedding_slots() -> {name: (embedding, dictionary, owner)}`.

    Raises:
        SlotError: if there is no slot, or if there is a further embedding matrix of a dictionary's size, since a model
            is filled as a whole or not at all.
    """
    slots: dict[str, Slot] = {}
    outputs = {id(weight) for weight in _output_weights(model)}
    for name, embedding, dictionary, owner in _candidates(model, task):
        _check(type(model).__name__, name, embedding, dictionary)
        same = next((slot for slot in slots.values() if slot.embedding.weight is embedding.weight), None)
        if same is not None:
            same.tied.append(name)
        else:
            is_output = id(embedding.weight) in outputs or getattr(owner, "share_input_output_embed", False) is True
            slots[name] = Slot(name, embedding, vocabulary_of(dictionary), owner, is_output=is_output)
    if not slots:
        raise SlotError(
            f"--embed-init: {type(model).__name__} has no token-embedding matrix that can be initialised "
            "(looked for encoder.embed_tokens and decoder.embed_tokens); drop --embed-init for this --arch"
        )
    _refuse_half(model, task, slots)
    return slots


def slot_named(name: str, slots: dict[str, Slot], flag: str) -> Slot:
    """Return the slot of this name; raise SlotError, which lists the names, if there is none."""
    for slot in slots.values():
        if name in slot.names:
            return slot
    names = ", ".join(name for slot in slots.values() for name in slot.names)
    raise SlotError(f"{flag}: this model has no slot {name!r}; it has: {names}")


def position_std(owner: Any) -> float | None:
    """Return the sample standard deviation of the position encoding that `owner` adds to embeddings; None without."""
    positions: Any = getattr(owner, "embed_positions", None)
    if isinstance(positions, nn.Embedding):  # learned: rows up to the padding row are never used
        first = 0 if positions.padding_idx is None else positions.padding_idx + 1
        weights = positions.weight.detach()[first:]
    elif hasattr(positions, "get_embedding"):  # sinusoidal: the rows of the longest input, 1,024 at most
        length = min(int(getattr(positions, "max_positions", 1024) or 1024), 1024)
        if callable(getattr(owner, "max_positions", None)):
            length = min(length, int(owner.max_positions()))
        weights = positions.get_embedding(length, positions.embedding_dim, None)
    else:
        return None
    return float(weights.double().std(unbiased=True)) if weights.numel() > 1 else None


def _candidates(model: Any, task: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any, nn.Module]]:
    from fairseq.models import FairseqMultiModel

    if hasattr(model, "embedding_slots"):
        for name, (embedding, dictionary, owner) in model.embedding_slots().items():
            yield prefix + name, embedding, dictionary, owner
        return
    if isinstance(model, FairseqMultiModel):  # its attribute `encoder` is that of the first pair
        for name, one in model.models.items():
            yield from _candidates(one, task, f"{name}.")
        return
    for side in ("encoder", "decoder"):
        part = getattr(model, side, None)
        # RoBERTa and its relatives keep the transformer inside their encoder
        owners = [] if part is None else [part, getattr(part, "sentence_encoder", None)]
        owner = next((module for module in owners if hasattr(module, "embed_tokens")), None)
        if owner is not None:
            yield prefix + side, owner.embed_tokens, _dictionary_of(part, model, task, side), owner


def _output_weights(model: Any) -> Iterator[nn.Parameter]:
    """Yield the parameters of all modules but embeddings; none of a classifier, whose head for words is not used."""
    if len(getattr(model, "classification_heads", ())) == 0:
        for module in model.modules():
            if not isinstance(module, nn.Embedding):
                yield from module.parameters(recurse=False)


def _dictionary_of(part: Any, model: nn.Module, task: Any, side: str) -> Any:
    is_language_model = side == "decoder" and getattr(model, "encoder", None) is None
    if is_language_model:  # its inputs are of the source dictionary, its outputs of the target's
        return task.source_dictionary
    return getattr(part, "dictionary", None) or (
        task.source_dictionary if side == "encoder" else task.target_dictionary
    )


def _check(model: str, name: str, embedding: Any, dictionary: Any) -> None:
    if not isinstance(embedding, nn.Embedding):
        raise SlotError(
            f"--embed-init: the slot {name!r} of {model} is a {type(embedding).__name__}, not one matrix with a row "
            "per word (adaptive or character inputs); such a model cannot be initialised, drop --embed-init"
        )
    if dictionary is None or embedding.num_embeddings != len(dictionary):
        size = "no dictionary" if dictionary is None else f"a dictionary of {len(dictionary)}"
        raise SlotError(
            f"--embed-init: {model}: the slot {name!r} has {embedding.num_embeddings} rows but {size}; "
            "rows and words must be one to one, drop --embed-init for this --arch"
        )


def _refuse_half(model: nn.Module, task: Any, slots: dict[str, Slot]) -> None:
    filled = {id(slot.embedding.weight) for slot in slots.values()}
    sizes = _dictionary_sizes(model, task) | {slot.embedding.num_embeddings for slot in slots.values()}
    for name, module in model.named_modules():
        if not isinstance(module, nn.Embedding) or id(module.weight) in filled or "position" in name:
            continue
        if module.num_embeddings in sizes:
            raise SlotError(
                f"--embed-init: {type(model).__name__} has a further matrix of words, {name}, next to "
                f"{' and '.join(slots)}; a model is filled as a whole: drop --embed-init for this --arch, or give the "
                "model a method embedding_slots()"
            )


def _dictionary_sizes(model: nn.Module, task: Any) -> set[int]:
    """Return the sizes of all dictionaries, including dictionaries of further decoders (--multitask-config-yaml)."""
    from fairseq.data import Dictionary

    values: list[Any] = [getattr(module, "dictionary", None) for module in model.modules()]
    for value in vars(task).values() if task is not None else ():
        values += value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
    return {len(value) for value in values if isinstance(value, Dictionary)}


@torch.no_grad()
def write_matrix(slot: Slot, matrix: Any) -> None:
    """Copy an (N, D) float32 array into the parameter, in place, so that ties and registrations stay."""
    weight = slot.embedding.weight
    weight.copy_(torch.from_numpy(matrix).to(device=weight.device, dtype=weight.dtype))
