"""Find the row of one vocabulary for a symbol of another one: the closest spelling of the same piece of text.

Two symbols are the same piece of text if their markers do not contradict each other (`subword_styles.compatible`), and
if their texts are equal, or are one word in two spellings (`closeness`). Rules name the difference:

    exact       nothing, or only whether letters are composed (NFC) or decomposed (NFD)
    entities    one text is as Moses' tokenizer writes it: `&apos;s` is `'s`, `@-@` is `-`
    normalised  one text is as a model's tokenizer changes it before it looks for tokens: `läuft` is `lauft`
    digits      one text has `#` or `0` for each digit: `1999` is `####`
    label       one text has a language or a part of speech added: `/c/de/hund`, `de:hund`, `hund_NOUN`
    marker      the markers of two segmenters: `▁haus`, `haus`, `Ġhaus`
    casefold    the case

A match that needs several rules has their names in this order: `entities_marker_casefold`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from embinit_fairseq.vocab.subword_styles import (
    Token,
    as_text,
    compatible,
    escaped,
    ignores_spaces,
    parse,
    plain,
    respell,
    unmarked,
)

#: rules that a user can switch on and off
RULES = ("exact", "entities", "normalised", "casefold", "marker", "label", "digits")

# ---- Spellings of the tools that made the vectors -------------------------------------------------------------------

#: How files of several languages, or with parts of speech, spell the word `hund`. A file has words of one language in a
#: dictionary, but of all parts of speech.
_LABELS = tuple(
    map(
        re.compile,
        (
            r"(?P<language>/c/[a-z]{2,3}(?:-[a-z]+)*/)(?P<word>[^/]+)(?:/.*)?",  # ConceptNet Numberbatch: /c/de/hund/n
            r"(?P<language>[a-z]{2,3}(?:[:/|]|__?))(?P<word>.+)",  # de:hund
            r"(?P<word>.+)(?P<language>@[a-z]{2,3})",  # hund@de
            r"(?P<word>.+)[_|/#][A-Z]{1,6}",  # hund_NOUN
        ),
    )
)
#: smallest share of labelled words among a file's first words; `</s>` and the like have no label
_LABELLED = 0.9
#: characters that stand for all digits
MASKS = ("#", "0")
#: words that show whether a file has masked digits
DIGIT_WORDS = tuple(
    "## ### #### ##### #.# ##.# ##:## ##,### 00 000 0000 0,000 1 2 3 5 10 12 20 30 100 1990 2000 2010".split()
)
_DIGIT = re.compile(r"\d")
#: mask -> patterns of words with masked digits and of words with digits; one masked digit proves nothing
_MASKED = {"#": ("##|#[.,:/-]#", r"\d\d"), "0": ("00", "[1-9]")}


@dataclass(frozen=True)
class Spelling:
    """How the tools that made vectors spell a word of plain text.

    normalise: text -> text as the tokenizer of a model changes it, None for no change. label: pattern with the groups
    `word` and perhaps `language` of words that have more than the word. masks: characters that stand for a digit.
    """

    normalise: Callable[[str], str] | None = None
    label: re.Pattern[str] | None = None
    masks: tuple[str, ...] = ()

    def bare(self, word: str) -> str:
        """Return a word of the vectors without its label."""
        match = self.label and self.label.fullmatch(word)
        return match["word"] if match else word

    def language(self, word: str) -> str:
        """Return the language in the label of a word of the vectors, as it is spelled there; "" if there is none."""
        match = self.label and self.label.fullmatch(word)
        return match.groupdict().get("language", "") if match else ""

    def normalised(self, token: Token) -> Token:
        """Return the token as the tokenizer of the model changes it."""
        text = self.normalise(token.surface).strip(" ▁") if self.normalise else ""
        return respell(token, text) if text and text != token.surface else token


#: words are spelled as in plain text
PLAIN = Spelling()


def find_label(words: Iterable[str]) -> re.Pattern[str] | None:
    """Return the pattern of the label that the first words of a file have, None if they have none."""
    words = [word for word in words if word and not word.startswith("<")]
    for label in _LABELS:
        if sum(map(bool, map(label.fullmatch, words))) > _LABELLED * len(words):
            return label
    return None


def find_masks(words: Iterable[str], style: str) -> tuple[str, ...]:
    """Return the characters that stand for all digits in the words of a file.

    A file in which `##` and `2000` are words has no masked digits.

    Args:
        words: words of the file, with all words of DIGIT_WORDS that the file has.
        style: subword style of the words.
    """
    text = "\n".join(words)
    masks = {mask for mask, (yes, no) in _MASKED.items() if re.search(yes, text) and not re.search(no, text)}
    return tuple(masks - ({"#"} if style == "wordpiece" else set()))


def masked(token: Token, mask: str) -> Token:
    """Return the token with each digit replaced by the mask."""
    return replace(token, surface=_DIGIT.sub(mask, token.surface))


# ---- Match ----------------------------------------------------------------------------------------------------------


class Rank(NamedTuple):
    """How far a row is from a piece of text: the smallest rank is the closest row, and the first field counts most.

    Attributes:
        is_masked: the row has masks instead of digits.
        case: `closeness` if the case differs, else 0.
        ends: result of `_is_less`.
        markers: 1 if the markers differ; 2 if, in addition, only the row may be inside a word.
        has_label: the row has a label.
        is_escaped: the row is as Moses' tokenizer writes it.
        reading: place in `readings`, of which later ones need more rules.
        level: `closeness`.
        row: number of the row.
    """

    is_masked: bool
    case: int
    ends: int
    markers: int
    has_label: bool
    is_escaped: bool
    reading: int
    level: int
    row: int


class Matcher:
    """Find the row of a vocabulary for a piece of text.

    Args:
        words: symbols of the vocabulary, one per row.
        style: subword style of the words, a name in `subword_styles.STYLES`.
        rules: names from RULES: how words may differ.
        added: words that were added to a tokenizer after training.
        spelling: how they spell a word of plain text.
    """

    def __init__(
        self,
        words: Sequence[str],
        style: str,
        rules: Collection[str] = RULES,
        added: Collection[str] = (),
        spelling: Spelling = PLAIN,
    ) -> None:
        self._rules = rules
        self._spelling = spelling
        #: the rule of a row that does not differ: a user who allows any case allows the same case, too
        self._equal = next((rule for rule in ("exact", "casefold", "marker") if rule in rules), "")
        #: key -> row, token, whether the token is without the row's label, without Moses' escapes
        self._rows: dict[str, list[tuple[int, Token, bool, bool]]] = {}
        for row, (word, text) in enumerate(zip(words, as_text(words, style))):
            self._add(row, unmarked(word) if word in added else parse(text, style), has_label=False)
            if (bare := spelling.bare(text)) != text:
                self._add(row, parse(bare, style), has_label=True)

    def _add(self, row: int, token: Token, has_label: bool) -> None:
        self._rows.setdefault(fold(token.surface), []).append((row, token, has_label, False))
        if (unescaped := plain(token)) is not token and token.surface in escaped(unescaped.surface):
            self._rows.setdefault(fold(unescaped.surface), []).append((row, unescaped, has_label, True))

    def match(self, token: Token) -> tuple[int, str]:
        """Return the closest row and the rule by which it matches; (-1, "") if there is none.

        A row with the digits comes before one with masks, then the text counts; then a row that may be a whole word
        comes before a part of one; then the fewer rules the better; then the order of the rows.
        """
        best: Rank | None = None
        best_rule = ""
        for reading, (mine, changed) in enumerate(readings(token, self._rules, self._spelling)):
            is_masked = "digits" in changed
            for row, theirs, has_label, is_escaped in self._rows.get(fold(mine.surface), ()):
                level = closeness(mine.surface, theirs.surface)
                if level is None or (is_escaped and "entities" in changed):
                    continue
                if not compatible(mine, theirs) and (is_masked or not _is_sign(mine, theirs)):
                    continue
                other_marker = mine.marker != theirs.marker
                is_unusual = other_marker and mine.initial is not False and theirs.initial is not True
                other_case = level >= OTHER_CASE
                needed = ("entities", *changed) if is_escaped else changed
                rule = self._rule(needed, label=has_label, marker=other_marker, casefold=other_case)
                case, ends, markers = level * other_case, _is_less(mine, theirs), other_marker + is_unusual
                rank = Rank(is_masked, case, ends, markers, has_label, is_escaped, reading, level, row)
                if rule and (best is None or rank < best):
                    best, best_rule = rank, rule
        return (-1, "") if best is None else (best.row, best_rule)

    def _rule(self, changed: tuple[str, ...], **differs: bool) -> str:
        """Return the names of the rules that the differences need; "" if one of them is switched off."""
        needed = [*changed, *(rule for rule, does in differs.items() if does)]
        if not needed:
            return self._equal
        return "_".join(needed) if set(needed) <= set(self._rules) else ""


def readings(
    token: Token, rules: Collection[str] = RULES, spelling: Spelling = PLAIN
) -> list[tuple[Token, tuple[str, ...]]]:
    """Return the texts that the token may be in the vectors, with the rules that each needs; the token itself first."""
    forms: list[tuple[Token, tuple[str, ...]]] = [(token, ())]
    if "entities" in rules and (bare := plain(token)) is not token and bare != token:
        forms.append((bare, ("entities",)))
    if "normalised" in rules and spelling.normalise:
        changed = [(spelling.normalised(form), (*needed, "normalised")) for form, needed in forms]
        forms += [new for new, (form, _) in zip(changed, forms) if new[0] is not form]
    if "digits" in rules and spelling.masks and _DIGIT.search(token.surface):
        forms += [(masked(form, mask), (*needed, "digits")) for mask in spelling.masks for form, needed in forms]
    return forms


def _is_sign(mine: Token, theirs: Token) -> bool:
    """Return True for punctuation and the like, of which only one token ends its word: `,` and `,@@`."""
    return compatible(mine, replace(theirs, final=mine.final)) and ignores_spaces(mine.surface)


def _is_less(mine: Token, theirs: Token) -> int:
    """Count the ends at which the other token is a part of a word and this one may be a whole word, or the reverse."""
    other_end = None not in (mine.final, theirs.final) and mine.final != theirs.final
    at_ends = (mine.initial is None and theirs.initial is False) + (mine.final is None and theirs.final is False)
    return at_ends + 2 * other_end


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
