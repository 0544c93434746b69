"""The segmentation that belongs to a grown dictionary: subword-nmt and sentencepiece, each with the new words whole.

A word that no segmenter produces is not in the vocabulary: the codes of the old text cut it into old pieces. So the
segmentation is written with the dictionary, read back, and looked at: is every new word reachable, and is old text cut
as before where none of them stands?

subword-nmt   The codes stay, and the words go into a glossary. `apply-bpe --glossaries` takes regular expressions and
              isolates what they match inside longer words, too (`cat` in `category`); one that is anchored at both ends
              matches whole words only. Further merges would not do: they join the ends of longer words, too.
sentencepiece The words are pieces behind the old ones, whose numbers stay. As *user-defined* pieces they would be cut
              out wherever they are found, also at the beginning of longer words (`▁pla te`). Here they are ordinary
              ones that join what the old model has cut: in a unigram model with the score of its best cut of the word
              and a trace more, in a BPE model by merges behind all old ones. So a longer word differs only where it had
              been cut just behind the new one: `▁fire f ly` with the new word `▁firef` becomes `▁firef ly`. No model of
              sentencepiece can tell these two apart: a piece does not say where its word ends.
"""

from __future__ import annotations

import functools
import io
import re
import shlex
import shutil
import struct
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Union

from embinit_fairseq.bounded import read_bytes, read_lines
from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.expand.request import NewWord
from embinit_fairseq.vectors.hf_vocab import load_sentencepiece
from embinit_fairseq.vocab.codes import codes_text
from embinit_fairseq.vocab.dictionary import Vocabulary
from embinit_fairseq.vocab.text import check_not_segmented, check_tokens
from embinit_fairseq.vocab.tokens import detect_style, parse

#: what a segmentation may write beside the dictionary
SEGMENTATION_FILES = ("bpe.codes", "glossary.txt", "sentencepiece.model")
#: share of a dictionary's pieces that a segmenter makes at least: its own nearly all, one learned on other text of the
#: same language two thirds
_LEAST_MADE = 0.8
#: where several segmenters made one dictionary: what it has at least of the pieces of each (measured 0.93, of another
#: language 0.43), and share of its text that each makes (0.56)
_LEAST_USED, _LEAST_TEXT = 0.9, 0.4
_CONTINUES, _INITIAL = "@@", "▁"  # subword-nmt: the word goes on; sentencepiece: here one begins

# ---- subword-nmt -----------------------------------------------------------------------------------------------------

_ARGUMENT = 128 * 1024 - 1  # bytes of one argument of a command (Linux)


class SubwordNmt:
    """BPE codes, and the words that stay whole. path: of the codes."""

    kind = "subword-nmt"

    def __init__(self, path: str, whole: Collection[str] | None = None, flag: str = "--bpe-codes") -> None:
        """whole: None for what an earlier expansion wrote beside the codes (glossary.txt). flag: for messages."""
        self.path, self.flag = path, flag
        self.whole = list(_read_glossary(Path(path).with_name(SEGMENTATION_FILES[1])) if whole is None else whole)
        self._codes = codes_text(path, flag)
        self._bpe = _bpe(self._codes, glossary(self.whole) if self.whole else None)

    def for_dictionary(self, symbols: Collection[str]) -> SubwordNmt:
        """Without words of another dictionary, which an earlier expansion may have had (the other side's)."""
        return SubwordNmt(self.path, [word for word in self.whole if word in symbols])

    def cut(self, text: str) -> list[str]:
        """The pieces of a sentence."""
        return self._bpe.process_line(text).split()

    def pieces(self, word: str) -> list[str]:
        """Of a symbol; none for what ends with @@: that is no whole word, and codes say nothing about it."""
        return [] if word.endswith(_CONTINUES) else self.cut(word)

    def joined(self, pieces: Sequence[str]) -> str:
        """What pieces spell together; one that goes on keeps its mark at the end."""
        return " ".join(pieces).replace(f"{_CONTINUES} ", "")

    def makes(self, symbol: str) -> bool:
        """Can it be a piece of anything?"""
        return symbol in self.made or symbol in self.whole

    def is_unknown(self, symbol: str) -> bool:
        """Return False: unknown characters are single symbols here."""
        return False

    @functools.cached_property
    def made(self) -> set[str]:
        """The pieces that the codes join."""
        merged = {"".join(pair) for pair in self._bpe.bpe_codes}
        ends = {text.removesuffix("</w>") for text in merged if text.endswith("</w>") or self._bpe.version == (0, 1)}
        return ends | {text + _CONTINUES for text in merged if not text.endswith("</w>")}

    def obstacle(self, word: str) -> str | None:
        """Why the word cannot be reached, and what to do."""
        if "\0" in word:
            return "no argument of a command has a null character, and the glossary is one; leave it out"
        goes_on = f"it ends with {_CONTINUES}, which is no whole word; write one, or leave it out"
        return goes_on if word.endswith(_CONTINUES) else None

    def as_text(self, symbol: str) -> str:
        """How it stands in a text."""
        return symbol

    def is_alone(self, pieces: Sequence[str], at: int) -> bool:
        """Is the word at this place no part of a longer one?"""
        return at == 0 or not pieces[at - 1].endswith(_CONTINUES)

    def write(self, words: Sequence[str], folder: Path) -> SubwordNmt:
        """The segmentation with these words, too. Raises DataError for more than a command line takes."""
        expression = glossary([*self.whole, *words])
        if (size := len(expression.encode())) > _ARGUMENT:
            raise DataError(
                f"--words: a glossary of {size:,} bytes, but apply-bpe takes it as an argument, which has at most "
                f"{_ARGUMENT:,}; add fewer words, or leave {self.flag} out and cut the text by other means"
            )
        (folder / SEGMENTATION_FILES[0]).write_bytes(self._codes.encode("utf-8"))
        (folder / SEGMENTATION_FILES[1]).write_text(f"{expression}\n", encoding="utf-8")
        return SubwordNmt(str(folder / SEGMENTATION_FILES[0]))

    def command(self, folder: str) -> str:
        """That cuts a text, for a shell. folder: where the files are."""
        codes, words = (shlex.quote(str(Path(folder) / name)) for name in SEGMENTATION_FILES[:2])
        return f'subword-nmt apply-bpe --codes {codes} --glossaries "$(cat {words})" < TEXT > PIECES'


def read_codes(path: str, flag: str = "--bpe-codes", glossary: str | None = None) -> Any:
    """Return subword-nmt's BPE of a file of codes (see `codes_text`).

    flag: what names the file, for messages. glossary: a regular expression of what is not cut.
    """
    return _bpe(codes_text(path, flag), glossary)


def _bpe(codes: str, glossary: str | None) -> Any:
    from subword_nmt.apply_bpe import BPE

    return BPE(io.StringIO(codes), glossaries=[glossary] if glossary else None)


def glossary(words: Iterable[str]) -> str:
    """A regular expression for --glossaries that matches these words and nothing inside longer ones."""
    return f"^(?:{'|'.join(map(re.escape, words))})$"


def _read_glossary(path: Path) -> list[str]:
    """The words of a glossary that `SubwordNmt.write` wrote; none if there is no file."""
    if not path.exists():
        return []
    text = read_bytes(path, DataError, _ARGUMENT + 1).decode("utf-8", "replace").strip()
    words = [re.sub(r"\\(.)", r"\1", word) for word in re.findall(r"(?:\\.|[^\\|])+", text[4:-2])]
    if glossary(words) != text:
        raise DataError(
            f"{path}: lies beside --bpe-codes, but is not what expand-vocab writes; move it, or copy the codes to "
            "another folder"
        )
    return words


# ---- sentencepiece ---------------------------------------------------------------------------------------------------
# Its model is a message of protobuf. Classes for it need the package protobuf, which sentencepiece does not bring; but
# messages that stand one behind the other are one message, so that pieces and options can be appended.

_PIECES, _TRAINER, _NORMALISER, _SELF_TEST = 1, 2, 3, 4  # fields of the model
_MODEL_TYPE = 3  # of the trainer's options
_UNIGRAM, _BPE, _WORDS, _CHARACTERS = 1, 2, 3, 4
_NORMAL, _UNUSED = 1, 5  # types of pieces; an unused one can be merged further, but is taken apart in the end
_UNKNOWN = 10.0  # what a unigram model takes off its lowest score for an unknown character
_TRACE = 0.02  # of a score: far above the rounding of a sentence's sum, far below what cuts differ by
# spm_encode for those who have sentencepiece from a wheel, which brings no programs
_SPM_ENCODE = """import sys, sentencepiece
cut = sentencepiece.SentencePieceProcessor(model_file=sys.argv[1]).encode
for line in open(0, encoding="utf-8", newline="\\n"): print(*cut(line.rstrip("\\n"), out_type=str))"""


class Sentencepiece:
    """A model of sentencepiece. path: of its file."""

    kind = "sentencepiece"

    def __init__(self, path: str, flag: str = "--sentencepiece-model") -> None:
        """flag: for messages."""
        self.path, self.flag = path, flag
        self._processor = load_sentencepiece(path, DataError, flag)
        self._content = Path(path).read_bytes()
        self._type = _model_type(self._content)
        self._kind_of = functools.cache(self._look_up)
        # cuts symbols: no blank is put in front and none is taken off
        as_it_is = _field(_NORMALISER, bytes([3 << 3, 0, 4 << 3, 0]))  # add_dummy_prefix, remove_extra_whitespaces
        self._of_symbols = type(self._processor)()
        self._of_symbols.LoadFromSerializedProto(_without_test(self._content) + as_it_is)

    def for_dictionary(self, symbols: Collection[str]) -> Sentencepiece:
        """The same: it knows its words."""
        return self

    def cut(self, text: str) -> list[str]:
        """The pieces of a sentence; what is unknown, also as bytes, character by character."""
        return self._characters(self._processor.encode(text, out_type=str))

    def pieces(self, word: str) -> list[str]:
        """Of a symbol."""
        return self._of_symbols.encode(word.replace(_INITIAL, " "), out_type=str)

    def joined(self, pieces: Sequence[str]) -> str:
        """What pieces spell together."""
        return "".join(pieces)

    def makes(self, symbol: str) -> bool:
        """Is it a piece?"""
        return not self._processor.is_unknown(self._processor.piece_to_id(symbol))

    def is_unknown(self, symbol: str) -> bool:
        """Return True for a run of characters that the model does not know, which it leaves as one piece."""
        return self._type != _WORDS and not self.makes(symbol) and self.pieces(symbol) == [symbol]

    @functools.cached_property
    def made(self) -> set[str]:
        """The pieces that text can have, but for bytes."""
        of = self._processor
        no_text = (of.is_unknown, of.is_control, of.is_unused, of.is_byte)
        return {of.id_to_piece(row) for row in range(len(of)) if not any(holds(row) for holds in no_text)}

    def obstacle(self, word: str) -> str | None:
        """Why the word cannot be reached, and what to do."""
        if self._type == _CHARACTERS:
            return f"{self.path} is a model of characters, which has no words; leave {self.flag} out"
        found = "".join(self._characters(self.pieces(word)))
        if found == word:
            return None
        remedy = f"makes {found!r} of it; write that, or leave it out" if found else "removes it; leave it out"
        return f"the normaliser of {self.path} {remedy}"

    def as_text(self, symbol: str) -> str:
        """How it stands in a text."""
        return symbol.replace(_INITIAL, " ").strip()

    def is_alone(self, pieces: Sequence[str], at: int) -> bool:
        """Does no longer word begin with the word at this place?"""
        behind = pieces[at + 1 : at + 2]
        return not pieces[at].startswith(_INITIAL) or not behind or not behind[0][0].isalnum()

    def write(self, words: Sequence[str], folder: Path) -> Sentencepiece:
        """The segmentation with these words, too."""
        new = [word for word in words if not self.makes(word)]
        found = {_UNIGRAM: self._scored, _BPE: self._merged}.get(self._type, _unscored)(new)
        pieces = b"".join(_field(_PIECES, _piece(*each)) for each in found)
        (folder / SEGMENTATION_FILES[2]).write_bytes(_without_test(self._content) + pieces)
        return Sentencepiece(str(folder / SEGMENTATION_FILES[2]))

    def command(self, folder: str) -> str:
        """That cuts a text, for a shell. folder: where the file is."""
        model = shlex.quote(str(Path(folder) / SEGMENTATION_FILES[2]))
        if shutil.which("spm_encode"):
            return f"spm_encode --model={model} --output_format=piece < TEXT > PIECES"
        return f"python -c {shlex.quote(_SPM_ENCODE)} {model} < TEXT > PIECES"

    def _scored(self, words: list[str]) -> Iterator[tuple[str, float, int]]:
        """Of a unigram model. The more pieces a word joins the larger its trace, so that the longest word wins."""
        for word in words:
            parts = self._characters(self.pieces(word))
            yield word, sum(map(self._score, parts)) + _TRACE * (2 * len(parts) - 1), _NORMAL

    def _score(self, piece: str) -> float:
        known = self.makes(piece)
        return self._processor.get_score(self._processor.piece_to_id(piece)) if known else self._lowest - _UNKNOWN

    @functools.cached_property
    def _lowest(self) -> float:
        return min(map(self._processor.get_score, range(self._processor.get_piece_size())))

    def _merged(self, words: list[str]) -> Iterator[tuple[str, float, int]]:
        """Of a BPE model: the pieces of a word are joined from the left, after all merges that there were."""
        score, made = self._lowest, set(words)
        for word in words:
            parts = self._characters(self.pieces(word))
            between = ["".join(parts[:end]) for end in range(2, len(parts))]
            for text in [text for text in between if text not in made and not self.makes(text)]:
                made.add(text)
                yield text, (score := score - 1), _UNUSED
            yield word, (score := score - 1), _NORMAL

    def _characters(self, pieces: Iterable[str]) -> list[str]:
        """Pieces with runs of unknown characters and of bytes as single characters."""
        found: list[str] = []
        run = b""
        for piece in pieces:
            kind = self._kind_of(piece)
            if kind == "byte":
                run += bytes([int(piece[3:-1], 16)])  # <0xE6>
                continue
            found += [*run.decode("utf-8", "replace"), *(piece if kind == "unknown" else [piece])]
            run = b""
        return [*found, *run.decode("utf-8", "replace")]

    def _look_up(self, piece: str) -> str:
        row = self._processor.piece_to_id(piece)
        return "unknown" if self._processor.is_unknown(row) else "byte" if self._processor.is_byte(row) else "piece"


def _unscored(words: list[str]) -> Iterator[tuple[str, float, int]]:
    """Of a model of words: what is in its list is one."""
    return ((word, 0.0, _NORMAL) for word in words)


def _piece(text: str, score: float, kind: int) -> bytes:
    """SentencePiece: piece, score, type."""
    return _field(1, text.encode("utf-8")) + b"\x15" + struct.pack("<f", score) + bytes([3 << 3, kind])


def _field(number: int, content: bytes) -> bytes:
    """Of a message: a field that holds bytes, text or another message."""
    size, count = b"", len(content)
    while count > 127:
        size, count = size + bytes([count & 127 | 128]), count >> 7
    return bytes([number << 3 | 2]) + size + bytes([count]) + content


def _fields(message: bytes) -> Iterator[tuple[int, Any, bytes]]:
    """(number, value, the bytes of the field) of a message that sentencepiece has read."""

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


def _model_type(content: bytes) -> int:
    found = _UNIGRAM
    for options in (value for number, value, _ in _fields(content) if number == _TRAINER):
        found = next((value for number, value, _ in _fields(options) if number == _MODEL_TYPE), found)
    return found


def _without_test(content: bytes) -> bytes:
    """Without the sentences that some models are tried with when they are loaded: new words may be cut otherwise."""
    return b"".join(field for number, _, field in _fields(content) if number != _SELF_TEST)


# ---- both ------------------------------------------------------------------------------------------------------------

Segmentation = Union[SubwordNmt, Sentencepiece]


def read_segmentation(
    bpe_codes: str | None,
    sentencepiece_model: str | None,
    flags: tuple[str, str] = ("--bpe-codes", "--sentencepiece-model"),
) -> Segmentation | None:
    """How text is cut; None if no file is given. OptionError for both, DataError for a bad one."""
    if bpe_codes is not None and sentencepiece_model is not None:
        raise OptionError(f"{flags[0]} and {flags[1]}: give the one that the dictionary was made with")
    if bpe_codes is not None:
        return SubwordNmt(bpe_codes, flag=flags[0])
    return None if sentencepiece_model is None else Sentencepiece(sentencepiece_model, flags[1])


def symbols_of(vocabulary: Vocabulary) -> list[str]:
    """Those that stand for text."""
    return [symbol for symbol, regular in zip(vocabulary.symbols, vocabulary.regular) if regular]


def check_segmentation(
    segmentation: Segmentation, vocabulary: Vocabulary, dictionary: str, path: str = "", words: Sequence[NewWord] = ()
) -> None:
    """Raise DataError unless a segmentation can have made a dictionary, and can make new words a piece.

    dictionary, path: the files of dictionary and words. The segmentation has made the dictionary alone, or with others
    (one dictionary of two languages that were segmented apart). Runs of unknown characters do not speak against it,
    unless they are most of the text: then it is of another script.
    """
    symbols = symbols_of(vocabulary)
    style, counts = detect_style(symbols), dict(zip(vocabulary.symbols, vocabulary.counts.clip(min=1).tolist()))
    where = f"{segmentation.flag} {segmentation.path}"
    if isinstance(segmentation, SubwordNmt) and style != "subword_nmt":
        raise DataError(
            f"{where}: no piece in --dict {dictionary} ends with {_CONTINUES}, so that its text was not cut with codes "
            f"of subword-nmt; leave {segmentation.flag} out"
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
            f"{text:.0%} of its text; give the file that its text was cut with, or leave {segmentation.flag} out"
        )
    for word in words:
        if (obstacle := segmentation.obstacle(word.text)) is not None:
            raise DataError(f"{path}:{word.line}: {word.text!r} cannot be reached: {obstacle}")


def write_segmentation(
    segmentation: Segmentation, words: Sequence[str], symbols: Sequence[str], texts: Sequence[str], folder: Path
) -> dict[str, Any]:
    """Write the segmentation with the new words to `folder`, read it back and look at it; returns the record.

    symbols: that the dictionary had for text. texts: files of old text. Raises DataError for one that is cut
    already, or for a sentence that is cut otherwise where no new word stands.
    """
    new = segmentation.write(words, folder)
    around = next((new.as_text(symbol) for symbol in symbols if is_reachable(new, symbol, "")), "")
    missed = {word: new.cut(new.as_text(word)) for word in words if not is_reachable(new, word, around)}
    record = {
        "kind": new.kind,
        "files": [name for name in SEGMENTATION_FILES if (folder / name).exists()],
        "reachable": len(words) - len(missed),
        "unreachable": missed,
    }
    return {**record, "text": compare(segmentation, new, words, texts, symbols)} if texts else record


def is_reachable(segmentation: Segmentation, word: str, around: str) -> bool:
    """Is the word cut as one piece, alone and between two others?"""
    alone = segmentation.cut(segmentation.as_text(word))
    beside = segmentation.cut(around)
    sentence = segmentation.cut(f"{around} {segmentation.as_text(word)} {around}")
    return alone in ([word], [_INITIAL, word]) and sentence == [*beside, *alone, *beside]


def compare(
    old: Segmentation, new: Segmentation, words: Collection[str], texts: Sequence[str], symbols: Collection[str]
) -> dict[str, Any]:
    """Cut the sentences of texts with both; DataError for one that differs where no new word stands."""
    words, sentences, changed, inside = frozenset(words), 0, 0, Counter[str]()
    counts = {"before": Counter[str](), "after": Counter[str]()}
    for path in texts:
        check_not_segmented("--segment-text", path)
        for number, line in read_lines(path, DataError, "--segment-text"):
            before, after = old.cut(line), new.cut(line)
            sentences, changed = sentences + bool(before), changed + (before != after)
            if before != after and not only_joined(before, after, words, old):
                raise DataError(
                    f"--segment-text {path}:{number}: cut otherwise where no new word stands, {' '.join(before)!r} now "
                    f"{' '.join(after)!r}; leave out the word that does it"
                )
            counts["before"].update(before)
            counts["after"].update(after)
            inside.update(after[at] for at, piece in enumerate(after) if piece in words and not new.is_alone(after, at))
    if not sentences:
        raise DataError(f"--segment-text {texts[0]}: no sentence in it; give a text as it is before it is cut")
    return {
        "files": list(texts),
        "sentences": sentences,
        "known": check_tokens(f"--segment-text {' '.join(texts)}", counts["before"], {*symbols}),
        "changed": changed,
        **{name: {piece: n for piece, n in count.items() if piece in words} for name, count in counts.items()},
        "inside_longer_words": dict(inside),
    }


def only_joined(before: Sequence[str], after: Sequence[str], words: Collection[str], how: Segmentation) -> bool:
    """Is `after` what `before` is when some of its pieces are joined into new words?"""
    at = 0
    for piece in after:
        if list(before[at : at + 1]) == [piece]:
            at += 1
            continue
        ends = range(at + 1, at + len(piece) + 1) if piece in words else ()
        joined = next((end for end in ends if how.joined(before[at:end]) == piece), None)
        if joined is None:
            return False
        at = joined
    return at == len(before)
