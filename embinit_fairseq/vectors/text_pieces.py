"""Cutting words into the sub-words of a text file of vectors (BPEmb and the like).

Such a file says how its pieces are marked but not by which merges words were cut, so words are cut greedily: the
longest piece first, from left to right, as BERT does. This comes close to byte-pair encoding but is not always equal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

#: A marker counts as the file's convention if at least this share of its words carries it.
_SHARE = 0.01


def markers_of(words: Collection[str]) -> str | None:
    """How the words mark pieces: `sentencepiece`, `wordpiece`, `subword_nmt`, or None if they are no pieces."""
    counts = {
        "sentencepiece": sum(word.startswith("▁") and len(word) > 1 for word in words),
        "wordpiece": sum(word.startswith("##") and len(word) > 2 for word in words),
        "subword_nmt": sum(word.endswith("@@") and len(word) > 2 for word in words),
    }
    convention = max(counts, key=lambda name: counts[name])
    return convention if words and counts[convention] >= max(1, _SHARE * len(words)) else None


def cut(surface: str, pieces: Collection[str], markers: str, longest: int) -> list[str]:
    """The pieces of a whole word, the longest possible first; characters that no piece begins with are skipped.

    longest: the length of the longest piece.
    """
    text = "▁" + surface if markers == "sentencepiece" else surface
    found: list[str] = []
    begin = 0
    while begin < len(text):
        ends = range(min(len(text), begin + longest), begin, -1)
        named = ((_name(text, begin, end, markers), end) for end in ends)
        piece, begin = next(((name, end) for name, end in named if name in pieces), ("", begin + 1))
        if piece:
            found.append(piece)
    return [piece for piece in found if piece != "▁"]  # no part of the word itself


def _name(text: str, begin: int, end: int, markers: str) -> str:
    """How the file spells the part of the word."""
    part = text[begin:end]
    if markers == "wordpiece" and begin:
        return "##" + part
    if markers == "subword_nmt" and end < len(text):
        return part + "@@"
    return part


def cut_all(surfaces: Iterable[str], pieces: Collection[str], markers: str) -> dict[str, list[str]]:
    """Surface -> its pieces; surfaces without any known piece are left out."""
    longest = max(map(len, pieces), default=0)
    found = {surface: cut(surface, pieces, markers, longest) for surface in surfaces}
    return {surface: parts for surface, parts in found.items() if parts}
