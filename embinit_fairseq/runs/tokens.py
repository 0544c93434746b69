"""Tokens back to text: the steps of `embinit score --detokenize`, in the order in which they are given.

step                tokens                                           what it undoes
bpe                 pieces of subword-nmt                            its cuts (`@@ `)
sentencepiece       pieces with `▁`                                  its cuts, by the marks of the pieces
sentencepiece=FILE  the same                                         the same, by the model
huggingface=DIR     pieces of the tokenizer in a Hugging Face folder the same, by that tokenizer's decoder
moses               Moses tokens                                     Moses' escapes (`&apos;`) and blanks
spacy               tokens of spaCy                                  blanks, by Moses' rules: spaCy has none
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from embinit_fairseq.bounded import read_bytes, read_json
from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.files import check_is_file
from embinit_fairseq.vectors.hf_vocab import load_sentencepiece, reading_tokenizer
from embinit_fairseq.vocab.text import pieces_left as pieces_left
from embinit_fairseq.vocab.tokens import CONTINUES, PREFIX, unescape

#: fairseq's symbol: also what a tokenizer's own unknown piece becomes
UNKNOWN = "<unk>"
STEPS = ("bpe", "sentencepiece", "huggingface", "moses", "spacy")
#: steps that end in words with blanks around them
_OF_WORDS = ("moses", "spacy")

#: Bytes of a tokenizer's file; the largest, for 250,000 pieces, have 35 MB.
_LARGEST, _REMEDY = 1 << 28, "download it again"

Step = Callable[[str], str]


def detokenizer(steps: Sequence[str], lang: str | None) -> Step:
    """A function from a line of tokens to text. lang: of the text, for moses and spacy.

    Raises OptionError for a step that is none, and for one that lacks its model or the language.
    """
    functions = [_step(step, lang) for step in steps]

    def decode(line: str) -> str:
        for function in functions:
            line = function(line)
        return line

    return decode


def words_of(steps: Sequence[str], lang: str | None) -> Callable[[str], str] | None:
    """A function from a line of tokens to Moses' words, where the steps go through them; None where they do not.

    Without steps the tokens are taken as words.
    """
    names = [step.partition("=")[0] for step in steps]
    if not steps or names[-1] == "moses":
        before = detokenizer(steps[:-1], lang)
        return lambda line: unescape(before(line))
    return None


def known_language(code: str, flag: str = "--lang") -> str:
    """Return the two-letter code of a language that a flag names; OptionError for a code that stands for none."""
    from fairseq_compat.languages import UnknownLanguageError, language

    try:
        return language(code)
    except UnknownLanguageError as error:
        raise OptionError(f"{flag} {error}") from error


def moses_tokenizer(lang: str | None) -> Step:
    """Text -> Moses' words, without escapes."""
    moses, lang = _sacremoses("words of the translations", lang)
    tokenizer = moses.MosesTokenizer(lang=lang)
    return lambda line: tokenizer.tokenize(line, escape=False, return_str=True)


def _step(text: str, lang: str | None) -> Step:
    name, _, model = text.partition("=")
    if name not in STEPS:
        raise OptionError(f"--detokenize {text}: not known; choose from {', '.join(STEPS)}")
    if model and name not in ("sentencepiece", "huggingface"):
        raise OptionError(f"--detokenize {text}: {name} has no model; give --detokenize {name}")
    if name == "bpe":
        return join_bpe
    if name in _OF_WORDS:
        return _moses(f"--detokenize {name}", lang, escaped=name == "moses")
    if name == "sentencepiece":
        return _sentencepiece(model) if model else join_sentencepiece
    if not model:
        raise OptionError("--detokenize huggingface: give the tokenizer's folder: --detokenize huggingface=DIR")
    decode = Tokenizer(model).decode
    return lambda line: decode(line.split())


def join_bpe(line: str) -> str:
    """Undo subword-nmt's cuts, also at the end of a line that stopped inside a word."""
    return (line + " ").replace(f"{CONTINUES} ", "").strip()


def join_sentencepiece(line: str) -> str:
    """Undo sentencepiece's cuts without its model (not for models with byte pieces)."""
    return line.replace(" ", "").replace(PREFIX["sentencepiece"], " ").strip()


def _sentencepiece(model: str) -> Step:
    check_is_file(model, "--detokenize sentencepiece:", missing="give the model that cut the text")
    pieces = load_sentencepiece(model, DataError, "--detokenize sentencepiece:")
    return lambda line: pieces.decode_pieces(line.split())


def _moses(flag: str, lang: str | None, escaped: bool) -> Step:
    moses, lang = _sacremoses(flag, lang)
    detokenizer = moses.MosesDetokenizer(lang=lang)
    if escaped:
        return lambda line: detokenizer.detokenize(unescape(line).split(), unescape=False)
    return lambda line: detokenizer.detokenize(line.split(), unescape=False)


def _sacremoses(flag: str, lang: str | None) -> tuple[ModuleType, str]:
    """(sacremoses, the code by which it knows the language)"""
    if lang is None:
        raise OptionError(f"{flag}: depends on the language; name it with --lang, such as --lang en")
    try:
        import sacremoses
    except ModuleNotFoundError as error:
        raise OptionError(f"{flag}: needs sacremoses, which is not installed: pip install sacremoses") from error
    return sacremoses, known_language(lang)


class Tokenizer:
    """A Hugging Face folder's tokenizer, without `transformers`: tokenizer.json, vocab.txt or spiece.model.

    encode: text -> pieces, no special ones. decode: pieces -> text. unknown: its own unknown piece, None if it has
    none. OptionError for a folder without any of these files, DataError for a damaged one.
    """

    def __init__(self, folder: str) -> None:
        path = Path(folder)
        self.unknown: str | None = None
        if (path / "tokenizer.json").is_file() or (path / "vocab.txt").is_file():
            self.encode, self.decode = self._fast(path)
        elif (path / "spiece.model").is_file():
            self.encode, self.decode = self._sentencepiece(path / "spiece.model")
        else:
            raise OptionError(f"{folder}: no tokenizer.json, vocab.txt or spiece.model; give a Hugging Face folder")

    def _fast(self, path: Path) -> tuple[Callable, Callable]:
        if (path / "tokenizer.json").is_file():
            content = read_bytes(path / "tokenizer.json", DataError, _LARGEST, _REMEDY)
            with reading_tokenizer(path / "tokenizer.json", DataError, _REMEDY) as tokenizers:
                model = tokenizers.Tokenizer.from_buffer(content)
            self.unknown = getattr(model.model, "unk_token", None)
        else:
            config, words = path / "tokenizer_config.json", path / "vocab.txt"
            settings = read_json(config, DataError, remedy=_REMEDY) if config.is_file() else {}
            lower = settings.get("do_lower_case", True) if isinstance(settings, dict) else True
            read_bytes(words, DataError, _LARGEST, _REMEDY)  # else it is read whole
            with reading_tokenizer(words, DataError, _REMEDY) as tokenizers:
                model = tokenizers.BertWordPieceTokenizer(str(words), lowercase=lower is not False)
            self.unknown = "[UNK]"
        model.no_truncation()  # sentence-transformers' folders cut at 128 pieces and pad
        model.no_padding()
        join = model.decoder.decode if model.decoder is not None else " ".join
        return lambda line: model.encode(line, add_special_tokens=False).tokens, join

    def _sentencepiece(self, path: Path) -> tuple[Callable, Callable]:
        model = load_sentencepiece(path, DataError)
        self.unknown = model.id_to_piece(model.unk_id())
        # The piece strings of rare characters are kept: the dictionary's minimum count decides about them.
        return lambda line: model.encode(line, out_type=str), model.decode_pieces
