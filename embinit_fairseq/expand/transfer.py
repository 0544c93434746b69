"""A trained fairseq model for another dictionary: every table over its symbols becomes W times the old one.

W is made once, by one of the methods of `init.transfer`, for embeddings, output layer, bias and averages alike; what
else the model has stays as it is. The result is a folder with model.pt, dict.txt and transfer.json, complete or not
there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embinit_fairseq.checkpoints.build import Texts
from embinit_fairseq.errors import CheckpointError, DataError, OptionError, named_by
from embinit_fairseq.expand.output import changed_checkpoint, common_record, write_result
from embinit_fairseq.expand.segmentation import check_segmentation, read_segmentation
from embinit_fairseq.expand.source import SourceModel, open_model
from embinit_fairseq.expand.state import RESET_REMEDY
from embinit_fairseq.expand.tables import by_copy, tensors_of
from embinit_fairseq.files import check_folder, check_inputs, whole_folder, write_json
from embinit_fairseq.init.alignment import read
from embinit_fairseq.init.strategies import check_seed
from embinit_fairseq.init.transfer import (
    COMPOSED,
    COPIED,
    KINDS,
    METHODS,
    Given,
    Symbols,
    Weights,
    shared_rows,
    symbols_of,
    transfer_weights,
    transferred_rows,
)
from embinit_fairseq.vectors.open import SourceSpec, parse_source
from embinit_fairseq.vocab.dictionary import Vocabulary, read_dictionary
from embinit_fairseq.vocab.tokens import Token

if TYPE_CHECKING:
    from torch import Tensor

#: names and patterns of what a transfer may write to its folder
FILES = ("model.pt", "transfer.json", "dict.txt", "dict.*.txt", "input0/dict.txt", "label/dict.txt")
_EXAMPLES, _PARTS = 8, 5  # in the record: of each kind of row, and old words of one


@dataclass(frozen=True)
class TransferRequest:
    """The options of `embinit transfer-vocab`."""

    checkpoint: str
    dictionary: str
    new_dict: str
    method: str
    output: str
    side: str | None = None
    vectors: str | None = None
    format: str | None = None
    seed: int = 1
    old_bpe_codes: str | None = None
    old_sentencepiece_model: str | None = None
    user_dir: str | None = None
    keep_optimizer: bool = False
    force: bool = False

    @property
    def inputs(self) -> dict[str, str | None]:
        """Option -> file that is read; vectors may be folders, or several, and are not among them."""
        names = ("checkpoint", "dictionary", "new_dict", "old_bpe_codes", "old_sentencepiece_model")
        return {name: getattr(self, name) for name in names}

    @property
    def source(self) -> SourceSpec | None:
        """What --vectors names."""
        with named_by("--vectors "):
            return None if self.vectors is None else parse_source(self.vectors, self.format)

    @property
    def cut_by(self) -> str:
        """The option that says how old text was segmented, and its file."""
        if self.old_bpe_codes is not None:
            return f"--old-bpe-codes {self.old_bpe_codes}"
        return f"--old-sentencepiece-model {self.old_sentencepiece_model}"


@dataclass(frozen=True)
class Transfer:
    """What was found out before a file is written. old, new: the symbols, those that the task appends included."""

    request: TransferRequest
    source: SourceModel
    old: Symbols
    new: Symbols
    weights: Weights
    new_texts: Texts

    def rows(self, copies: Sequence[Mapping[str, Tensor]]) -> list[dict[str, np.ndarray]]:
        """For every state dict: name of a table -> the rows that are not copied."""
        tables = self.source.tables
        return by_copy(tables, copies, transferred_rows(self.weights, tensors_of(tables, copies), self.request.seed))


def check_options(request: TransferRequest) -> None:
    """Raises OptionError for values that cannot be used, or do not belong together."""
    if request.method not in METHODS:
        raise OptionError(f"--method {request.method}: choose from {', '.join(METHODS)}")
    method = METHODS[request.method]
    check_seed(request.seed, "--seed")
    if method.needs_vectors and request.vectors is None:
        raise OptionError(
            f"--method {request.method} needs --vectors FILE: word vectors of the new dictionary's words or pieces"
        )
    if not method.needs_vectors and request.vectors is not None:
        raise OptionError(f"--vectors {request.vectors}: --method {request.method} reads none; leave it out")
    if not method.cuts and (request.old_bpe_codes or request.old_sentencepiece_model) is not None:
        raise OptionError(f"{request.cut_by}: --method {request.method} cuts no words; leave it out")


def prepare(request: TransferRequest) -> Transfer:
    """Read and check everything, make W. Writes nothing."""
    check_options(request)
    vocabulary = read_dictionary(request.new_dict, "--new-dict")
    source = open_model(request.checkpoint, request.dictionary, request.side, request.user_dir)
    cut = _cut(request, source.vocabulary)
    new_texts = source.fit.texts(Path(request.new_dict).read_bytes().decode("utf-8"))
    names = list(source.fit.dictionary(source.builder.set_up(new_texts)).symbols)
    old = symbols_of(source.symbols, source.vocabulary.special, len(source.vocabulary))
    new = symbols_of(names, vocabulary.special, len(vocabulary))
    shared = shared_rows(old, new)
    _check_dictionaries(request, source, vocabulary, old, new, shared)
    rows, vectors = _vectors(request, vocabulary)
    given = Given(old, new, shared, cut, rows, vectors)
    try:
        weights = transfer_weights(request.method, given)
    except DataError as error:  # of what it was given beside the dictionaries
        where = f"--vectors {request.vectors}" if METHODS[request.method].needs_vectors else request.cut_by
        raise DataError(f"{where}: {error}") from error
    return Transfer(request, source, old, new, weights, new_texts)


def _check_dictionaries(
    request: TransferRequest,
    source: SourceModel,
    vocabulary: Vocabulary,
    old: Symbols,
    new: Symbols,
    shared: np.ndarray,
) -> None:
    if list(new.names[: len(vocabulary)]) != list(vocabulary.symbols):
        raise DataError(
            f"--new-dict {request.new_dict}: fairseq reads other symbols from it; remove unusual white space"
        )
    if list(new.names) == list(old.names):
        raise OptionError(
            f"--new-dict {request.new_dict}: the same symbols in the same order as {request.dictionary}, which the "
            "model has already; give the dictionary that it is to have"
        )
    for flag, path, symbols in (("dict", request.dictionary, old), ("new-dict", request.new_dict, new)):
        if not symbols.words:
            raise DataError(f"--{flag} {path}: no words in it, only specials and fillers; give a dictionary with words")
    if METHODS[request.method].needs_shared and not (shared[new.word] >= 0).any():
        raise DataError(
            f"--new-dict {request.new_dict}: none of its {len(new.words):,} words is in {request.dictionary} "
            f"({', '.join(new.names[row] for row in new.words[:3])} ... beside "
            f"{', '.join(old.names[row] for row in old.words[:3])} ...), so --method {request.method} has nothing to "
            "start from; give another dictionary, or take --method subword or avg"
        )


def _cut(request: TransferRequest, old: Vocabulary) -> Callable[[Token], list[str]] | None:
    """How the old text was segmented, for the text of a new symbol."""
    flags = ("--old-bpe-codes", "--old-sentencepiece-model")
    segmentation = read_segmentation(request.old_bpe_codes, request.old_sentencepiece_model, flags)
    if segmentation is None:
        return None
    check_segmentation(segmentation, old, request.dictionary)
    cut = segmentation.pieces

    def by_codes(token: Token) -> list[str]:
        pieces = cut(token.surface)
        return [*pieces[:-1], f"{pieces[-1]}@@"] if pieces and token.final is False else pieces

    def by_model(token: Token) -> list[str]:
        return cut(token.surface if token.initial is False else f"▁{token.surface}")

    return by_model if request.old_bpe_codes is None else by_codes


def _vectors(request: TransferRequest, vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray | None]:
    """Rows of the new dictionary for which --vectors has all columns, and their vectors."""
    spec = request.source
    if spec is None:
        return np.empty(0, dtype=np.int64), None
    reading = read(spec, vocabulary, flag="--vectors ")
    whole = reading.complete[reading.source.rows]
    return reading.source.rows[whole], reading.source.vectors[whole]


@contextlib.contextmanager
def transferring_vocabulary(request: TransferRequest) -> Iterator[tuple[Transfer, Path, dict[str, Any]]]:
    """(what was done, the new folder, its record): complete, but under a temporary name until the block ends.

    Raises CheckpointError, DataError, OptionError, OutputError, VectorFileError; then nothing is written.
    """
    inputs = check_inputs(request.inputs)
    spec = request.source
    check_folder(request.output, request.force, FILES, [*inputs.values(), *(spec.paths if spec else ())])
    transfer = prepare(request)
    content = _content(transfer)
    with whole_folder(request.output, request.force, FILES) as folder:
        dictionaries = write_result(transfer.source, transfer.new_texts, transfer.new.names, content, folder)
        files = [path for path in (spec.paths if spec else ()) if Path(path).is_file()]
        record = record_of(transfer, dictionaries, {**inputs, **dict(zip(files, files))})
        write_json(folder / "transfer.json", record)
        yield transfer, folder, record


def _content(transfer: Transfer) -> dict[str, Any]:
    request = transfer.request
    try:
        return changed_checkpoint(
            transfer.source,
            transfer.weights,
            transfer.new.names,
            request.keep_optimizer,
            request.output,
            transfer.rows,
        )
    except CheckpointError as error:
        raise CheckpointError(str(error).replace(RESET_REMEDY, "leave --keep-optimizer out")) from error


def record_of(transfer: Transfer, dictionaries: Sequence[str], inputs: dict[str, str]) -> dict[str, Any]:
    """What was done, as one JSON object. inputs: the files that were read."""
    request, source, weights, new = transfer.request, transfer.source, transfer.weights, transfer.new
    words = {kind: weights.rows_of(kind)[new.word[weights.rows_of(kind)]].tolist() for kind in KINDS}
    return {
        "transfer_vocab": 1,
        "method": request.method,
        "seed": request.seed,
        "segmentation": {"old": transfer.old.style, "new": new.style},
        "words": {kind: len(rows) for kind, rows in words.items()},
        "examples": {kind: [_example(transfer, row) for row in rows[:_EXAMPLES]] for kind, rows in words.items()},
        "parts_of_a_word": _mean_parts(weights),
        "files": ["model.pt", *dictionaries, "transfer.json"],
        **common_record(source, weights, request, source.has_moments and request.keep_optimizer, inputs),
    }


def _example(transfer: Transfer, row: int) -> dict[str, Any]:
    """A word, and the old words with the largest weights in its row."""
    weights = transfer.weights
    word: dict[str, Any] = {"word": transfer.new.names[row], "row": row}
    if row in weights.rows_of(COPIED) or row in weights.rows_of(COMPOSED):
        columns, values = weights.row(row)
        largest = np.argsort(-values, kind="stable")[:_PARTS]
        word["from"] = {transfer.old.names[columns[at]]: round(float(values[at]), 4) for at in largest}
    return word


def _mean_parts(weights: Weights) -> float | None:
    """Old rows in a composed one."""
    rows = weights.rows_of(COMPOSED)
    return float(np.mean([len(weights.row(row)[0]) for row in rows])) if len(rows) else None
