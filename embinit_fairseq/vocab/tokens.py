"""Typed tokens: how the common segmenters spell the same piece of text.

| style         | word-initial piece | other piece | who                          |
|---------------|--------------------|-------------|------------------------------|
| none          | `foo`              | -           | words: GloVe, word2vec, ...  |
| subword_nmt   | `foo@@` / `foo`    | same        | subword-nmt: `@@` = goes on  |
| sentencepiece | `▁foo`             | `foo`       | T5, mT5, XLM-R, BPEmb        |
| wordpiece     | `foo`              | `##foo`     | BERT, mBERT                  |
| bytelevel     | `Ġfoo`             | `foo`       | GPT-2, RoBERTa               |
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

#: what a piece begins with, that begins a word (wordpiece: that does not)
PREFIX = {"sentencepiece": "▁", "bytelevel": "Ġ", "wordpiece": "##"}
#: subword-nmt: what a piece ends with that does not end its word
CONTINUES = "@@"
#: A style is recognised when at least this share of the symbols carries its marker: stray `▁` or `##/##` in word
#: lists stay below it, segmenters are far above.
_SHARE = 0.02

#: What Moses' tokenizer writes for the characters that its other tools reserve.
ENTITIES = {
    "&amp;": "&",
    "&#124;": "|",
    "&lt;": "<",
    "&gt;": ">",
    "&apos;": "'",
    "&quot;": '"',
    "&#91;": "[",
    "&#93;": "]",
}
_ENTITY = re.compile("|".join(map(re.escape, ENTITIES)))


@dataclass(frozen=True)
class Token:
    """A piece of text. initial: does it begin a word? final: does it end one? None: the spelling leaves it open."""

    surface: str
    initial: bool | None
    final: bool | None


def detect_style(symbols: Iterable[str]) -> str:
    """Name the marker style of a list of symbols, "none" for plain words."""
    total, seen = 0, {"subword_nmt": 0, **dict.fromkeys(PREFIX, 0)}
    for symbol in symbols:
        total += 1
        if len(symbol) > 2 and symbol.endswith(CONTINUES):
            seen["subword_nmt"] += 1
            continue
        for style, prefix in PREFIX.items():
            if symbol.startswith(prefix) and len(symbol) > len(prefix):
                seen[style] += 1
    best = max(seen, key=lambda style: seen[style])
    return best if total and seen[best] >= max(1, _SHARE * total) else "none"


def parse(symbol: str, style: str) -> Token:
    """Read a symbol as its segmenter means it."""
    if style == "subword_nmt":
        if symbol.endswith(CONTINUES) and len(symbol) > 2:
            return Token(symbol[: -len(CONTINUES)], None, False)
        return Token(symbol, None, True)
    if style in ("sentencepiece", "bytelevel"):
        prefix = PREFIX[style]
        if symbol.startswith(prefix):
            return Token(symbol[len(prefix) :], True, None)
        return Token(symbol, False, None)
    if style == "wordpiece":
        if symbol.startswith(PREFIX[style]) and len(symbol) > 2:
            return Token(symbol[2:], False, None)
        return Token(symbol, True, None)
    return Token(symbol, True, True)


def spell(token: Token, style: str) -> list[str]:
    """The spellings a segmenter of that style may use for the token, the likelier first; empty if it has none."""
    if not token.surface:
        return []
    if style == "subword_nmt":
        whole, cut = token.surface, token.surface + CONTINUES
        return [whole] if token.final else [cut] if token.final is False else [whole, cut]
    if style == "none":
        return [token.surface] if token.initial is not False and token.final is not False else []
    marked = PREFIX[style] + token.surface
    initial, inside = (token.surface, marked) if style == "wordpiece" else (marked, token.surface)
    return [initial] if token.initial else [inside] if token.initial is False else [initial, inside]


def compatible(one: Token, other: Token) -> bool:
    """Can the two be the same piece of text?"""
    return one.surface == other.surface and all(
        mine is None or theirs is None or mine == theirs
        for mine, theirs in ((one.initial, other.initial), (one.final, other.final))
    )


def unescape(symbol: str) -> str:
    """The symbol without Moses' entities: `&apos;s` is `'s`. Replaced once: `&amp;lt;` is the text `&lt;`."""
    return _ENTITY.sub(lambda found: ENTITIES[found[0]], symbol)
