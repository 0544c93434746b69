"""Segment text with a model of sentencepiece; extend it by words that stay whole, or take pieces away.

New words are pieces after the old ones, whose numbers stay. *User-defined* pieces would be isolated wherever they
occur, also at the beginning of longer words (`▁pla te`). So they are normal pieces, which join subwords of the old
model: in a unigram model with the score of the word's best segmentation and a trace more, in a BPE model by merges
after all old ones. A longer word changes only where its old segmentation has a boundary right after the new word:
`▁fire f ly` with the new word `▁firef` becomes `▁firef ly`. sentencepiece cannot distinguish the two, since a piece
does not say where its word ends.

A unigram model loses removed pieces: the best segmentation of a sentence stays the best if it has none of them. In a
BPE model pieces are steps, too: unused ones are merged on and split in the end. They come last, so that the other
pieces keep their order, which may be that of `dict.txt`.

A model is a protobuf message. Its classes (sentencepiece_model_pb2) need the major version of protobuf that they were
made with, and drop `self_test_data`. But messages one after the other are one message: pieces and options are appended.
"""

from __future__ import annotations

import functools
import shlex
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import sentencepiece

from embinit_fairseq.errors import DataError
from embinit_fairseq.vocab.codes import load_sentencepiece
from embinit_fairseq.vocab.subword_styles import PREFIX

#: the model, as `write` names it
SENTENCEPIECE_FILE = "sentencepiece.model"
_INITIAL = PREFIX["sentencepiece"]
_PIECES, _TRAINER, _NORMALISER, _SELF_TEST = 1, 2, 3, 4  #: fields of the model
_MODEL_TYPE = 3  #: field of the trainer's options
_UNIGRAM, _BPE, _WORDS, _CHARACTERS = 1, 2, 3, 4
#: types of pieces; an unused one can be merged further, but is split in the end
_NORMAL, _USER_DEFINED, _UNUSED = 1, 4, 5
_UNKNOWN = 10.0  #: a unigram model's score of an unknown character is its lowest score minus this
_TRACE = 0.02  #: of a score: far above the rounding of a sentence's sum, far below the differences of segmentations
#: spm_encode for users whose sentencepiece is a wheel, which has no programs
_SPM_ENCODE = """import sys, sentencepiece
segment = sentencepiece.SentencePieceProcessor(model_file=sys.argv[1]).encode
for line in open(0, encoding="utf-8", newline="\\n"): print(*segment(line.rstrip("\\n"), out_type=str))"""


class Sentencepiece:
    """Segment with a model of sentencepiece.

    Args:
        path: the model.
        flag: option that names the model, for messages.
        content: content of the model, if it differs from the file's.
    """

    kind, option = "sentencepiece", "model"

    def __init__(self, path: str, flag: str = "--sentencepiece-model", content: bytes | None = None) -> None:
        self.path, self.flag = path, flag
        if content is None:
            self._processor = load_sentencepiece(path, flag)
        else:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=content)
        fields = [*_fields(Path(path).read_bytes() if content is None else content)]
        #: the model without the sentences that are tried when it is loaded; new words may change them
        self._content = b"".join(field for number, _, field in fields if number != _SELF_TEST)
        trainer = b"".join(value for number, value, _ in fields if number == _TRAINER)
        self._type = {number: value for number, value, _ in _fields(trainer)}.get(_MODEL_TYPE, _UNIGRAM)
        pieces, unknown = self._processor.id_to_piece([*range(len(self._processor))]), self._processor.unk_id()
        self._row_of = {piece: row for row, piece in enumerate(pieces) if row != unknown}
        #: <0xE6> -> its byte, if the model has them
        self._byte_of = {
            piece: bytes.fromhex(piece[3:-1])
            for piece, row in self._row_of.items()
            if piece.startswith("<0x") and self._processor.is_byte(row)
        }
        # segments symbols: no space is added at the beginning, and none is removed
        as_it_is = _field(_NORMALISER, bytes([3 << 3, 0, 4 << 3, 0]))  # add_dummy_prefix, remove_extra_whitespaces
        self._of_symbols = sentencepiece.SentencePieceProcessor(model_proto=self._content + as_it_is)

    def segment(self, text: str) -> list[str]:
        """Return the subwords of a sentence; unknown text, also as bytes, becomes single characters."""
        return self._characters(self.symbols_of(text))

    def symbols_of(self, text: str) -> list[str]:
        """Return the subwords of a sentence as the model makes them."""
        return self._processor.encode(text, out_type=str)

    def segment_symbol(self, symbol: str) -> list[str]:
        """Return the subwords of a symbol."""
        return self._of_symbols.encode(symbol.replace(_INITIAL, " "), out_type=str)

    def split(self, symbol: str) -> list[str]:
        """Return the subwords that replace this one in a text."""
        return [symbol] if symbol in self._byte_of else self._characters(self.segment_symbol(symbol))

    def surface(self, symbol: str) -> str:
        """Return the characters of a symbol; none of a byte, which is part of any."""
        return "" if symbol in self._byte_of else symbol

    def join(self, subwords: Sequence[str]) -> str:
        """Spell subwords as one."""
        return "".join(subwords)

    def text_of(self, symbol: str) -> str:
        """Return a symbol as text has it."""
        return symbol.replace(_INITIAL, " ").strip()

    def makes(self, symbol: str) -> bool:
        """Return True if the symbol is a piece that text can have."""
        return symbol in self._row_of and not self._processor.is_unused(self._row_of[symbol])

    def is_unknown(self, symbol: str) -> bool:
        """Return True for a run of characters that the model does not know, which it leaves as one subword."""
        return self._type != _WORDS and not self.makes(symbol) and self.segment_symbol(symbol) == [symbol]

    @functools.cached_property
    def made(self) -> set[str]:
        """Return the pieces that text can have, except bytes."""
        no_text = (self._processor.is_control, self._processor.is_unused, self._processor.is_byte)
        return {piece for piece, row in self._row_of.items() if not any(holds(row) for holds in no_text)}

    def obstacle(self, word: str) -> str | None:
        """Return why a new word cannot be one subword, with a remedy; None if it can."""
        if self._type == _CHARACTERS:
            return f"{self.path} is a model of characters, which has no words; leave {self.flag} out"
        spelled = "".join(self._characters(self.segment_symbol(word)))
        if spelled == word:
            return None
        remedy = f"makes {spelled!r} of it; write that, or leave it out" if spelled else "removes it; leave it out"
        return f"the normaliser of {self.path} {remedy}"

    def is_word(self, subwords: Sequence[str], at: int) -> bool:
        """Return True if no longer word begins with `subwords[at]`."""
        after = subwords[at + 1 : at + 2]
        return not subwords[at].startswith(_INITIAL) or not after or not after[0][0].isalnum()

    def restricted(self, symbols: frozenset[str]) -> Sentencepiece:
        """Return the segmentation that makes no subwords but these, bytes, and unknown characters."""
        if self._type == _WORDS:
            raise DataError(
                f"{self.flag} {self.path}: a model of words, which cannot spell a word that is removed; leave "
                f"{self.flag} out"
            )

        def kind_of(piece: str, kind: int) -> int | None:
            """Return the new type of a piece; None to remove it."""
            if kind not in (_NORMAL, _USER_DEFINED) or piece in symbols:
                return kind
            is_step = self._type == _BPE and kind == _NORMAL and len(piece) > 1
            return _UNUSED if is_step else None

        return Sentencepiece(self.path, self.flag, self._with_types(kind_of))

    def write(self, words: Sequence[str], folder: Path) -> Sentencepiece:
        """Write the model with these words, too."""
        new, content = [word for word in words if word not in self._row_of], self._content
        if again := {word for word in words if not self.makes(word)}.difference(new):
            content = self._with_types(lambda piece, kind: _NORMAL if piece in again else kind)
        rows = {_UNIGRAM: self._scored, _BPE: self._merged}.get(self._type, self._listed)(new)
        file = folder / SENTENCEPIECE_FILE
        file.write_bytes(content + b"".join(_field(_PIECES, _piece(*row)) for row in rows))
        return Sentencepiece(str(file))

    def _with_types(self, kind_of: Callable[[str, int], int | None]) -> bytes:
        """Return the model with other types of its pieces, unused ones last; a piece of the type None is left out."""
        parts_of_model: dict[str, list[bytes]] = {"used": [], "unused": [], "others": []}
        for number, value, field in _fields(self._content):
            if number != _PIECES:
                parts_of_model["others"].append(field)
                continue
            parts = {part: content for part, content, _ in _fields(value)}
            kind = kind_of(parts[1].decode("utf-8"), parts.get(3, _NORMAL))
            if kind is not None:  # of two types in a message the last counts
                where = "unused" if kind == _UNUSED else "used"
                parts_of_model[where].append(_field(_PIECES, value + bytes([3 << 3, kind])))
        return b"".join(field for fields in parts_of_model.values() for field in fields)

    def command(self, folder: str) -> str:
        """Return the shell command that segments a text with the model in `folder`."""
        model = shlex.quote(str(Path(folder) / SENTENCEPIECE_FILE))
        if shutil.which("spm_encode"):
            return f"spm_encode --model={model} --output_format=piece < TEXT > PIECES"
        return f"python -c {shlex.quote(_SPM_ENCODE)} {model} < TEXT > PIECES"

    def _scored(self, words: list[str]) -> Iterator[tuple[str, float, int]]:
        """Yield pieces of a unigram model. The trace grows with the joined subwords, so that the longest word wins."""
        for word in words:
            subwords = self._characters(self.segment_symbol(word))
            yield word, sum(map(self._score, subwords)) + _TRACE * (2 * len(subwords) - 1), _NORMAL

    def _merged(self, words: list[str]) -> Iterator[tuple[str, float, int]]:
        """Yield pieces of a BPE model: the subwords of a word are joined from the left, after all old merges."""
        score, made = self._lowest, set(words)
        for word in words:
            subwords = self._characters(self.segment_symbol(word))
            for text in ["".join(subwords[:end]) for end in range(2, len(subwords))]:
                if text not in made and text not in self._row_of:
                    made.add(text)
                    yield text, (score := score - 1), _UNUSED
            yield word, (score := score - 1), _NORMAL

    def _listed(self, words: list[str]) -> Iterator[tuple[str, float, int]]:
        """Yield pieces of a model of words."""
        return ((word, 0.0, _NORMAL) for word in words)

    def _score(self, piece: str) -> float:
        return self._processor.get_score(self._row_of[piece]) if self.makes(piece) else self._lowest - _UNKNOWN

    @functools.cached_property
    def _lowest(self) -> float:
        return min(map(self._processor.get_score, range(len(self._processor))))

    def _characters(self, subwords: Iterable[str]) -> list[str]:
        """Return subwords with runs of unknown characters and of bytes as single characters."""
        characters: list[str] = []
        run = b""
        for subword in subwords:
            if subword in self._byte_of:
                run += self._byte_of[subword]
                continue
            characters += [*run.decode("utf-8", "replace"), *([subword] if self.makes(subword) else subword)]
            run = b""
        return [*characters, *run.decode("utf-8", "replace")]


def _piece(text: str, score: float, kind: int) -> bytes:
    """Return the message SentencePiece: piece, score, type."""
    return _field(1, text.encode("utf-8")) + b"\x15" + struct.pack("<f", score) + bytes([3 << 3, kind])


def _field(number: int, content: bytes) -> bytes:
    """Return a field that holds bytes, text or another message."""
    size, count = b"", len(content)
    while count > 127:
        size, count = size + bytes([count & 127 | 128]), count >> 7
    return bytes([number << 3 | 2]) + size + bytes([count]) + content


def _fields(message: bytes) -> Iterator[tuple[int, Any, bytes]]:
    """Yield (number, value, bytes) of each field of a message."""

    def varint(at: int) -> tuple[int, int]:
        """Return the number that begins at a byte, seven bits per byte, and the place after it."""
        value = shift = 0
        while True:
            byte = message[at]
            value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
            if byte < 128:
                return value, at

    at = 0
    while at < len(message):
        start = at
        key, at = varint(at)
        if key & 7 == 0:
            value, at = varint(at)
            yield key >> 3, value, message[start:at]
            continue
        size, at = varint(at) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], at)
        at += size
        yield key >> 3, message[at - size : at], message[start:at]
