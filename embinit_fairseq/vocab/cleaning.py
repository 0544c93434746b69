"""Clean raw text as Ke et al. 2021, appendix B: replace addresses, normalise punctuation, split lines into sentences.

This file is written into exported folders and runs there without this package, so that it imports nothing of it.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

UNKNOWN, MASK = "<unk>", "<mask>"
#: letters of scripts without spaces, for a regular expression: Thai, Lao, Tibetan and Myanmar, Khmer, Han and Kana
SPACELESS = (
    r"\u0e00-\u109f\u1780-\u17ff\u19e0-\u19ff\u3005-\u312f\u3190-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua9e0-\ua9ff"
    r"\uaa60-\uaa7f\uf900-\ufaff\uff65-\uff9f\U00016fe0-\U0001b2ff\U00020000-\U0003ffff"
)
SYMBOLS = ("<file>", "<email>", "<url>")  # in the order of the dictionary of Ke et al.
#: On their way through the libraries symbols are private-use characters, which nothing splits, joins or changes.
CARRIER = {symbol: chr(0xE000 + index) for index, symbol in enumerate((*SYMBOLS, UNKNOWN, MASK))}
_SYMBOL = {carrier: symbol for symbol, carrier in CARRIER.items()}
#: characters that a raw line may not have: carriers are removed; ends of lines for readers of text become spaces
_RAW = re.compile(rf"[{''.join(_SYMBOL)}\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")

#: symbols that a raw text may contain in writing; `<mask>` is one only where a model fills masks
_WRITTEN = re.compile("|".join((*SYMBOLS, UNKNOWN)), re.IGNORECASE)
_WRITTEN_MASK = re.compile(f"<(?={MASK[1:]})", re.IGNORECASE)
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
#: rulers and noise, no text of scripts without spaces; the libraries' time grows with the square of a word's length
_TOO_LONG = re.compile(rf"[^\s{SPACELESS}]{{201,}}")
_HAS_WORD = re.compile(rf"\w|[{''.join(_SYMBOL)}]")


def library(module: str) -> Any:
    """Return an imported module; raise ImportError, with the command that installs it, if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0].replace("_", "-")
        raise ImportError(f"{package} is missing, which prepares the text: pip install {package}") from None


def spacy_rules(lang: str) -> Any:
    """Return spaCy's pipeline of a language, with rules only: no model is needed.

    Raises:
        ImportError: spaCy, or a package that it needs for the language, is missing.
    """
    spacy = library("spacy")
    try:
        return spacy.blank(lang)
    except ImportError as error:  # Japanese, Korean, Thai, Vietnamese; a language that it does not know
        raise ImportError(
            f"spaCy has no words for the language {lang} here ({' '.join(str(error).split())}); take moses, or "
            "sentencepiece where text has no spaces"
        ) from error


def carry(text: str, symbol: str) -> str:
    """Replace a symbol that is written in a raw text by its carrier, as a word of its own."""
    return re.sub(re.escape(symbol), f" {CARRIER[symbol]} ", text, flags=re.IGNORECASE)


def without_carriers(text: str) -> str:
    """Remove the characters of a raw text that would be taken for symbols; an end of a line inside it is a space."""
    return _RAW.sub(lambda match: "" if match[0] in _SYMBOL else " ", text)  # str.translate takes longer


def moses_punctuation(lang: str) -> Callable[[str], str]:
    """Return Moses' normalisation of punctuation; control characters are removed, all white space is one space."""
    moses = library("sacremoses").MosesPunctNormalizer(lang=lang)
    # as in Moses' script, whose lines have their end, which a rule for a last quotation mark looks at (de, es, fr ...)
    return lambda text: without_controls(moses, " ".join(moses.normalize(f"{text}\n").split()))


def without_controls(moses: Any, text: str) -> str:
    """Remove control characters except carriers, which Moses would remove, too."""
    return CARRIER[MASK].join(map(moses.remove_control_chars, text.split(CARRIER[MASK])))


def restore(token: str) -> str:
    """Return the symbol that a token carries, or the token."""
    return _SYMBOL.get(token, token)


def replace_patterns(text: str) -> str:
    """Replace written symbols, addresses and file names by the carriers of their symbols."""
    text = _WRITTEN.sub(lambda match: CARRIER[match.group().lower()], text)
    if "." in text or "://" in text:
        text = _PATTERN.sub(lambda match: CARRIER[_SYMBOL_OF_GROUP[str(match.lastgroup)]], text)
    return text


def cleaner(lang: str = "en") -> Callable[[str], list[str]]:
    """Return a function that splits a line into sentences; those without letter, digit and symbol are left out.

    spaCy remembers every word that it has seen: make a new cleaner now and then.

    Raises:
        ImportError: sacremoses or spaCy is missing.
    """
    punctuation = library("sacremoses").MosesPunctNormalizer(lang=lang)
    spacy = spacy_rules(lang)  # which know abbreviations
    spacy.add_pipe("sentencizer")
    spacy.max_length = 1 << 30  # the limit is meant for parsers; lines are short enough

    def clean(line: str) -> list[str]:
        text = without_controls(punctuation, " ".join(line.split()))
        text = _WRITTEN_MASK.sub("< ", text)
        text = _TOO_LONG.sub(CARRIER[UNKNOWN], punctuation.normalize(replace_patterns(text)))
        return [span.text for span in spacy(text).sents if _HAS_WORD.search(span.text)]

    return clean
