"""The vocabulary of a Hugging Face directory: which row of the matrix belongs to which token.

Read from `tokenizer.json`, else `vocab.txt` (BERT), `vocab.json` (GPT-2, RoBERTa) or a sentencepiece model.
"""

from __future__ import annotations

import contextlib
import re
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embinit_fairseq import bounded
from embinit_fairseq.bounded import read_lines
from embinit_fairseq.errors import EmbinitError, VectorFileError
from embinit_fairseq.vocab.tokens import PREFIX

# ---- Files of a Hugging Face directory: JSON, models of sentencepiece -----------------------------------------------

_REMEDY = "download it again"
#: Bytes of a tokenizer's file, at most: a floor for small ones, and for each row a piece, its number and its merge.
_TOKENIZER, _TOKENIZER_ROW = 1 << 24, 1 << 10
#: Bytes of a model of sentencepiece: those for a hundred languages have 5 MB.
_SENTENCEPIECE = 1 << 26


def largest_tokenizer(rows: int) -> int:
    """Bytes that the file of a tokenizer may have, where the model's matrix has so many rows."""
    return _TOKENIZER + _TOKENIZER_ROW * rows


def read_json(file: Path, largest: int | None = None) -> dict[str, Any]:
    """The object in a JSON file; VectorFileError if there is none, or if it has more than `largest` bytes."""
    content = bounded.read_json(file, VectorFileError, remedy=_REMEDY, largest=largest)
    if not isinstance(content, dict):
        raise VectorFileError(f"{file}: not a JSON object; {_REMEDY}")
    return content


def read_optional_json(file: Path) -> dict[str, Any]:
    """As `read_json`, but an empty object where the file does not exist."""
    return read_json(file) if file.is_file() else {}


def load_sentencepiece(
    file: str | Path, error: type[EmbinitError] = VectorFileError, flag: str = "", largest: int = _SENTENCEPIECE
) -> Any:
    """A sentencepiece processor; `error` if the file is no sentencepiece model of at most `largest` bytes.

    flag: what names the file, for messages.
    """
    where = f"{flag} {file}".strip()
    try:
        import sentencepiece
    except ImportError as cause:
        raise error(f"{where}: reading it needs a package: pip install sentencepiece") from cause
    processor = sentencepiece.SentencePieceProcessor()
    content = bounded.read_bytes(file, error, largest, _REMEDY, flag)
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
    """The tokenizers package, to read a file with; `error` where it is not installed, and for what it says of it."""
    try:
        import tokenizers
    except ImportError as cause:
        raise error(f"{file}: segmenting words by it needs a package: pip install tokenizers") from cause
    try:
        yield tokenizers
    except BaseException as cause:
        check_is_the_librarys(cause)
        raise error(f"{file}: the tokenizers package cannot read it ({str(cause)[:200]}); {remedy}") from cause


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


def find_specials(directory: Path, rows: dict[str, int]) -> dict[str, int]:
    """role -> row; declared by tokenizer_config.json or special_tokens_map.json, else by the usual spellings.

    A role whose token is missing is left out (T5 has no bos). GPT-2 declares `<|endoftext|>` for everything: one row
    may serve as bos and eos, but not as unk or pad as well.
    """
    declared: dict[str, Any] = {}
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        content = read_optional_json(directory / name)
        declared.update({key: value for key, value in content.items() if key.endswith("_token")})
    names = {key: _spelling(value) for key, value in declared.items()}
    specials: dict[str, int] = {}
    for role, keys in _DECLARED.items():
        tokens = [names.get(key) for key in keys] if any(names.values()) else list(_USUAL[role])
        row = next((rows[token] for token in tokens if token in rows), None)
        if row is not None and (role in ("bos", "eos") or row not in specials.values()):
            specials[role] = row
    return specials


def _spelling(declared: Any) -> str | None:
    """A declaration is a string or an object with the string as its content."""
    if isinstance(declared, dict):
        declared = declared.get("content")
    return declared if isinstance(declared, str) and declared else None


# ----------------------------------------------------------------------------------------------------------------------

SENTENCEPIECE_FILES = ("spiece.model", "sentencepiece.bpe.model", "spm.model", "tokenizer.model")
VOCABULARY_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", *SENTENCEPIECE_FILES)

#: Models whose rows are fairseq's (<s>, <pad>, </s>, <unk>, then the pieces), not their sentencepiece model's.
FAIRSEQ_ORDER = ("xlm-roberta", "xlm-roberta-xl", "mbart")
_MOST_ROWS = 1 << 48  # more than any file holds
_ROW = re.compile("[0-9]{1,12}")


@dataclass
class Vocabulary:
    """Rows and tokens as the model's files spell them."""

    file: Path
    rows: dict[str, int]  # token as stored -> row; the model's own tokens, then the added ones
    markers: str  # one of table.MARKERS
    added: frozenset[str] = frozenset()  # tokens stored as plain text, whatever the alphabet of the others
    specials: dict[str, int] = field(default_factory=dict)  # role -> row
    duplicates: int = 0

    def words(self) -> list[tuple[int, str]]:
        """(row, word) of all tokens that are text, without the specials, ordered by row.

        Byte-level tokens are decoded to text, a leading space stays spelled `Ġ`; parts of a character are left out.
        """
        hidden = set(self.specials.values())
        pairs = sorted((row, token) for token, row in self.rows.items() if row not in hidden and token)
        if self.markers != "bytelevel":
            return pairs
        decoded = ((row, token if token in self.added else decode_bytelevel(token)) for row, token in pairs)
        return [(row, word) for row, word in decoded if word]


def read_vocabulary(directory: Path, matrix_rows: int, model_type: str = "") -> Vocabulary:
    """The vocabulary of a model directory; VectorFileError where there is none or it is damaged.

    matrix_rows: of the model's matrix, which say how large the file may be.
    """
    file = next((directory / name for name in VOCABULARY_FILES if (directory / name).is_file()), None)
    if file is None:
        raise VectorFileError(
            f"{directory}: no vocabulary: none of {', '.join(VOCABULARY_FILES)} is there; save the tokenizer into "
            "this directory with save_pretrained()"
        )
    if file.name == "tokenizer.json":
        vocabulary = _from_tokenizer_json(file, largest_tokenizer(matrix_rows))
    elif file.name == "vocab.txt":
        vocabulary = _from_lines(file, matrix_rows)
    elif file.name == "vocab.json":
        vocabulary = _from_vocab_json(file, largest_tokenizer(matrix_rows))
    else:
        vocabulary = _from_sentencepiece(file, model_type, largest_tokenizer(matrix_rows))
    _add_tokens(vocabulary, directory)
    vocabulary.specials = find_specials(directory, vocabulary.rows)
    return vocabulary


def _from_tokenizer_json(file: Path, largest: int) -> Vocabulary:
    content = read_json(file, largest)
    model = content.get("model")
    model = model if isinstance(model, dict) else {}
    stored = model.get("vocab")
    duplicates = 0
    if isinstance(stored, list):  # Unigram: [[piece, score], ...]
        rows: dict[str, Any] = {}
        for row, entry in enumerate(stored):
            if not isinstance(entry, list) or not entry or not isinstance(entry[0], str):
                raise VectorFileError(f"{file}: entry {row} of its vocabulary is malformed; download it again")
            duplicates += entry[0] in rows
            rows.setdefault(entry[0], row)
    elif isinstance(stored, dict):
        rows = dict(stored)
    else:
        raise VectorFileError(f"{file}: it holds no vocabulary; download it again")
    added = content.get("added_tokens") or []
    if not isinstance(added, list) or not all(
        isinstance(token, dict) and isinstance(token.get("content"), str) for token in added
    ):
        raise VectorFileError(f"{file}: its added_tokens are malformed; download it again")
    names = [token["content"] for token in added]
    for name, token in zip(names, added):
        rows.setdefault(name, token.get("id"))
    return Vocabulary(file, _checked(file, rows), _tokenizer_markers(content, model), frozenset(names), {}, duplicates)


def _tokenizer_markers(content: dict[str, Any], model: dict[str, Any]) -> str:
    """How the tokenizer of a `tokenizer.json` spells sub-words, judged by its parts."""
    kinds: set[str] = set()
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        _collect_types(content.get(part), kinds)
    if "ByteLevel" in kinds:
        return "bytelevel"
    if model.get("type") == "WordPiece" or "WordPiece" in kinds:
        return "wordpiece" if model.get("continuing_subword_prefix", "##") == "##" else "auto"
    if model.get("type") == "Unigram" or "Metaspace" in kinds:
        return "sentencepiece"
    return _sniff(model.get("vocab") or {}) if model.get("type") != "WordLevel" else "none"


def _collect_types(part: Any, kinds: set[str]) -> None:
    """The values of all "type" keys of a part of tokenizer.json (parts are nested in sequences)."""
    left = [part]
    while left:  # a file may be nested more deeply than functions may be
        part = left.pop()
        if isinstance(part, dict):
            if isinstance(part.get("type"), str):
                kinds.add(part["type"])
            left += part.values()
        elif isinstance(part, list):
            left += part


def _sniff(tokens: Any) -> str:
    """Markers judged by the tokens themselves: the sign that more than a twentieth of them begin with."""
    enough = len(tokens) / 20
    for marker, sign in PREFIX.items():
        if sum(isinstance(token, str) and token.startswith(sign) for token in tokens) > enough:
            return marker
    return "auto"


def _from_lines(file: Path, matrix_rows: int) -> Vocabulary:
    rows: dict[str, int] = {}
    number = 0
    for number, line in read_lines(file, VectorFileError):
        if number > matrix_rows:
            raise VectorFileError(
                f"{file}:{number}: more lines than the model's matrix has rows ({matrix_rows}); weights and tokenizer "
                "belong to different models: save both with save_pretrained()"
            )
        rows.setdefault(line.rstrip("\r"), number - 1)
    return Vocabulary(file, _checked(file, rows), "wordpiece", frozenset(), {}, number - len(rows))


def _from_vocab_json(file: Path, largest: int) -> Vocabulary:
    rows = _checked(file, read_json(file, largest))
    # GPT-2 and RoBERTa keep their merges beside the vocabulary; others (Marian) store sentencepiece's pieces.
    bytelevel = (file.parent / "merges.txt").is_file() and _sniff(rows) in ("bytelevel", "auto")
    return Vocabulary(file, rows, "bytelevel" if bytelevel else _sniff(rows))


def _from_sentencepiece(file: Path, model_type: str, largest: int) -> Vocabulary:
    processor = load_sentencepiece(file, largest=largest)
    pieces = [processor.id_to_piece(row) for row in range(processor.get_piece_size())]
    if file.name == "sentencepiece.bpe.model" or model_type in FAIRSEQ_ORDER:
        if model_type not in FAIRSEQ_ORDER:
            raise VectorFileError(
                f"{file}: the rows of a model of type {model_type or 'unknown'!r} cannot be told from this file; save "
                "tokenizer.json beside it (AutoTokenizer.from_pretrained(...).save_pretrained(directory))"
            )
        first = ["<s>", "<pad>", "</s>", "<unk>"]
        rest = [piece for piece in pieces if piece not in first]
        last = ["<mask>"] if model_type.startswith("xlm-roberta") else []
        pieces = [*first, *rest, *last]
    rows: dict[str, int] = {}
    for row, piece in enumerate(pieces):
        rows.setdefault(piece, row)
    return Vocabulary(file, rows, "sentencepiece", frozenset(), {}, len(pieces) - len(rows))


def _add_tokens(vocabulary: Vocabulary, directory: Path) -> None:
    """Tokens added after training, as slow tokenizers keep them: added_tokens.json, tokenizer_config.json."""
    added: dict[str, Any] = _checked(
        directory / "added_tokens.json", read_optional_json(directory / "added_tokens.json"), empty=True
    )
    decoder = read_optional_json(directory / "tokenizer_config.json").get("added_tokens_decoder")
    for row, token in (decoder if isinstance(decoder, dict) else {}).items():
        if isinstance(token, dict) and isinstance(token.get("content"), str) and _ROW.fullmatch(row):
            added.setdefault(token["content"], int(row))
    taken = set(vocabulary.rows.values())
    new = {name: row for name, row in added.items() if name not in vocabulary.rows and row not in taken}
    vocabulary.rows.update(new)
    vocabulary.added |= frozenset(added)


def _checked(file: Path, rows: dict[Any, Any], empty: bool = False) -> dict[str, int]:
    if not rows and not empty:
        raise VectorFileError(f"{file}: it holds no vocabulary; download it again")
    for token, row in rows.items():
        if type(row) is not int or not 0 <= row < _MOST_ROWS:
            raise VectorFileError(
                f"{file}: the token {token[:60]!r} has the row {reprlib.repr(row)}; download it again"
            )
    return rows


def _bytelevel_alphabet() -> dict[str, int]:
    """Character -> byte of GPT-2's alphabet: printable Latin-1 stands for itself, the rest is moved to 256 ff."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in set(printable)]
    return {**{chr(byte): byte for byte in printable}, **{chr(256 + n): byte for n, byte in enumerate(moved)}}


_BYTES = _bytelevel_alphabet()


def decode_bytelevel(token: str) -> str | None:
    """The text of a byte-level token, a leading space spelled `Ġ`; None if its bytes are only part of a character.

    Text that itself begins with the letter Ġ (Maltese) is None too: it could not be told from the marker.
    """
    if any(character not in _BYTES for character in token):
        return token  # a special token, stored as plain text
    try:
        text = bytes(_BYTES[character] for character in token).decode("utf-8")
    except UnicodeDecodeError:
        return None
    if text.startswith("Ġ"):
        return None
    return "Ġ" + text[1:] if text.startswith(" ") else text
