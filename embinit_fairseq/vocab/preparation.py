"""Raw text to the symbols of a dictionary, stated once: for the hub, scripts/wikibooks, scripts/glue and exports.

wikibooks   the words of scripts/wikibooks (Ke et al. 2021, appendix B): addresses and file names become `<url>`,
            `<email>`, `<file>`; Moses' punctuation, spaCy's sentences, Moses' words without escapes
moses       Moses' words
none        what is between spaces

This file is written into exported folders, where it runs without this package: it imports nothing of it. sacremoses,
spaCy and sentencepiece are imported where the settings need them.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

PREPARATIONS = ("wikibooks", "moses", "none")
UNKNOWN, MASK = "<unk>", "<mask>"
SYMBOLS = ("<file>", "<email>", "<url>")  # in the order of the dictionary of Ke et al.
#: On their way through the libraries symbols are private-use characters, which nothing splits, joins or changes.
_CARRIER = {symbol: chr(0xE000 + index) for index, symbol in enumerate((*SYMBOLS, UNKNOWN, MASK))}
_SYMBOL = {carrier: symbol for symbol, carrier in _CARRIER.items()}
_WITHOUT_CARRIERS = dict.fromkeys(map(ord, _SYMBOL))

_WRITTEN = re.compile("|".join(_CARRIER), re.IGNORECASE)
_CLOSING = r"""[^\s<>"'.,;:!?)\]}]"""  # an address does not end in punctuation
# The look-behinds let every run of letters be tried once only: the time is linear in the length of the line.
_PATTERN = re.compile(
    rf"""
      (?P<url>(?:(?:https?|ftp)://|(?<![\w.-])www\.)[^\s<>"]*{_CLOSING})
    | (?<![\w.+-]) (?P<email>[\w.+-]+@(?:[\w-]+\.)+[a-z]{{2,}})
    | (?<![\w@.-]) (?P<domain>(?:[a-z0-9-]+\.)+(?:com|net|org|edu|gov)(?![\w@-])(?:/[^\s<>"]*{_CLOSING})?)
    | (?<![\w.-])  (?P<file>[\w-]{{2,}}(?:\.[\w-]+)*\.(?:
            pdf|docx?|xlsx?|pptx?|rtf|txt|csv|tsv|html?|jpe?g|png|gif|bmp|svg|mp3|mp4|wav|wma|avi|mov|mid|zip|exe|bat|py|cpp
        )(?![\w-]))
    """,
    re.VERBOSE | re.IGNORECASE,
)
_TOO_LONG = re.compile(r"\S{201,}")  # rulers and noise; the libraries' time grows with the square of a word's length
_SYMBOL_OF_GROUP = {"url": "<url>", "domain": "<url>", "email": "<email>", "file": "<file>"}
_HAS_WORD = re.compile(rf"\w|[{''.join(_SYMBOL)}]")


def carry_symbols(text: str) -> str:
    """Replace symbols that are written in the text by their carriers."""
    return _WRITTEN.sub(lambda match: _CARRIER[match.group().lower()], text)


def replace_patterns(text: str) -> str:
    """Replace written symbols, addresses and file names by the carriers of their symbols."""
    text = carry_symbols(text)
    if "." in text or "://" in text:
        text = _PATTERN.sub(lambda match: _CARRIER[_SYMBOL_OF_GROUP[str(match.lastgroup)]], text)
    return text


def restore_symbols(token: str) -> str:
    """Return the symbol that a token carries, or the token."""
    return _SYMBOL.get(token, token)


def _library(name: str) -> Any:
    """Import a library; ImportError, in one line, if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ImportError(f"{name} is missing, which prepares the text: pip install {name}") from None


class Cleaner:
    """The wikibooks preparation of a line. Make a new one now and then: spaCy remembers every word that it has seen.

    Raises ImportError without sacremoses or spaCy.
    """

    def __init__(self, lowercase: bool = True, lang: str = "en") -> None:
        moses = _library("sacremoses")
        self._punctuation, self._moses = moses.MosesPunctNormalizer(lang=lang), moses.MosesTokenizer(lang=lang)
        self._spacy = _library("spacy").blank(lang)  # rules only, which know abbreviations: no model is needed
        self._spacy.add_pipe("sentencizer")
        self._spacy.max_length = 1 << 30  # the limit is meant for parsers; lines are short enough
        self._lowercase = lowercase

    def __call__(self, line: str, keep_mask: bool = False) -> list[list[str]]:
        """The words of each sentence of a line, without sentences that have no letter, digit or symbol.

        keep_mask: a written `<mask>` is that symbol. In a pre-training text it is not: the task appends the symbol.
        """
        printable = self._punctuation.remove_control_chars(" ".join(line.split()))
        if not keep_mask:
            printable = re.sub("<(?=mask>)", "< ", printable, flags=re.IGNORECASE)
        text = self._punctuation.normalize(replace_patterns(printable))
        text = _TOO_LONG.sub(_CARRIER[UNKNOWN], text)
        sentences = [span.text for span in self._spacy(text).sents if _HAS_WORD.search(span.text)]
        cased = [sentence.lower() if self._lowercase else sentence for sentence in sentences]
        return [[restore_symbols(word) for word in self._moses.tokenize(each, escape=False)] for each in cased]


#: Moses always parts such a sign from the letter before it (not a full stop).
GLUED = re.compile(r"[^\W\d_][,:!?](@@)?$")
#: what Moses' normalisation of punctuation replaces
_REPLACED = set("“”‘’„«»–—…")


@dataclass(frozen=True)
class Preparation:
    """How raw text becomes words.

    Args:
        preparation: one of `PREPARATIONS`.
        lowercase: is the text lower-cased?
        lang: language of Moses' and spaCy's rules.
        normalise: moses: is punctuation normalised before?
        escape: moses: are `'`, `"`, `&`, ... written as entities?
        dashes: moses: is `well-known` written `well @-@ known`?
    """

    preparation: str = "none"
    lowercase: bool = False
    lang: str = "en"
    normalise: bool = False
    escape: bool = False
    dashes: bool = False

    def __post_init__(self) -> None:
        if self.preparation not in PREPARATIONS:
            raise ValueError(f"preparation={self.preparation!r}: choose from {', '.join(PREPARATIONS)}")

    @classmethod
    def of(
        cls,
        symbols: Collection[str],
        preparation: str | None = None,
        lowercase: bool | None = None,
        lang: str | None = None,
        translation: bool = False,
    ) -> Preparation:
        """Read off a dictionary how its text was prepared. Arguments that are not None say it.

        Without capitals the text was lower-cased. Where `,` or `.` stand alone and no comma or the like follows a
        letter, it was split into Moses' words; with escapes or `@-@` where symbols have them. What Moses'
        normalisation replaces is then in no symbol. Other models than those of translation have the text of
        scripts/wikibooks, unless symbols show what it does not make.
        """
        words = [symbol for symbol in symbols if symbol not in _CARRIER]
        letters = set("".join(words))
        entities = any(entity in word for word in words for entity in ("&apos;", "&quot;", "&amp;"))
        dashes = "@-@" in symbols
        if preparation is None:
            splits = {",", "."} & letters.intersection(words) and not any(map(GLUED.search, words))
            plain = entities or dashes or (translation and not set(SYMBOLS) <= set(symbols))
            preparation = "none" if not splits else "moses" if plain else "wikibooks"
        if lowercase is None:
            lowercase = any(map(str.islower, letters)) and not any(map(str.isupper, letters))
        normalise = not letters & _REPLACED
        return cls(preparation, lowercase, re.split("[-_]", lang or "en")[0], normalise, entities, dashes)

    @property
    def is_identity(self) -> bool:
        """Return True if text is only split at white space."""
        return self.preparation == "none" and not self.lowercase

    @property
    def needs(self) -> str:
        """What must be installed, for the summary and the card."""
        return {"wikibooks": " (needs sacremoses and spacy)", "moses": " (needs sacremoses)"}.get(self.preparation, "")

    def __str__(self) -> str:
        """In words, for the summary and the card."""
        case = "lower case" if self.lowercase else "as it is written"
        options = {"punctuation normalised": self.normalise, "escaped": self.escape, "`@-@`": self.dashes}
        extra = ", ".join(name for name, is_so in options.items() if is_so)
        return {
            "wikibooks": f"{case}, cleaned as in scripts/wikibooks (`<url>`, `<email>`, `<file>`; sentences of spaCy), "
            f"Moses' words ({self.lang})",
            "moses": f"{case}, Moses' words ({self.lang}{extra and ', '}{extra})",
            "none": f"{case}, words between spaces",
        }[self.preparation]

    def load(self) -> Callable[[str], str]:
        """The function that prepares a text. Raises ImportError without a library that it needs."""
        return _loaded(self)

    def __call__(self, text: str) -> str:
        """Prepare raw text: words separated by spaces. A written `<mask>` stays."""
        return self.load()(text)


@cache  # instances hold their settings only, so that a tokenizer with one can be copied to another process
def _loaded(settings: Preparation) -> Callable[[str], str]:
    if settings.preparation == "wikibooks":
        clean = Cleaner(settings.lowercase, settings.lang)
        return lambda text: " ".join(word for sentence in clean(text, keep_mask=True) for word in sentence)
    tokenize: Callable[[str], list[str]] = str.split
    normalize: Callable[[str], str] = str
    if settings.preparation == "moses":
        moses = _library("sacremoses")
        words, punctuation = moses.MosesTokenizer(lang=settings.lang), moses.MosesPunctNormalizer(lang=settings.lang)
        if settings.normalise:
            normalize = punctuation.normalize
        tokenize = partial(words.tokenize, escape=settings.escape, aggressive_dash_splits=settings.dashes)

    def prepare(text: str) -> str:
        text = normalize(carry_symbols(text.translate(_WITHOUT_CARRIERS)))
        text = re.sub(f"([{''.join(_SYMBOL)}])", r" \1 ", text)
        return " ".join(map(restore_symbols, tokenize(text.lower() if settings.lowercase else text)))

    return prepare


# ---- sub-words -------------------------------------------------------------------------------------------------------

_END = "</w>"  # of a word, in the codes of subword-nmt
_CONTINUES, _INITIAL = "@@", "▁"  # subword-nmt: the word goes on; sentencepiece: a word begins
#: Moses parts the full stop from the last word of a line (`inc.`, not `u.s.`)
_UNSPLIT_END = re.compile(r"^[^.]*\w\.$")


class Segmenter:
    """Text to symbols of a dictionary: raw text is prepared and cut, text that is in symbols already is kept."""

    def __init__(
        self,
        symbols: Collection[str],
        prepare: Preparation,
        codes: str | None = None,
        sentencepiece: str | None = None,
    ) -> None:
        """Read what cuts words.

        Args:
            symbols: of the dictionary; words among them stay whole.
            prepare: of raw text.
            codes: of subword-nmt (Sennrich et al. 2016), the text that `vocab.codes.codes_text` returns.
            sentencepiece: path of the model; without both, words stay whole.

        Raises:
            ImportError: without a library that is needed.
        """
        self.symbols, self.prepare = frozenset(symbols), prepare
        #: word -> its sub-words; None: words stay whole
        self.cut: Callable[[str], list[str]] | None = None if codes is None else _Merges(codes)
        self._model = None
        if sentencepiece is not None:
            self._model = _library("sentencepiece").SentencePieceProcessor(model_file=str(sentencepiece))
        self._known: dict[str, list[str]] = {}
        prepare.load()

    def __call__(self, text: str) -> list[str]:
        """The symbols of a text; those that the dictionary lacks are unknown."""
        words = text.split()
        if self.is_segmented(words):
            return words
        prepared = self.prepare(text)
        if self._model is None:
            return [piece for word in prepared.split() for piece in self.pieces(word)]
        first, *others = (self._model.encode(part, out_type=str) for part in prepared.split(MASK))
        return [*first, *(piece for part in others for piece in (MASK, *part))]

    def is_segmented(self, words: Sequence[str]) -> bool:
        """Return True if a line is in symbols already, not raw text.

        That is so if one is marked (`or@@`, `▁the`). A line without marked symbols is, too, if it has no others than
        those of the dictionary and its last full stop stands alone. With sentencepiece, raw words may be symbols.
        """
        if any(_INITIAL in word or (word.endswith(_CONTINUES) and word != _CONTINUES) for word in words):
            return True
        return not words or (
            self._model is None and self.symbols.issuperset(words) and not _UNSPLIT_END.search(words[-1])
        )

    def join(self, symbols: Sequence[str]) -> str:
        """Put the words of symbols together again, with spaces between them."""
        if self._model is not None:
            return str("".join(symbols).replace(_INITIAL, " ").strip())
        return (" ".join(symbols) + " ").replace(f"{_CONTINUES} ", "").rstrip()

    def pieces(self, word: str) -> list[str]:
        """Cut a word: `lower` to `low@@ er`. Symbols of the dictionary and `<url>` and the like stay whole."""
        if self.cut is None or word in self.symbols or word in _CARRIER:
            return [word]
        if word not in self._known:
            self._known[word] = self.cut(word)
        return self._known[word]


class _Merges:
    """The merges of subword-nmt."""

    def __init__(self, codes: str) -> None:
        version, *lines = codes.removesuffix("\n").split("\n")
        #: is the end of a word a symbol of its own, as before version 0.2?
        self._splits_end = version == "#version: 0.1"
        self._ranks: dict[tuple[str, ...], int] = {}
        for line in lines:
            self._ranks.setdefault(tuple(line.split(" ")), len(self._ranks))

    def __call__(self, word: str) -> list[str]:
        """Join characters: the neighbours with the best rank, until none has a rank."""
        if len(word) == 1:
            return [word]
        pieces = [*word, _END] if self._splits_end else [*word[:-1], word[-1] + _END]
        while len(pieces) > 1:
            best = min(zip(pieces, pieces[1:]), key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if best not in self._ranks:
                break
            pieces = _joined(pieces, best)
        *pieces, last = pieces[:-1] if pieces[-1] == _END else [*pieces[:-1], pieces[-1].removesuffix(_END)]
        return [f"{piece}{_CONTINUES}" for piece in pieces] + [last]


def _joined(pieces: list[str], pair: tuple[str, str]) -> list[str]:
    """Every occurrence of the pair as one piece, from the left."""
    tokens: list[str] = []
    at = 0
    while at < len(pieces):
        width = 2 if tuple(pieces[at : at + 2]) == pair else 1
        tokens.append("".join(pieces[at : at + width]))
        at += width
    return tokens
