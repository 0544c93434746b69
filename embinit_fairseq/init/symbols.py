"""Compare two dictionaries: which words are in both, and which old subwords form a new word. NumPy only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from embinit_fairseq.errors import DataError
from embinit_fairseq.init.weights import Combination
from embinit_fairseq.vocab.dictionary import WRITE_SUBWORDS, Vocabulary, are_ids, are_words
from embinit_fairseq.vocab.matching import Matcher
from embinit_fairseq.vocab.subword_styles import (
    Token,
    as_text,
    detect_style,
    escape,
    parse,
    respell,
    spell,
    unescape,
    unmarked,
)


@dataclass(frozen=True)
class Symbols:
    """Hold the symbols of a matrix' rows.

    word: (N,) bool, neither special nor filler nor appended by a task. added: rows of words without markers, which were
    added to a tokenizer.
    """

    names: Sequence[str]
    word: np.ndarray
    added: frozenset[int] = frozenset()

    @cached_property
    def style(self) -> str:
        """Return the subword style of the segmenter (`vocab.tokens`)."""
        return detect_style(self.names[row] for row in self.words)

    @cached_property
    def texts(self) -> Sequence[str]:
        """Return the names, as text if they are spelled in bytes (`vocab.tokens`)."""
        texts = as_text(self.names, self.style)
        return [self.names[row] if row in self.added else text for row, text in enumerate(texts)]

    @cached_property
    def words(self) -> list[int]:
        """Return the rows of words, ascending."""
        return np.flatnonzero(self.word).tolist()

    @cached_property
    def row_of_word(self) -> dict[str, int]:
        """Return text -> row. If a symbol is repeated, the last row counts, as in fairseq."""
        return {self.texts[row]: row for row in self.words}

    @cached_property
    def has_escapes(self) -> bool:
        """Return True if Moses' tokenizer has escaped the text: more words have its entities than the plain signs."""
        words = [self.names[row] for row in self.words]
        entities = sum(unescape(word) != word for word in words)
        return entities > sum(escape(unescape(word)) != word for word in words)

    @property
    def has_ids(self) -> bool:
        """Return True if all words are ids of subwords."""
        return are_ids([self.names[row] for row in self.words])

    @property
    def has_words(self) -> bool:
        """Return True if most words are not numbers."""
        return are_words([self.names[row] for row in self.words])

    def token(self, row: int) -> Token:
        """Return the token of a row's symbol."""
        return unmarked(self.names[row]) if row in self.added else parse(self.texts[row], self.style)


def symbols_of(names: Sequence[str], vocabulary: Vocabulary) -> Symbols:
    """Return a matrix' symbols. vocabulary: the `dict.txt`, its first rows; a task appends the others."""
    word = np.append(vocabulary.regular, np.zeros(len(names) - len(vocabulary), dtype=bool))
    return Symbols(names, word, vocabulary.added)


def shared_rows(old: Symbols, new: Symbols, flags: tuple[str, str] = ("old", "new")) -> np.ndarray:
    """Return (new N,) the old row of each symbol that both dictionaries have, else -1.

    A word is shared if it is the same text at the same place of a word, however the two segmenters spell it: `ing` is
    a word for GloVe, a part of one for sentencepiece. `'s` of raw text is `&apos;s` of Moses' tokenizer.

    Args:
        old, new: the symbols of the two dictionaries.
        flags: options that name them, for messages.

    Raises:
        DataError: one has ids of subwords, the other words, whose numbers are not these ids.
    """
    for flag, ids, words in ((flags[0], old, new), (flags[1], new, old)):
        if ids.has_ids and words.has_words:
            raise DataError(
                f"{flag}: its symbols are ids of subwords ({_first(ids)}), the other dictionary has words "
                f"({_first(words)}), whose numbers would take the rows of ids; {WRITE_SUBWORDS}"
            )
    # if `<s>` is repeated, the first row is fairseq's own symbol, the last one the text's
    others = [(name, row) for row, name in enumerate(old.names) if not old.word[row]]
    first, last = dict(reversed(others)), dict(others)
    new_first = {name: row for row, name in reversed([*enumerate(new.names)])}
    shared = np.array([(first if new_first[n] == row else last).get(n, -1) for row, n in enumerate(new.names)])
    rows = [*old.row_of_word.values(), -1]
    rules = ("exact", "marker", *["entities"] * (old.has_escapes != new.has_escapes))
    matcher = Matcher(list(old.row_of_word), old.style, rules, {old.names[row] for row in old.added})
    # two tokens of one tokenizer may have one text (`é` that was added, `Ã©` of GPT-2): each keeps its own row
    row_of_spelling = {(old.names[row], row in old.added): row for row in old.words if old.style == new.style}
    for row in new.words:
        same = row_of_spelling.get((new.names[row], row in new.added))
        shared[row] = rows[matcher.match(new.token(row))[0]] if same is None else same
    return shared


def _first(symbols: Symbols) -> str:
    return ", ".join([symbols.names[row] for row in symbols.words[:3]] + ["..."])


def subword_means(
    old: Symbols, new: Symbols, rows: Sequence[int], segment: Callable[[Token], list[str]] | None = None
) -> dict[int, Combination]:
    """Return new row -> the mean of its old subwords, for the words that have some.

    Args:
        old, new: the symbols of the two dictionaries.
        rows: the words.
        segment: a word's token -> old subwords; without it, or if it has unknown ones, the longest old subwords.

    Raises:
        DataError: `segment` segments no word.
    """
    combinations: dict[int, Combination] = {}
    segmented = 0
    for row in rows:
        token = new.token(row) if old.has_escapes == new.has_escapes else _respelled(new.token(row), old.has_escapes)
        subwords = segment(token) if segment is not None and token.surface else []
        subword_rows = [old.row_of_word.get(subword, -1) for subword in subwords]
        segmented += bool(subword_rows) and min(subword_rows) >= 0
        if not subword_rows or min(subword_rows) < 0:
            subword_rows = longest_subwords(token, old)
        if subword_rows:
            columns, counts = np.unique(subword_rows, return_counts=True)
            combinations[row] = columns, counts / counts.sum()
    if segment is not None and len(rows) and not segmented:
        raise DataError(
            "it segments no new word into subwords of the old dictionary; give the segmentation of the old text"
        )
    return combinations


def _respelled(token: Token, has_escapes: bool) -> Token:
    """Return the token with Moses' escapes (`&apos;ve`), or without (`'ve`)."""
    text = unescape(token.surface)
    return respell(token, escape(text) if has_escapes else text)


def longest_subwords(token: Token, old: Symbols) -> list[int]:
    """Segment a text into the longest old subwords, from the left: return their rows, empty if a part has none."""
    rows: list[int] = []
    start, length = 0, len(token.surface)
    while start < length:
        for end in range(length, start, -1):
            initial, final = (False if start else token.initial), (False if end < length else token.final)
            spellings = spell(Token(token.surface[start:end], initial, final), old.style)
            row = next((old.row_of_word[spelling] for spelling in spellings if spelling in old.row_of_word), None)
            if row is not None:
                rows.append(row)
                start = end
                break
        else:
            return []
    return rows
