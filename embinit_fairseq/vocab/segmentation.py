"""Segmenters, subword-nmt and sentencepiece: text into subwords, and the same with further words kept whole.

subword-nmt    The codes stay, and new words go into a glossary. `apply-bpe --glossaries` takes regular expressions and
               isolates their matches inside longer words, too (`cat` in `category`); an expression that is anchored
               at both ends matches whole words only. Further merges would join the ends of longer words, too.
sentencepiece  New words are pieces after the old ones, whose numbers stay. *User-defined* pieces would be isolated
               wherever they occur, also at the beginning of longer words (`▁pla te`). So they are normal pieces, which
               join subwords of the old model: in a unigram model with the score of the word's best segmentation and a
               trace more, in a BPE model by merges after all old ones. A longer word changes only where its old
               segmentation has a boundary right after the new word: `▁fire f ly` with the new word `▁firef` becomes
               `▁firef ly`. sentencepiece cannot tell these two apart, since a piece does not say where its word ends.
"""

from __future__ import annotations

import functools
import io
import re
import shlex
import shutil
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Union

from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.io import check_is_file
from embinit_fairseq.vocab.codes import codes_text
from embinit_fairseq.vocab.dictionary import Vocabulary
from embinit_fairseq.vocab.tokens import CONTINUES, PREFIX, detect_style, parse

#: files that `write` may make
SEGMENTATION_FILES = ("bpe.codes", "glossary.txt", "sentencepiece.model")
#: share of a dictionary's subwords that its segmenter can make at least: its own nearly all, one learned on other text
#: of the same language two thirds
_LEAST_MADE = 0.8
#: if several segmenters made one dictionary: share of a segmenter's subwords that are in it at least (measured 0.93, of
#: another language 0.43), and share of the dictionary's text that the segmenter can make at least (0.56)
_LEAST_USED, _LEAST_TEXT = 0.9, 0.4
_INITIAL = PREFIX["sentencepiece"]

# ---- subword-nmt ----------------------------------------------------------------------------------------------------

_ARGUMENT = 128 * 1024 - 1  #: bytes of one argument of a command (Linux)


class SubwordNmt:
    """BPE codes and the words that stay whole.

    Args:
        path: the codes.
        whole: words that are never segmented; None: those that an earlier expansion wrote next to the codes.
        flag: option that names the codes, for messages.
    """

    kind = "subword-nmt"

    def __init__(self, path: str, whole: Collection[str] | None = None, flag: str = "--bpe-codes") -> None:
        self.path, self.flag = path, flag
        self.whole = list(_read_glossary(Path(path).with_name(SEGMENTATION_FILES[1])) if whole is None else whole)
        self._codes = codes_text(path, flag)
        self._bpe = _bpe(self._codes, glossary(self.whole) if self.whole else None)

    def for_dictionary(self, symbols: Collection[str]) -> SubwordNmt:
        """Return the segmentation without whole words that a dictionary lacks: they are the other side's."""
        return SubwordNmt(self.path, [word for word in self.whole if word in symbols])

    def cut(self, text: str) -> list[str]:
        """Segment a sentence."""
        return self._bpe.process_line(text).split()

    def pieces(self, word: str) -> list[str]:
        """Segment a symbol; empty for one that ends with @@, which is not a whole word."""
        return [] if word.endswith(CONTINUES) else self.cut(word)

    def joined(self, pieces: Sequence[str]) -> str:
        """Spell subwords as one; the mark at the end stays."""
        return " ".join(pieces).replace(f"{CONTINUES} ", "")

    def makes(self, symbol: str) -> bool:
        """Return True if the symbol can be a subword of a text."""
        return symbol in self.made or symbol in self.whole

    def is_unknown(self, symbol: str) -> bool:
        """Return False: unknown characters are single symbols here."""
        return False

    @functools.cached_property
    def made(self) -> set[str]:
        """The subwords that the codes join."""
        merged = {"".join(pair) for pair in self._bpe.bpe_codes}
        ends = {text.removesuffix("</w>") for text in merged if text.endswith("</w>") or self._bpe.version == (0, 1)}
        return ends | {text + CONTINUES for text in merged if not text.endswith("</w>")}

    def obstacle(self, word: str) -> str | None:
        """Return why a new word cannot be reached, with a remedy; None if it can."""
        if "\0" in word:
            return "no argument of a command has a null character, and the glossary is one; leave it out"
        goes_on = f"it ends with {CONTINUES}, which is no whole word; write one, or leave it out"
        return goes_on if word.endswith(CONTINUES) else None

    def as_text(self, symbol: str) -> str:
        """Return a symbol as text has it."""
        return symbol

    def is_alone(self, pieces: Sequence[str], at: int) -> bool:
        """Return True if the word `pieces[at]` is not a part of a longer one."""
        return at == 0 or not pieces[at - 1].endswith(CONTINUES)

    def write(self, words: Sequence[str], folder: Path) -> SubwordNmt:
        """Write the segmentation that keeps `words` whole, too; raise DataError for more than a command line takes."""
        expression = glossary([*self.whole, *words])
        if (size := len(expression.encode())) > _ARGUMENT:
            raise DataError(
                f"--words: a glossary of {size:,} bytes, but apply-bpe takes it as an argument, which has at most "
                f"{_ARGUMENT:,}; add fewer words, or leave {self.flag} out and segment the text by other means"
            )
        (folder / SEGMENTATION_FILES[0]).write_bytes(self._codes.encode("utf-8"))
        (folder / SEGMENTATION_FILES[1]).write_text(f"{expression}\n", encoding="utf-8")
        return SubwordNmt(str(folder / SEGMENTATION_FILES[0]))

    def command(self, folder: str) -> str:
        """Return the shell command that segments a text with the files in `folder`."""
        codes, words = (shlex.quote(str(Path(folder) / name)) for name in SEGMENTATION_FILES[:2])
        return f'subword-nmt apply-bpe --codes {codes} --glossaries "$(cat {words})" < TEXT > PIECES'


def read_codes(path: str, flag: str = "--bpe-codes", glossary: str | None = None) -> Any:
    """Return subword-nmt's BPE for a file of codes (see `codes_text`).

    Args:
        path: the codes.
        flag: option that names them, for messages.
        glossary: regular expression of what is not segmented.
    """
    return _bpe(codes_text(path, flag), glossary)


def _bpe(codes: str, glossary: str | None) -> Any:
    from subword_nmt.apply_bpe import BPE

    return BPE(io.StringIO(codes), glossaries=[glossary] if glossary else None)


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
_NORMAL, _UNUSED = 1, 5  #: types of pieces; an unused one can be merged further, but is taken apart in the end
_UNKNOWN = 10.0  #: what a unigram model takes off its lowest score for an unknown character
_TRACE = 0.02  #: of a score: far above the rounding of a sentence's sum, far below the differences of segmentations
#: spm_encode for those who have sentencepiece from a wheel, which has no programs
_SPM_ENCODE = """import sys, sentencepiece
cut = sentencepiece.SentencePieceProcessor(model_file=sys.argv[1]).encode
for line in open(0, encoding="utf-8", newline="\\n"): print(*cut(line.rstrip("\\n"), out_type=str))"""


class Sentencepiece:
    """A model of sentencepiece.

    Args:
        path: its file.
        flag: option that names it, for messages.
    """

    kind = "sentencepiece"

    def __init__(self, path: str, flag: str = "--sentencepiece-model") -> None:
        self.path, self.flag = path, flag
        self._content = _read_model(path, flag)
        self._processor = _processor(self._content, f"{flag} {path}")
        self._type = _model_type(self._content)
        self._kind_of = functools.cache(self._look_up)
        # segments symbols: no space is added at the beginning, and none is removed
        as_it_is = _field(_NORMALISER, bytes([3 << 3, 0, 4 << 3, 0]))  # add_dummy_prefix, remove_extra_whitespaces
        self._of_symbols = _processor(_without_test(self._content) + as_it_is, path)

    def for_dictionary(self, symbols: Collection[str]) -> Sentencepiece:
        """Return the same segmentation: a model knows its words."""
        return self

    def cut(self, text: str) -> list[str]:
        """Segment a sentence; unknown text, also as bytes, becomes single characters."""
        return self._characters(self._processor.encode(text, out_type=str))

    def pieces(self, word: str) -> list[str]:
        """Segment a symbol."""
        return self._of_symbols.encode(word.replace(_INITIAL, " "), out_type=str)

    def joined(self, pieces: Sequence[str]) -> str:
        """Spell subwords as one."""
        return "".join(pieces)

    def makes(self, symbol: str) -> bool:
        """Return True if the symbol is a piece."""
        return not self._processor.is_unknown(self._processor.piece_to_id(symbol))

    def is_unknown(self, symbol: str) -> bool:
        """Return True for a run of characters that the model does not know, which it leaves as one piece."""
        return self._type != _WORDS and not self.makes(symbol) and self.pieces(symbol) == [symbol]

    @functools.cached_property
    def made(self) -> set[str]:
        """The pieces that text can have, except bytes."""
        of = self._processor
        no_text = (of.is_unknown, of.is_control, of.is_unused, of.is_byte)
        return {of.id_to_piece(row) for row in range(len(of)) if not any(holds(row) for holds in no_text)}

    def obstacle(self, word: str) -> str | None:
        """Return why a new word cannot be reached, with a remedy; None if it can."""
        if self._type == _CHARACTERS:
            return f"{self.path} is a model of characters, which has no words; leave {self.flag} out"
        spelled = "".join(self._characters(self.pieces(word)))
        if spelled == word:
            return None
        remedy = f"makes {spelled!r} of it; write that, or leave it out" if spelled else "removes it; leave it out"
        return f"the normaliser of {self.path} {remedy}"

    def as_text(self, symbol: str) -> str:
        """Return a symbol as text has it."""
        return symbol.replace(_INITIAL, " ").strip()

    def is_alone(self, pieces: Sequence[str], at: int) -> bool:
        """Return True if no longer word begins with the word `pieces[at]`."""
        after = pieces[at + 1 : at + 2]
        return not pieces[at].startswith(_INITIAL) or not after or not after[0][0].isalnum()

    def write(self, words: Sequence[str], folder: Path) -> Sentencepiece:
        """Write the model with these words, too."""
        new = [word for word in words if not self.makes(word)]
        rows = {_UNIGRAM: self._scored, _BPE: self._merged}.get(self._type, _unscored)(new)
        pieces = b"".join(_field(_PIECES, _piece(*row)) for row in rows)
        (folder / SEGMENTATION_FILES[2]).write_bytes(_without_test(self._content) + pieces)
        return Sentencepiece(str(folder / SEGMENTATION_FILES[2]))

    def command(self, folder: str) -> str:
        """Return the shell command that segments a text with the model in `folder`."""
        model = shlex.quote(str(Path(folder) / SEGMENTATION_FILES[2]))
        if shutil.which("spm_encode"):
            return f"spm_encode --model={model} --output_format=piece < TEXT > PIECES"
        return f"python -c {shlex.quote(_SPM_ENCODE)} {model} < TEXT > PIECES"

    def _scored(self, words: list[str]) -> Iterator[tuple[str, float, int]]:
        """Yield pieces of a unigram model. More joined pieces have a larger trace, so that the longest word wins."""
        for word in words:
            parts = self._characters(self.pieces(word))
            yield word, sum(map(self._score, parts)) + _TRACE * (2 * len(parts) - 1), _NORMAL

    def _score(self, piece: str) -> float:
        row = self._processor.piece_to_id(piece)
        return self._processor.get_score(row) if self.makes(piece) else self._lowest - _UNKNOWN

    @functools.cached_property
    def _lowest(self) -> float:
        return min(map(self._processor.get_score, range(self._processor.get_piece_size())))

    def _merged(self, words: list[str]) -> Iterator[tuple[str, float, int]]:
        """Yield pieces of a BPE model: those of a word are joined from the left, after all old merges."""
        score, made = self._lowest, set(words)
        for word in words:
            parts = self._characters(self.pieces(word))
            between = ["".join(parts[:end]) for end in range(2, len(parts))]
            for text in [text for text in between if text not in made and not self.makes(text)]:
                made.add(text)
                yield text, (score := score - 1), _UNUSED
            yield word, (score := score - 1), _NORMAL

    def _characters(self, pieces: Iterable[str]) -> list[str]:
        """Return pieces with runs of unknown characters and of bytes as single characters."""
        characters: list[str] = []
        run = b""
        for piece in pieces:
            kind = self._kind_of(piece)
            if kind == "byte":
                run += bytes([int(piece[3:-1], 16)])  # <0xE6>
                continue
            characters += [*run.decode("utf-8", "replace"), *(piece if kind == "unknown" else [piece])]
            run = b""
        return [*characters, *run.decode("utf-8", "replace")]

    def _look_up(self, piece: str) -> str:
        row = self._processor.piece_to_id(piece)
        return "unknown" if self._processor.is_unknown(row) else "byte" if self._processor.is_byte(row) else "piece"


def _unscored(words: list[str]) -> Iterator[tuple[str, float, int]]:
    """Yield pieces of a model of words, in which the words of its list are pieces."""
    return ((word, 0.0, _NORMAL) for word in words)


def _read_model(path: str, flag: str) -> bytes:
    check_is_file(path, flag)
    return Path(path).read_bytes()


def _processor(model: bytes, where: str) -> Any:
    try:
        import sentencepiece
    except ImportError as cause:
        raise DataError(f"{where}: reading it needs a package: pip install sentencepiece") from cause
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
    except Exception as cause:  # damaged models raise RuntimeError, TypeError and others
        raise DataError(f"{where}: not a sentencepiece model ({cause}); give another file, or copy it again") from cause
    return processor


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


def _model_type(model: bytes) -> int:
    kind = _UNIGRAM
    for options in (value for number, value, _ in _fields(model) if number == _TRAINER):
        kind = next((value for number, value, _ in _fields(options) if number == _MODEL_TYPE), kind)
    return kind


def _without_test(model: bytes) -> bytes:
    """Return a model without the sentences that are tried when it is loaded; new words may change them."""
    return b"".join(field for number, _, field in _fields(model) if number != _SELF_TEST)


# ---- both -----------------------------------------------------------------------------------------------------------

Segmentation = Union[SubwordNmt, Sentencepiece]


def read_segmentation(
    bpe_codes: str | None,
    sentencepiece_model: str | None,
    flags: tuple[str, str] = ("--bpe-codes", "--sentencepiece-model"),
) -> Segmentation | None:
    """Return the segmentation of the file that is given, or None; raise OptionError if both are given."""
    if bpe_codes is not None and sentencepiece_model is not None:
        raise OptionError(f"{flags[0]} and {flags[1]}: give the one that the dictionary was made with")
    if bpe_codes is not None:
        return SubwordNmt(bpe_codes, flag=flags[0])
    return None if sentencepiece_model is None else Sentencepiece(sentencepiece_model, flags[1])


def text_symbols(vocabulary: Vocabulary) -> list[str]:
    """Return the symbols of a dictionary that stand for text."""
    return [symbol for symbol, regular in zip(vocabulary.symbols, vocabulary.regular) if regular]


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

    def longer(pieces: Iterable[str]) -> list[str]:
        return [piece for piece in pieces if len(parse(piece, style).surface) > 1]  # characters are everywhere

    tried, able = longer(symbols), longer(segmentation.made)
    made = [symbol for symbol in tried if segmentation.makes(symbol)]
    unknown = sum(map(segmentation.is_unknown, tried))
    share = len(made) / (len(tried) - unknown) if len(tried) > unknown else 1.0
    text = sum(counts[symbol] for symbol in made) / sum(counts[symbol] for symbol in tried) if tried else 1.0
    used = sum(piece in counts for piece in able) / len(able) if able else 1.0
    if text < _LEAST_TEXT or (share < _LEAST_MADE and used < _LEAST_USED):
        raise DataError(
            f"{where}: can make only {len(made) / len(tried):.0%} of the pieces in --dict {dictionary}, which are "
            f"{text:.0%} of its text; give the file that its text was segmented with, or leave {segmentation.flag} out"
        )
