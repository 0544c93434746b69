"""Provide the lines of text on which an exported tokenizer is compared with fairseq: the user's, and made-up ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from embinit_fairseq.errors import DataError, counted
from embinit_fairseq.interop.export_request import ExportRequest
from embinit_fairseq.interop.trained import Side
from embinit_fairseq.io import read_lines
from embinit_fairseq.vocab.dictionary import is_filler, is_number
from embinit_fairseq.vocab.preparation_options import GLUED
from embinit_fairseq.vocab.subword_styles import CONTINUES
from embinit_fairseq.vocab.text_checks import MOST_MARKED, pieces_left

_TEXT = "--verify-text"
#: number of made-up lines
_LINES = 200
#: form of a text -> its name for people
FORMS = {
    "raw": "raw text",
    "bpe": f"subwords (`or{CONTINUES} an{CONTINUES} ge`)",
    "sentencepiece": "subwords (`▁or ange`)",
    "numbers": "numbers of GPT-2's pieces",
    "words": "Moses' words",
}


def are_numbers(symbols: Sequence[str]) -> bool:
    """Return True if a dictionary or a text holds numbers of GPT-2's pieces."""
    words = [symbol for symbol in symbols if not symbol.startswith("<") and not is_filler(symbol)]
    return len(words) > 1 and all(map(is_number, words))


def user_text(request: ExportRequest, side: Side, forms: Sequence[str], segmenter: str = "") -> tuple[list[str], str]:
    """Return the lines of --verify-text and their form; raise DataError if the form is not one of `forms`.

    With a record, text counts as raw even if it has subwords, which it may quote.
    segmenter: the option for a tokenizer that takes raw text.
    """
    path = request.verify_text
    if path is None:
        return [], "raw"
    numbered = list(read_lines(path, DataError, _TEXT))
    lines = [line for _, line in numbered]
    words = [word for line in lines for word in line.split()]
    if not words:
        raise DataError(f"{_TEXT} {path}: no text in it; give a sentence a line")
    if side.recorded is not None and "raw" in forms:
        return lines, "raw"
    marked, form = pieces_left(lines) or (0, "raw")
    if marked > MOST_MARKED * len(lines):
        pass  # subwords
    elif "words" in forms and not any(map(GLUED.search, words)):
        form = "words"
    else:
        form = "numbers" if are_numbers(side.symbols) and are_numbers(words) else "raw"
    if form not in forms:
        remedy = f"{segmenter}, which segments it, or the text after" if form == "raw" else "the text before"
        expected = " or ".join(FORMS[form] for form in forms)
        shows = GLUED.search if form == "raw" else lambda word: pieces_left([word])
        shown = (f" ({word[:60]!r} in line {n})" for n, line in numbered for word in line.split() if shows(word))
        actual = FORMS[form].partition(" (")[0] + next(shown, "")
        raise DataError(f"{_TEXT} {path}: found {actual}, expected {expected}: give {remedy} segmentation")
    return lines, form


def binarised_ids(prefix: str, side: Side, lines: int) -> list[list[int]]:
    """Return the ids of each sentence of binarised data, as the model's input.

    Args:
        prefix: path without `.bin`.
        side: the side whose dictionary binarised it.
        lines: required number of lines.

    Raises:
        DataError: there is no such data, or it has another number of sentences.
    """
    from fairseq.data import data_utils

    data = data_utils.load_indexed_dataset(prefix, side.dictionary, None)
    if data is None:
        raise DataError(
            f"--verify-bin {prefix}: no {prefix}.idx and .bin; give the path without ending, bin/valid, say"
        )
    if len(data) != lines:
        raise DataError(
            f"--verify-bin {prefix}: {counted(len(data), 'sentence')}, expected {lines:,} as in {_TEXT}: give the text "
            "that it was binarised from, line by line (the step cleaned makes several sentences of a line)"
        )
    return [[*side.before, *ids.tolist()] for ids in data]


def made_up_lines(symbols: Sequence[str], join: Callable[[list[str]], str]) -> list[str]:
    """Return text over a dictionary, with unknown words and superfluous spaces."""
    draw = random.Random(1)
    symbols = [symbol for symbol in symbols[4:] if not symbol.startswith("<")]
    letters = sorted({letter for symbol in symbols for letter in symbol}) or ["a"]
    lines = ["", "  two  blanks ", "Ünknøwn 未知 ???"]
    for _ in range(_LINES):
        words = [draw.choice(symbols) for _ in range(draw.randint(1, 12))] if symbols else []
        words.insert(draw.randrange(len(words) + 1), "".join(draw.choices(letters, k=draw.randint(1, 9))))
        lines.append(join(words))
    return lines
