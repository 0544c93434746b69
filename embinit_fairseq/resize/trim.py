"""Remove words from the dictionary of a trained model (`embinit trim-vocab`).

The rows of the removed words are removed from every table. The new model is the old one under the condition that the
next word stays: its softmax has fewer logits, which are unchanged, so that KL(new || old) = -log P_old(kept words) for
every prefix of kept words. Nothing is trained or approximated. A segmentation without the removed subwords is written
next to the model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.io import read_lines
from embinit_fairseq.resize.carried_preparation import (
    PREPARATION_FILES,
    carry_preparation,
    old_preparation,
    old_segmentation,
)
from embinit_fairseq.resize.core import CHECKPOINT_FILES, Change, resized
from embinit_fairseq.resize.new_segmentation import symbols_that_spell, write_restricted
from embinit_fairseq.resize.old_model import OldModel, Request, open_old_model
from embinit_fairseq.vocab.dictionary import SPECIAL_SYMBOLS, Vocabulary, is_filler, parse_line
from embinit_fairseq.vocab.segmentation import Segmentation, text_symbols
from embinit_fairseq.vocab.step_files import given_files
from embinit_fairseq.vocab.subword_styles import detect_style
from embinit_fairseq.vocab.text_checks import check_tokens, count_tokens

#: patterns of the files in the output folder, the record first
FILES = ("trim.json", *CHECKPOINT_FILES, *PREPARATION_FILES)


@dataclass(frozen=True, kw_only=True)
class TrimRequest(Request):
    """Hold the options of `embinit trim-vocab`. A word stays if keep_text, keep or min_count keeps it."""

    keep_text: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    min_count: int | None = None
    bpe_codes: str | None = None
    sentencepiece_model: str | None = None
    preparation: str | None = None
    reset_optimizer: bool = False


@contextlib.contextmanager
def trimming(request: TrimRequest) -> Iterator[tuple[OldModel, Change, Path, dict[str, Any]]]:
    """Yield (old model, change, new folder, its record); the folder has a temporary name until the block ends.

    Raises:
        CheckpointError, DataError, OptionError, OutputError: naming file or option and remedy; nothing is written.
    """
    if not request.keep_text and not request.keep and request.min_count is None:
        raise OptionError("nothing says which words stay: give --keep-text TEXT, --keep WORDS, or --min-count N")
    inputs = request.check(FILES, ("keep", "keep_text", "bpe_codes", "sentencepiece_model"))
    # 1. The old model, and the segmentation of its text
    old_model = open_old_model(request, keep_optimizer=not request.reset_optimizer)
    files = given_files(request)
    recorded = old_preparation(old_model, request.preparation, files)
    segmentation = old_segmentation(old_model, recorded, request.preparation, files)
    # 2. The words that stay
    rows, shares, spelling = kept_rows(old_model.vocabulary, len(old_model.symbols), request, segmentation)
    lines = old_model.lines
    described = rows[(rows >= len(SPECIAL_SYMBOLS)) & (rows < len(old_model.vocabulary))]
    text = "\n".join([*(lines[row - len(SPECIAL_SYMBOLS)] for row in described), ""])
    change = Change(rows, [old_model.symbols[row] for row in rows], text)
    # 3. The new checkpoint, written and loaded by fairseq, with its segmentation, under a temporary name

    def prepare(folder: Path) -> dict[str, Any]:
        """Write segmentation and preparation of text to the new folder; return their entries for the record."""
        made = None
        if segmentation is not None:
            symbols = {*old_model.vocabulary.symbols[len(SPECIAL_SYMBOLS) :]}  # `<mask>` may be a piece
            kept_symbols = symbols.intersection(change.symbols)
            made = write_restricted(segmentation, symbols, kept_symbols, request.keep_text, folder, request.output)
            made["kept_to_spell"] = spelling
        return carry_preparation(old_model, recorded, segmentation, folder, "embinit trim-vocab", made)

    with resized(old_model, change, request, inputs, FILES, prepare=prepare) as (folder, record):
        removed = np.setdiff1d(np.arange(len(old_model.symbols)), rows)
        fillers = int(old_model.vocabulary.filler[removed].sum())
        record |= {
            "trim_vocab": 1,
            "words_removed": len(removed) - fillers,
            "fillers_removed": fillers,
            "tokens_in_dictionary": shares,
            "bytes_before": Path(request.checkpoint).stat().st_size,
            "bytes_after": (folder / "model.pt").stat().st_size,
            "style": detect_style(text_symbols(old_model.vocabulary)),
        }
        yield old_model, change, folder, record


def kept_rows(
    vocabulary: Vocabulary, size: int, request: TrimRequest, segmentation: Segmentation | None = None
) -> tuple[np.ndarray, dict[str, float], list[str]]:
    """Return the old rows that stay: specials, symbols that the task appends, and the words of the request.

    Fillers are removed. A repeated symbol stays with all its rows: without its last row, which counts, another row
    would count.

    Args:
        vocabulary: the dictionary.
        size: its number of symbols, appended ones included.
        request: the options.
        segmentation: the dictionary's segmentation; subwords that spell removed words stay, too.

    Returns:
        (new N,) rows, text of the request -> share of its tokens that the dictionary has, and symbols that stay only
        to spell removed words.

    Raises:
        OptionError, DataError: no word would stay, or every word; a word of the request is not in the dictionary.
    """
    words, shares = _wanted_words(vocabulary, request)
    symbols = text_symbols(vocabulary)
    kept_symbols = words.intersection(symbols)
    if not kept_symbols:
        if request.min_count is not None:
            raise OptionError(
                f"--min-count {request.min_count}: no word of the dictionary is left; give a smaller number"
            )
        flag, paths = ("--keep", request.keep) if request.keep else ("--keep-text", request.keep_text)
        raise DataError(
            f"{flag} {' '.join(paths)}: only special symbols, which stay anyway; name words of the dictionary"
        )
    spelling = [] if segmentation is None else symbols_that_spell(segmentation, kept_symbols, symbols, words)
    kept_symbols |= {*spelling}
    stays = vocabulary.special | np.array([symbol in kept_symbols for symbol in vocabulary.symbols])
    if stays.all():
        raise OptionError("every word of the dictionary stays: there is nothing to remove; keep fewer")
    return np.concatenate([np.flatnonzero(stays), np.arange(len(vocabulary), size)]), shares, spelling


def _wanted_words(vocabulary: Vocabulary, request: TrimRequest) -> tuple[set[str], dict[str, float]]:
    """Return the words that the request keeps, and the share of each text's tokens that the dictionary has."""
    row_of = {symbol: row for row, symbol in enumerate(vocabulary.symbols)}
    words: set[str] = set()
    shares = {}
    for path in request.keep_text:
        tokens = count_tokens("--keep-text", path)
        shares[path] = check_tokens(f"--keep-text {path}", tokens, row_of)
        words.update(tokens)
    for path in request.keep:
        words.update(_listed_words(path, row_of))
    if request.min_count is not None:
        words.update(vocabulary.symbols[row] for row in np.flatnonzero(vocabulary.counts >= request.min_count).tolist())
    return words, shares


def _listed_words(path: str, symbols: Mapping[str, int]) -> set[str]:
    """Read one word per line, or a dict.txt. As in a dict.txt a word may have spaces; text after a tab is ignored."""
    words = set()
    for number, line in read_lines(path, DataError, "--keep"):
        word = line.partition("\t")[0].strip()
        if word not in symbols and (described := parse_line(word)) is not None:
            word = described[0]
        if not word or is_filler(word):  # fairseq-preprocess pads dictionaries; an expansion uses fillers up
            continue
        if word not in symbols:
            remedy = "remove the line, or correct it" if len(word.split()) == 1 else "write one word per line"
            raise DataError(f"{path}:{number}: {word[:60]!r} is not in the dictionary; {remedy}")
        words.add(word)
    if not words:
        raise DataError(f"--keep {path}: no word in it; write one per line")
    return words
