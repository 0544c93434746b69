"""Find the row of one vocabulary for a symbol of another one: the closest spelling of the same piece of text.

Two symbols are the same piece of text if their markers do not contradict each other (`tokens.compatible`) and their
texts are equal, or one word in two spellings (`closeness`). Rules name what differs:

    exact     nothing, or only whether letters are composed (NFC) or decomposed (NFD)
    entities  one text is as Moses' tokenizer writes it: `&apos;s` is `'s`, `@-@` is `-`
    marker    the markers of two segmenters: `▁haus`, `haus`, `Ġhaus`
    casefold  the case

A match that needs several rules has their names: `entities_marker_casefold`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Sequence

from embinit_fairseq.vocab.tokens import Token, as_text, compatible, parse, plain, unmarked

#: rules that a user can switch on and off
RULES = ("exact", "entities", "casefold", "marker")


class Matcher:
    """Find the row of a vocabulary for a piece of text.

    Args:
        words: symbols of the vocabulary, one per row.
        style: how they are spelled, one of `tokens.STYLES`.
        rules: of RULES, what may differ.
        added: words that were added to a tokenizer after training.
    """

    def __init__(
        self, words: Sequence[str], style: str, rules: Collection[str] = RULES, added: Collection[str] = ()
    ) -> None:
        self._rules = rules
        #: the rule of a row that does not differ: a user who allows any case allows the same case, too
        self._equal = next((rule for rule in ("exact", "casefold", "marker") if rule in rules), "")
        self._rows: dict[str, list[tuple[int, Token]]] = {}
        for row, (word, text) in enumerate(zip(words, as_text(words, style))):
            token = unmarked(word) if word in added else parse(text, style)
            self._rows.setdefault(fold(token.surface), []).append((row, token))

    def match(self, token: Token) -> tuple[int, str]:
        """Return the closest row and the rule by which it matches; (-1, "") if there is none.

        The text counts first; then a row that may be a whole word comes before a part of one; then the fewer rules the
        better; then the order of the rows.
        """
        best: tuple[tuple[int, ...], str] = (-1,), ""
        for has_entities, mine in enumerate(readings(token, self._rules)):
            for row, theirs in self._rows.get(fold(mine.surface), ()):
                level = closeness(mine.surface, theirs.surface)
                if level is None or not compatible(mine, theirs):
                    continue
                other_marker = mine.marker != theirs.marker
                is_unusual = other_marker and mine.initial is not False and theirs.initial is not True
                rule = self._rule(entities=has_entities, marker=other_marker, casefold=level >= OTHER_CASE)
                rank = (level, _is_less(mine, theirs), other_marker + is_unusual, has_entities, row)
                if rule and (not best[1] or rank < best[0]):
                    best = rank, rule
        return best[0][-1], best[1]

    def _rule(self, **differs: int) -> str:
        """Return the names of the rules that the differences need; "" if one of them is switched off."""
        needed = [rule for rule, does in differs.items() if does]
        if not needed:
            return self._equal
        return "_".join(needed) if set(needed) <= set(self._rules) else ""


def readings(token: Token, rules: Collection[str] = RULES) -> list[Token]:
    """Return the token and, if the rule `entities` is on and makes a difference, its plain form."""
    bare = plain(token) if "entities" in rules else token
    return [token] if bare == token else [token, bare]


def _is_less(mine: Token, theirs: Token) -> int:
    """Count the ends at which the other token is a part of a word and this one may be a whole word."""
    return (mine.initial is None and theirs.initial is False) + (mine.final is None and theirs.final is False)


def fold(text: str) -> str:
    """Return a key that is equal for all spellings that `closeness` takes for one word; other words may share it."""
    if text.isascii():
        return text.lower()
    text = unicodedata.normalize("NFC", text).casefold()
    return text.replace("i\u0307", "i").replace("ı", "i") if "ı" in text or "\u0307" in text else text


#: values of `closeness` from which on the case differs
OTHER_CASE = 2


def closeness(one: str, other: str) -> int | None:
    """Return how much two spellings of a word differ; None for two words.

    0: not at all. 1: in composed and decomposed letters. 2: in case. 3: in case as Turkish has it (`İçin`, `için`).
    4: they are equal if case-folded (`maße` and `Masse`, final sigma, ligatures).
    """
    if one == other:
        return 0
    return next((level for level, (a, b) in enumerate(zip(_forms(one), _forms(other)), 1) if a == b), None)


def _forms(text: str) -> tuple[str, ...]:
    composed = unicodedata.normalize("NFC", text)
    turkish = composed.replace("İ", "i").replace("I", "ı").lower().replace("i\u0307", "i")
    return composed, composed.lower(), turkish, composed.casefold()
