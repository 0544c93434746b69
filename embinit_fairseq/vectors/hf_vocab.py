"""The tokens of a Hugging Face directory, and the row that the model's own tokenizer gives to each of them.

`tokenizer.json` is read by the tokenizers package, the files of every other directory by transformers' AutoTokenizer.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from embinit_fairseq import bounded
from embinit_fairseq.errors import EmbinitError, VectorFileError
from embinit_fairseq.vocab.tokens import PREFIX, detect_style, text_of

logger = logging.getLogger(__name__)

# ---- Files of a Hugging Face directory: JSON, models of sentencepiece, tokenizers ------------------------------------

_REMEDY = "download it again"
#: Bytes of a tokenizer.json, at most: a floor for small ones, and for each row a token, its number and its merge.
_TOKENIZER, _TOKENIZER_ROW = 1 << 24, 1 << 10
#: Bytes of a model of sentencepiece, at most: those for a hundred languages have 5 MB.
_SENTENCEPIECE = 1 << 26


def read_optional_json(file: Path) -> dict[str, Any]:
    """Read the object in a JSON file; an empty one where the file does not exist, VectorFileError if it is none."""
    if not file.is_file():
        return {}
    content = bounded.read_json(file, VectorFileError, remedy=_REMEDY)
    if not isinstance(content, dict):
        raise VectorFileError(f"{file}: not a JSON object; {_REMEDY}")
    return content


def load_sentencepiece(file: str | Path, error: type[EmbinitError] = VectorFileError, flag: str = "") -> Any:
    """Load a sentencepiece processor; raises `error` if the file is no sentencepiece model.

    flag: what names the file, for messages.
    """
    where = f"{flag} {file}".strip()
    try:
        import sentencepiece
    except ImportError as cause:
        raise error(f"{where}: reading it needs a package: pip install sentencepiece") from cause
    processor = sentencepiece.SentencePieceProcessor()
    content = bounded.read_bytes(file, error, _SENTENCEPIECE, _REMEDY, flag)
    try:
        processor.LoadFromSerializedProto(content)
    except Exception as cause:  # damaged models raise RuntimeError, TypeError and others
        raise error(
            f"{where}: not a sentencepiece model ({cause}); give another file, such as a tokenizer.json instead of it, "
            "or download it again"
        ) from cause
    return processor


def check_is_the_librarys(error: BaseException) -> None:
    """Raise what stops a program. tokenizers raises plain Exception; a panic of Rust, in a damaged file, is none."""
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error


@contextlib.contextmanager
def reading_tokenizer(
    file: Path,
    error: type[EmbinitError] = VectorFileError,
    remedy: str = "download it again or: pip install -U tokenizers",
) -> Iterator[Any]:
    """Give the tokenizers package, to read a file with; raises `error` where it is missing or cannot read the file."""
    try:
        import tokenizers
    except ImportError as cause:
        raise error(f"{file}: reading it needs a package: pip install tokenizers") from cause
    try:
        yield tokenizers
    except BaseException as cause:
        check_is_the_librarys(cause)
        raise error(f"{file}: the tokenizers package cannot read it ({str(cause)[:200]}); {remedy}") from cause


def _open_with_transformers(directory: Path) -> Any:
    """Open the tokenizer of a directory without tokenizer.json; VectorFileError if no class of transformers can."""
    try:
        import transformers
    except ImportError as cause:
        raise VectorFileError(
            f"{directory}: no tokenizer.json in it, and its other files are read by packages: pip install transformers "
            "sentencepiece protobuf"
        ) from cause
    config, settings = (read_optional_json(directory / name) for name in ("config.json", "tokenizer_config.json"))
    options = {"langs": config["langs"]} if "langs" in config and "langs" not in settings else {}  # FSMT needs them
    fault = "no files of a tokenizer"
    declared = settings.get("tokenizer_class") or config.get("tokenizer_class") or _class_of(directory)
    for name in ("AutoTokenizer", str(declared)):
        if not name.endswith(("Tokenizer", "TokenizerFast")):
            continue
        verbosity = transformers.logging.get_verbosity()
        transformers.logging.set_verbosity(logging.CRITICAL)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tokenizer = getattr(transformers, name).from_pretrained(
                    str(directory), local_files_only=True, trust_remote_code=False, **options
                )
        except BaseException as cause:
            check_is_the_librarys(cause)
            fault = str(cause).strip().split("\n")[0][:200]
            continue
        finally:
            transformers.logging.set_verbosity(verbosity)
        # The classes for characters and bytes have no files; another class without its files makes up special tokens.
        if tokenizer.vocab_files_names and len(tokenizer) > len(tokenizer.get_added_vocab()):
            return tokenizer
        fault = f"{type(tokenizer).__name__} reads none of the files there"
    raise VectorFileError(f"{directory}: no tokenizer with rows for words ({fault}); {_remedy(directory)}")


def _class_of(directory: Path) -> str | None:
    """Name the class for files whose model is not declared: BERT's vocab.txt, vocab.json with merges.txt."""
    if (directory / "vocab.txt").is_file():
        return "BertTokenizerFast"
    if not (directory / "merges.txt").is_file():
        return None
    style = detect_style(read_optional_json(directory / "vocab.json"))
    return "HerbertTokenizerFast" if style == "end_of_word" else "GPT2TokenizerFast"


def _remedy(directory: Path) -> str:
    try:
        importlib.import_module("google.protobuf")
    except ImportError:
        if list(directory.glob("*.model")):
            return "pip install protobuf, which transformers needs to read a sentencepiece model"
    return "save the model's tokenizer into this directory with save_pretrained(), best as tokenizer.json"


# ---- Which rows of a Hugging Face model play the roles of fairseq's <s>, </s>, <unk>, <pad> and <mask> --------------

#: role -> the keys under which a tokenizer declares it, in the order of preference.
_DECLARED = {
    "bos": ("bos_token", "cls_token"),
    "eos": ("eos_token", "sep_token"),
    "unk": ("unk_token",),
    "pad": ("pad_token",),
    "mask": ("mask_token",),
}

#: role -> usual spellings, for directories without a declaration.
_USUAL = {
    "bos": ("[CLS]", "<s>", "<bos>", "<|begin_of_text|>", "<|endoftext|>"),
    "eos": ("[SEP]", "</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>"),
    "unk": ("[UNK]", "<unk>"),
    "pad": ("[PAD]", "<pad>"),
    "mask": ("[MASK]", "<mask>"),
}


def declared_specials(directory: Path) -> dict[str, Any]:
    """Read which tokens tokenizer_config.json or special_tokens_map.json declares: `bos_token` -> token."""
    declared: dict[str, Any] = {}
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        content = read_optional_json(directory / name)
        declared.update({key: value for key, value in content.items() if key.endswith("_token")})
    # a declaration is a string or an object with the string as its content
    return {key: value.get("content") if isinstance(value, dict) else value for key, value in declared.items()}


def find_specials(declared: Mapping[str, Any], rows: Mapping[str, int]) -> dict[str, int]:
    """Find role -> row by the declared tokens, or by the usual spellings if none is declared.

    A role whose token is missing is left out (T5 has no bos). GPT-2 declares `<|endoftext|>` for everything: one row
    may serve as bos and eos, but not as unk or pad as well.
    """
    names = {key: value for key, value in declared.items() if isinstance(value, str) and value}
    specials: dict[str, int] = {}
    for role, keys in _DECLARED.items():
        tokens = [names[key] for key in keys if key in names] if names else _USUAL[role]
        row = next((rows[token] for token in tokens if token in rows), None)
        if row is not None and (role in ("bos", "eos") or row not in specials.values()):
            specials[role] = row
    return specials


# ----------------------------------------------------------------------------------------------------------------------

#: Rows that a matrix may have beyond twice the number of tokens: it is often padded to a round number.
_PADDING = 4096


@dataclass(frozen=True)
class Vocabulary:
    """What a model's tokenizer says of tokens, spelled as it spells them.

    rows: token -> row of the embedding matrix. markers: one of table.MARKERS. specials: role -> row. added: tokens
    stored as text. is_bytes: the other tokens are in GPT-2's byte alphabet. segment: text -> its tokens.
    """

    rows: dict[str, int]
    markers: str
    specials: dict[str, int]
    added: frozenset[str]
    is_bytes: bool
    segment: Callable[[str], list[str]]

    def words(self) -> list[tuple[int, str]]:
        """List (row, word) of all tokens that are text, without the specials, ordered by row.

        Byte-level tokens are decoded to text, a leading space stays spelled `Ġ`; parts of a character are surrogates.
        """
        hidden = set(self.specials.values())
        pairs = sorted((row, token) for token, row in self.rows.items() if row not in hidden and token)
        if not self.is_bytes:
            return pairs
        return [(row, token if token in self.added else text_of(token)) for row, token in pairs]

    def pieces(self, word: str) -> list[int]:
        """Segment a word that follows a space: the rows of its tokens, unknown ones left out."""
        word = word.encode("utf-8", "ignore").decode("utf-8")  # lone surrogates are no text
        tokens = self.segment(self._before_word + word) if word else []
        unknown = self.specials.get("unk")
        return [self.rows[token] for token in tokens if self.rows.get(token, unknown) != unknown]

    @cached_property
    def _before_word(self) -> str:
        """A space, if the tokenizer does not mark the first word of a text as one (GPT-2, Gemma)."""
        sign = PREFIX.get(self.markers, "") if self.markers != "wordpiece" else ""
        first = self.segment("a")[:1]
        return " " if first and not first[0].startswith(sign) else ""


def read_vocabulary(directory: Path, matrix_rows: int, side: str = "") -> Vocabulary:
    """Read the tokens of a model directory; VectorFileError where no library can, or where they do not fit the matrix.

    side: "decoder" for the target language's tokens of a model with an embedding matrix for each side.
    """
    file = directory / "tokenizer.json"
    if file.is_file():
        content = bounded.read_bytes(file, VectorFileError, _TOKENIZER + _TOKENIZER_ROW * matrix_rows, _REMEDY)
        with reading_tokenizer(file) as tokenizers:
            tokenizer = backend = tokenizers.Tokenizer.from_buffer(content)
        declared, stored = declared_specials(directory), {}
    else:
        tokenizer = _open_with_transformers(directory)
        backend = getattr(tokenizer, "backend_tokenizer", None)
        declared = tokenizer.special_tokens_map
        # what the directory says of added tokens counts: transformers 5 exchanges two of Pegasus
        stored = read_optional_json(directory / "tokenizer_config.json").get("added_tokens_decoder", {})
    rows: dict[str, int] = tokenizer.get_vocab()
    if backend is None:
        added, is_bytes = set(tokenizer.get_added_vocab()), hasattr(tokenizer, "byte_encoder")
        segment: Callable[[str], list[str]] = tokenizer.tokenize
        if side == "decoder" and isinstance(tokenizer.decoder, dict):  # FSMT and Marian may have two vocabularies
            rows = {token: row for row, token in tokenizer.decoder.items()}
            getattr(tokenizer, "_switch_to_target_mode", list)()
    else:
        backend.no_padding()  # both may be stored in the file
        backend.no_truncation()
        added = {token.content for token in backend.get_added_tokens_decoder().values()}
        parts = (backend.normalizer, backend.pre_tokenizer, backend.decoder)
        is_bytes = any(b"ByteLevel" in part.__getstate__() for part in parts if part is not None)
        segment = partial(_segment, backend)
    rows = rows | {token["content"]: int(row) for row, token in stored.items()}
    rows = _fitting(directory, rows, added, matrix_rows)
    markers = detect_style(rows)
    if is_bytes and markers != "end_of_word":
        markers = "bytelevel"
    return Vocabulary(rows, markers, find_specials(declared, rows), frozenset(added), is_bytes, segment)


def _segment(backend: Any, text: str) -> list[str]:
    return backend.encode(text, add_special_tokens=False).tokens


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
        listed = " ".join(beyond[:8]) + " ..." * (len(beyond) > 8)
        logger.warning("%s: no row in the matrix for tokens that its tokenizer adds, left out: %s", directory, listed)
    return {token: row for token, row in rows.items() if token not in added or (row < matrix_rows and row not in own)}
