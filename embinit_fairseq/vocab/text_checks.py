"""Check whether a text is segmented, and whether it belongs to a dictionary, for every text that a user names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from embinit_fairseq.errors import DataError
from embinit_fairseq.io import read_lines
from embinit_fairseq.vocab.subword_styles import AFTER, BEFORE, CONTINUES, PREFIX, detect_style, has_marker

#: step of `embinit score --detokenize` -> the mark of subwords in a line of text; a lone `@@` is not one (`@@ -1,3 @@`)
_MARKS = {"bpe": re.compile(rf"\S{CONTINUES}(?=\s|$)"), "sentencepiece": re.compile(PREFIX["sentencepiece"])}
#: subword style -> description of its text
_NAMES = {"none": "whole words", **{style: f"subwords with {mark}" for style, mark in (BEFORE | AFTER).items()}}
#: largest share of marked lines in a text that is not segmented
MOST_MARKED = 0.02
#: smallest share of a text's tokens that its dictionary must have
_LEAST_SHARE = 0.5


def pieces_left(lines: Iterable[str]) -> tuple[int, str] | None:
    """Return (number of lines, step) of lines that look as if they were in subwords; None if there are none."""
    counts = Counter(step for line in lines for step, mark in _MARKS.items() if mark.search(line))
    return next(((count, step) for step, count in counts.most_common(1)), None)


def check_not_segmented(flag: str, path: str) -> None:
    """Raise DataError, naming option and file, if a text that should not be segmented has subwords."""
    lines = [line for _, line in read_lines(path, DataError, flag) if line.strip()]
    marked, step = pieces_left(lines) or (0, "")
    if marked > MOST_MARKED * len(lines):
        raise DataError(
            f"{flag} {path}: found subwords ({step}) in {marked:,} of {len(lines):,} lines, expected text that is not "
            "segmented; give it before its segmentation"
        )


def count_tokens(flag: str, path: str) -> Counter[str]:
    """Count the tokens of a text, which are separated by white space; raise DataError for an empty text."""
    lines = read_lines(path, DataError, flag)
    counts = Counter(token for _, line in lines for token in line.split())
    if not counts:
        raise DataError(f"{flag} {path}: no words in it; give a text prepared as the training's text was")
    return counts


def check_tokens(where: str, counts: Mapping[str, int], symbols: Collection[str]) -> float:
    """Return the share of a text's tokens that are symbols of a dictionary.

    Args:
        where: option and file, for the message.
        counts: token -> its number in the text.
        symbols: the dictionary's symbols.

    Raises:
        DataError: text and dictionary are in different subwords, or less than half of the text is in the dictionary.
    """
    share = sum(count for token, count in counts.items() if token in symbols) / sum(counts.values())
    style, text_style = detect_style(symbols), _text_style(counts, symbols)
    message = f"{where}: found {_NAMES[text_style]}, {share:.0%} of them in the dictionary; expected {_NAMES[style]}"
    if text_style != style:
        remedy = "give it before its segmentation" if style == "none" else "segment it as the training's text was"
        raise DataError(f"{message}; {remedy}")
    if share < _LEAST_SHARE:
        raise DataError(f"{message} of the dictionary; give text of its language, prepared as the training's text was")
    return share


def _text_style(counts: Mapping[str, int], symbols: Collection[str]) -> str:
    """Return a text's subword style: the dictionary's, unless more tokens are missing there than have its mark.

    A missing character does not count: segmented text has unknown characters, too.
    """
    style, by_itself = detect_style(symbols), detect_style(counts)
    missing = sum(count for token, count in counts.items() if len(token) > 1 and token not in symbols)
    if style == "none":
        return by_itself if missing and by_itself in ("subword_nmt", "sentencepiece") else style
    marked = sum(count for token, count in counts.items() if has_marker(token, style))
    return style if marked >= missing else by_itself
