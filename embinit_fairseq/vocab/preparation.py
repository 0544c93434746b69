"""Raw text to the symbols of a dictionary: for from_pretrained, scripts/wikibooks, scripts/glue and exported folders.

wikibooks   words of scripts/wikibooks (Ke et al. 2021, appendix B): addresses and file names become `<url>`, `<email>`,
            `<file>`; Moses' punctuation, spaCy's sentences, Moses' words without escapes
moses       Moses' words
none        words between spaces

This file is written into exported folders and runs there without this package, so that it imports nothing of it.
"""

from __future__ import annotations

import importlib
import io
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

#: preparation -> libraries that it needs, for the summary and the card
PREPARATIONS = {"wikibooks": " (needs sacremoses and spacy)", "moses": " (needs sacremoses)", "none": ""}
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
_SYMBOL_OF_GROUP = {"url": "<url>", "domain": "<url>", "email": "<email>", "file": "<file>"}
_TOO_LONG = re.compile(r"\S{201,}")  # rulers and noise; the libraries' time grows with the square of a word's length
_HAS_WORD = re.compile(rf"\w|[{''.join(_SYMBOL)}]")


def _carry_symbols(text: str) -> str:
    """Replace symbols that are written in the text by their carriers."""
    return _WRITTEN.sub(lambda match: _CARRIER[match.group().lower()], text)


def replace_patterns(text: str) -> str:
    """Replace written symbols, addresses and file names by the carriers of their symbols."""
    text = _carry_symbols(text)
    if "." in text or "://" in text:
        text = _PATTERN.sub(lambda match: _CARRIER[_SYMBOL_OF_GROUP[str(match.lastgroup)]], text)
    return text


def restore_symbols(token: str) -> str:
    """Return the symbol that a token carries, or the token."""
    return _SYMBOL.get(token, token)


def _library(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0].replace("_", "-")
        raise ImportError(f"{package} is missing, which prepares the text: pip install {package}") from None


class Cleaner:
    """Prepare lines as scripts/wikibooks does; raise ImportError without sacremoses or spaCy.

    spaCy remembers every word that it has seen: make a new cleaner now and then.
    """

    def __init__(self, lowercase: bool = True, lang: str = "en") -> None:
        moses = _library("sacremoses")
        self._punctuation, self._moses = moses.MosesPunctNormalizer(lang=lang), moses.MosesTokenizer(lang=lang)
        self._spacy = _library("spacy").blank(lang)  # rules only, which know abbreviations: no model is needed
        self._spacy.add_pipe("sentencizer")
        self._spacy.max_length = 1 << 30  # the limit is meant for parsers; lines are short enough
        self._lowercase = lowercase

    def __call__(self, line: str, keep_mask: bool = False) -> list[list[str]]:
        """Return the words of each sentence of a line, without sentences that have no letter, digit or symbol.

        keep_mask: a written `<mask>` is that symbol. In a pre-training text it is not: the task appends the symbol.
        """
        text = self._punctuation.remove_control_chars(" ".join(line.split()))
        if not keep_mask:
            text = re.sub("<(?=mask>)", "< ", text, flags=re.IGNORECASE)
        text = _TOO_LONG.sub(_CARRIER[UNKNOWN], self._punctuation.normalize(replace_patterns(text)))
        sentences = [span.text for span in self._spacy(text).sents if _HAS_WORD.search(span.text)]
        cased = [sentence.lower() if self._lowercase else sentence for sentence in sentences]
        return [[restore_symbols(word) for word in self._moses.tokenize(text, escape=False)] for text in cased]


#: a sign that Moses always splits from the letter before it (not a full stop)
GLUED = re.compile(r"[^\W\d_][,:!?](@@)?$")
#: shows that a text is in Moses' words already, which Moses would split again, if it has no raw word
_MOSES_WORDS = re.compile(r"&(apos|quot|amp|lt|gt|#\d+);| @-@ ")
#: Moses splits brackets from words, and the full stop from the last word of a line (`inc.`, not `u.s.`)
_BRACKET = re.compile(r"^[(\[]\w|\w[)\]]$")
_UNSPLIT_END = re.compile(r"^[^.]*\w\.$")
#: characters that Moses' normalisation of punctuation replaces
_REPLACED = set("“”‘’„«»–—…")


@dataclass(frozen=True)
class Preparation:
    """Describe how raw text becomes words; a call prepares a text, in which a written `<mask>` stays.

    Args:
        preparation: one of `PREPARATIONS`.
        lowercase: lower-case the text.
        lang: two-letter code, for the rules of Moses and spaCy.
        normalise: moses: normalise punctuation first.
        escape: moses: write `'`, `"`, `&`, ... as entities.
        dashes: moses: write `well-known` as `well @-@ known`.
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
        """Recognise from a dictionary how its text was prepared; arguments other than None are taken as they are.

        Without capitals the text was lower-cased. If `,` or `.` is a symbol and no comma or the like follows a letter,
        the text was split into Moses' words; with escapes or `@-@` if symbols have them. Punctuation was normalised if
        no symbol has a character that normalising replaces. A model that is not for translation has the text of
        scripts/wikibooks, unless symbols show escapes or `@-@`, which scripts/wikibooks does not make.
        """
        words = [symbol for symbol in symbols if symbol not in _CARRIER]
        letters = set("".join(words))
        escape = any(entity in word for word in words for entity in ("&apos;", "&quot;", "&amp;"))
        dashes = "@-@" in symbols
        if preparation is None:
            splits = {",", "."} & letters.intersection(words) and not any(map(GLUED.search, words))
            is_plain = escape or dashes or (translation and not set(SYMBOLS) <= set(symbols))
            preparation = "none" if not splits else "moses" if is_plain else "wikibooks"
        if lowercase is None:
            lowercase = any(map(str.islower, letters)) and not any(map(str.isupper, letters))
        lang = re.split("[-_]", lang or "en")[0]
        return cls(preparation, lowercase, lang, not letters & _REPLACED, escape, dashes)

    def __str__(self) -> str:
        """Return the preparation in words, for the summary and the card."""
        options = {"punctuation normalised": self.normalise, "escaped": self.escape, "`@-@`": self.dashes}
        words = {
            "wikibooks": f"cleaned as in scripts/wikibooks, Moses' words ({self.lang})",
            "moses": ", ".join([f"Moses' words ({self.lang})", *(name for name, is_set in options.items() if is_set)]),
            "none": "words between spaces",
        }
        return f"{'lower case' if self.lowercase else 'as it is written'}, {words[self.preparation]}"

    def __call__(self, text: str) -> str:
        """Return the words of raw text, separated by spaces; raise ImportError if a library is missing."""
        return loaded(self)(text)


def _has_raw_word(words: Sequence[str]) -> bool:
    """Return True if Moses would split one of the words."""
    return any(GLUED.search(word) or _BRACKET.search(word) for word in words) or bool(_UNSPLIT_END.search(words[-1]))


@cache  # not in the instances, so that a tokenizer with one can be copied to another process
def loaded(settings: Preparation) -> Callable[[str], str]:
    """Return the function that prepares a text; raise ImportError if a library is missing."""
    if settings.preparation == "wikibooks":
        clean = Cleaner(settings.lowercase, settings.lang)
        return lambda text: " ".join(word for sentence in clean(text, keep_mask=True) for word in sentence)
    tokenize: Callable[[str], list[str]] = str.split
    normalize: Callable[[str], str] = str
    if settings.preparation == "moses":
        moses = _library("sacremoses")
        words = moses.MosesTokenizer(lang=settings.lang)
        tokenize = partial(words.tokenize, escape=settings.escape, aggressive_dash_splits=settings.dashes)
        if settings.normalise:
            normalize = moses.MosesPunctNormalizer(lang=settings.lang).normalize

    def prepare(text: str) -> str:
        is_prepared = _MOSES_WORDS.search(text) is not None and not _has_raw_word(text.split())
        text = _carry_symbols(text.translate(_WITHOUT_CARRIERS))
        text = re.sub(f"([{''.join(_SYMBOL)}])", r" \1 ", text if is_prepared else normalize(text))
        text = text.lower() if settings.lowercase else text
        words = text.split() if is_prepared else tokenize(text)
        return " ".join(map(restore_symbols, words))

    return prepare


# ---- Subwords -------------------------------------------------------------------------------------------------------

#: subword-nmt: the word continues; sentencepiece: a word begins
_CONTINUES, _INITIAL = "@@", "▁"


class Segmenter:
    """Text to symbols of a dictionary: raw text is prepared and segmented, text in symbols stays as it is.

    Args:
        symbols: the dictionary's; words among them stay whole.
        prepare: prepares raw text.
        codes: of subword-nmt (Sennrich et al. 2016), the text that `vocab.codes.codes_text` returns.
        sentencepiece: path of the model; without codes and model, words stay whole.
        only_known: split subwords that the dictionary lacks until it has them (`apply-bpe --vocabulary`).

    Raises:
        ImportError: a library is missing.
    """

    def __init__(
        self,
        symbols: Collection[str],
        prepare: Preparation,
        codes: str | None = None,
        sentencepiece: str | None = None,
        only_known: bool = False,
    ) -> None:
        self.symbols, self.prepare = frozenset(symbols), prepare
        self._bpe = self._model = None
        if codes is not None:
            vocabulary = self.symbols if only_known else None
            self._bpe = _library("subword_nmt.apply_bpe").BPE(io.StringIO(codes), vocab=vocabulary)
        if sentencepiece is not None:
            self._model = _library("sentencepiece").SentencePieceProcessor(model_file=str(sentencepiece))
        loaded(prepare)

    def __call__(self, text: str) -> list[str]:
        """Return the symbols of a text; symbols that the dictionary lacks are unknown."""
        words = text.split()
        if self.is_segmented(words):
            return words
        prepared = self.prepare(text)
        if self._model is None:
            return [subword for word in prepared.split() for subword in self.subwords(word)]
        first, *others = (self._model.encode(part, out_type=str) for part in prepared.split(MASK))
        return [*first, *(subword for part in others for subword in (MASK, *part))]

    def is_segmented(self, words: Sequence[str]) -> bool:
        """Return True if the words of a line are symbols already, not raw text.

        One marked subword (`or@@`, `▁the`) shows it. Without one, all words must be symbols, and a full stop at the end
        a word of its own. With sentencepiece raw words may be symbols, so that only the mark counts.
        """
        if any(_INITIAL in word or (word.endswith(_CONTINUES) and word != _CONTINUES) for word in words):
            return True
        are_symbols = self._model is None and self.symbols.issuperset(words)
        return not words or (are_symbols and not _UNSPLIT_END.search(words[-1]))

    def join(self, symbols: Sequence[str]) -> str:
        """Join symbols to words, with spaces between them."""
        if self._model is not None:
            return "".join(symbols).replace(_INITIAL, " ").strip()
        return (" ".join(symbols) + " ").replace(f"{_CONTINUES} ", "").rstrip()

    def subwords(self, word: str) -> list[str]:
        """Segment a word: `lower` to `low@@ er`. Symbols of the dictionary and `<url>` and the like stay whole."""
        if self._bpe is None or word in self.symbols or word in _CARRIER:
            return [word]
        return self._bpe.segment_tokens([word])
