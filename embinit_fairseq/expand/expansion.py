"""New words for a trained fairseq model: every table over its dictionary gets rows, everything else stays as it is.

Hewitt 2021. The result is a folder with model.pt, dict.txt and expansion.json, complete or not there; with it goes the
segmentation that makes the new words.
torch and fairseq are imported when a checkpoint is opened.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embinit_fairseq.checkpoints.build import Texts
from embinit_fairseq.expand.output import changed_checkpoint, common_record, write_result
from embinit_fairseq.expand.request import (
    ExpandRequest,
    NewWord,
    Segmenter,
    check_options,
    cut_words,
    read_words,
)
from embinit_fairseq.expand.segmentation import (
    SEGMENTATION_FILES,
    Segmentation,
    check_segmentation,
    read_segmentation,
    symbols_of,
    write_segmentation,
)
from embinit_fairseq.expand.source import SourceModel, open_model
from embinit_fairseq.expand.state import (
    Placement,
    averaged_rows,
    new_dictionary,
    place_words,
)
from embinit_fairseq.expand.tables import Fit, by_copy, tensors_of
from embinit_fairseq.files import check_folder, check_inputs, whole_folder, write_json
from embinit_fairseq.init.new_rows import METHODS, Recipe, bound, new_rows
from embinit_fairseq.vocab.dictionary import Vocabulary
from embinit_fairseq.vocab.tokens import detect_style

if TYPE_CHECKING:
    from torch import Tensor


# ----------------------------------------------------------------------------------------------------------------------
# What is known of an expansion before a file is written: the checkpoint, the words, their places, the recipe.


@dataclass(frozen=True)
class Expansion:
    """What was found out about a checkpoint and its new words.

    source: the checkpoint. new_texts: the dictionaries afterwards. pieces: of every word (subword).
    segmentation: how text is cut, if that was said.
    """

    request: ExpandRequest
    source: SourceModel
    placement: Placement
    recipe: Recipe
    pieces: list[list[str]]
    new_texts: Texts
    segmentation: Segmentation | None

    @property
    def bound(self) -> float | None:
        """What KL(old || new) cannot exceed; None without a softmax over the words, or without a guarantee."""
        return bound(self.recipe) if self.source.softmax else None

    @property
    def new_symbols(self) -> list[str]:
        """As `symbols`, of the new dictionary."""
        after = [""] * self.placement.new_size
        old = zip(self.placement.moved, self.source.symbols)
        for row, symbol in [*old, *zip(self.placement.rows, self.placement.words)]:
            after[row] = symbol
        return after

    def rows(self, recipe: Recipe, copies: Sequence[Mapping[str, Tensor]]) -> list[dict[str, np.ndarray]]:
        """For every state dict (the model's, those of its averages): name of a table -> rows of the new words."""
        tables = self.source.tables
        return by_copy(tables, copies, new_rows(recipe, tensors_of(tables, copies)))


# ----------------------------------------------------------------------------------------------------------------------

#: names and patterns of what an expansion may write to its folder
FILES = (
    *("model.pt", "expansion.json", "verify.json", "verify.png"),
    *("dict.txt", "dict.*.txt", "input0/dict.txt", "label/dict.txt"),
    *SEGMENTATION_FILES,
)


def record_of(
    expansion: Expansion, dictionaries: list[str], segmentation: dict[str, Any] | None, inputs: dict[str, str]
) -> dict[str, Any]:
    """What was done, as one JSON object. segmentation: its record; inputs: the files that were read."""
    request, source, placement, recipe = expansion.request, expansion.source, expansion.placement, expansion.recipe
    appended = range(placement.described, placement.old_size)
    has_moments = source.has_moments and not request.reset_optimizer
    return {
        "expand_vocab": 1,
        "method": recipe.method,
        "noise_scale": recipe.c,
        "seed": recipe.seed,
        "n": len(recipe.averaged),
        "k": recipe.count,
        "bound": expansion.bound,
        "reused_fillers": len(placement.reused),
        "moved": {source.symbols[row]: int(placement.moved[row]) for row in appended if placement.added},
        "files": ["model.pt", *dictionaries, *(segmentation["files"] if segmentation else ()), "expansion.json"],
        "words": _words(expansion),
        "style": detect_style(symbols_of(expansion.source.vocabulary)),
        "segmentation": segmentation,
        **common_record(source, placement, request, has_moments, inputs),
    }


def _words(expansion: Expansion) -> list[dict[str, Any]]:
    placement = expansion.placement
    words = [{"word": word, "row": int(row)} for word, row in zip(placement.words, placement.rows)]
    return [{**word, "pieces": pieces} for word, pieces in zip(words, expansion.pieces)] if expansion.pieces else words


# ----------------------------------------------------------------------------------------------------------------------


def expand_vocabulary(request: ExpandRequest) -> dict[str, Any]:
    """Write `request.output`; returns the record that is in its expansion.json.

    Raises CheckpointError, DataError, OptionError or OutputError; then nothing is written.
    """
    with expanding(request) as (_, _, record):
        return record


@contextlib.contextmanager
def expanding(request: ExpandRequest) -> Iterator[tuple[Expansion, Path, dict[str, Any]]]:
    """(what was done, the new folder, its record): complete, but under a temporary name until the block ends."""
    inputs = check_inputs(request.inputs)
    check_folder(request.output, request.force, FILES, inputs.values())
    expansion = prepare(request)
    new_rows_of = functools.partial(expansion.rows, expansion.recipe)
    source, symbols = expansion.source, expansion.new_symbols
    content = changed_checkpoint(
        source, expansion.placement, symbols, not request.reset_optimizer, request.output, new_rows_of
    )
    with whole_folder(request.output, request.force, FILES) as temporary:
        segmentation = _segmentation(expansion, temporary)
        dictionaries = write_result(source, expansion.new_texts, symbols, content, temporary)
        record = record_of(expansion, dictionaries, segmentation, inputs)
        write_json(temporary / "expansion.json", record)
        yield expansion, temporary, record


def _segmentation(expansion: Expansion, folder: Path) -> dict[str, Any] | None:
    """Write how text is cut now, if it is known how it was; returns the record of that."""
    request, segmentation, words = expansion.request, expansion.segmentation, expansion.placement.words
    if segmentation is None:
        return None
    symbols = symbols_of(expansion.source.vocabulary)
    found = write_segmentation(segmentation, words, symbols, request.segment_text, folder)
    return {**found, "command": segmentation.command(request.output)}


def prepare(request: ExpandRequest) -> Expansion:
    """Read and check everything; build the model as it is. Writes nothing."""
    check_options(request)
    segmentation = read_segmentation(request.bpe_codes, request.sentencepiece_model)
    source = open_model(request.checkpoint, request.dictionary, request.side, request.user_dir)
    words = read_words(request.words, set(source.symbols))
    if segmentation is not None:
        segmentation = segmentation.for_dictionary(set(source.symbols))
        check_segmentation(segmentation, source.vocabulary, request.dictionary, request.words, words)
    cut = segmentation.pieces if segmentation is not None else None
    recipe, pieces = _recipe(request, source.vocabulary, source.fit, words, cut)
    placement = place_words(source.vocabulary, source.fit.appended, [word.text for word in words])
    new_texts = source.fit.texts(new_dictionary(request.dictionary, placement))
    return Expansion(request, source, placement, recipe, pieces, new_texts, segmentation)


def _recipe(
    request: ExpandRequest, vocabulary: Vocabulary, fit: Fit, words: list[NewWord], cut: Segmenter | None
) -> tuple[Recipe, list[list[str]]]:
    """How the rows are made, and the pieces of every word where they matter."""
    row_of = {symbol: row for row, symbol in enumerate(vocabulary.symbols) if not vocabulary.filler[row]}
    needed = METHODS[request.method].needs_pieces
    pieces = cut_words(request.words, words, cut, row_of, request.method) if needed else []
    averaged = averaged_rows(vocabulary, fit.appended, request.average_over)
    rows = [np.array([row_of[piece] for piece in word]) for word in pieces]
    return Recipe(request.method, len(words), averaged, request.noise_scale, request.seed, rows), pieces
