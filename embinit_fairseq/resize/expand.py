"""`embinit expand-vocab`: new words for a trained model (Hewitt 2021).

Every table gets rows for the new words, and everything else stays as it is. If a new row is a mean of old ones, no
prefix of old words moves the model's distribution by more than KL(old || new) <= log(1 + k / n) for k new words and n
old ones (`init.new_rows`). With the model goes the segmentation that makes the new words.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embinit_fairseq.errors import DataError, OptionError, counted
from embinit_fairseq.init.new_rows import METHODS, Recipe, bound, new_rows
from embinit_fairseq.init.strategies import check_seed
from embinit_fairseq.io import check_folder, check_inputs, read_lines, whole_folder, write_json
from embinit_fairseq.resize.core import CHECKPOINT_FILES, Change, record_of, resize, write_result
from embinit_fairseq.resize.segmentation import write_segmentation
from embinit_fairseq.resize.source import Source, open_source
from embinit_fairseq.vocab.dictionary import SPECIAL_SYMBOLS, Vocabulary, is_filler
from embinit_fairseq.vocab.segmentation import (
    SEGMENTATION_FILES,
    Segmentation,
    check_segmentation,
    read_segmentation,
    text_symbols,
)
from embinit_fairseq.vocab.tokens import PREFIX, detect_style

#: patterns of the files in the output folder
FILES = (*CHECKPOINT_FILES, "expansion.json", "verify.json", "verify.png", *SEGMENTATION_FILES)


@dataclass(frozen=True)
class ExpandRequest:
    """The options of `embinit expand-vocab`."""

    checkpoint: str
    dictionary: str
    words: str
    method: str
    output: str
    side: str | None = None
    seed: int = 1
    noise_scale: float | None = None
    average_over: str = "all"
    bpe_codes: str | None = None
    sentencepiece_model: str | None = None
    segment_text: tuple[str, ...] = ()
    user_dir: str | None = None
    reset_optimizer: bool = False
    force: bool = False

    @property
    def inputs(self) -> dict[str, str | None]:
        """Option -> file that is read."""
        names = ("checkpoint", "dictionary", "words", "bpe_codes", "sentencepiece_model")
        texts = {f"segment_text {number}": path for number, path in enumerate(self.segment_text, start=1)}
        return {**{name: getattr(self, name) for name in names}, **texts}


@dataclass(frozen=True)
class Expansion:
    """An old model, the new words' places and the way their rows are made."""

    source: Source
    change: Change
    recipe: Recipe


def expand_vocabulary(request: ExpandRequest) -> dict[str, Any]:
    """Write the folder `request.output` and return the record that is in its expansion.json; see `expanding`."""
    with expanding(request) as (_, _, record):
        return record


@contextlib.contextmanager
def expanding(request: ExpandRequest) -> Iterator[tuple[Expansion, Path, dict[str, Any]]]:
    """Yield (expansion, new folder, its record); the folder has a temporary name until the block ends.

    Raises:
        CheckpointError, DataError, OptionError, OutputError: naming file or option and remedy; nothing is written.
    """
    # 0. What the options say, before any work
    _check_options(request)
    inputs = check_inputs(request.inputs)
    check_folder(request.output, request.force, FILES, inputs.values())
    segmentation = read_segmentation(request.bpe_codes, request.sentencepiece_model)
    # 1. The old model, the new words, and whether the segmentation can make both
    source = open_source(request.checkpoint, request.dictionary, request.side, request.user_dir)
    source = source.without_moments() if request.reset_optimizer else source
    words = read_words(request.words, set(source.symbols))
    if segmentation is not None:
        segmentation = segmentation.for_dictionary(set(source.symbols))
        check_segmentation(segmentation, source.vocabulary, request.dictionary)
        check_words(request.words, words, segmentation)
    # 2. A row for every new word
    change = place_words(source, [word.text for word in words])
    # 3. What the new rows are: means, or draws around the mean, of the old ones
    segment = None if segmentation is None else segmentation.pieces
    recipe, pieces = _recipe(request, source, words, segment)
    # 4. The new checkpoint
    content = resize(source, change, request.output, functools.partial(_rows, recipe))
    # 5. Written with its segmentation and loaded by fairseq, under a temporary name
    with whole_folder(request.output, request.force, FILES) as folder:
        written = None
        if segmentation is not None:
            texts, symbols = request.segment_text, text_symbols(source.vocabulary)
            written = write_segmentation(segmentation, [word.text for word in words], symbols, texts, folder)
            written["command"] = segmentation.command(request.output)
        dictionaries = write_result(source, change, content, folder)
        expansion = Expansion(source, change, recipe)
        record = {
            **_record(expansion, words, pieces, written, dictionaries),
            **record_of(source, change, request, inputs),
        }
        write_json(folder / "expansion.json", record)
        yield expansion, folder, record


def _check_options(request: ExpandRequest) -> None:
    check_seed(request.seed, "--seed")
    scale = request.noise_scale
    if scale is not None and METHODS[request.method].scale is None:
        raise OptionError(f"--noise-scale {scale}: --method {request.method} has no noise; leave it out")
    if scale is not None and not 0 <= scale < 1e10:
        raise OptionError(f"--noise-scale {scale}: a factor of the covariance, 0 to below 1e10 (1: as the old rows)")
    if request.segment_text and request.bpe_codes is None and request.sentencepiece_model is None:
        raise OptionError("--segment-text: it needs the text's segmentation; give --bpe-codes or --sentencepiece-model")


# ---- The list of new words ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NewWord:
    """A line of the list. pieces: empty if the line has none."""

    text: str
    line: int
    pieces: tuple[str, ...] = ()


def read_words(path: str, symbols: Collection[str]) -> list[NewWord]:
    """Read lines `word` or `word<TAB>piece piece ...`; empty lines are skipped.

    Args:
        path: the list.
        symbols: of the dictionary, and those that the task appends.

    Raises:
        DataError: a word is in the dictionary, is there twice, or cannot be a symbol; names file and line.
    """
    words: dict[str, NewWord] = {}
    present: dict[int, str] = {}
    for number, line in read_lines(path, DataError, "--words"):
        word, _, pieces = line.partition("\t")
        word = word.strip()
        if not line.strip():
            continue
        if word.split() != [word]:
            raise DataError(
                f"{path}:{number}: {word!r} is not one word; write one per line, and its pieces after a tab if you like"
            )
        if is_filler(word):
            raise DataError(f"{path}:{number}: {word!r} is fairseq's name for an empty row; choose another name")
        if word in words:
            raise DataError(f"{path}:{number}: {word!r} is in line {words[word].line} already; remove one of them")
        if word in symbols:
            present[number] = word
            continue
        words[word] = NewWord(word, number, tuple(pieces.split()))
    if present:
        raise DataError(f"{path}:{_present(present, symbols)}")
    if not words:
        raise DataError(f"--words {path}: no word in it; write one new word per line")
    return list(words.values())


def _present(present: dict[int, str], symbols: Collection[str], shown: int = 20) -> str:
    """Return the message about words that the dictionary has, by line."""
    (number, word), *others = present.items()
    lines = ", ".join(str(line) for line, _ in others[:shown]) + (", ..." if len(others) > shown else "")
    more = f" (and {counted(len(others), 'other word')}: lines {lines})" if others else ""
    mark = PREFIX.get(detect_style(symbols), "")
    if mark in ("▁", "Ġ") and not word.startswith(mark):
        start = f"a word at its beginning is written {mark + word!r}; inside of words the dictionary has {word!r}"
        return f"{number}: {start} already{more}; write {mark} before words, or remove the line"
    return f"{number}: the dictionary has {word!r} already{more}; remove the line"


def check_words(path: str, words: Sequence[NewWord], segmentation: Segmentation) -> None:
    """Raise DataError, naming file and line, for a word that the segmentation cannot make one subword."""
    for word in words:
        if (obstacle := segmentation.obstacle(word.text)) is not None:
            raise DataError(f"{path}:{word.line}: {word.text!r} cannot be reached: {obstacle}")


# ---- Where new words go ---------------------------------------------------------------------------------------------


def place_words(source: Source, words: Sequence[str]) -> Change:
    """Return the change that gives every new word a row; every other line of `dict.txt` stays as it is.

    Rows are: fairseq's four specials, the lines of `dict.txt`, and symbols that the task appends (`<mask>`, language
    tags). New words take the rows of fillers (`madeupword0000`, count 0) first, then lines at the end; appended
    symbols move.
    """
    vocabulary = source.vocabulary
    size = len(vocabulary)
    reused = np.flatnonzero(vocabulary.filler & (vocabulary.counts == 0))[: len(words)]
    added = len(words) - len(reused)
    described = np.arange(size)
    described[reused] = -1
    row_map = np.concatenate([described, np.full(added, -1), np.arange(size, len(source.symbols))])
    symbols, lines = [*source.symbols[:size], *words[len(reused) :], *source.symbols[size:]], source.lines
    for row, word in zip(reused, words):
        symbols[row] = word
        lines[row - len(SPECIAL_SYMBOLS)] = f"{word} 1"
    lines += [f"{word} 1" for word in words[len(reused) :]]
    return Change(row_map, symbols, "\n".join([*lines, ""]))


# ---- What new rows are ----------------------------------------------------------------------------------------------


def _recipe(
    request: ExpandRequest, source: Source, words: Sequence[NewWord], segment: Callable[[str], list[str]] | None
) -> tuple[Recipe, list[list[str]]]:
    """Return how the rows are made, and the pieces of every word if the method needs them."""
    vocabulary = source.vocabulary
    row_of = {symbol: row for row, symbol in enumerate(vocabulary.symbols) if not vocabulary.filler[row]}
    needed = METHODS[request.method].needs_pieces
    pieces = pieces_of_words(request.words, words, segment, row_of) if needed else []
    averaged = averaged_rows(vocabulary, len(source.symbols), request.average_over)
    rows = [np.array([row_of[piece] for piece in word]) for word in pieces]
    return Recipe(request.method, len(words), averaged, request.noise_scale, request.seed, rows), pieces


def pieces_of_words(
    path: str, words: Sequence[NewWord], segment: Callable[[str], list[str]] | None, symbols: Collection[str]
) -> list[list[str]]:
    """Return the pieces of every word: those in its line, else those of the segmentation.

    Raises:
        DataError: a word has no pieces, or one that the dictionary lacks; names file, line, word and piece.
    """
    result = []
    for word in words:
        where, pieces = f"{path}:{word.line}", list(word.pieces or (segment(word.text) if segment else ()))
        if not pieces:
            raise DataError(
                f"{where}: --method subword needs the pieces of {word.text!r}; write them after a tab (word<TAB>piece "
                "piece), or give --bpe-codes or --sentencepiece-model"
            )
        missing = next((piece for piece in pieces if piece not in symbols), None)
        if missing is not None:
            raise DataError(
                f"{where}: {missing!r}, a piece of {word.text!r}, is not in the dictionary; write other pieces after a "
                "tab, or give the codes or the model that the dictionary was made with"
            )
        result.append(pieces)
    return result


def averaged_rows(vocabulary: Vocabulary, size: int, over: str) -> np.ndarray:
    """Return (n,) the old rows that are averaged.

    Args:
        vocabulary: the dictionary.
        size: its number of symbols with those that the task appends.
        over: "all": every row that is no filler; "words": lines of `dict.txt` that are words.

    Raises:
        OptionError: no row is left.
    """
    if over == "all":
        return np.concatenate([np.flatnonzero(~vocabulary.filler), np.arange(len(vocabulary), size)])
    special = {*SPECIAL_SYMBOLS, "<mask>"}
    rows = np.flatnonzero(~vocabulary.filler & np.array([symbol not in special for symbol in vocabulary.symbols]))
    if not len(rows):
        raise OptionError("--average-over words: the dictionary has no words, only specials and fillers; leave it out")
    return rows


def _rows(recipe: Recipe, tables: Mapping[str, Sequence[Tensor]]) -> Mapping[str, Sequence[np.ndarray]]:
    """Return the new rows; raise OptionError if the precision of a table cannot hold one."""
    rows = new_rows(recipe, tables)
    for name, copies in tables.items():
        for table, new in zip(copies, rows[name]):
            if np.abs(new).max() > torch.finfo(table.dtype).max:
                raise OptionError(
                    f"--noise-scale: a new row of {name} is too large for {table.dtype}; choose a smaller scale"
                )
    return rows


# ---- The record -----------------------------------------------------------------------------------------------------


def _record(
    expansion: Expansion,
    words: Sequence[NewWord],
    pieces: Sequence[list[str]],
    segmentation: dict[str, Any] | None,
    dictionaries: Sequence[str],
) -> dict[str, Any]:
    """Return the record of an expansion, without the part that all changes have."""
    source, change, recipe = expansion.source, expansion.change, expansion.recipe
    size, new_row = len(source.vocabulary), change.new_row_of(len(source.symbols))
    has_grown = len(change.source) > len(source.symbols)
    appended = range(size, len(source.symbols)) if has_grown else ()
    rows: list[dict[str, Any]] = [{"word": word.text, "row": int(row)} for word, row in zip(words, change.made)]
    return {
        "expand_vocab": 1,
        "method": recipe.method,
        "noise_scale": recipe.c,
        "seed": recipe.seed,
        "n": len(recipe.averaged),
        "k": recipe.count,
        "bound": bound(recipe) if source.softmax else None,
        "reused_fillers": int((change.made < size).sum()),
        "moved": {source.symbols[row]: int(new_row[row]) for row in appended},
        "files": ["model.pt", *dictionaries, *(segmentation["files"] if segmentation else ()), "expansion.json"],
        "words": [{**row, "pieces": parts} for row, parts in zip(rows, pieces)] if pieces else rows,
        "style": detect_style(text_symbols(source.vocabulary)),
        "segmentation": segmentation,
    }
