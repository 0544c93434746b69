"""Which row of a source belongs to which row of a model's table, and by which rule.

The rules, tried in this order: `exact` spelling; `casefold`, the same word in another case; `marker`, the same
piece of text in another segmenter's spelling; `marker_casefold`, both.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from embinit_fairseq.vectors.table import VectorTable, Wanted
from embinit_fairseq.vocab.dictionary import Vocabulary
from embinit_fairseq.vocab.tokens import compatible, detect_style, parse, spell

#: What a user can switch; `marker_casefold` needs both of its parts.
RULES = ("exact", "casefold", "marker")
_STYLES = ("none", "subword_nmt", "sentencepiece", "wordpiece", "bytelevel")


@dataclass
class Alignment:
    """For each of the N rows of a model's table the row of the source it takes.

    source_row: (N,) int64 into the table's matrix, -1 = none. rule: what matched, per row: "special" (the source's
    own special row, kept in `VectorTable.specials`), one of the rules above, or "" (nothing). style, source_style:
    the marker styles of the two vocabularies.
    """

    source_row: np.ndarray
    rule: list[str]
    style: str
    source_style: str

    @property
    def found(self) -> np.ndarray:
        """(N,) bool: rows that the source provides, special rows included."""
        return np.array([rule != "" for rule in self.rule], dtype=bool)

    def counts_by_rule(self) -> dict[str, int]:
        """How many rows each rule found."""
        names = ("special", "exact", "casefold", "marker", "marker_casefold")
        return {name: count for name in names if (count := self.rule.count(name))}

    def gather(self, table: VectorTable, vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
        """The rows that were found, ascending (K,) int64, and their vectors (K, D) float32."""
        rows = np.flatnonzero(self.found)
        vectors = np.empty((len(rows), table.matrix.shape[1]), dtype=np.float32)
        special = np.array([self.rule[row] == "special" for row in rows], dtype=bool)
        vectors[~special] = table.matrix[self.source_row[rows[~special]]]
        for at in np.flatnonzero(special):
            vectors[at] = table.specials[vocabulary.roles[int(rows[at])]]
        return rows, vectors


def resolve_style(vocabulary: Vocabulary, markers: str = "auto") -> str:
    """The marker style of the dictionary: as told, or recognised from its symbols."""
    if markers != "auto":
        return markers
    return detect_style(vocabulary.symbols[row] for row in np.flatnonzero(vocabulary.regular))


def plan(vocabulary: Vocabulary, rules: Collection[str] = RULES, markers: str = "auto") -> Wanted:
    """Every spelling under which a source, whatever its style, may hold a row of this dictionary."""
    style = resolve_style(vocabulary, markers)
    exact: set[str] = set()
    for row in np.flatnonzero(vocabulary.regular):
        symbol = vocabulary.symbols[row]
        exact.add(symbol)
        if "marker" in rules:
            token = parse(symbol, style)
            for source_style in _STYLES:
                exact.update(spell(token, source_style))
    folded = {word.casefold() for word in exact} if "casefold" in rules else ()
    return Wanted(frozenset(exact), frozenset(folded))


def align(
    vocabulary: Vocabulary, table: VectorTable, rules: Collection[str] = RULES, markers: str = "auto"
) -> Alignment:
    """Match every row of the dictionary with at most one row of the source.

    Special rows take the source's own special rows where its format defines them; a word of the file that happens
    to be spelled `<s>` is never taken. `<pad>` takes nothing. Among rows equal up to case the first one wins.
    """
    style = resolve_style(vocabulary, markers)
    source_style = table.origin.markers
    if source_style == "auto":
        source_style = detect_style(table.words)
    matcher = _Matcher(table, rules, style, source_style)
    source_row = np.full(len(vocabulary), -1, dtype=np.int64)
    rule = [""] * len(vocabulary)
    for row, role in vocabulary.roles.items():
        if role != "pad" and role in table.specials:
            rule[row] = "special"
    for row in np.flatnonzero(vocabulary.regular):
        source_row[row], rule[row] = matcher.match(vocabulary.symbols[row])
    return Alignment(source_row, rule, style, source_style)


class _Matcher:
    def __init__(self, table: VectorTable, rules: Collection[str], style: str, source_style: str) -> None:
        self.rules, self.style, self.source_style = rules, style, source_style
        self.exact: dict[str, int] = {}
        self.folded: dict[str, int] = {}
        for row, word in enumerate(table.words):
            self.exact.setdefault(word, row)
        if "casefold" in rules:
            for row, word in enumerate(table.words):
                self.folded.setdefault(word.casefold(), row)

    def match(self, symbol: str) -> tuple[int, str]:
        token = parse(symbol, self.style)
        translated = spell(token, self.source_style)
        # Words are word-initial: where a segmenter has both `▁haus` and the inner piece `haus`, the first is the word.
        if self.style == "none" and "marker" in self.rules and symbol not in translated:
            found = self._look_up(translated, "marker", None)
            if found:
                return found
        # Equal spelling means equal text unless two *segmenters* disagree about what the spelling means: `ing` inside
        # a word for sentencepiece, at its beginning for BERT.
        typed = "none" not in (self.style, self.source_style) and self.style != self.source_style
        same = not typed or compatible(token, parse(symbol, self.source_style))
        if same and (found := self._look_up([symbol], "exact", "casefold")):
            return found
        if "marker" in self.rules and (found := self._look_up(translated, "marker", "marker_casefold")):
            return found
        return -1, ""

    def _look_up(self, spellings: list[str], rule: str, folded_rule: str | None) -> tuple[int, str] | None:
        if rule in self.rules:
            for word in spellings:
                if word in self.exact:
                    return self.exact[word], rule
        if folded_rule and "casefold" in self.rules:
            for word in spellings:
                if word.casefold() in self.folded:
                    return self.folded[word.casefold()], folded_rule
        return None
