"""Check raw text in one pass before it is prepared: what is odd is counted, what cannot be used is refused."""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from embinit_fairseq.corpora.sources import OTHER_ENDS, SHOWN, Source, has_mark, shown_lines
from embinit_fairseq.errors import DataError

#: share of lines with marks of subwords from which on a text is no raw text; single lines may quote subwords
_SEGMENTED_TEXT = 0.25
#: words of a line from which on it is long; models read about 1,000 symbols
LONG = 1000
_SYMBOL = re.compile(r"<(?:s|/s|pad|unk|mask)>")
_SEGMENTED = re.compile(r"\S@@(?=\s|$)|▁")
_ESCAPED = re.compile(r"&(?:apos|quot|amp|lt|gt|#\d+);|(?<!\S)@[-,.]@(?!\S)")
#: name -> True for a line that has it
_ODD = {
    "empty": lambda line: not line.strip(),
    "long": lambda line: len(line.split()) > LONG,
    "CR": lambda line: OTHER_ENDS.search(line) is not None,
    "symbols": lambda line: _SYMBOL.search(line) is not None,
    "segmented": lambda line: _SEGMENTED.search(line) is not None,
    "tokenised": lambda line: _ESCAPED.search(line) is not None,
}
#: what the columns of the table count, for people
MEANING = {
    "empty": "no words",
    "long": f"more than {LONG:,} words",
    "CR": "another end of a line inside, which becomes a space",
    "symbols": "<s>, </s>, <pad>, <unk> or <mask> in writing",
    "segmented": "subwords (@@ or ▁)",
    "tokenised": "escapes or @-@ of a tokeniser",
}


@dataclass
class Checked:
    """Facts about a source.

    Args:
        source: what was read.
        lines: their number.
        doubled: number of lines that occurred before.
        mark: the file begins with a byte-order mark.
        odd: name of a kind (see MEANING) -> (number of lines, numbers of the first ones).
        classes: label -> its number, of a column with labels.
    """

    source: Source
    lines: int = 0
    doubled: int = 0
    mark: bool = False
    odd: dict[str, tuple[int, list[int]]] = field(default_factory=dict)
    classes: Counter[str] = field(default_factory=Counter)

    def entry(self) -> dict[str, Any]:
        """Return the numbers, for the record."""
        counts = {name: count for name, (count, _) in self.odd.items()}
        facts = {"file": str(self.source), "split": self.source.split, "column": self.source.column}
        return {**facts, "lines": self.lines, **counts, "doubled": self.doubled, "byte_order_mark": self.mark}


def check_source(source: Source) -> Checked:
    """Read a source once; raise DataError if it cannot be read, is not UTF-8 or has no line."""
    checked = Checked(source, mark=has_mark(source.path))
    found: dict[str, list[int]] = {name: [] for name in _ODD}
    counts: Counter[str] = Counter()
    hashes = array("q")  # eight bytes per line: memory for a hundred million lines
    for number, line in enumerate(source.raw_lines(), 1):
        checked.lines = number
        if source.column == "label":
            checked.classes[line.strip()] += 1
            continue
        hashes.append(hash(line))
        for name, is_odd in _ODD.items():
            if is_odd(line):
                counts[name] += 1
                if len(found[name]) < SHOWN:
                    found[name].append(number)
    if not checked.lines:
        raise DataError(f"{source}: no line in it; give the text")
    checked.doubled = len(hashes) - len(np.unique(np.frombuffer(hashes, dtype=np.int64)))
    checked.odd = {name: (counts[name], found[name]) for name in _ODD}
    return checked


def check_together(checked: Sequence[Checked], is_segmented_later: bool, is_regression: bool) -> list[str]:
    """Return the classes of the labels; raise DataError for texts that do not belong together, or cannot be prepared.

    Args:
        checked: all sources.
        is_segmented_later: the steps make subwords.
        is_regression: labels are numbers.
    """
    for split in {one.source.split: None for one in checked}:
        first, *others = [one for one in checked if one.source.split == split]
        for other in others:
            if other.lines != first.lines:
                raise DataError(
                    f"{first.source} has {first.lines:,} lines, {other.source} {other.lines:,}: line n of one must "
                    "belong to line n of the other; find the first pair that does not"
                )
    for one in checked:
        count, numbers = one.odd["segmented"]
        if is_segmented_later and count > _SEGMENTED_TEXT * one.lines:
            raise DataError(
                f"{one.source}: found subwords in {shown_lines(numbers, count)}, expected raw text; give it before its "
                "segmentation, or leave the subwords out of --steps"
            )
    return _classes([one for one in checked if one.source.column == "label"], is_regression)


def _classes(labels: Sequence[Checked], is_regression: bool) -> list[str]:
    if not labels:
        return []
    if is_regression:
        for one in labels:
            if wrong := [label for label in one.classes if not _is_number(label)]:
                raise DataError(
                    f"{one.source}: the label {wrong[0][:60]!r} must be a number; leave --regression out if labels "
                    "are classes"
                )
        return []
    trained = {label for one in labels if one.source.split == "train" for label in one.classes}
    for one in labels:
        if wrong := [label for label in one.classes if len(label.split()) != 1]:
            raise DataError(f"{one.source}: the label {wrong[0][:60]!r} must be one word; write _ for spaces")
        if new := sorted(one.classes.keys() - trained):
            raise DataError(
                f"{one.source}: the class {new[0][:60]} is not in the training text, which has "
                f"{', '.join(sorted(trained))[:100]}; add examples of it, or give --regression if labels are numbers"
            )
    if len(trained) < 2:
        raise DataError(f"{labels[0].source}: found one class, {min(trained)[:60]}; expected two or more")
    if all(label.removeprefix("-").isdecimal() for label in trained):
        return sorted(trained, key=int)
    return sorted(trained)


def _is_number(label: str) -> bool:
    try:
        return math.isfinite(float(label))
    except ValueError:
        return False


def table_rows(checked: Sequence[Checked]) -> list[list[str]]:
    """Return the table of what was found: a heading, then a row per source."""
    texts = [one for one in checked if one.source.column != "label"]
    rows = [["text", "lines", *_ODD, "doubled", "BOM"]]
    for one in texts:
        counts = [one.lines, *(one.odd[name][0] for name in _ODD), one.doubled]
        rows.append([str(one.source), *(f"{count:,}" for count in counts), "yes" if one.mark else "no"])
    return rows


def attention(checked: Sequence[Checked]) -> list[str]:
    """Return a line for everything odd, with line numbers."""
    return [
        f"attention      {one.source}: {MEANING[name]} in {shown_lines(numbers, count)}"
        for one in checked
        for name, (count, numbers) in one.odd.items()
        if count
    ]
