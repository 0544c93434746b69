"""Fewer words for a trained fairseq model: the rows of words that are not kept go from every table over its dictionary.

What is left is the old model given that the next word is a kept one: its softmax over fewer logits, all as they were,
so that for every prefix of kept words KL(new || old) = -log P_old(kept). Nothing is trained or approximated. The result
is a folder with model.pt, dict.txt and trim.json, complete or not there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from embinit_fairseq.bounded import read_lines
from embinit_fairseq.checkpoints.build import Texts
from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.expand.output import changed_checkpoint, common_record, write_result
from embinit_fairseq.expand.source import SourceModel, open_model
from embinit_fairseq.files import check_folder, check_inputs, whole_folder, write_json
from embinit_fairseq.vocab.dictionary import SPECIAL_SYMBOLS, Vocabulary, is_filler, parse_line
from embinit_fairseq.vocab.text import check_tokens, count_tokens

#: names and patterns of what a removal may write to its folder
FILES = ("model.pt", "trim.json", "dict.txt", "dict.*.txt", "input0/dict.txt", "label/dict.txt")


@dataclass(frozen=True)
class TrimRequest:
    """The options of `embinit trim-vocab`. keep_text: texts whose words stay; keep: a list of words; min_count: of the
    dictionary. What one of them keeps stays."""

    checkpoint: str
    dictionary: str
    output: str
    keep_text: tuple[str, ...] = ()
    keep: str | None = None
    min_count: int | None = None
    side: str | None = None
    user_dir: str | None = None
    reset_optimizer: bool = False
    force: bool = False

    @property
    def inputs(self) -> dict[str, str | None]:
        """Option -> file that is read."""
        texts = {f"keep_text {number}": path for number, path in enumerate(self.keep_text, start=1)}
        return {"checkpoint": self.checkpoint, "dictionary": self.dictionary, "keep": self.keep, **texts}


@dataclass(frozen=True)
class Removal:
    """source: (new N,) the old rows that are kept, in their order; rows: none is new (see `state.RowChange`)."""

    old_size: int
    source: np.ndarray
    rows: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    @property
    def new_size(self) -> int:
        """N of the new table."""
        return len(self.source)


@dataclass(frozen=True)
class Trimming:
    """What was found out before a file is written. known: see `kept_rows`."""

    request: TrimRequest
    source: SourceModel
    removal: Removal
    new_texts: Texts
    known: dict[str, float]

    @property
    def new_symbols(self) -> list[str]:
        """Of the rows that are left."""
        return [self.source.symbols[row] for row in self.removal.source]


def kept_rows(vocabulary: Vocabulary, appended: int, request: TrimRequest) -> tuple[np.ndarray, dict[str, float]]:
    """Old rows that stay: specials, what the task appends, and the words that the request keeps. Fillers go.

    Also returns text of the request -> share of its tokens that are in the dictionary.
    Raises OptionError or DataError for a request that keeps no word, every word, or words that are not there.
    """
    if not request.keep_text and request.keep is None and request.min_count is None:
        raise OptionError("nothing says which words stay: give --keep-text TEXT, --keep WORDS, or --min-count N")
    row_of = {symbol: row for row, symbol in enumerate(vocabulary.symbols)}
    kept = vocabulary.special.copy()
    if "<mask>" in row_of:
        kept[row_of["<mask>"]] = True
    words = np.zeros(len(vocabulary), dtype=bool)
    known = {}
    for path in request.keep_text:
        tokens = count_tokens("--keep-text", path)
        known[path] = check_tokens(f"--keep-text {path}", tokens, row_of)
        words[[row_of[token] for token in tokens if token in row_of]] = True
    if request.keep is not None:
        words[_rows_of_list(request.keep, row_of)] = True
    if request.min_count is not None:
        words |= vocabulary.counts >= request.min_count
    # a symbol that stands twice stays with all its rows: without the last, which counts, it would mean the other one
    kept_symbols = {vocabulary.symbols[row] for row in np.flatnonzero(words).tolist()}
    words = np.array([symbol in kept_symbols for symbol in vocabulary.symbols], dtype=bool) & vocabulary.regular
    if not words.any():
        if request.min_count is not None:
            raise OptionError(
                f"--min-count {request.min_count}: no word of the dictionary is left; give a smaller number"
            )
        given = f"--keep {request.keep}" if request.keep is not None else f"--keep-text {' '.join(request.keep_text)}"
        raise DataError(f"{given}: only special symbols, which stay anyway; name words of the dictionary")
    kept |= words
    if kept.all():
        raise OptionError("every word of the dictionary stays: there is nothing to remove; keep fewer")
    rows = np.concatenate([np.flatnonzero(kept), np.arange(len(vocabulary), len(vocabulary) + appended)])
    return rows, known


def _rows_of_list(path: str, row_of: dict[str, int]) -> list[int]:
    """Rows of the words of a list, one a line; a dict.txt is one, too. A word may have blanks, as there; behind a
    tab anything may stand."""
    rows = []
    for number, line in read_lines(path, DataError, "--keep", encoding="utf-8-sig"):
        word = line.partition("\t")[0].strip()
        if word not in row_of and (described := parse_line(word)) is not None:
            word = described[0]
        if not word or is_filler(word):  # fairseq-preprocess pads dictionaries; an expansion uses them up
            continue
        if word not in row_of:
            remedy = "remove the line, or correct it" if len(word.split()) == 1 else "write one word a line"
            raise DataError(f"{path}:{number}: {word[:60]!r} is not in the dictionary; {remedy}")
        rows.append(row_of[word])
    if not rows:
        raise DataError(f"--keep {path}: no word in it; write one a line")
    return rows


def trimmed_dictionary(path: str, vocabulary: Vocabulary, removal: Removal) -> str:
    """The text of `dict.txt` without the lines of the words that go; every other line as it was."""
    lines = [line for line in Path(path).read_text(encoding="utf-8").split("\n") if line.strip()]
    if len(lines) != len(vocabulary) - len(SPECIAL_SYMBOLS):
        raise DataError(f"{path}: it changed while it was read; run the command again")
    rows = removal.source[(removal.source >= len(SPECIAL_SYMBOLS)) & (removal.source < len(vocabulary))]
    return "\n".join([*(lines[row - len(SPECIAL_SYMBOLS)] for row in rows), ""])


def prepare(request: TrimRequest) -> Trimming:
    """Read and check everything; writes nothing."""
    source = open_model(request.checkpoint, request.dictionary, request.side, request.user_dir)
    rows, known = kept_rows(source.vocabulary, source.fit.appended, request)
    removal = Removal(len(source.symbols), rows)
    text = trimmed_dictionary(request.dictionary, source.vocabulary, removal)
    return Trimming(request, source, removal, source.fit.texts(text), known)


@contextlib.contextmanager
def trimming_vocabulary(request: TrimRequest) -> Iterator[tuple[Trimming, Path, dict[str, Any]]]:
    """(what was done, the new folder, its record): complete, but under a temporary name until the block ends.

    Raises CheckpointError, DataError, OptionError or OutputError; then nothing is written.
    """
    inputs = check_inputs(request.inputs)
    check_folder(request.output, request.force, FILES, inputs.values())
    trimming = prepare(request)
    source, symbols = trimming.source, trimming.new_symbols
    content = changed_checkpoint(source, trimming.removal, symbols, not request.reset_optimizer, request.output)
    with whole_folder(request.output, request.force, FILES) as folder:
        dictionaries = write_result(source, trimming.new_texts, symbols, content, folder)
        record = record_of(trimming, dictionaries, inputs, (folder / "model.pt").stat().st_size)
        write_json(folder / "trim.json", record)
        yield trimming, folder, record


def record_of(trimming: Trimming, dictionaries: Sequence[str], inputs: dict[str, str], size: int) -> dict[str, Any]:
    """What was done, as one JSON object. inputs: the files that were read; size: bytes of model.pt."""
    request, source, removal = trimming.request, trimming.source, trimming.removal
    removed = np.setdiff1d(np.arange(removal.old_size), removal.source)
    fillers = int(source.vocabulary.filler[removed].sum())
    return {
        "trim_vocab": 1,
        "words_removed": len(removed) - fillers,
        "fillers_removed": fillers,
        "tokens_in_dictionary": trimming.known,
        "bytes_before": Path(request.checkpoint).stat().st_size,
        "bytes_after": size,
        "files": ["model.pt", *dictionaries, "trim.json"],
        **common_record(source, removal, request, source.has_moments and not request.reset_optimizer, inputs),
    }
