"""Read the tokens of a Hugging Face directory, and the row that the model's own tokenizer gives to each of them.

`tokenizer.json` is read by the tokenizers package, the Python tokenizer of `embinit export-hf` by this package, the
files of every other directory by transformers' AutoTokenizer. Code that is in a directory is never run.
"""

from __future__ import annotations

import importlib
import logging
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from embinit_fairseq.errors import VectorFileError, listed
from embinit_fairseq.io import check_is_file, read_json
from embinit_fairseq.vocab.dictionary import is_filler
from embinit_fairseq.vocab.preparation_steps import STEPS, Preparation, without_stored_options
from embinit_fairseq.vocab.subword_styles import PREFIX, detect_style, inside_of_text, parse, text_of

logger = logging.getLogger(__name__)

# ---- Files of a Hugging Face directory: JSON, tokenizers ------------------------------------------------------------

#: finds words by packages such as fugashi before it splits them by BERT's rules
_JAPANESE = "BertJapaneseTokenizer"


def read_optional_json(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file, an empty one if the file does not exist; VectorFileError if it is not one."""
    if not file.is_file():
        return {}
    content = read_json(file, VectorFileError, remedy="download it again")
    if not isinstance(content, dict):
        raise VectorFileError(f"{file}: not a JSON object; download it again")
    return content


def _open_with_tokenizers(file: Path) -> Any:
    """Open a tokenizer.json; VectorFileError if the tokenizers package is missing or cannot read it."""
    try:
        import tokenizers
    except ImportError as cause:
        raise VectorFileError(f"{file}: reading it needs a package: pip install tokenizers") from cause
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as cause:
        raise VectorFileError(
            f"{file}: the tokenizers package cannot read it ({str(cause)[:200]}); download it again or: pip install -U "
            "tokenizers"
        ) from cause


def _open_with_transformers(directory: Path) -> Any:
    """Open the tokenizer of a directory without tokenizer.json; VectorFileError if no class of transformers can."""
    try:
        import transformers
    except ImportError as cause:
        raise VectorFileError(
            f"{directory}: no tokenizer.json in it, and its other files are read by packages: pip install transformers "
            "sentencepiece protobuf"
        ) from cause
    fault = "no files of a tokenizer"
    declared = _class_of(directory)
    langs = read_optional_json(directory / "config.json").get("langs")
    options = {"langs": langs} if langs else {}  # FSMT's tokenizer needs them
    # AutoTokenizer would read vocab.txt by BERT's rules if a package for Japanese is missing
    names = ["AutoTokenizer"] if declared != _JAPANESE else []
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(logging.CRITICAL)
    try:
        for name in [*names, declared] if declared else names:
            if not hasattr(transformers, name):
                fault = f"transformers has no class {name}"
                continue
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    tokenizer = getattr(transformers, name).from_pretrained(
                        str(directory), local_files_only=True, trust_remote_code=False, **options
                    )
            except Exception as cause:
                fault = str(cause).strip().split("\n")[0][:200]
                continue
            # Classes for characters and bytes have no files; another class without its files makes up special tokens.
            if tokenizer.vocab_files_names and len(tokenizer) > len(tokenizer.get_added_vocab()):
                return tokenizer
            fault = f"{type(tokenizer).__name__} reads none of the files there"
    finally:
        transformers.logging.set_verbosity(verbosity)
    raise VectorFileError(f"{directory}: no tokenizer with rows for words ({fault}); {_remedy(directory, fault)}")


def _class_of(directory: Path) -> str | None:
    """Return the class of transformers that the directory declares for its tokenizer, else the one for its files."""
    for name in ("tokenizer_config.json", "config.json"):
        if declared := read_optional_json(directory / name).get("tokenizer_class"):
            return str(declared)
    if (directory / "vocab.txt").is_file():
        return "BertTokenizerFast"
    if not (directory / "merges.txt").is_file():
        return None
    style = detect_style(read_optional_json(directory / "vocab.json"))
    return "HerbertTokenizerFast" if style == "end_of_word" else "GPT2TokenizerFast"


def _remedy(directory: Path, fault: str) -> str:
    if package := re.search(r"need to install (\w+)|The (\w+) dictionary is not installed", fault):
        return f"pip install {package[1] or package[2]}"
    try:
        importlib.import_module("google.protobuf")
    except ImportError:
        if list(directory.glob("*.model")):
            return "pip install protobuf, which transformers needs to read a sentencepiece model"
    return "save the model's tokenizer into this directory with save_pretrained(), best as tokenizer.json"


# ---- The rows of a Hugging Face model with the roles of fairseq's <s>, </s>, <unk>, <pad> and <mask> ----------------

#: role -> keys under which a tokenizer declares it, usual spellings if it declares none, in the order of preference
_ROLES = {
    "bos": (("bos_token", "cls_token"), ("[CLS]", "<s>", "<bos>", "<|begin_of_text|>", "<|endoftext|>")),
    "eos": (("eos_token", "sep_token"), ("[SEP]", "</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>")),
    "unk": (("unk_token",), ("[UNK]", "<unk>")),
    "pad": (("pad_token",), ("[PAD]", "<pad>")),
    "mask": (("mask_token",), ("[MASK]", "<mask>")),
}


def declared_specials(directory: Path) -> dict[str, Any]:
    """Return the tokens that tokenizer_config.json or special_tokens_map.json declares: `bos_token` -> token."""
    declared: dict[str, Any] = {}
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        for key, value in read_optional_json(directory / name).items():
            if key.endswith("_token"):  # a string, or an object with the string as its content
                declared[key] = value.get("content") if isinstance(value, dict) else value
    return declared


def find_specials(declared: Mapping[str, Any], rows: Mapping[str, int]) -> dict[str, int]:
    """Return role -> row by the declared tokens, or by the usual spellings if none is declared.

    A role without a token is left out (T5 has no bos). GPT-2 declares `<|endoftext|>` for every role: one row may have
    the roles bos and eos, but not unk or pad as well.
    """
    names = {key: value for key, value in declared.items() if isinstance(value, str) and value}
    specials: dict[str, int] = {}
    for role, (keys, usual) in _ROLES.items():
        tokens = [names[key] for key in keys if key in names] if names else usual
        row = next((rows[token] for token in tokens if token in rows), None)
        if row is not None and (role in ("bos", "eos") or row not in specials.values()):
            specials[role] = row
    return specials


# ---- Files that `embinit export-hf` writes --------------------------------------------------------------------------

#: class of its Python tokenizer
EXPORTED_CLASS = "TupeTokenizer"
#: folder of the tokenizer of a target side with its own dictionary
EXPORTED_TARGET = "target"
#: option of a step of the preparation -> the file of its content
EXPORTED_FILES = {
    "codes": "bpe.codes",
    "glossary": "glossary.txt",
    "model": "spiece.model",
    "tokenizer": "subwords.json",
}
#: steps that change words, not only texts; steps that make subwords change words, too
_OF_WORDS = ("lowercase", "kim")

# ---- Tokens and their rows ------------------------------------------------------------------------------------------

#: rows that a matrix may have beyond twice the number of tokens: it is often padded to a round number
_PADDING = 4096


@dataclass(frozen=True)
class Vocabulary:
    """Hold the tokens of a model's tokenizer, in its spelling.

    rows: token -> row of the embedding matrix. markers: one of table.MARKERS. specials: role -> row. added: tokens
    stored as text. is_bytes: the other tokens are in GPT-2's byte alphabet. segment: text -> its tokens. normalise:
    changes a text as the tokenizer does before it looks for tokens, None if it changes nothing.
    """

    rows: dict[str, int]
    markers: str
    specials: dict[str, int]
    added: frozenset[str]
    is_bytes: bool
    segment: Callable[[str], list[str]]
    normalise: Callable[[str], str] | None

    def words(self) -> list[tuple[int, str]]:
        """Return (row, word) of all tokens that are text, without specials and fillers, ordered by row.

        Byte-level tokens are decoded to text, with a leading space spelled `Ġ`; parts of a character are surrogates.
        """
        hidden = set(self.specials.values())
        pairs = sorted((row, token) for token, row in self.rows.items() if row not in hidden and token)
        pairs = [(row, token) for row, token in pairs if not is_filler(token)]
        if not self.is_bytes:
            return pairs
        return [(row, token if token in self.added else text_of(token)) for row, token in pairs]

    def subword_rows(self, word: str) -> list[int]:
        """Segment a word that follows a space: return the rows of its known tokens.

        The list is empty if no token but the marker of a word's beginning is known.
        """
        word = word.encode("utf-8", "ignore").decode("utf-8")  # lone surrogates are not text
        tokens = inside_of_text(word, self.segment(self._before_word + word)) if word else []
        unknown = self.specials.get("unk")
        tokens = [token for token in tokens if self.rows.get(token, unknown) != unknown]
        return [self.rows[token] for token in tokens] if {*tokens} - {*PREFIX.values()} else []

    @cached_property
    def _before_word(self) -> str:
        """Return a space if the tokenizer does not mark the first word of a text as a word (GPT-2, Gemma)."""
        sign = PREFIX.get(self.markers, "") if self.markers != "wordpiece" else ""
        first = self.segment("a")[:1]
        return " " if first and not first[0].startswith(sign) else ""


def read_vocabulary(directory: Path, matrix_rows: int, side: str = "") -> Vocabulary:
    """Read the tokens of a model directory.

    Args:
        directory: the model's folder.
        matrix_rows: rows of the embedding matrix.
        side: "decoder" for the target language's tokens of a model with an embedding matrix for each side.

    Raises:
        VectorFileError: if no library can read the files, or the tokens do not fit the matrix.
    """
    if side == "decoder" and (directory / EXPORTED_TARGET).is_dir():
        directory /= EXPORTED_TARGET
    if _class_of(directory) == EXPORTED_CLASS:
        return _read_exported(directory, matrix_rows)
    file = directory / "tokenizer.json"
    if file.is_file() and _class_of(directory) != _JAPANESE:
        tokenizer = backend = _open_with_tokenizers(file)
        declared, stored = declared_specials(directory), {}
    else:
        tokenizer = _open_with_transformers(directory)
        backend = getattr(tokenizer, "backend_tokenizer", None)
        declared = tokenizer.special_tokens_map
        # added tokens get their rows in the directory: transformers 5 exchanges two of Pegasus
        stored = read_optional_json(directory / "tokenizer_config.json").get("added_tokens_decoder", {})
    rows: dict[str, int] = tokenizer.get_vocab()
    if backend is None:
        added, is_bytes = set(tokenizer.get_added_vocab()), hasattr(tokenizer, "byte_encoder")
        segment = tokenizer.tokenize
        if side == "decoder" and isinstance(tokenizer.decoder, dict):  # FSMT and Marian may have two vocabularies
            rows = {token: row for row, token in tokenizer.decoder.items()}
            getattr(tokenizer, "_switch_to_target_mode", list)()
    else:
        added, is_bytes, segment = _read_backend(backend)
    rows = rows | {token["content"]: int(row) for row, token in stored.items()}
    first = next((token for token in rows if token.startswith("\ufeff") and rows[token] == 0), None)
    if first is not None:  # vocab.txt has a byte-order mark, which the libraries take for a part of the first token
        rows[first[1:]] = rows.pop(first)
        added.discard(first[1:])
    rows = _fitting(directory, rows, added, matrix_rows)
    markers = detect_style(rows)
    normalise = partial(_read_again, segment, markers) if backend is None else _normaliser(backend)
    return Vocabulary(
        *(rows, markers, find_specials(declared, rows), frozenset(added), is_bytes, segment),
        normalise and cache(normalise),
    )


def _read_backend(backend: Any) -> tuple[set[str], bool, Callable[[str], list[str]]]:
    """Return the added tokens of a tokenizer, whether the others are bytes, and the function that segments text."""
    without_stored_options(backend)
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    parts = (backend.normalizer, backend.pre_tokenizer, backend.decoder)
    is_bytes = any(b"ByteLevel" in part.__getstate__() for part in parts if part is not None)
    return added, is_bytes, lambda text: list(backend.encode(text, add_special_tokens=False).tokens)


def _read_exported(directory: Path, matrix_rows: int) -> Vocabulary:
    """Read the Python tokenizer of `embinit export-hf` from its files; see `read_vocabulary`.

    Words of a dictionary are prepared already: they are lower-cased and segmented as in the export, nothing else.
    """
    config = read_optional_json(directory / "tokenizer_config.json")
    content: dict[str, Any] = {}
    check_is_file(directory / "vocab.txt", error=VectorFileError)
    try:
        symbols = (directory / "vocab.txt").read_bytes().decode("utf-8").removesuffix("\n").split("\n")
        for option, name in EXPORTED_FILES.items():
            if (file := directory / name).is_file():
                content[option] = file.read_bytes() if option == "model" else file.read_bytes().decode("utf-8").strip()
        content["vocabulary"] = frozenset(symbols) if config.get("only_known") else None
        steps = [step for step in config.get("steps", []) if step["step"] in _OF_WORDS or STEPS[step["step"]].subwords]
        segment = Preparation(steps, content)
        added = {token["content"]: int(row) for row, token in config.get("added_tokens_decoder", {}).items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise VectorFileError(f"{directory}: its tokenizer is damaged ({error}); export the model again") from error
    rows = {symbol: row for row, symbol in enumerate(symbols)} | added
    rows = _fitting(directory, rows, {*added} - {*symbols}, matrix_rows)
    markers = detect_style(rows)
    specials = find_specials(declared_specials(directory), rows)
    return Vocabulary(rows, markers, specials, frozenset(added), markers == "bytelevel", segment, None)


def _normaliser(backend: Any) -> Callable[[str], str] | None:
    """Return the normaliser of the tokenizers package, None if the tokenizer has none."""
    return backend.normalizer and (
        lambda text: backend.normalizer.normalize_str(text.encode("utf-8", "ignore").decode())
    )


def _read_again(segment: Callable[[str], list[str]], markers: str, text: str) -> str:
    """Return the text that a text's tokens spell, for tokenizers of which only the tokens are known."""
    tokens = [parse(token, markers) for token in segment(text)]
    spelled = "".join(f"{' ' * bool(token.initial)}{token.surface}{' ' * bool(token.final)}" for token in tokens)
    return " ".join(spelled.split())


def _fitting(directory: Path, rows: dict[str, int], added: set[str], matrix_rows: int) -> dict[str, int]:
    """Return the tokens that have a row of their own; VectorFileError if the tokenizer does not fit the matrix."""
    own = {row for token, row in rows.items() if token not in added}
    size = 1 + max(own, default=-1)
    if size > matrix_rows or matrix_rows > 2 * len(rows) + _PADDING:
        raise VectorFileError(
            f"{directory}: the tokenizer needs {size} rows ({len(own)} tokens), the matrix has {matrix_rows}; they "
            "belong to different models, or a file of the tokenizer is missing: save both with save_pretrained()"
        )
    # an added token may have a number that is taken, or one for which the matrix has no row
    beyond = sorted(token for token in added if rows.get(token, 0) >= matrix_rows)
    if beyond:
        left_out = listed(beyond)
        logger.warning("%s: no row in the matrix for tokens that its tokenizer adds, left out: %s", directory, left_out)
    return {token: row for token, row in rows.items() if token not in added or (row < matrix_rows and row not in own)}
