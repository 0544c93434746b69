"""The list of new words, one a line, and how they are cut into pieces that a dictionary has."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from embinit_fairseq.errors import DataError, OptionError

#: word -> its pieces
Segmenter = Callable[[str], list[str]]
_FILLER = re.compile(r"madeupword\d{4,}$")
_INITIAL, _CONTINUES = "▁", "@@"  # sentencepiece: here a word begins; subword-nmt: it goes on


@dataclass(frozen=True)
class NewWord:
    """One line of the list. pieces: empty if the line has none."""

    text: str
    line: int
    pieces: tuple[str, ...] = ()


def read_words(path: str, symbols: Collection[str]) -> list[NewWord]:
    """Read `word` or `word<TAB>piece piece ...` a line; empty lines are skipped.

    symbols: of the dictionary, and those that the task appends. Raises DataError naming file and line for a word that
    is there already, stands twice, or cannot be a symbol of a dictionary.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"--words {path}: not UTF-8 at byte {error.start}; convert it (iconv -t utf-8)") from error
    except OSError as error:
        raise DataError(f"--words {path}: cannot be read ({error.strerror}); check the path") from error
    words: dict[str, NewWord] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        word, _, pieces = line.partition("\t")
        word = word.strip()
        _check(path, number, word, symbols)
        if word in words:
            raise DataError(f"{path}:{number}: {word!r} stands in line {words[word].line} already; remove one of them")
        words[word] = NewWord(word, number, tuple(pieces.split()))
    if not words:
        raise DataError(f"--words {path}: no word in it; write one new word a line")
    return list(words.values())


def _check(path: str, number: int, word: str, symbols: Collection[str]) -> None:
    if word in symbols:
        raise DataError(f"{path}:{number}: the dictionary has {word!r} already; remove the line")
    if word.split() != [word]:
        raise DataError(
            f"{path}:{number}: {word!r} is not one word; write one a line, and behind a tab its pieces if you like"
        )
    if _FILLER.match(word):
        raise DataError(f"{path}:{number}: {word!r} is what fairseq calls rows without a meaning; choose another name")


def segmenter(bpe_codes: str | None, sentencepiece_model: str | None) -> Segmenter | None:
    """How words without pieces are cut; None if no file is given. OptionError for both, DataError for a bad one."""
    if bpe_codes is not None and sentencepiece_model is not None:
        raise OptionError("--bpe-codes and --sentencepiece-model: give the one that the dictionary was made with")
    if bpe_codes is not None:
        return _subword_nmt(bpe_codes)
    return None if sentencepiece_model is None else _sentencepiece(sentencepiece_model)


def _subword_nmt(path: str) -> Segmenter:
    from subword_nmt.apply_bpe import BPE

    try:
        with open(path, encoding="utf-8") as codes:
            bpe = BPE(codes)
    except OSError as error:
        raise DataError(f"--bpe-codes {path}: cannot be read ({error.strerror}); check the path") from error
    except (ValueError, SystemExit) as error:  # it leaves the program when a line has not two parts
        raise DataError(f"--bpe-codes {path}: not the codes of subword-nmt (learn-bpe)") from error
    # what ends with @@ is no whole word, and codes say nothing about it
    return lambda word: [] if word.endswith(_CONTINUES) else bpe.segment_tokens([word])


def _sentencepiece(path: str) -> Segmenter:
    import sentencepiece

    try:
        processor = sentencepiece.SentencePieceProcessor(model_file=path)
    except (OSError, RuntimeError) as error:
        raise DataError(f"--sentencepiece-model {path}: cannot be read as a model of sentencepiece") from error

    def pieces(word: str) -> list[str]:
        found = processor.encode(word.removeprefix(_INITIAL), out_type=str)
        if not word.startswith(_INITIAL) and found:  # inside a word: without the mark that encoding puts in front
            found[0] = found[0].removeprefix(_INITIAL)
        return [piece for piece in found if piece]

    return pieces


def cut_words(path: str, words: list[NewWord], cut: Segmenter | None, symbols: Collection[str]) -> list[list[str]]:
    """The pieces of every word: those in its line, else by `cut`. DataError naming file, line, word and piece."""
    return [_pieces(f"{path}:{word.line}", word, cut, symbols) for word in words]


def _pieces(where: str, word: NewWord, cut: Segmenter | None, symbols: Collection[str]) -> list[str]:
    pieces = list(word.pieces or (cut(word.text) if cut is not None else ()))
    if not pieces:
        raise DataError(
            f"{where}: --method subword needs the pieces of {word.text!r}; write them behind a tab (word<TAB>piece "
            "piece), or give --bpe-codes or --sentencepiece-model"
        )
    for piece in pieces:
        if piece not in symbols:
            raise DataError(
                f"{where}: {piece!r}, a piece of {word.text!r}, is not in the dictionary; write other pieces behind a "
                "tab, or give the codes or the model that the dictionary was made with"
            )
    return pieces
