"""Check raw text in one pass before it is prepared: count odd lines, refuse unusable ones."""

from __future__ import annotations

import math
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import islice
from typing import Any

import numpy as np

from embinit_fairseq.corpora.other_forms import FIRST, other_form
from embinit_fairseq.corpora.raw_texts import OTHER_ENDS, RawText
from embinit_fairseq.corpora.reading import SHOWN, has_mark, is_of_tabs, shown_lines
from embinit_fairseq.errors import DataError
from embinit_fairseq.vocab.cleaning import SPACELESS
from embinit_fairseq.vocab.dictionary import SPECIAL_SYMBOLS

#: smallest share of lines with marks of subwords in a segmented text; single lines of raw text may quote subwords
_SEGMENTED_TEXT = 0.25
#: smallest number of words of a long line; models read about 1,000 symbols
LONG = 1000
_SYMBOL = re.compile(r"<(?:s|/s|pad|unk|mask)>")
_SEGMENTED = re.compile(r"\S@@(?=\s|$)|▁")
_ESCAPED = re.compile(r"&(?:[a-zA-Z]\w{1,30}|#\d+|#[xX][\da-fA-F]+);|(?<!\S)@[-,.]@(?!\S)")
#: control characters except the tab, and Unicode's invisible characters (Default_Ignorable_Code_Point): soft hyphen,
#: zero-width space, marks of direction, fillers, byte-order mark; without joiners, which Persian and Hindi need, and
#: without characters of emojis
_HIDDEN = re.compile(
    "[\0-\b\x0e-\x1b\x7f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufeff\uffa0\ufff0-\ufffb]"
)
#: an element or its end, a tag with a value, a tag of subtitles ({\an8}); no tags that a text begins with (<2de>), no
#: symbols (</s>)
_MARKUP = re.compile(
    r"</(?!s>)[a-zA-Z]\w*>|<[a-zA-Z]\w*(?:\s*/|\s+[\w:.-]+\s*=[^<>]*)>|<(?:[biup]|br|hr)>|\{\\[a-z]+\d?[^{}\s]*\}",
    re.IGNORECASE,
)
#: more letters without a space than a word has
_UNSPACED = re.compile(f"[{SPACELESS}]{{15}}")
_NO_WORDS = re.compile(rf"(?:\s|{_HIDDEN.pattern})*")
#: the characters that the second and third byte of a letter in UTF-8 become if they are read as Latin-1 or cp1252
_READ_WRONG = "[\x80-\xbf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]"
#: the sign for a lost character; C1 controls; UTF-8 that was read as Latin-1 or cp1252 (Ã¤, â€œ; two letters of
#: other scripts: Ð´Ð°, ä½\xa0å¥½)
_GARBLED = re.compile(
    f"[\ufffd\x80-\x84\x86-\x9f]|[ÂÃ]{_READ_WRONG}|â€|(?:[Î-Ñ×-Û]{_READ_WRONG}){{2}}|(?:[à-ï]{_READ_WRONG}{{2}}){{2}}"
)
#: characters of words that Moses takes for signs: accents of letters that have no composed form, Hebrew's accents,
#: marks of Thai, Lao, Burmese and Khmer, joiners, and selectors for the look of an emoji
_SPLIT_OFF = re.compile(
    "[\u0300-\u036f\u0591-\u05af\u0e47-\u0e4e\u0ec8-\u0ecc\u1037\u103a\u17c9-\u17d3\u200c\u200d\u20d0-\u20f0"
    "\ufe00-\ufe0f\U000e0100-\U000e01ef]"
)
#: hyphens at the end of a line, and the sign that programs for PDF write for them
_HYPHENS = ("-", "\u2010", "\xac")
#: ligatures of Latin letters
_LIGATURE = re.compile("[\ufb00-\ufb06]")
#: non-joiner, a half-space in Persian; sentencepiece makes a space of it
_NON_JOINER = "\u200c"
#: a cell with tabs, quotes or ends of lines, as spreadsheets write it
_QUOTED = re.compile('"(?:[^"]|"")*"')
#: steps that find words without spaces
_WITHOUT_SPACES = frozenset(("spacy", "sentencepiece", "huggingface"))
#: name -> True for a line that has it; some kinds count for some tables or steps only (`check_raw_text`)
_ODD = {
    "empty": lambda line: _NO_WORDS.fullmatch(line) is not None,
    "long": lambda line: len(line.split()) > LONG,
    "CR": lambda line: OTHER_ENDS.search(line) is not None,
    "symbols": lambda line: _SYMBOL.search(line) is not None,
    "segmented": lambda line: _SEGMENTED.search(line) is not None,
    "escaped": lambda line: _ESCAPED.search(line) is not None,
    "markup": lambda line: _MARKUP.search(line) is not None,
    "unspaced": lambda line: _UNSPACED.search(line) is not None,
    "hidden": lambda line: _HIDDEN.search(line) is not None,
    "garbled": lambda line: not line.isascii() and _GARBLED.search(line) is not None,
    "decomposed": lambda line: not unicodedata.is_normalized("NFC", line),
    "marks": lambda line: _has_split_word(unicodedata.normalize("NFC", line)),
    "ligatures": lambda line: not line.isascii() and _LIGATURE.search(line) is not None,
    "broken": lambda line: (end := line.rstrip()).endswith(_HYPHENS) and end[-2:-1].isalpha(),
    "quoted": lambda line: _QUOTED.fullmatch(line) is not None,
}
#: column of the table -> the lines that it counts, for people
MEANING = {
    "empty": "no words (kept: delete them, of two languages in both files)",
    "long": f"more than {LONG:,} words (write a sentence per line; with labels train with --shorten-method truncate)",
    "CR": "another end of a line inside, which becomes a space",
    "symbols": "<s>, </s>, <pad>, <unk> or <mask> in writing",
    "segmented": "subwords (@@ or ▁)",
    "escaped": "escapes (&amp; &#39; @-@) of a tokeniser or of HTML, which become words",
    "markup": "tags of XML, HTML or subtitles, which become words",
    "unspaced": "no spaces between words (Chinese, Thai ...), which these steps need: take --steps sentencepiece",
    "hidden": "characters that nobody sees (NUL, soft hyphen, zero-width space, marks of direction)",
    "garbled": "characters of another encoding (� Ã¤ â€œ)",
    "decomposed": "accents that are characters of their own, so that words differ from composed ones, and Moses splits "
    "them: convert the text to Unicode's form NFC",
    "marks": "marks or joiners in words (Persian, Yoruba ...): for Moses words, for sentencepiece spaces: take spacy",
    "ligatures": "ligatures of PDF files, so that words differ (letters: sed 's/\ufb00/ff/g; s/\ufb01/fi/g; "
    "s/\ufb02/fl/g; s/\ufb03/ffi/g; s/\ufb04/ffl/g' FILE > NEW)",
    "broken": "a hyphen at the end (if it breaks a word: join lines to sentences, without heads and numbers of pages)",
    "quoted": "cells in quotes, which are text in .tsv (a table of a spreadsheet: save it as .csv)",
}


@dataclass
class Checked:
    """Hold facts about a raw text.

    Args:
        raw_text: the text.
        lines: number of lines.
        doubled: number of lines that occurred before.
        mark: the file begins with a byte-order mark.
        odd: name of a kind (see MEANING) -> (number of lines, numbers of the first ones).
        labels: label -> line of its first occurrence, of a column with labels.
        label_counts: label -> its number of lines.
    """

    raw_text: RawText
    lines: int = 0
    doubled: int = 0
    mark: bool = False
    odd: dict[str, tuple[int, list[int]]] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    label_counts: Counter[str] = field(default_factory=Counter)

    def entry(self) -> dict[str, Any]:
        """Return the numbers, for the record."""
        counts = {name: count for name, (count, _) in self.odd.items()}
        facts = {"file": str(self.raw_text), "split": self.raw_text.split, "column": self.raw_text.column}
        return {**facts, "lines": self.lines, **counts, "doubled": self.doubled, "byte_order_mark": self.mark}


def check_raw_text(raw_text: RawText, steps: Collection[str] = ("spacy",)) -> Checked:
    """Read a raw text once; raise DataError if it cannot be read, is not UTF-8, has no line or another form.

    steps: the names of the text's steps; spaCy needs no spaces, and keeps marks.
    """
    checked = Checked(raw_text, mark=has_mark(raw_text.path))
    line_numbers: dict[str, list[int]] = {name: [] for name in _ODD}
    counts: Counter[str] = Counter()
    is_used = {
        "quoted": raw_text.field is not None and is_of_tabs(raw_text.path),
        "unspaced": _WITHOUT_SPACES.isdisjoint(steps),
        "ligatures": "sentencepiece" not in steps,  # its rules write them as letters
        "marks": not {"moses", "sentencepiece"}.isdisjoint(steps),
    }
    kinds = {name: is_odd for name, is_odd in _ODD.items() if is_used.get(name, True)}
    if "moses" not in steps and "marks" in kinds:  # sentencepiece's rules leave other marks
        kinds["marks"] = lambda line: _NON_JOINER in line
    if raw_text.is_label:
        kinds = {"empty": _ODD["empty"]}
    else:
        _check_form(raw_text)
    hashes = array("q")  # eight bytes per line: memory for a hundred million lines
    for number, line in raw_text.numbered_lines():
        checked.lines += 1
        if raw_text.is_label:
            checked.labels.setdefault(line.strip(), number)
            checked.label_counts[line.strip()] += 1
        else:
            hashes.append(hash(line))
        for name, is_odd in kinds.items():
            if is_odd(line):
                counts[name] += 1
                if len(line_numbers[name]) < SHOWN:
                    line_numbers[name].append(number)
    if not checked.lines:
        raise DataError(f"{raw_text}: no line in it; give the text")
    checked.doubled = len(hashes) - len(np.unique(np.frombuffer(hashes, dtype=np.int64)))
    checked.odd = {name: (counts[name], line_numbers[name]) for name in _ODD}
    return checked


def _check_form(raw_text: RawText) -> None:
    """Raise DataError if a file has another form than a text per line."""
    if raw_text.field is None:
        filled = (line for line in raw_text.lines() if line.strip())
        if (form := other_form(list(islice(filled, FIRST)))) is not None:
            raise DataError(f"{raw_text}: found {form[0]}, expected a text per line; {form[1]}")


def check_together(
    checked: Sequence[Checked], is_segmented_later: bool, is_regression: bool, trained: Sequence[str] | None = None
) -> list[str]:
    """Return the classes of the labels; raise DataError for texts that do not belong together, or cannot be prepared.

    Args:
        checked: all raw texts.
        is_segmented_later: the steps make subwords.
        is_regression: labels are numbers.
        trained: the classes of the trained model for which the texts are prepared.
    """
    for split in {one.raw_text.split: None for one in checked}:
        first, *others = [one for one in checked if one.raw_text.split == split]
        for other in others:
            if other.lines != first.lines:
                raise DataError(
                    f"{first.raw_text} has {first.lines:,} lines, {other.raw_text} {other.lines:,}: line n of one must "
                    "belong to line n of the other; find the first pair that does not"
                )
    for one in checked:
        count, numbers = one.odd["segmented"]
        if is_segmented_later and count > _SEGMENTED_TEXT * one.lines:
            raise DataError(
                f"{one.raw_text}: found subwords in {shown_lines(numbers, count)}, expected raw text; give it before "
                "its segmentation, or leave the subwords out of --steps"
            )
    labelled = [one for one in checked if one.raw_text.is_label]
    _check_labels(labelled, is_regression)
    return [] if is_regression or not labelled else _classes(labelled, trained)


def _has_split_word(line: str) -> bool:
    """Return True if a character of _SPLIT_OFF follows a letter or a digit; emojis are split by spaCy, too."""
    for match in _SPLIT_OFF.finditer(line):
        before = match.start() - 1
        while before >= 0 and unicodedata.category(line[before]) in ("Mn", "Mc", "Me", "Cf"):
            before -= 1
        if before >= 0 and line[before].isalnum():
            return True
    return False


def class_of(label: str) -> str:
    """Return a label as a symbol of fairseq's dictionary, which has no spaces."""
    return "_".join(label.split())


def class_counts(checked: Sequence[Checked], split: str) -> dict[str, int]:
    """Return class -> number of its examples in a split."""
    counts: Counter[str] = Counter()
    for one in checked:
        if one.raw_text.is_label and one.raw_text.split == split:
            for label, count in one.label_counts.items():
                counts[class_of(label)] += count
    return dict(counts)


def _check_labels(labelled: Sequence[Checked], is_regression: bool) -> None:
    """Raise DataError, with the line, for a label that cannot be a number, or a class."""
    spellings: dict[Decimal | str, str] = {}
    for one in labelled:
        count, numbers = one.odd["empty"]
        if count:
            lines = shown_lines(numbers, count)
            raise DataError(f"{one.raw_text}: found no label in {lines}; write it, or remove the rows")
        for label, number in one.labels.items():
            spelling, where = _spelling(label), f"{one.raw_text.path}:{number}: the label {label[:60]!r}"
            if is_regression and isinstance(spelling, str):
                raise DataError(f"{where} must be a number, as 3.5; leave --regression out if labels are classes")
            if is_regression:
                continue
            if label in SPECIAL_SYMBOLS:
                raise DataError(f"{where} is a special symbol of fairseq; give the class another name")
            other = spellings.setdefault(spelling, label)
            if re.split(" +", other) != re.split(" +", label):  # a no-break space is another spelling
                raise DataError(f"{where} is the class {other[:60]!r} in another spelling; write both in one")


def _spelling(label: str) -> Decimal | str:
    """Return a key that is equal for labels that people read alike: 1, 01 and 1.0; composed accents or not; _ for
    spaces."""
    try:
        if math.isfinite(float(label)):
            return Decimal(label)
    except ValueError:
        pass
    seen = (one for one in unicodedata.normalize("NFKC", class_of(label)) if unicodedata.category(one) != "Cf")
    return "".join(seen)


def _classes(labelled: Sequence[Checked], trained: Sequence[str] | None) -> list[str]:
    """Return the classes of a trained model in its order, else the sorted classes of the training text."""
    training = {class_of(label) for one in labelled if one.raw_text.split == "train" for label in one.labels}
    classes, where = sorted(training), "the training text"
    remedy = "add examples of it, or give --regression if labels are numbers"
    if trained is not None:
        classes, where = list(trained), "label/dict.txt of the classifier with --dict"
        remedy = "correct it (for a new classifier: cp -r DATA NEW; rm -r NEW/label; --dict NEW/input0/dict.txt)"
    class_names = {*classes}
    for one in labelled:
        for label, number in one.labels.items():
            if class_of(label) not in class_names:
                raise DataError(
                    f"{one.raw_text.path}:{number}: the class {class_of(label)[:60]} is not in {where}, which has "
                    f"{', '.join(classes)[:100]}; {remedy}"
                )
    if trained is not None:
        return classes
    if len(classes) < 2:
        raise DataError(f"{labelled[0].raw_text}: found one class, {classes[0][:60]}; expected two or more")
    return sorted(classes, key=int) if all(label.removeprefix("-").isdecimal() for label in classes) else classes


def table_rows(checked: Sequence[Checked]) -> list[list[str]]:
    """Return the table of the check: a heading with the kinds of odd lines that occur, then a row per text."""
    texts = [one for one in checked if not one.raw_text.is_label]
    kinds = [name for name in _ODD if any(one.odd[name][0] for one in texts)]
    rows = [["text", "lines", *kinds, "doubled", "BOM"]]
    for one in texts:
        counts = [one.lines, *(one.odd[name][0] for name in kinds), one.doubled]
        rows.append([str(one.raw_text), *(f"{count:,}" for count in counts), "yes" if one.mark else "no"])
    return rows


def attention(checked: Sequence[Checked]) -> list[str]:
    """Return a line for each kind of odd lines, with line numbers."""
    lines = [
        f"attention      {one.raw_text}: {MEANING[name]} in {shown_lines(numbers, count)}"
        for one in checked
        for name, (count, numbers) in one.odd.items()
        if count
    ]
    for one in checked:
        alike: dict[str, list[str]] = {}
        for label, number in one.labels.items():
            if isinstance(spelling := _spelling(label), str):
                alike.setdefault(spelling.replace("_", "").casefold(), []).append(f"{label} (line {number})")
        lines += [
            f"attention      {one.raw_text}: classes that differ only in case or spaces: {', '.join(labels)}"
            for labels in alike.values()
            if len(labels) > 1
        ]
    return lines
