"""Join tokens to text: the steps of `embinit score --detokenize`, in the user's order.

step                tokens                                             undone
bpe                 subwords of subword-nmt                            the segmentation (`@@ `)
sentencepiece       subwords with `▁`                                  the segmentation, by the marks
sentencepiece=FILE  the same                                           the segmentation, by the model
huggingface=DIR     subwords of the tokenizer of a Hugging Face folder the segmentation, by its decoder
moses               Moses tokens                                       Moses' escapes (`&apos;`) and spaces
spacy               tokens of spaCy                                    spaces, by Moses' rules: spaCy has none
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.io import read_json
from embinit_fairseq.vocab.codes import load_sentencepiece
from embinit_fairseq.vocab.preparation_record import libraries
from embinit_fairseq.vocab.preparation_steps import STEPS, without_stored_options
from embinit_fairseq.vocab.step_files import contents
from embinit_fairseq.vocab.subword_styles import PREFIX

#: steps that can be undone
NAMES = tuple(name for name, step in STEPS.items() if step.undo is not None)

Step = Callable[[str], str]


def detokenizer(steps: Sequence[str], lang: str | None) -> Step:
    """Return a function from a line of tokens to text.

    Args:
        steps: names such as `["bpe", "moses"]`; without steps a line stays as it is.
        lang: language of the text, for moses and spacy.

    Raises:
        OptionError: a step is unknown, or lacks its model or the language.
    """
    functions = [_step(step, lang) for step in steps]

    def decode(line: str) -> str:
        for function in functions:
            line = function(line)
        return line

    return decode


def known_language(code: str, flag: str = "--lang") -> str:
    """Return the two-letter code of a language such as zh_CN; raise OptionError, with the flag, for an unknown one."""
    from fairseq_compat.languages import UnknownLanguageError, language

    try:
        return language(code)
    except UnknownLanguageError as error:
        raise OptionError(f"{flag} {error}") from error


def moses_tokenizer(lang: str | None) -> Step:
    """Return a function from text to Moses' words, without escapes."""
    with libraries():
        return STEPS["moses"].apply(lang=_language("--tokenized", lang), escape=False, dashes=False)


def _step(text: str, lang: str | None) -> Step:
    """Return a function of a line that undoes one step, as `Preparation` undoes a recorded one."""
    name, _, file = text.partition("=")
    if name not in NAMES or (file and name not in ("sentencepiece", "huggingface")):
        raise OptionError(f"--detokenize {text}: not known; choose from {', '.join(NAMES)}")
    if name == "sentencepiece" and not file:
        return join_sentencepiece
    if name == "huggingface":
        if not file:
            raise OptionError("--detokenize huggingface: give the tokenizer's folder: --detokenize huggingface=DIR")
        decode = Tokenizer(file).decode
        return lambda line: decode(line.split())
    entry, arguments = STEPS[name], {}
    if "lang" in entry.options:
        arguments["lang"] = _language(f"--detokenize {name}", lang)
    if file:
        arguments["model"] = contents({"model": file}, ())["model"]
    with libraries():
        undo: Any = entry.undo(**{**entry.options, **arguments})  # type: ignore[misc]  # the steps of NAMES have one
    return (lambda line: undo(line.split())) if entry.subwords else undo


def join_sentencepiece(line: str) -> str:
    """Join the subwords of sentencepiece without its model (not for models with byte subwords)."""
    return line.replace(" ", "").replace(PREFIX["sentencepiece"], " ").strip()


def _language(flag: str, lang: str | None) -> str:
    """Return the libraries' code of the language."""
    if lang is None:
        raise OptionError(f"{flag}: depends on the language; add it with --lang, such as --lang en")
    return known_language(lang)


class Tokenizer:
    """Use the tokenizer of a Hugging Face folder with tokenizer.json, vocab.txt or spiece.model.

    Attributes:
        encode: text -> subwords without special tokens.
        decode: subwords -> text.
        unknown: its unknown token, None if it has none.
    """

    encode: Callable[[str], list[str]]
    decode: Callable[[list[str]], str]

    def __init__(self, folder: str) -> None:
        path = Path(folder)
        if (path / "tokenizer.json").is_file() or (path / "vocab.txt").is_file():
            model, self.unknown = _fast_tokenizer(path)
            without_stored_options(model)
            self.encode = lambda line: model.encode(line, add_special_tokens=False).tokens
            self.decode = model.decoder.decode if model.decoder is not None else " ".join
        elif (path / "spiece.model").is_file():
            pieces = load_sentencepiece(path / "spiece.model")
            self.unknown = pieces.id_to_piece(pieces.unk_id())
            # rare characters stay as they are: the dictionary's minimum count decides about them
            self.encode = lambda line: pieces.encode(line, out_type=str)
            self.decode = pieces.decode_pieces
        else:
            raise OptionError(f"{folder}: no tokenizer.json, vocab.txt or spiece.model; give a Hugging Face folder")


def _fast_tokenizer(folder: Path) -> tuple[Any, str | None]:
    """Return a tokenizer of the tokenizers package, and its unknown token."""
    import tokenizers

    file = folder / "tokenizer.json"
    try:
        if file.is_file():
            model = tokenizers.Tokenizer.from_file(str(file))
            return model, getattr(model.model, "unk_token", None)
        config, file = folder / "tokenizer_config.json", folder / "vocab.txt"
        lower = read_json(config).get("do_lower_case", True) if config.is_file() else True
        return tokenizers.BertWordPieceTokenizer(str(file), lowercase=lower is not False), "[UNK]"
    except Exception as error:  # tokenizers raises no narrower class
        raise DataError(f"{file}: the tokenizers package cannot read it ({str(error)[:200]}); copy it again") from error
