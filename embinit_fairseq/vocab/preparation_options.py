"""Parse the steps that a user names (`--preparation lowercase,moses,bpe`); suggest steps for a dictionary.

A suggestion is for messages only: one symbol of a dictionary changes it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Sequence
from typing import Any

from embinit_fairseq.errors import OptionError
from embinit_fairseq.vocab.cleaning import SYMBOLS, UNKNOWN
from embinit_fairseq.vocab.preparation_steps import STEPS, Preparation
from embinit_fairseq.vocab.subword_styles import detect_style

logger = logging.getLogger(__name__)
#: name of a preparation of several steps -> the steps
SHORTHANDS = {"wikibooks": "cleaned,lowercase,moses:no-escape", "none": ""}
#: remedy of `embinit prepare` for text in another language
_LANGUAGE_REMEDY = "; columns get others by --source-lang de --target-lang en, files by names that end so"
#: subword style of a dictionary -> its step
_SUBWORDS = {"subword_nmt": "bpe", "sentencepiece": "sentencepiece"}
#: a sign that Moses always splits from the letter before it (not a full stop)
GLUED = re.compile(r"[^\W\d_][,:!?](@@)?$")
#: characters that Moses' normalisation of punctuation replaces
_REPLACED = set("“”‘’„«»–—…")


def steps_help() -> str:
    """Return the steps and their options, for help texts."""
    return ", ".join(
        name + "".join(f"[:{_written(option, not default)}]" for option, default in _switches(name))
        for name in (*SHORTHANDS, *STEPS)
    )


def parse_steps(text: str, lang: str = "en", flag: str = "--preparation") -> list[dict[str, Any]]:
    """Return the steps that a user names: `lowercase,moses:no-escape,bpe`, or one of SHORTHANDS with more steps.

    Args:
        text: names separated by commas; after a name, its options separated by colons.
        lang: code of the text's language (de, de_DE, deu_Latn), for the steps that depend on it.
        flag: the option, for messages.

    Raises:
        OptionError: a step or an option is unknown, or the order of the steps is impossible.
    """
    if not all(map(str.strip, text.split(","))):  # a variable of the shell that is not set
        raise OptionError(f"{flag} {text!r}: a name is empty; choose from {steps_help()}, separated by commas")
    steps = []
    for name, *options in (part.split(":") for part in _expanded(text)):
        if name not in STEPS:
            raise OptionError(f"{flag} {text}: no step {name!r}; choose from {steps_help()}, separated by commas")
        step: dict[str, Any] = {"step": name}
        if "lang" in STEPS[name].options:
            step["lang"] = lang = _known_language(lang, name, flag)
        switches = {_written(option, value): value for option, _ in _switches(name) for value in (True, False)}
        for option in options:
            if option not in switches:
                raise OptionError(
                    f"{flag} {text}: {name} has no option {option!r}; it has {', '.join(switches) or 'none'}"
                )
            step[option.removeprefix("no-")] = switches[option]
        steps.append(step)
    try:
        Preparation(steps)
    except ValueError as error:
        raise OptionError(f"{flag} {text}: {error}") from error
    return steps


def written(steps: Sequence[dict[str, Any]]) -> str:
    """Return steps as a user writes them; `none` if there are none."""
    names = []
    for step in steps:
        switches = [
            _written(name, step[name]) for name, value in _switches(step["step"]) if step.get(name, value) != value
        ]
        names.append(":".join([step["step"], *switches]))
    return ",".join(names) or "none"


def suggested(symbols: Collection[str], is_translation: bool = False) -> str:
    """Return the steps that a dictionary suggests, as a user writes them.

    Without capitals the text was lower-cased. If `,` or `.` is a symbol and no comma or the like follows a letter, the
    text was split into Moses' words; with escapes or `@-@` if symbols have them. Punctuation was normalised if no
    symbol has a character that normalising replaces. A model that is not for translation has the text of
    scripts/wikibooks, unless symbols show escapes or `@-@`, which scripts/wikibooks does not make.
    """
    words = [symbol for symbol in symbols if symbol not in (*SYMBOLS, UNKNOWN)]
    letters = set("".join(words))
    escape = any(entity in word for word in words for entity in ("&apos;", "&quot;", "&amp;"))
    dashes = "@-@" in symbols
    steps = []
    splits = {",", "."} & letters.intersection(words) and not any(map(GLUED.search, words))
    is_cleaned = splits and not escape and not dashes and (not is_translation or set(SYMBOLS) <= set(symbols))
    if is_cleaned:
        steps.append("cleaned")
    if any(map(str.islower, letters)) and not any(map(str.isupper, letters)):
        steps.append("lowercase")
    if splits and not is_cleaned and not letters & _REPLACED:
        steps.append("normalised")
    if splits:
        steps.append("moses" + ("" if escape else ":no-escape") + (":dashes" if dashes else ""))
    if (subwords := _SUBWORDS.get(detect_style(words))) is not None:
        steps = [step for step in steps if step == "lowercase"] if subwords == "sentencepiece" else steps
        steps.append(subwords)
    return ",".join(steps) or "none"


def in_language(steps: Sequence[dict[str, Any]], code: str) -> list[dict[str, Any]] | None:
    """Return the steps with the rules of another language; None if they depend on it and the code is not known."""
    from fairseq_compat.languages import UnknownLanguageError, language

    depends = ["lang" in STEPS[step["step"]].options for step in steps]
    try:
        lang = language(code) if any(depends) else ""
    except UnknownLanguageError:
        return None
    return [{**step, "lang": lang} if is_own else step for step, is_own in zip(steps, depends)]


def language_in(name: str) -> str:
    """Return the language in the name of a dictionary: `de` of dict.de.txt, `` of dict.txt."""
    return name.removeprefix("dict.").removesuffix(".txt") if name.count(".") > 1 else ""


def _known_language(code: str, step: str, flag: str) -> str:
    """Return the libraries' code of a language; other languages get the rules of English."""
    from fairseq_compat.languages import UnknownLanguageError, language

    try:
        return language(code)
    except UnknownLanguageError:
        logger.warning(
            "%s is not the code of a known language (de, de_DE, deu_Latn): the step %s has the rules of English%s",
            *(code, step, _LANGUAGE_REMEDY if flag == "--steps" else ""),
        )
        return "en"


def _expanded(text: str) -> list[str]:
    parts = [SHORTHANDS.get(part.strip(), part.strip()) for part in text.split(",")]
    return [part for part in ",".join(parts).split(",") if part]


def _switches(name: str) -> list[tuple[str, bool]]:
    """Return the options of a step that are on or off, with their defaults."""
    options = STEPS[name].options if name in STEPS else {}
    return [(option, value) for option, value in options.items() if isinstance(value, bool)]


def _written(option: str, value: bool) -> str:
    return option if value else f"no-{option}"
