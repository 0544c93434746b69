"""From `SLOT=PATH` to the rows of a slot: open, match, read, compose."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from embinit_fairseq.errors import CoverageError, OptionError, counted
from embinit_fairseq.hooks.freeze import slot_named
from embinit_fairseq.hooks.options import EmbedInitOptions
from embinit_fairseq.hooks.slots import Slot
from embinit_fairseq.init.statistics import coverage
from embinit_fairseq.init.strategies import Source
from embinit_fairseq.vectors.open import FORMATS, open_vectors
from embinit_fairseq.vectors.table import Origin
from embinit_fairseq.vocab.align import RULES, Alignment, align, plan
from embinit_fairseq.vocab.tokens import parse

logger = logging.getLogger(__name__)
LOW_COVERAGE = 0.2  # share of the running tokens under which we warn


@dataclass
class SlotSource:
    """What was read for one slot."""

    source: Source
    alignment: Alignment
    origin: Origin
    coverage: dict[str, float | int]


def parse_paths(texts: Iterable[str] | None, slots: dict[str, Slot]) -> dict[str, str]:
    """`SLOT=PATH` values -> slot name -> path. Two paths for one table (tied slots) must be the same."""
    paths: dict[str, str] = {}
    for text in texts or ():
        name, separator, path = text.partition("=")
        if not separator or not path:
            known = "|".join(n for slot in slots.values() for n in slot.names)
            raise OptionError(f"--embed-init-path {text}: expected SLOT=PATH with SLOT one of {known}")
        slot, path = slot_named(name, slots, f"--embed-init-path {text}"), os.path.expanduser(path)
        if paths.get(slot.name, path) != path:
            raise OptionError(
                f"--embed-init-path {text}: the table of {' and '.join(slot.names)} is one and the same here, but "
                f"another path was given for it ({paths[slot.name]}); give one path, or do not share embeddings"
            )
        paths[slot.name] = path
    return paths


def parse_formats(texts: Iterable[str] | None, slots: dict[str, Slot], paths: dict[str, str]) -> dict[str, str]:
    """`[SLOT=]FORMAT` values -> slot name -> format; a format is of a path."""
    formats: dict[str, str] = {}
    for text in texts or ():
        name, separator, value = text.rpartition("=")
        if value not in FORMATS:
            raise OptionError(f"--embed-init-format {text}: no such format; there are: {', '.join(FORMATS)}")
        chosen = [slot_named(name, slots, f"--embed-init-format {text}").name] if separator else list(paths)
        for slot in chosen:
            if slot not in paths or formats.get(slot, value) != value:
                reason = "it has another format already" if slot in formats else "there is no --embed-init-path for it"
                raise OptionError(f"--embed-init-format {text}: slot {slot!r}: {reason}; give each path one format")
            formats[slot] = value
    return formats


def read_source(slot: Slot, path: str, format: str | None, options: EmbedInitOptions, fills: bool) -> SlotSource:
    """Read the rows that a slot's dictionary needs; fills: rows without a vector will be filled.

    Raises VectorFileError, DimensionError, or CoverageError if no word was found; low coverage is a warning.
    """
    dim = slot.embedding.embedding_dim
    reader = open_vectors(path, format=format, dim=dim, strict=options.embed_init_strict, side=slot.name)
    rules = options.embed_init_match or RULES
    table = reader.read(plan(slot.vocabulary, rules, options.embed_init_markers))
    alignment = align(slot.vocabulary, table, rules, options.embed_init_markers)
    rows, vectors = alignment.gather(table, slot.vocabulary)
    numbers = coverage(slot.vocabulary, alignment)
    _judge_coverage(slot, path, table.origin, numbers)
    source = Source(rows, vectors, options.embed_init_oov)
    if fills and options.embed_init_oov == "subword":
        source.composed_rows, source.composed = _compose(slot, alignment, reader, dim)
    return SlotSource(source, alignment, table.origin, numbers)


def _judge_coverage(slot: Slot, path: str, origin: Origin, numbers: dict[str, float | int]) -> None:
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
            "the rest starts as --embed-init-oov says",
            path,
            100 * numbers["coverage_tokens"],
            slot.name,
            counted(numbers["found"], "word"),
        )


def _compose(slot: Slot, alignment: Alignment, reader, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows that the source's sub-words can express: (J,) and (J, D).

    A source cuts words, so only tokens that begin one are asked for: the inner piece `ing` is not the word "ing".
    """
    missing = np.flatnonzero(slot.vocabulary.regular & ~alignment.found)
    tokens = [(row, parse(slot.vocabulary.symbols[row], alignment.style)) for row in missing]
    rows = [row for row, token in tokens if token.initial is not False and token.surface]
    surfaces = [token.surface for _, token in tokens if token.initial is not False and token.surface]
    composed = reader.compose(sorted(set(surfaces)))
    hits = [(row, composed[surface]) for row, surface in zip(rows, surfaces) if surface in composed]
    if not hits:
        return np.empty(0, dtype=np.int64), np.empty((0, dim), dtype=np.float32)
    return np.array([row for row, _ in hits], dtype=np.int64), np.stack([vector for _, vector in hits])
