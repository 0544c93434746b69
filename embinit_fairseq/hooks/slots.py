"""Slots: the token-embedding matrices of a finished model, found without knowing its architecture."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from embinit_fairseq.errors import CoverageError, DimensionError, OptionError, SlotError, counted
from embinit_fairseq.hooks.options import EmbedInitOptions
from embinit_fairseq.init.alignment import RULES, Part, Reading, read_sources
from embinit_fairseq.init.report import describe
from embinit_fairseq.vectors.open import SourceSpec, check_format, open_sources, parse_source
from embinit_fairseq.vocab.dictionary import Vocabulary, vocabulary_of


@dataclass
class Slot:
    """One matrix: name, the embedding, the dictionary of its rows, the module it belongs to, slots tied to it."""

    name: str
    embedding: nn.Embedding
    vocabulary: Vocabulary
    owner: nn.Module
    tied: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """All names under which a user may speak of this embedding matrix."""
        return [self.name, *self.tied]

    @property
    def embed_scale(self) -> float:
        """What the model multiplies embeddings with: sqrt(D) in transformers, 1 where nothing is said."""
        scale = getattr(self.owner, "embed_scale", None)  # xlm_base has one that is None
        return 1.0 if scale is None else float(scale)


def find_slots(model: nn.Module, task: Any) -> dict[str, Slot]:
    """Name -> slot; embedding matrices that share their parameter are one slot with several names (`Slot.tied`).

    A model of several models (one for each pair of languages) has the slots of all of them, `de-en.encoder` and so on.
    A model may say itself what its slots are: `embedding_slots() -> {name: (embedding, dictionary, owner)}`.
    Raises SlotError for a model without a matrix that `--embed-init` can fill, and for one with a matrix of
    words that is not among its slots: all are filled, or none.
    """
    slots: dict[str, Slot] = {}
    for name, embedding, dictionary, owner in _candidates(model, task):
        _check(type(model).__name__, name, embedding, dictionary)
        same = next((slot for slot in slots.values() if slot.embedding.weight is embedding.weight), None)
        if same is not None:
            same.tied.append(name)
        else:
            slots[name] = Slot(name, embedding, vocabulary_of(dictionary), owner)
    if not slots:
        raise SlotError(
            f"--embed-init: {type(model).__name__} has no token-embedding matrix that can be initialised "
            "(looked for encoder.embed_tokens and decoder.embed_tokens); drop --embed-init for this --arch"
        )
    _refuse_half(model, task, slots)
    return slots


def _refuse_half(model: nn.Module, task: Any, slots: dict[str, Slot]) -> None:
    """Raise SlotError for a further embedding matrix with a row for each word of a dictionary."""
    filled = {id(slot.embedding.weight) for slot in slots.values()}
    sizes = _dictionary_sizes(model, task) | {slot.embedding.num_embeddings for slot in slots.values()}
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and module.num_embeddings in sizes and id(module.weight) not in filled:
            if "position" in name:  # as many positions as words
                continue
            raise SlotError(
                f"--embed-init: {type(model).__name__} has a matrix of words, {name}, that cannot be reached beside "
                f"{' and '.join(slots)}; a model is not filled by half: drop --embed-init for this --arch, or let the "
                "model have embedding_slots()"
            )


def _dictionary_sizes(model: nn.Module, task: Any) -> set[int]:
    """Sizes of all dictionaries, also those of further decoders (--multitask-config-yaml) and streams of units."""
    from fairseq.data import Dictionary

    known: list[Any] = []
    for side in ("source", "target"):
        with contextlib.suppress(NotImplementedError):  # legacy_masked_lm does not say
            known.append(getattr(task, f"{side}_dictionary", None))
    for value in vars(task).values() if task is not None else ():
        known += value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
    known += [getattr(module, "dictionary", None) for module in model.modules()]
    return {len(dictionary) for dictionary in known if isinstance(dictionary, Dictionary)}


def _candidates(model: Any, task: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any, nn.Module]]:
    from fairseq.models import FairseqMultiModel

    if hasattr(model, "embedding_slots"):
        for name, (embedding, dictionary, owner) in model.embedding_slots().items():
            yield prefix + name, embedding, dictionary, owner
        return
    if isinstance(model, FairseqMultiModel):  # its own `encoder` is that of the first pair
        for name, one in model.models.items():
            yield from _candidates(one, task, f"{name}.")
        return
    for side in ("encoder", "decoder"):
        part = getattr(model, side, None)
        if part is None:
            continue
        # RoBERTa and its relatives keep the transformer inside their encoder
        owner = next((o for o in (part, getattr(part, "sentence_encoder", None)) if hasattr(o, "embed_tokens")), None)
        if owner is not None:
            yield prefix + side, owner.embed_tokens, _dictionary_of(part, model, task, side), owner


def _dictionary_of(part: nn.Module, model: nn.Module, task: Any, side: str) -> Any:
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


def position_std(owner: Any) -> float | None:
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


def slot_named(name: str, slots: dict[str, Slot], flag: str) -> Slot:
    """The slot a user means; raises SlotError with the slots there are."""
    for slot in slots.values():
        if name in slot.names:
            return slot
    names = ", ".join(name for slot in slots.values() for name in slot.names)
    raise SlotError(f"{flag}: this model has no slot {name!r}; it has: {names}")


# ----------------------------------------------------------------------------------------------------------------------
# From `SLOT=PATH` to the rows of a slot: which source is for which slot, and is what it has enough?

logger = logging.getLogger(__name__)
LOW_COVERAGE = 0.2  # share of the running tokens under which we warn


def parse_paths(texts: Iterable[str] | None, slots: dict[str, Slot]) -> dict[str, SourceSpec]:
    """`SLOT=PATH` values -> slot name -> source. Two of them for one embedding matrix (tied slots) must be the same."""
    paths: dict[str, SourceSpec] = {}
    for text in texts or ():
        name, separator, path = text.partition("=")
        if not separator or not path:
            known = "|".join(n for slot in slots.values() for n in slot.names)
            raise OptionError(f"--embed-init-path {text}: expected SLOT=PATH with SLOT one of {known}")
        slot, source = slot_named(name, slots, f"--embed-init-path {text}"), parse_source(path)
        if paths.get(slot.name, source) != source:
            raise OptionError(
                f"--embed-init-path {text}: the matrix of {' and '.join(slot.names)} is one and the same here, but "
                f"another path was given for it ({paths[slot.name].text}); give one path, or do not share embeddings"
            )
        paths[slot.name] = source
    return paths


def parse_formats(texts: Iterable[str] | None, slots: dict[str, Slot], paths: dict[str, SourceSpec]) -> dict[str, str]:
    """`[SLOT=]FORMAT` values -> slot name -> format; a format is of a path."""
    formats: dict[str, str] = {}
    for text in texts or ():
        name, separator, value = text.rpartition("=")
        check_format(value, text)
        chosen = [slot_named(name, slots, f"--embed-init-format {text}").name] if separator else list(paths)
        for slot in chosen:
            if slot not in paths or formats.get(slot, value) != value:
                reason = "it has another format already" if slot in formats else "there is no --embed-init-path for it"
                raise OptionError(f"--embed-init-format {text}: slot {slot!r}: {reason}; give each path one format")
            formats[slot] = value
    return formats


def read_slot(slot: Slot, spec: SourceSpec, format: str | None, options: EmbedInitOptions, fills: bool) -> Reading:
    """Read the rows that a slot's dictionary needs.

    format: of the files that name none. fills: rows without a vector will be filled. Raises VectorFileError,
    DimensionError, or CoverageError if a file has no word; low coverage is a warning.
    """
    spec = parse_source(spec.text, format)
    try:
        readers = open_sources(spec, slot.embedding.embedding_dim, options.embed_init_strict, slot.name)
    except DimensionError as error:
        raise _other_dimension(slot, spec, error) from error
    reading = read_sources(
        readers,
        spec,
        slot.vocabulary,
        options.embed_init_match or RULES,
        options.embed_init_markers,
        options.embed_init_oov,
        compose=fills and options.embed_init_oov == "subword",
    )
    for path, part in zip(spec.paths, reading.parts):
        _judge_coverage(slot, path, part)
    return reading


#: slot -> the option with its dimension
_DIMENSIONS = {
    "encoder": "--encoder-embed-dim {dim} (Duo: --encoder-dim-s)",
    "decoder": "--decoder-embed-dim {dim} (transformer_lm: --decoder-input-dim, too; Duo: --decoder-dim-s)",
    "encoder_p": "--encoder-dim-p {dim}",
    "decoder_p": "--decoder-dim-p {dim}",
}


def _other_dimension(slot: Slot, spec: SourceSpec, error: DimensionError) -> DimensionError:
    """The error with the names of all sides that have this matrix, and their options."""
    options = [_DIMENSIONS.get(name.rpartition(".")[2], "the model's dimension {dim}") for name in slot.names]
    remedy = " and ".join(dict.fromkeys(options)).format(dim=error.dim)
    fact = error.fact.removeprefix(f"--embed-init-path {spec.text}: ")
    return DimensionError(
        f"--embed-init-path {slot.name}={spec.text}: {fact} for {' and '.join(slot.names)}. Vectors are never cut or "
        f"padded: set {remedy}, or choose other vectors."
    )


def _judge_coverage(slot: Slot, path: str, part: Part) -> None:
    numbers, origin = part.coverage, part.origin
    if numbers["found"] == 0:
        example = [slot.vocabulary.symbols[row] for row in np.flatnonzero(slot.vocabulary.regular)[:5]]
        raise CoverageError(
            f"--embed-init-path {slot.name}={path}: none of the {int(slot.vocabulary.regular.sum()):,} words of the "
            f"dictionary is among the {origin.rows:,} rows of this file ({origin.format}); the dictionary has words "
            f"like {example}: another language, another segmentation, or --embed-init-match too narrow?"
        )
    if numbers["coverage_tokens"] < LOW_COVERAGE:
        logger.warning(
            "LOW COVERAGE: %s has vectors for only %.1f %% of the running tokens of %r (%s found); "
            "the rest starts as --embed-init-oov says; is it the file of another language, case or segmentation?",
            path,
            100 * numbers["coverage_tokens"],
            slot.name,
            counted(int(numbers["found"]), "word"),
        )


def source_record(reading: Reading) -> dict[str, Any]:
    """What was read for a matrix, for the report: each file with its own coverage where there are several."""
    spec, parts = reading.spec, reading.parts
    first = _file_record(spec.paths[0], parts[0])
    record = {
        "source": first,
        "source_moments": parts[0].moments if spec.how is None else describe(reading.source.given),
        "markers": parts[0].alignment.style,
        "rows_by_rule": reading.rows_by_rule(),
        "composed": len(reading.source.composed_rows),
        **reading.coverage,
    }
    if spec.how is not None:
        record["source"] = {
            "path": spec.named(os.path.abspath),
            "name": spec.named(_base),
            "format": spec.method,
            "rows": sum(part.origin.rows for part in parts),
            "dim": reading.source.vectors.shape[1],
            "markers": None,
            "duplicates": sum(part.origin.duplicates for part in parts),
            "broken_lines": sum(part.origin.broken_lines for part in parts),
            "found_in_all": reading.found_in_all,
            "sources": [
                {
                    **_file_record(path, part),
                    "moments": part.moments,
                    "rows_by_rule": part.alignment.counts_by_rule(),
                    "composed": len(part.composed_rows),
                    **part.coverage,
                }
                for path, part in zip(spec.paths, parts)
            ],
        }
    return record


def _base(path: str) -> str:
    return os.path.basename(os.path.normpath(path))


def _file_record(path: str, part: Part) -> dict[str, Any]:
    origin = part.origin
    return {
        "path": os.path.abspath(path),
        "name": _base(path),
        "format": origin.format,
        "rows": origin.rows,
        "dim": origin.dim,
        "markers": part.alignment.source_style,
        "duplicates": origin.duplicates,
        "broken_lines": origin.broken_lines,
    }
