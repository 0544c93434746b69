"""Segment text with subword-nmt or sentencepiece; extend the segmenter by words that stay whole, or take subwords away.

subword-nmt    The codes stay, and new words are a glossary. `apply-bpe --glossaries` takes regular expressions and
               isolates their matches inside longer words, too (`cat` in `category`); an expression that is anchored
               at both ends matches whole words only. Further merges would join the ends of longer words, too.
sentencepiece  New words are pieces after the old ones, whose numbers stay. *User-defined* pieces would be isolated
               wherever they occur, also at the beginning of longer words (`▁pla te`). So they are normal pieces, which
               join subwords of the old model: in a unigram model with the score of the word's best segmentation and a
               trace more, in a BPE model by merges after all old ones. A longer word changes only where its old
               segmentation has a boundary right after the new word: `▁fire f ly` with the new word `▁firef` becomes
               `▁firef ly`. sentencepiece cannot distinguish the two, since a piece does not say where its word ends.

Without some subwords every sentence is segmented as before, except where one of them was:

subword-nmt    The codes stay, since merges that make a removed subword are steps to longer ones. A vocabulary next to
               them splits what they make, merge by merge, until it is in the vocabulary (`apply-bpe --vocabulary`).
sentencepiece  A unigram model loses the pieces: the best segmentation of a sentence stays the best if it has none of
               them. In a BPE model they are steps, too: unused pieces are merged on and split in the end. They come
               last, so that the other pieces keep their order, which may be that of `dict.txt`.
"""

from __future__ import annotations

import functools
import io
import re
import shlex
import shutil
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Union

import sentencepiece
from subword_nmt.apply_bpe import BPE, recursive_split

from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.vocab.codes import VOCABULARY, codes_text, codes_vocabulary, load_sentencepiece
from embinit_fairseq.vocab.dictionary import Vocabulary
from embinit_fairseq.vocab.tokens import CONTINUES, PREFIX, detect_style, parse

#: files that `write` may make
SEGMENTATION_FILES = ("bpe.codes", "glossary.txt", "sentencepiece.model", f"bpe.codes{VOCABULARY}")
#: smallest share of a dictionary's subwords that its segmenter can make: its own nearly all, one learned on other text
#: of the same language two thirds
_LEAST_MADE = 0.8
#: if several segmenters made one dictionary: smallest share of a segmenter's subwords that are in it (measured 0.93, of
#: another language 0.43), and smallest share of the dictionary's text that the segmenter can make (0.56)
_LEAST_USED, _LEAST_TEXT = 0.9, 0.4
_INITIAL = PREFIX["sentencepiece"]

# ---- subword-nmt ----------------------------------------------------------------------------------------------------

_ARGUMENT = 128 * 1024 - 1  #: bytes of one argument of a command (Linux)


class SubwordNmt:
    """Segment with BPE codes. Next to them may be words that stay whole, and the vocabulary of a trimmed model.

    Args:
        path: the codes.
        flag: option that names the codes, for messages.
        symbols: of the dictionary; words of the glossary that it lacks are the other side's. None: all words stay.
        vocabulary: the subwords that text may have; None for those next to the codes, or all.
    """

    kind = "subword-nmt"

    def __init__(
        self,
        path: str,
        flag: str = "--bpe-codes",
        symbols: Collection[str] | None = None,
        vocabulary: frozenset[str] | None = None,
    ) -> None:
        self.path, self.flag = path, flag
        words = _read_glossary(Path(path).with_name(SEGMENTATION_FILES[1]))
        self.whole = [word for word in words if symbols is None or word in symbols]
        self.vocabulary = codes_vocabulary(path) if vocabulary is None else vocabulary
        self._bpe = read_codes(path, flag, glossary(self.whole) if self.whole else None, self.vocabulary)

    def segment(self, text: str) -> list[str]:
        """Return the subwords of a sentence."""
        return self._bpe.process_line(text).split()

    symbols_of = segment

    def segment_symbol(self, symbol: str) -> list[str]:
        """Return the subwords of a word; none for a symbol that ends with @@, which is not a whole word."""
        return [] if symbol.endswith(CONTINUES) else self.segment(symbol)

    def split(self, symbol: str) -> list[str]:
        """Return the subwords that a text has now where the codes alone make this one."""
        if not symbol.endswith(CONTINUES) or symbol in (self.vocabulary or {symbol}):
            return self.segment_symbol(symbol) or [symbol]
        merges = self._bpe.bpe_codes_reverse
        parts = recursive_split(symbol.removesuffix(CONTINUES), merges, self.vocabulary, CONTINUES, final=False)
        return [part + CONTINUES for part in parts]

    def surface(self, symbol: str) -> str:
        """Return the characters of a symbol."""
        return symbol.removesuffix(CONTINUES)

    def join(self, subwords: Sequence[str]) -> str:
        """Spell subwords as one; the mark at the end stays."""
        return " ".join(subwords).replace(f"{CONTINUES} ", "")

    def text_of(self, symbol: str) -> str:
        """Return a symbol as text has it."""
        return symbol

    def makes(self, symbol: str) -> bool:
        """Return True if the symbol can be a subword of a text."""
        return symbol in self.made

    def is_unknown(self, symbol: str) -> bool:
        """Return False: unknown characters are single symbols here."""
        return False

    @functools.cached_property
    def made(self) -> set[str]:
        """Return the subwords that the codes join, and the words that stay whole."""
        merged = {"".join(pair) for pair in self._bpe.bpe_codes}
        ends = {text.removesuffix("</w>") for text in merged if text.endswith("</w>") or self._bpe.version == (0, 1)}
        made = {*self.whole, *ends, *(text + CONTINUES for text in merged if not text.endswith("</w>"))}
        return made if self.vocabulary is None else made & self.vocabulary

    def obstacle(self, word: str) -> str | None:
        """Return why a new word cannot be one subword, with a remedy; None if it can."""
        ends = f"it ends with {CONTINUES}, which is no whole word; write one, or leave it out"
        return ends if word.endswith(CONTINUES) else None

    def is_word(self, subwords: Sequence[str], at: int) -> bool:
        """Return True if `subwords[at]`, the end of a word, is all of it."""
        return at == 0 or not subwords[at - 1].endswith(CONTINUES)

    def restricted(self, symbols: frozenset[str]) -> SubwordNmt:
        """Return the segmentation that makes no subwords but these, and single characters."""
        if self._bpe.version == (0, 1):
            raise DataError(
                f"{self.flag} {self.path}: codes of version 0.1, whose merges apply-bpe --vocabulary cannot undo; "
                f"leave {self.flag} out"
            )
        return SubwordNmt(self.path, self.flag, symbols, symbols)

    def write(self, words: Sequence[str], folder: Path) -> SubwordNmt:
        """Write the codes and a glossary with `words`; raise DataError if it is too long for a command line."""
        whole = [*self.whole, *words]
        expression = glossary(whole)
        if (size := len(expression.encode())) > _ARGUMENT:
            raise DataError(
                f"--words: a glossary of {size:,} bytes, but apply-bpe takes it as an argument, which has at most "
                f"{_ARGUMENT:,}; add fewer words, or leave {self.flag} out and segment the text by other means"
            )
        codes, words_file, _, vocabulary = (folder / name for name in SEGMENTATION_FILES)
        codes.write_bytes(codes_text(self.path, self.flag).encode("utf-8"))
        if whole:
            words_file.write_bytes(f"{expression}\n".encode())
        if self.vocabulary is not None:
            subwords = sorted({*self.vocabulary, *words})
            vocabulary.write_bytes("".join(f"{subword} 1\n" for subword in subwords).encode("utf-8"))
        return SubwordNmt(str(codes))

    def command(self, folder: str) -> str:
        """Return the shell command that segments a text with the files in `folder`."""
        codes, words, _, vocabulary = (shlex.quote(str(Path(folder) / name)) for name in SEGMENTATION_FILES)
        options = [f'--glossaries "$(cat {words})"'] if self.whole else []
        options += [] if self.vocabulary is None else [f"--vocabulary {vocabulary}"]
        return " ".join(["subword-nmt apply-bpe --codes", codes, *options, "< TEXT > PIECES"])


def read_codes(
    path: str, flag: str = "--bpe-codes", glossary: str | None = None, vocabulary: frozenset[str] | None = None
) -> Any:
    """Return subword-nmt's BPE for a file of codes (see `codes_text`).

    Args:
        path: the codes.
        flag: option that names them, for messages.
        glossary: regular expression of the words that stay whole.
        vocabulary: the subwords that text may have; None for all.
    """
    return BPE(io.StringIO(codes_text(path, flag)), vocab=vocabulary, glossaries=[glossary] if glossary else None)


def glossary(words: Iterable[str]) -> str:
    """Return a regular expression for --glossaries that matches these words and nothing inside longer ones."""
    return f"^(?:{'|'.join(map(re.escape, words))})$"


def _read_glossary(path: Path) -> list[str]:
    """Return the words of a glossary that `SubwordNmt.write` wrote; none if there is no file."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8", errors="replace").strip()
    words = [re.sub(r"\\(.)", r"\1", word) for word in re.findall(r"(?:\\.|[^\\|])+", text[4:-2])]
    if glossary(words) != text:
        raise DataError(
            f"{path}: is next to --bpe-codes, but is not what expand-vocab writes; move it, or copy the codes to "
            "another folder"
        )
    return words


# ---- sentencepiece --------------------------------------------------------------------------------------------------
# A model is a protobuf message. Its classes (sentencepiece_model_pb2) need the major version of protobuf that they were
# made with, and drop `self_test_data`. But messages one after the other are one message: pieces and options are
# appended.

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
        content: of the model, if it is not that of the file.
    """

    kind = "sentencepiece"

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
        """Return the subwords that a text has now where this one was."""
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
        file = folder / SEGMENTATION_FILES[2]
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
        model = shlex.quote(str(Path(folder) / SEGMENTATION_FILES[2]))
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


# ---- both -----------------------------------------------------------------------------------------------------------

Segmentation = Union[SubwordNmt, Sentencepiece]


def read_segmentation(
    bpe_codes: str | None,
    sentencepiece_model: str | None,
    flags: tuple[str, str] = ("--bpe-codes", "--sentencepiece-model"),
    symbols: Collection[str] | None = None,
) -> Segmentation | None:
    """Return the segmentation of the file that is given, or None; raise OptionError if both are given.

    Args:
        bpe_codes: path of the codes.
        sentencepiece_model: path of the model.
        flags: the options that name them, for messages.
        symbols: of the dictionary, see `SubwordNmt`.
    """
    if bpe_codes is not None and sentencepiece_model is not None:
        raise OptionError(f"{flags[0]} and {flags[1]}: give the one that the dictionary was made with")
    if bpe_codes is not None:
        return SubwordNmt(bpe_codes, flags[0], symbols)
    return None if sentencepiece_model is None else Sentencepiece(sentencepiece_model, flags[1])


def text_symbols(vocabulary: Vocabulary) -> list[str]:
    """Return the symbols of a dictionary that mean text, without special symbols and fillers."""
    return [symbol for symbol, is_text in zip(vocabulary.symbols, vocabulary.regular) if is_text]


def check_segmentation(segmentation: Segmentation, vocabulary: Vocabulary, dictionary: str) -> None:
    """Raise DataError unless a segmentation can have made a dictionary, alone or together with others.

    One dictionary of two languages may come from two segmentations. Runs of unknown characters do not count against a
    segmentation, unless they are most of the text: then it is for another script.

    Args:
        segmentation: the segmentation.
        vocabulary: the content of the dictionary.
        dictionary: its path, for the message.
    """
    symbols = text_symbols(vocabulary)
    style, counts = detect_style(symbols), dict(zip(vocabulary.symbols, vocabulary.counts.clip(min=1).tolist()))
    where = f"{segmentation.flag} {segmentation.path}"
    if isinstance(segmentation, SubwordNmt) and style != "subword_nmt":
        raise DataError(
            f"{where}: no piece in --dict {dictionary} ends with {CONTINUES}, so that its text was not segmented with "
            f"codes of subword-nmt; leave {segmentation.flag} out"
        )

    def longer(subwords: Iterable[str]) -> list[str]:
        return [subword for subword in subwords if len(parse(subword, style).surface) > 1]  # all have characters

    tried, able = longer(symbols), longer(segmentation.made)
    made = [symbol for symbol in tried if segmentation.makes(symbol)]
    candidates = len(tried) - sum(map(segmentation.is_unknown, tried))
    share = len(made) / candidates if candidates else 1.0
    text = sum(counts[symbol] for symbol in made) / sum(counts[symbol] for symbol in tried) if tried else 1.0
    used = sum(subword in counts for subword in able) / len(able) if able else 1.0
    if text < _LEAST_TEXT or (share < _LEAST_MADE and used < _LEAST_USED):
        raise DataError(
            f"{where}: can make only {len(made) / len(tried):.0%} of the pieces in --dict {dictionary}, which are "
            f"{text:.0%} of its text; give the file that its text was segmented with, or leave {segmentation.flag} out"
        )
