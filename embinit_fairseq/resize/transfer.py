"""Move a trained model to another dictionary (`embinit transfer-vocab`).

Every table with one row per symbol becomes W times the old one. W is made once, by one of the methods of
`init.methods` (FOCUS, Dobler and de Melo 2023, among them), for embeddings, output layer, bias and averages alike;
everything else stays as it is.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embinit_fairseq.errors import DataError, OptionError, named_by
from embinit_fairseq.init.method_inputs import transfer_inputs, with_vectors
from embinit_fairseq.init.methods import METHODS, Recipe, new_rows, recipe_of
from embinit_fairseq.init.symbols import Symbols, shared_rows, symbols_of
from embinit_fairseq.init.weights import COMPOSED, COPIED, KINDS, Weights, bound_entries
from embinit_fairseq.resize.carried_preparation import PREPARATION_FILES, carry_preparation
from embinit_fairseq.resize.core import CHECKPOINT_FILES, Change, resized
from embinit_fairseq.resize.old_model import MethodRequest, OldModel, check_order, files_of, open_old_model
from embinit_fairseq.resize.symbol_tensors import output_names
from embinit_fairseq.vocab.dictionary import Vocabulary, read_dictionary
from embinit_fairseq.vocab.preparation_record import read_preparation
from embinit_fairseq.vocab.segmentation import check_segmentation, read_segmentation
from embinit_fairseq.vocab.subword_styles import CONTINUES, PREFIX, Token, begins_word

#: patterns of the files in the output folder, the record first
FILES = ("transfer.json", *CHECKPOINT_FILES, *PREPARATION_FILES)
_EXAMPLES, _PARTS = 8, 5  #: numbers in the record: words of each kind, and old words per word


@dataclass(frozen=True, kw_only=True)
class TransferRequest(MethodRequest):
    """Hold the options of `embinit transfer-vocab`."""

    new_dict: str
    old_bpe_codes: str | None = None
    old_sentencepiece_model: str | None = None
    keep_optimizer: bool = False

    @property
    def segmented_by(self) -> str:
        """Return the option that names the old text's segmentation, and its file."""
        if self.old_bpe_codes is not None:
            return f"--old-bpe-codes {self.old_bpe_codes}"
        return f"--old-sentencepiece-model {self.old_sentencepiece_model}"


@dataclass(frozen=True)
class Transfer:
    """Hold the old model, the recipe of the new rows, and the change. The row map has the rows that are copied."""

    old_model: OldModel
    old: Symbols
    new: Symbols
    recipe: Recipe
    change: Change

    @property
    def weights(self) -> Weights:
        """Return W."""
        return self.recipe.weights


@contextlib.contextmanager
def transferring(request: TransferRequest) -> Iterator[tuple[Transfer, Path, dict[str, Any]]]:
    """Yield (transfer, new folder, its record); the folder has a temporary name until the block ends.

    Raises:
        CheckpointError, DataError, OptionError, OutputError, VectorFileError: naming file or option and remedy;
            nothing is written.
    """
    # 0. The options, before any work
    spec = request.check_method()
    if not request.chosen.needs_subwords and (request.old_bpe_codes or request.old_sentencepiece_model) is not None:
        raise OptionError(f"{request.segmented_by}: --method {request.method} segments no words; leave it out")
    inputs = request.check(FILES, ("new_dict", "old_bpe_codes", "old_sentencepiece_model"), files_of(spec))
    # 1. The old model and both dictionaries
    vocabulary = read_dictionary(request.new_dict, "--new-dict")
    old_model = open_old_model(request, request.keep_optimizer)
    text = Path(request.new_dict).read_bytes().decode("utf-8")
    names = old_model.symbols_of(old_model.builder.set_up(old_model.texts_with(text)))
    old = symbols_of(old_model.symbols, old_model.vocabulary)
    new = symbols_of(names, vocabulary)
    # 2. The words in both dictionaries
    shared = shared_rows(old, new, (f"--dict {request.dictionary}", f"--new-dict {request.new_dict}"))
    _check_dictionaries(request, vocabulary, old, new, shared)
    # 3. W: shared words keep their rows, the others are combinations of old rows, or are drawn
    segment = _old_segmentation(request, old_model.vocabulary)
    with named_by(f"{request.segmented_by}: "):
        method_inputs = transfer_inputs(old, new, shared, request.chosen, segment)
    method_inputs = with_vectors(method_inputs, spec, vocabulary, request.sparsity)
    with named_by(f"--vectors {request.vectors}: "):
        recipe = recipe_of(request.method, method_inputs, request.noise_scale, request.seed)
    # 4. The new checkpoint, written and loaded by fairseq, under a temporary name
    change = Change(recipe.weights.old_row, names, text)
    make_rows, remedy = functools.partial(new_rows, recipe), "leave --keep-optimizer out"
    recorded = read_preparation(request.new_dict)

    def prepare(folder: Path) -> dict[str, Any]:
        return carry_preparation(old_model, recorded, None, folder, "embinit transfer-vocab")

    with resized(old_model, change, request, inputs, FILES, make_rows, remedy, prepare) as (folder, record):
        transfer = Transfer(old_model, old, new, recipe, change)
        record |= _record(transfer, request)
        yield transfer, folder, record


def _check_dictionaries(
    request: TransferRequest, vocabulary: Vocabulary, old: Symbols, new: Symbols, shared: np.ndarray
) -> None:
    where = f"--new-dict {request.new_dict}"
    check_order(where, new.names, vocabulary)
    if list(new.names) == list(old.names):
        raise OptionError(
            f"{where}: the same symbols in the same order as {request.dictionary}, which the model has already; give "
            "the dictionary that it is to have"
        )
    if METHODS[request.method].needs_shared and not (shared[new.word] >= 0).any():
        raise DataError(
            f"{where}: none of its {len(new.words):,} words is in {request.dictionary} "
            f"({', '.join(new.names[row] for row in new.words[:3])} ... compared with "
            f"{', '.join(old.names[row] for row in old.words[:3])} ...), so --method {request.method} has nothing to "
            "start from; give another dictionary, or take --method subword or avg"
        )


def _old_segmentation(request: TransferRequest, old: Vocabulary) -> Callable[[Token], list[str]] | None:
    """Return the segmentation of the old text as a function of a new symbol's token; None without such an option."""
    flags = ("--old-bpe-codes", "--old-sentencepiece-model")
    segmentation = read_segmentation(request.old_bpe_codes, request.old_sentencepiece_model, flags)
    if segmentation is None:
        return None
    check_segmentation(segmentation, old, request.dictionary)
    segment = segmentation.segment_symbol

    def by_codes(token: Token) -> list[str]:
        """Segment by codes, whose subwords inside a word end with a mark."""
        subwords = segment(token.surface)
        return [*subwords[:-1], f"{subwords[-1]}{CONTINUES}"] if subwords and token.final is False else subwords

    def by_model(token: Token) -> list[str]:
        """Segment by a model, whose subwords at the beginning of a word begin with a mark."""
        return segment(PREFIX["sentencepiece"] * begins_word(token) + token.surface)

    return by_model if request.old_bpe_codes is None else by_codes


def _record(transfer: Transfer, request: TransferRequest) -> dict[str, Any]:
    """Return the record of a transfer, without the entries that all changes have."""
    weights, new, old_model = transfer.weights, transfer.new, transfer.old_model
    limits = transfer.recipe.bound(output_names(old_model.model, old_model.tables)) if old_model.softmax else None
    words = {kind: weights.rows_of(kind)[new.word[weights.rows_of(kind)]].tolist() for kind in KINDS}
    composed = [len(weights.row(row)[0]) for row in words[COMPOSED]]
    return {
        "transfer_vocab": 1,
        "method": request.method,
        "seed": request.seed,
        "segmentation": {"old": transfer.old.style, "new": new.style},
        "words": {kind: len(rows) for kind, rows in words.items()},
        "examples": {kind: [_example(transfer, row) for row in rows[:_EXAMPLES]] for kind, rows in words.items()},
        "parts_of_a_word": float(np.mean(composed)) if composed else None,
        **bound_entries(limits),
    }


def _example(transfer: Transfer, row: int) -> dict[str, Any]:
    """Return a word, and the old words with the largest weights in its row."""
    weights = transfer.weights
    word: dict[str, Any] = {"word": transfer.new.names[row], "row": row}
    if KINDS[weights.kind[row]] in (COPIED, COMPOSED):
        columns, values = weights.row(row)
        largest = np.argsort(-abs(values), kind="stable")[:_PARTS]
        word["from"] = {transfer.old.names[columns[at]]: round(float(values[at]), 4) for at in largest}
    return word
