"""From a line of text to tokenised sentences: one function per step (Ke et al. 2021, appendix B).

Web addresses, e-mail addresses and file names become the symbols <url>, <email>, <file>. On their way through the
libraries the symbols are private-use characters, which nothing splits, joins or changes; such characters of the text
itself are removed first, with everything else that does not print.
"""

from __future__ import annotations

import re
from typing import Callable

UNKNOWN = "<unk>"  # fairseq's symbol; also as it stands in WikiText
SYMBOLS = ("<file>", "<email>", "<url>")  # in the order of the authors' dictionary
_CARRIER = {symbol: chr(0xE000 + index) for index, symbol in enumerate((*SYMBOLS, UNKNOWN))}
_SYMBOL = {carrier: symbol for symbol, carrier in _CARRIER.items()}

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


def replace_patterns(text: str) -> str:
    """Addresses and file names -> carriers of their symbols; also symbols that are written out in the text."""
    text = _WRITTEN.sub(lambda match: _CARRIER[match.group().lower()], text)
    if "." in text or "://" in text:
        text = _PATTERN.sub(lambda match: _CARRIER[_SYMBOL_OF_GROUP[match.lastgroup]], text)
    return text


def replace_long_words(text: str) -> str:
    """More than 200 characters without a blank -> the carrier of <unk>."""
    return _TOO_LONG.sub(_CARRIER[UNKNOWN], text)


def restore_symbols(token: str) -> str:
    return _SYMBOL.get(token, token)


def normaliser() -> Callable[[str], str]:
    """Moses' normalisation of punctuation: quotes, dashes, dots, blanks around brackets."""
    from sacremoses import MosesPunctNormalizer

    return MosesPunctNormalizer(lang="en").normalize


def control_remover() -> Callable[[str], str]:
    """Removes what does not print (Unicode's category C); blanks of all kinds become one blank."""
    from sacremoses import MosesPunctNormalizer

    remove = MosesPunctNormalizer(lang="en").remove_control_chars
    return lambda text: remove(" ".join(text.split()))


def sentence_splitter() -> Callable[[str], list[str]]:
    """spaCy's rules for English, which know abbreviations; no model is needed."""
    import spacy

    language = spacy.blank("en")
    language.add_pipe("sentencizer")
    language.max_length = 1 << 30  # the limit is meant for parsers; lines are short enough
    return lambda text: [sentence.text for sentence in language(text).sents]


def tokeniser() -> Callable[[str], list[str]]:
    """Moses' tokens, without its escapes."""
    from sacremoses import MosesTokenizer

    tokenizer = MosesTokenizer(lang="en")
    return lambda text: tokenizer.tokenize(text, escape=False)


class Cleaner:
    """All steps of a line. Make a new one now and then: spaCy remembers every word that it has seen."""

    def __init__(self) -> None:
        try:
            self._printable, self._normalise = control_remover(), normaliser()
            self._sentences, self._tokens = sentence_splitter(), tokeniser()
        except ModuleNotFoundError as error:
            raise SystemExit(f"error: {error.name} is missing: pip install sacremoses spacy") from None

    def __call__(self, line: str) -> list[list[str]]:
        """The sentences of a line as lists of lower-case tokens, without those that have no letter, digit or symbol."""
        text = replace_long_words(self._normalise(replace_patterns(self._printable(line))))
        sentences = [sentence for sentence in self._sentences(text) if _HAS_WORD.search(sentence)]
        return [[restore_symbols(token) for token in self._tokens(sentence.lower())] for sentence in sentences]
