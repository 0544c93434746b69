"""Read the codes or the sentencepiece model of a dictionary's text; check that they fit the dictionary."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Union

from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.vocab.dictionary import Vocabulary
from embinit_fairseq.vocab.sentencepiece_model import Sentencepiece
from embinit_fairseq.vocab.subword_nmt import SubwordNmt
from embinit_fairseq.vocab.subword_styles import CONTINUES, detect_style, parse

#: smallest share of a dictionary's subwords that a segmenter can make: its own makes nearly all, another one of
#: the same language two thirds
_LEAST_MADE = 0.8
#: if several segmenters made one dictionary: smallest share of a segmenter's subwords that are in it (measured 0.93, of
#: another language 0.43), and smallest share of the dictionary's text that the segmenter can make (0.56)
_LEAST_USED, _LEAST_TEXT = 0.9, 0.4

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
        symbols: the dictionary's symbols, see `SubwordNmt`.
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
            f"{where}: no subword in --dict {dictionary} ends with {CONTINUES}, so that its text was not segmented "
            f"with codes of subword-nmt; leave {segmentation.flag} out"
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
            f"{where}: can make only {len(made) / len(tried):.0%} of the subwords in --dict {dictionary}, which are "
            f"{text:.0%} of its text; give the file that its text was segmented with, or leave {segmentation.flag} out"
        )
