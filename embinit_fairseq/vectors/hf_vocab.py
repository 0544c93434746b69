"""The vocabulary of a Hugging Face directory: which row of the matrix belongs to which token.

Read from `tokenizer.json`, else `vocab.txt` (BERT), `vocab.json` (GPT-2, RoBERTa) or a sentencepiece model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embinit_fairseq.errors import VectorFileError
from embinit_fairseq.vectors.hf_files import read_json, read_optional_json, read_text
from embinit_fairseq.vectors.hf_specials import find_specials

SENTENCEPIECE_FILES = ("spiece.model", "sentencepiece.bpe.model", "spm.model", "tokenizer.model")
VOCABULARY_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", *SENTENCEPIECE_FILES)

#: Models whose rows are fairseq's (<s>, <pad>, </s>, <unk>, then the pieces), not their sentencepiece model's.
FAIRSEQ_ORDER = ("xlm-roberta", "xlm-roberta-xl", "mbart")


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


def read_vocabulary(directory: Path, model_type: str = "") -> Vocabulary:
    """The vocabulary of a model directory; VectorFileError where there is none or it is damaged."""
    file = next((directory / name for name in VOCABULARY_FILES if (directory / name).is_file()), None)
    if file is None:
        raise VectorFileError(
            f"{directory}: no vocabulary: none of {', '.join(VOCABULARY_FILES)} is there; save the tokenizer into "
            "this directory with save_pretrained()"
        )
    if file.name == "tokenizer.json":
        vocabulary = _from_tokenizer_json(file)
    elif file.name == "vocab.txt":
        vocabulary = _from_lines(file)
    elif file.name == "vocab.json":
        vocabulary = _from_vocab_json(file)
    else:
        vocabulary = _from_sentencepiece(file, model_type)
    _add_tokens(vocabulary, directory)
    vocabulary.specials = find_specials(directory, vocabulary.rows)
    return vocabulary


def _from_tokenizer_json(file: Path) -> Vocabulary:
    content = read_json(file)
    model = content.get("model")
    model = model if isinstance(model, dict) else {}
    stored = model.get("vocab")
    duplicates = 0
    if isinstance(stored, list):  # Unigram: [[piece, score], ...]
        rows: dict[str, Any] = {}
        for row, entry in enumerate(stored):
            if not isinstance(entry, list) or not entry:
                raise VectorFileError(f"{file}: entry {row} of its vocabulary is malformed; download it again")
            duplicates += entry[0] in rows if isinstance(entry[0], str) else 0
            rows.setdefault(str(entry[0]), row)
    else:
        rows = dict(stored) if isinstance(stored, dict) else {}
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
    if isinstance(part, dict):
        if isinstance(part.get("type"), str):
            kinds.add(part["type"])
        for value in part.values():
            _collect_types(value, kinds)
    elif isinstance(part, list):
        for value in part:
            _collect_types(value, kinds)


def _sniff(tokens: Any) -> str:
    """Markers judged by the tokens themselves: the sign that more than a twentieth of them begin with."""
    enough = len(tokens) / 20
    for marker, sign in (("bytelevel", "Ġ"), ("sentencepiece", "▁"), ("wordpiece", "##")):
        if sum(isinstance(token, str) and token.startswith(sign) for token in tokens) > enough:
            return marker
    return "auto"


def _from_lines(file: Path) -> Vocabulary:
    lines = read_text(file).split("\n")
    if lines and not lines[-1]:
        lines.pop()  # what follows the last newline is no row
    rows: dict[str, int] = {}
    for row, line in enumerate(lines):
        rows.setdefault(line.rstrip("\r"), row)
    return Vocabulary(file, _checked(file, rows), "wordpiece", frozenset(), {}, len(lines) - len(rows))


def _from_vocab_json(file: Path) -> Vocabulary:
    rows = _checked(file, read_json(file))
    # GPT-2 and RoBERTa keep their merges beside the vocabulary; others (Marian) store sentencepiece's pieces.
    bytelevel = (file.parent / "merges.txt").is_file() and _sniff(rows) in ("bytelevel", "auto")
    return Vocabulary(file, rows, "bytelevel" if bytelevel else _sniff(rows))


def _from_sentencepiece(file: Path, model_type: str) -> Vocabulary:
    processor = load_sentencepiece(file)
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


def load_sentencepiece(file: Path) -> Any:
    """A sentencepiece processor; VectorFileError if the file is not a sentencepiece model."""
    try:
        import sentencepiece
    except ImportError as error:
        raise VectorFileError(f"{file}: reading it needs a package: pip install sentencepiece") from error
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(file.read_bytes())
    except Exception as error:  # damaged models raise RuntimeError, TypeError and others
        raise VectorFileError(
            f"{file}: not a sentencepiece model ({error}); save tokenizer.json beside it, or download it again"
        ) from error
    return processor


def _add_tokens(vocabulary: Vocabulary, directory: Path) -> None:
    """Tokens added after training, as slow tokenizers keep them: added_tokens.json, tokenizer_config.json."""
    found: dict[str, Any] = dict(read_optional_json(directory / "added_tokens.json"))
    decoder = read_optional_json(directory / "tokenizer_config.json").get("added_tokens_decoder")
    for row, token in (decoder if isinstance(decoder, dict) else {}).items():
        if isinstance(token, dict) and isinstance(token.get("content"), str) and row.isdecimal():
            found.setdefault(token["content"], int(row))
    taken = set(vocabulary.rows.values())
    new = {name: row for name, row in found.items() if name not in vocabulary.rows and row not in taken}
    vocabulary.rows.update(_checked(vocabulary.file, new, empty=True))
    vocabulary.added |= frozenset(found)


def _checked(file: Path, rows: dict[Any, Any], empty: bool = False) -> dict[str, int]:
    if not rows and not empty:
        raise VectorFileError(f"{file}: it holds no vocabulary; download it again")
    for token, row in rows.items():
        if not isinstance(token, str) or type(row) is not int or row < 0:
            raise VectorFileError(f"{file}: the token {token!r} has the row {row!r}; download the file again")
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
