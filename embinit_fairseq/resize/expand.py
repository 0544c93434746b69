"""Add words to the dictionary of a trained model (`embinit expand-vocab`; Hewitt 2021).

Every table has rows for the new words, and everything else stays as it is. If new rows are means of old ones, KL(old ||
new) has a bound that holds whatever the model reads: log(1 + k / n) if each of k new rows is the mean of n old ones
(`init.weights`). The segmentation that makes the new words is written next to the model.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embinit_fairseq.errors import DataError, OptionError, counted, listed, named_by
from embinit_fairseq.init.method_inputs import rows_to_average, with_vectors
from embinit_fairseq.init.methods import DISTILL, METHODS, MethodInputs, Recipe, new_rows, recipe_of
from embinit_fairseq.init.weights import DRAWN, bound_entries
from embinit_fairseq.io import read_lines, sha256
from embinit_fairseq.resize.carried_preparation import (
    PREPARATION_FILES,
    carry_preparation,
    old_preparation,
    old_segmentation,
)
from embinit_fairseq.resize.core import CHECKPOINT_FILES, Change, resized
from embinit_fairseq.resize.distill import Distillation, Progress, Saved, distill
from embinit_fairseq.resize.new_segmentation import write_segmentation
from embinit_fairseq.resize.old_model import MethodRequest, OldModel, files_of, open_old_model
from embinit_fairseq.resize.symbol_tensors import output_names
from embinit_fairseq.vectors.open import SourceSpec
from embinit_fairseq.vocab.dictionary import SPECIAL_SYMBOLS, Vocabulary, is_filler
from embinit_fairseq.vocab.preparation_record import Recorded
from embinit_fairseq.vocab.segmentation import Segmentation, text_symbols
from embinit_fairseq.vocab.step_files import given_files
from embinit_fairseq.vocab.subword_styles import PREFIX, detect_style

#: a count or a score after a word, as other tools write them
_COUNT = re.compile(r"-?\d+(?:\.\d+)?")
#: patterns of the files in the output folder, the record first
FILES = ("expansion.json", *CHECKPOINT_FILES, "verify.json", "verify.png", *PREPARATION_FILES)
_NAMED = 20  #: largest number of words in a message


@dataclass(frozen=True, kw_only=True)
class ExpandRequest(MethodRequest):
    """Hold the options of `embinit expand-vocab`."""

    words: str
    average_over: str = "all"
    bpe_codes: str | None = None
    sentencepiece_model: str | None = None
    preparation: str | None = None
    segment_text: tuple[str, ...] = ()
    distill_text: tuple[str, ...] = ()
    distill_sentences: int | None = None
    distill_epochs: int | None = None
    distill_lr: float | None = None
    distill_tokens: int | None = None
    reset_optimizer: bool = False

    @property
    def distillation(self) -> dict[str, Any]:
        """Return the user's options --distill-<name>, by name."""
        options = {name: getattr(self, f"distill_{name}") for name in ("text", *DISTILL)}
        return {name: value for name, value in options.items() if value not in (None, ())}


@dataclass(frozen=True)
class Expansion:
    """Hold the old model, the rows of the new words, their initial values, and the recipe."""

    old_model: OldModel
    change: Change
    inputs: MethodInputs
    recipe: Recipe


@contextlib.contextmanager
def expanding(request: ExpandRequest, progress: Progress = list) -> Iterator[tuple[Expansion, Path, dict[str, Any]]]:
    """Yield (expansion, new folder, its record); the folder has a temporary name until the block ends.

    Args:
        request: the options.
        progress: shows progress over the updates of `distill`.

    Raises:
        CheckpointError, DataError, OptionError, OutputError: naming file or option and remedy; nothing is written.
    """
    # 0. The options, before any work
    spec = request.check_method()
    _check_distillation(request)
    options = ("words", "bpe_codes", "sentencepiece_model", "segment_text", "distill_text")
    inputs = request.check(FILES, options, files_of(spec))
    # 1. The old model, the new words, and whether the segmentation can make both
    old_model = open_old_model(request, keep_optimizer=not request.reset_optimizer)
    words, recorded, segmentation = _words_and_segmentation(request, old_model)
    # 2. A row for every new word
    change = place_words(old_model, [word.text for word in words])
    # 3. The new rows: means of old ones, draws around the mean, or trained
    old, needed = old_model.vocabulary, request.chosen.needs_subwords
    row_of = {symbol: row for row, symbol in enumerate(old.symbols) if not old.filler[row]}
    fitting = fitting_segmentation(segmentation, words, row_of) if needed else segmentation
    subwords = subwords_of_words(request.words, words, fitting, row_of, request.method) if needed else []
    rows = [np.array([row_of[part] for part in word]) for word in subwords]
    method_inputs = _method_inputs(request, spec, old_model, change, rows)
    with named_by(f"--vectors {request.vectors}: "):
        recipe = recipe_of(request.method, method_inputs, request.noise_scale, request.seed)
    distilled, saved = None, None
    if request.chosen.needs_text:
        settings, saved = Distillation(**request.distillation), _saved(request, inputs)
        recipe, distilled = distill(old_model, change, recipe, fitting, settings, progress, saved)
    # 4. The new checkpoint, written and loaded by fairseq, with its segmentation, under a temporary name
    make_rows = functools.partial(new_rows, recipe)
    prepare = functools.partial(_prepare, request, old_model, words, recorded, segmentation)
    with resized(old_model, change, request, inputs, FILES, make_rows, prepare=prepare) as (folder, record):
        expansion = Expansion(old_model, change, method_inputs, recipe)
        record |= {**_record(expansion, words, subwords), "distill": distilled}
        record["split_further"] = _split_further(segmentation, fitting, words)
        yield expansion, folder, record
    if saved is not None:
        saved.path.unlink(missing_ok=True)


def _words_and_segmentation(
    request: ExpandRequest, old_model: OldModel
) -> tuple[list[NewWord], Recorded | None, Segmentation | None]:
    """Return the new words, and the preparation and segmentation of the old text, if known."""
    words = read_words(request.words, set(old_model.symbols))
    files = given_files(request)
    recorded = old_preparation(old_model, request.preparation, files)
    segmentation = old_segmentation(old_model, recorded, request.preparation, files)
    if segmentation is None and request.segment_text:
        raise OptionError("--segment-text: it needs the text's segmentation; give --bpe-codes or --sentencepiece-model")
    if segmentation is not None:
        check_words(request.words, words, segmentation)
    return words, recorded, segmentation


def _prepare(
    request: ExpandRequest,
    old_model: OldModel,
    words: Sequence[NewWord],
    recorded: Recorded | None,
    segmentation: Segmentation | None,
    folder: Path,
) -> dict[str, Any]:
    """Write segmentation and preparation of text to the new folder; return their entries for the record."""
    made, new = None, [word.text for word in words]
    if segmentation is not None:
        symbols = text_symbols(old_model.vocabulary)
        made = write_segmentation(segmentation, new, symbols, request.segment_text, folder, request.output)
    carried = carry_preparation(old_model, recorded, segmentation, folder, "embinit expand-vocab", made, new)
    if made is not None and carried["preparation"] is not None:
        made["reachable"] = len(new) - len(made["unreachable"] | carried["preparation"]["not_from_raw_text"])
    return carried


def _saved(request: ExpandRequest, inputs: Mapping[str, str]) -> Saved:
    """Return the place of a training's state, `.DIR.distill` next to the output."""
    place, options = Path(request.output).resolve(), asdict(request) | {"output": "", "force": False}
    key = json.dumps([options, {name: sha256(path) for name, path in inputs.items()}])
    return Saved(place.with_name(f".{place.name}.distill"), key)


def _check_distillation(request: ExpandRequest) -> None:
    needs_text = request.chosen.needs_text
    if needs_text and not request.distill_text:
        raise OptionError(f"--method {request.method} needs --distill-text TEXT: text in which the new words occur")
    for name, value in request.distillation.items():
        if not needs_text:
            raise OptionError(f"--distill-{name}: --method {request.method} trains nothing; leave it out")
        if name != "text" and not 0 < value < 1e10:
            raise OptionError(f"--distill-{name} {value:g}: expected a number above 0")


# ---- The list of new words ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NewWord:
    """Hold a line of the list of words. subwords: the word's subwords, empty if the line has none."""

    text: str
    line: int
    subwords: tuple[str, ...] = ()


def read_words(path: str, symbols: Collection[str]) -> list[NewWord]:
    """Read lines `word` or `word<TAB>subword subword ...`; empty lines are skipped.

    Args:
        path: the list of words.
        symbols: the dictionary's symbols, appended ones included.

    Raises:
        DataError: a word is in the dictionary, is repeated, or cannot be a symbol; names file and line.
    """
    words: dict[str, NewWord] = {}
    spaced: dict[int, str] = {}
    repeated: dict[int, str] = {}
    present: dict[int, str] = {}
    for number, line in read_lines(path, DataError, "--words"):
        word, _, subwords = line.partition("\t")
        word = word.strip()
        if not line.strip():
            continue
        if word.split() != [word]:
            spaced[number] = word
            continue
        if _COUNT.fullmatch(subwords.strip()) and not re.search(r"\d", word):
            raise DataError(
                f"{path}:{number}: found {subwords.strip()} after the tab, expected the subwords of {word!r}; if these "
                "are counts, leave them out: cut -f1 FILE > NEW"
            )
        if is_filler(word):
            raise DataError(f"{path}:{number}: {word!r} is fairseq's name for an empty row; choose another name")
        if word in words:
            repeated[number] = word
        elif word in symbols:
            present[number] = word
        else:
            words[word] = NewWord(word, number, tuple(subwords.split()))
    if spaced:
        number, word = next(iter(spaced.items()))
        raise DataError(
            f"{path}:{number}: found {word!r}, expected one word (symbols have no spaces){_more(spaced)}; write one "
            "per line, its subwords after a tab if you like"
        )
    if repeated:
        number, word = next(iter(repeated.items()))
        first = words[word].line
        raise DataError(f"{path}:{number}: {word!r} is in line {first} already{_more(repeated)}; remove one of them")
    if present:
        raise DataError(f"{path}:{_present(present, symbols)}")
    if not words:
        raise DataError(f"--words {path}: no word in it; write one new word per line")
    return list(words.values())


def _more(words: dict[int, str]) -> str:
    """Return the words after the first one for a message, with their lines."""
    others = list(words)[1:]
    lines = f"line{'s' * (len(others) > 1)} {listed(others, _NAMED)}"
    return f" (and {counted(len(others), 'other word')}: {lines})" if others else ""


def _present(present: dict[int, str], symbols: Collection[str]) -> str:
    """Return the message about words that the dictionary has, by line."""
    number, word = next(iter(present.items()))
    more = _more(present)
    mark = PREFIX.get(detect_style(symbols), "")
    if mark in ("▁", "Ġ") and not word.startswith(mark):
        start = f"a word at its beginning is written {mark + word!r}; inside of words the dictionary has {word!r}"
        return f"{number}: {start} already{more}; write {mark} before words, or remove the line"
    return f"{number}: the dictionary has {word!r} already{more}; remove the line"


def check_words(path: str, words: Sequence[NewWord], segmentation: Segmentation) -> None:
    """Raise DataError, naming file and lines, for words that cannot be one subword."""
    obstacles = {word: segmentation.obstacle(word.text) for word in words}
    if unreachable := [word for word, obstacle in obstacles.items() if obstacle is not None]:
        first, *others = unreachable
        more = f"; nor can {_listed(others)}" if others else ""
        raise DataError(f"{path}:{first.line}: {first.text!r} cannot be reached: {obstacles[first]}{more}")


# ---- Rows and their values ------------------------------------------------------------------------------------------


def place_words(old_model: OldModel, words: Sequence[str]) -> Change:
    """Return the change in which every new word has a row; every other line of `dict.txt` stays as it is.

    Rows are: fairseq's four specials, the lines of `dict.txt`, and symbols that the task appends (`<mask>`, language
    tags). New words take the rows of fillers (`madeupword0000`, count 0) first, then lines at the end; appended
    symbols move.
    """
    vocabulary = old_model.vocabulary
    size = len(vocabulary)
    reused = np.flatnonzero(vocabulary.filler & (vocabulary.counts == 0))[: len(words)]
    added = len(words) - len(reused)
    described = np.arange(size)
    described[reused] = -1
    old_row = np.concatenate([described, np.full(added, -1), np.arange(size, len(old_model.symbols))])
    symbols, lines = [*old_model.symbols[:size], *words[len(reused) :], *old_model.symbols[size:]], old_model.lines
    for row, word in zip(reused, words):
        symbols[row] = word
        lines[row - len(SPECIAL_SYMBOLS)] = f"{word} 1"
    lines += [f"{word} 1" for word in words[len(reused) :]]
    return Change(old_row, symbols, "\n".join([*lines, ""]))


def _method_inputs(
    request: ExpandRequest, spec: SourceSpec | None, old_model: OldModel, change: Change, subwords: Sequence[np.ndarray]
) -> MethodInputs:
    """Return the inputs of the method for the new words. subwords: the old rows of each word's subwords."""
    old, size = old_model.vocabulary, len(change.symbols) - (len(old_model.symbols) - len(old_model.vocabulary))
    trained = np.setdiff1d(np.arange(len(old_model.symbols)), np.flatnonzero(old.filler))
    averaged = rows_to_average(old, request.average_over, trained)
    means = {int(row): (parts, None) for row, parts in zip(change.made, subwords)}
    inputs = MethodInputs(len(old_model.symbols), change.old_row, change.old_row < 0, (averaged, None), means)
    new = Vocabulary(change.symbols[:size], np.ones(size, dtype=np.int64), old.roles)
    return with_vectors(inputs, spec, new, request.sparsity)


def subwords_of_words(
    path: str, words: Sequence[NewWord], segmentation: Segmentation | None, symbols: Collection[str], method: str
) -> list[list[str]]:
    """Return the subwords of every word, from its line or else from the segmentation.

    Raises:
        DataError: words have no subwords, or some that the dictionary lacks; names file, lines, words and subwords.
    """
    of_words = [
        list(word.subwords or (segmentation.segment_symbol(word.text) if segmentation else ())) for word in words
    ]
    without = [word for word, subwords in zip(words, of_words) if not subwords]
    if without:
        raise DataError(
            f"{path}:{without[0].line}: --method {method} needs the subwords of {_listed(without)}; write them after a "
            "tab (word<TAB>subword subword), give --bpe-codes or --sentencepiece-model, or choose --method avg, which "
            "needs none"
        )
    lacking = {word: dict.fromkeys(s for s in own if s not in symbols) for word, own in zip(words, of_words)}
    if missing := {word: " ".join(subwords) for word, subwords in lacking.items() if subwords}:
        remedy = ", or give the codes or the model that the dictionary was made with" if segmentation is None else ""
        raise DataError(
            f"{path}:{next(iter(missing)).line}: {counted(len(missing), 'word')} of subwords that are not in the "
            f"dictionary: {_listed(missing, missing)}; write other subwords after a tab, or choose --method avg, which "
            f"needs none{remedy}"
        )
    return of_words


def _listed(words: Collection[NewWord], subwords: Mapping[NewWord, str] | None = None) -> str:
    """Return words, with their lines and subwords, for a message."""
    parts = (f"{word.text!r} (line {word.line}{f': {subwords[word]}' if subwords else ''})" for word in words)
    return listed(parts, _NAMED)


def fitting_segmentation(
    segmentation: Segmentation | None, words: Sequence[NewWord], symbols: Collection[str]
) -> Segmentation | None:
    """Return the segmentation; if the dictionary lacks subwords of the words, one that splits them further.

    Codes of two languages make subwords that text of one language never had. The dictionary of one language lacks them.
    """
    if segmentation is not None:
        made = {subword for word in words if not word.subwords for subword in segmentation.segment_symbol(word.text)}
        if not made.issubset(symbols):
            with contextlib.suppress(DataError):  # codes and models that can split nothing further
                return segmentation.restricted(frozenset(symbols))
    return segmentation


def _split_further(old: Segmentation | None, new: Segmentation | None, words: Sequence[NewWord]) -> dict[str, Any]:
    """Return word -> its subwords before and after `fitting_segmentation`, where they differ."""
    if old is None or new is None:
        return {}
    pairs = {word.text: [one.segment_symbol(word.text) for one in (old, new)] for word in words if not word.subwords}
    return {word: pair for word, pair in pairs.items() if pair[0] != pair[1]}


def _record(expansion: Expansion, words: Sequence[NewWord], subwords: Sequence[list[str]]) -> dict[str, Any]:
    """Return the record of an expansion, without the entries that all changes have."""
    old_model, change, recipe = expansion.old_model, expansion.change, expansion.recipe
    size, new_row = len(old_model.vocabulary), change.new_row_of(len(old_model.symbols))
    has_grown = len(change.old_row) > len(old_model.symbols)
    appended = range(size, len(old_model.symbols)) if has_grown else ()
    limits = recipe.bound(output_names(old_model.model, old_model.tables)) if old_model.softmax else None
    rows: list[dict[str, Any]] = [{"word": word.text, "row": int(row)} for word, row in zip(words, change.made)]
    return {
        "expand_vocab": 1,
        "method": recipe.method,
        "noise_scale": recipe.c,
        "seed": recipe.seed,
        "n": len(recipe.weights.averaged[0]),
        "k": recipe.count,
        **bound_entries(limits),
        "drawn": len(recipe.weights.rows_of(DRAWN)) if METHODS[recipe.method].needs_vectors else 0,
        "reused_fillers": int((change.made < size).sum()),
        "moved": {old_model.symbols[row]: int(new_row[row]) for row in appended},
        "words": [{**row, "subwords": parts} for row, parts in zip(rows, subwords)] if subwords else rows,
        "style": detect_style(text_symbols(old_model.vocabulary)),
    }
