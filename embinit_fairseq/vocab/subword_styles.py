"""Read and spell tokens as the common segmenters do, so that the same piece of text can be found in all of them.

| style         | word-initial token | other token | who                                              |
|---------------|--------------------|-------------|--------------------------------------------------|
| none          | `foo`              | -           | words: GloVe, word2vec, ...                      |
| subword_nmt   | `foo@@` / `foo`    | same        | subword-nmt: `@@` = the word continues           |
| end_of_word   | `foo` / `foo</w>`  | same        | HerBERT, XLM, FlauBERT, CLIP: `</w>` = it ends   |
| space_after   | `foo` / `foo▁`     | same        | sentencepiece's treat_whitespace_as_suffix       |
| sentencepiece | `▁foo`             | `foo`       | T5, mT5, XLM-R, BPEmb                            |
| wordpiece     | `foo`              | `##foo`     | BERT, mBERT                                      |
| bytelevel     | `Ġfoo`             | `foo`       | GPT-2, RoBERTa; letters beyond ASCII as bytes    |
| joiner        | `foo` / `foo￭`     | `￭foo`, `￭foo￭` | OpenNMT's tokenizer: `￭` = no space here     |
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from embinit_fairseq.vocab.cleaning import SPACELESS

#: prefix of subwords that begin a word (wordpiece: that do not)
PREFIX = {"sentencepiece": "▁", "bytelevel": "Ġ", "wordpiece": "##"}
#: subword-nmt: suffix of subwords that do not end their word
CONTINUES = "@@"
#: suffix of subwords: subword-nmt's that do not end their word, the others' that do
SUFFIX = {"subword_nmt": CONTINUES, "end_of_word": "</w>", "space_after": "▁"}
#: joiner: at each end of a token that is not an end of its word
JOINER = "￭"
STYLES = ("none", *SUFFIX, *PREFIX, "joiner")
#: style -> what its marked symbols begin with, end with
BEFORE, AFTER = PREFIX | {"joiner": JOINER}, SUFFIX | {"joiner": JOINER}
#: A style is recognised if at least this share of the symbols has its marker: stray `▁` or `##/##` in word lists are
#: rarer, the markers of segmenters far more frequent.
_SHARE = 0.02
#: The same, if symbols of scripts without spaces are not counted, and the share of all symbols that is needed then:
#: sentencepiece marks few subwords of Chinese, Japanese or Thai.
_SHARE_OF_ALL = 0.001
#: words with masked digits: `##`, `####`, `##.#`
_MASKED_DIGITS = re.compile("##(##|[.,:/-]#|$)")

#: Moses' spelling -> a character that its other tools reserve
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
_ESCAPES = str.maketrans({sign: entity for entity, sign in ENTITIES.items()})


@dataclass(frozen=True)
class Token:
    """A piece of text.

    initial, final: True if it begins or ends a word; None: the spelling does not say. marker: the rest of the spelling,
    without the surface.
    """

    surface: str
    initial: bool | None
    final: bool | None
    marker: str = field(default="", compare=False)


def detect_style(symbols: Iterable[str]) -> str:
    """Return the marker style of a list of symbols, "none" for plain words."""
    symbols = list(symbols)
    seen = dict.fromkeys(STYLES, 0)
    prefixes, suffixes = tuple(BEFORE.values()), tuple(AFTER.values())
    for symbol in symbols:
        begins, ends = symbol.startswith(prefixes), symbol.endswith(suffixes)
        if begins or ends:
            for style, mark in BEFORE.items() if begins else ():
                seen[style] += symbol.startswith(mark) and symbol != mark
            for style, mark in AFTER.items() if ends else ():
                seen[style] += symbol.endswith(mark) and symbol != mark
            seen["none"] += bool(_MASKED_DIGITS.match(symbol))
        elif _is_bytes(symbol):  # Chinese has no spaces
            seen["bytelevel"] += 1
    if seen.pop("none"):  # BERT has no such token, since every sign is a word
        seen["wordpiece"] = 0
    best = max(seen, key=lambda style: seen[style])
    total = len(symbols)
    if best in ("sentencepiece", "space_after") and _SHARE_OF_ALL * total <= seen[best] < _SHARE * total:
        total = sum(not _SPACELESS.search(symbol) for symbol in symbols)
    return best if seen[best] >= max(1, _SHARE * total) else "none"


def has_marker(symbol: str, style: str) -> bool:
    """Return True if a symbol has text and the marker of a style."""
    before, after = BEFORE.get(style), AFTER.get(style)
    marked = (before and symbol.startswith(before)) or (after and symbol.endswith(after))
    return bool(marked) and symbol not in (before, after)


def parse(symbol: str, style: str) -> Token:
    """Read a symbol as its segmenter means it; byte-level ones as `as_text` returns them."""
    if style == "joiner" and (text := symbol.strip(JOINER)):
        # without a joiner, the neighbour may have it: `la￭ uft`, `la ￭uft`
        initial, final = (False if has_joiner else None for has_joiner in (symbol[0] == JOINER, symbol[-1] == JOINER))
        return _opened(Token(text, initial, final, symbol.replace(text, " ", 1).rstrip(" ")))
    if style in SUFFIX:
        end = SUFFIX[style] if symbol.endswith(SUFFIX[style]) and len(symbol) > len(SUFFIX[style]) else ""
        return Token(symbol.removesuffix(end), None, bool(end) != (style == "subword_nmt"), end and f" {end}")
    if style not in PREFIX:
        return Token(symbol, True, True)
    is_marked = symbol.startswith(PREFIX[style]) and symbol != PREFIX["wordpiece"]
    marker = PREFIX[style] if is_marked else ""
    return _opened(Token(symbol.removeprefix(marker), is_marked != (style == "wordpiece"), None, marker))


def unmarked(word: str) -> Token:
    """Read a word that was added to a tokenizer after training: ` foo` begins a word, `foo` is anywhere in a text.

    Tokenizers of code have words of white space alone, such as two line breaks.
    """
    marker = " " if word.startswith(" ") else ""
    return Token(word.strip() or word.removeprefix(marker), True if marker else None, None, marker)


def spell(token: Token, style: str) -> list[str]:
    """Return the spellings that a segmenter of that style may use for the token, the likelier first."""
    surface = token.surface
    if not surface:
        return []
    if style in SUFFIX:
        ends, continues = surface + SUFFIX[style], surface
        if style == "subword_nmt":
            ends, continues = continues, ends
        return [ends] if token.final else [continues] if token.final is False else [ends, continues]
    if style == "joiner":
        joiners = {None: ("", JOINER), True: ("",), False: (JOINER, "")}
        return [f"{before}{surface}{after}" for before in joiners[token.initial] for after in joiners[token.final]]
    if style == "none":
        return [surface] if token.initial is not False and token.final is not False else []
    marked = PREFIX[style] + surface
    initial, inside = (surface, marked) if style == "wordpiece" else (marked, surface)
    if token.initial is not None:
        return [initial] if token.initial else [inside]
    # BERT's tokenizer makes words of signs and of Chinese characters
    return [initial, inside] if style == "wordpiece" or begins_word(token) else [inside, initial]


def begins_word(token: Token) -> bool:
    """Return True if the token begins a word.

    A spelling that does not say so (`initial` is None) begins one in scripts with spaces.
    """
    return token.initial is not False and not (token.initial is None and ignores_spaces(token.surface))


def compatible(one: Token, other: Token) -> bool:
    """Return True if two tokens of the same text can be the same piece of text.

    They cannot if one begins or ends a word where the other does not.
    """
    return (one.initial is None or other.initial is None or one.initial == other.initial) and (
        one.final is None or other.final is None or one.final == other.final
    )


def unescape(text: str) -> str:
    """Replace Moses' entities: `&apos;s` is `'s`. They are replaced once: `&amp;lt;` is the text `&lt;`."""
    return _ENTITY.sub(lambda match: ENTITIES[match[0]], text)


def escape(text: str) -> str:
    """Write Moses' entities: `'s` is `&apos;s`."""
    return text.translate(_ESCAPES)


def plain(token: Token) -> Token:
    """Return the token as before Moses' tokenizer: without entities, and `-` for `@-@` (between parts of a word)."""
    text = token.surface
    if "&" not in text and "@" not in text:
        return token
    if len(text) == 3 and text[0] == text[2] == "@" and text[1] != "@" and not text[1].isalnum():
        text = text[1]
    return respell(token, unescape(text))


def escaped(text: str) -> list[str]:
    """Return how Moses' tokenizer may write a text: `'s` as `&apos;s`, `-` as `@-@`; none if it is plain for Moses."""
    if text.isalnum():
        return []
    spelled = escape(text)
    return [spelled] * (spelled != text) + [f"@{text}@"] * (len(text) == 1)


def respell(token: Token, surface: str) -> Token:
    """Return the token with another text."""
    return _opened(replace(token, surface=surface))


# ---- Text for which a marker of the beginning of a word says nothing -------------------------------------------------

_SPACELESS = re.compile(f"[{SPACELESS}]")
#: characters that join and colour emoji
_EMOJI = "\u200d\ufe0f"


def ignores_spaces(text: str) -> bool:
    """Return True for text that is a token of its own whether a space precedes it or not.

    Tokenisers of words make punctuation and symbols tokens of their own: sentencepiece's `.` of `▁cat .` is the word
    `.` of GloVe. Scripts without spaces, such as Han and Thai, do not show where words begin. A letter or a digit of
    another script is part of a word.
    """
    if text.isascii():
        return bool(text) and not any(map(str.isalnum, text))
    rest = _SPACELESS.sub("", text)
    return all(unicodedata.category(sign)[0] in "PS" or sign in _EMOJI for sign in rest)


def inside_of_text(text: str, tokens: Sequence[str]) -> list[str]:
    """Return a tokenizer's tokens of a word as they are in the middle of a text.

    Tokenizers of sentencepiece put `▁` before each text. Within a sentence, words of scripts without spaces do not have
    it, so a `▁` that is a token of its own is left out of theirs.
    """
    return [token for token in tokens if not (ignores_spaces(text) and token in PREFIX.values())] or [*tokens]


def _opened(token: Token) -> Token:
    """Return the token; it may begin a word if its marker does not count."""
    return replace(token, initial=None) if token.initial is False and ignores_spaces(token.surface) else token


# ---- GPT-2's spelling of bytes ---------------------------------------------------------------------------------------

#: bytes that are spelled as in Latin-1
_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_SIGN_OF = {byte: 256 + n for n, byte in enumerate(byte for byte in range(256) if byte not in _PRINTABLE)}
#: sign -> byte; 0xFFFF for signs that spell no byte
_BYTE_OF = {**dict.fromkeys(_SIGN_OF, 0xFFFF), **{sign: byte for byte, sign in _SIGN_OF.items()}}
_TWO_BYTES = re.compile("[\u00c2-\u00f4][\u00a1-\u0143]")  # a character beyond ASCII begins with two such signs
#: A vocabulary is spelled in bytes if this share of its symbols beyond ASCII, without single signs, is UTF-8; of text
#: none is.
_BYTES_SHARE = 0.1


def as_text(symbols: Sequence[str], style: str) -> Sequence[str]:
    """Return the symbols as text, if they are spelled in bytes: `ĠÃ¼ber` is `Ġüber`.

    A part of a character becomes lone surrogates, which no text holds: it equals only the same part.
    """
    if style not in ("bytelevel", "end_of_word"):
        return symbols
    texts = [symbol.removeprefix("Ġ") for symbol in symbols]
    beyond_ascii = [
        text for text in texts if len(text) > 1 and not text.isascii()
    ]  # one sign may be a byte or a letter
    if sum(map(_is_bytes, beyond_ascii)) < max(1, _BYTES_SHARE * len(beyond_ascii)):
        return symbols
    return [text_of(symbol) for symbol in symbols]


def text_of(symbol: str) -> str:
    """Decode a symbol that is spelled in bytes, see `as_text`."""
    text = _decode(symbol)
    # the letter Ġ (Maltese) could not be distinguished from the marker
    return symbol if text.startswith("Ġ") else re.sub("^ ", "Ġ", text)


def in_bytes(symbol: str) -> str:
    """Spell a symbol, a text with a leading space spelled `Ġ`, in GPT-2's spelling of bytes."""
    return re.sub("^Ġ", " ", symbol).encode("utf-8", "surrogatepass").decode("latin-1").translate(_SIGN_OF)


def _decode(symbol: str) -> str:
    try:
        return symbol.translate(_BYTE_OF).encode("latin-1").decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return symbol  # text: a token that was added later


def _is_bytes(symbol: str) -> bool:
    """Return True for text beyond ASCII in GPT-2's spelling of bytes; words of a language never are by chance."""
    return bool(_TWO_BYTES.search(symbol)) and (text := _decode(symbol)) != symbol and text.isprintable()
