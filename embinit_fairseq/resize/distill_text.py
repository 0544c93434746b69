"""Read a text in old subwords and with new words (`expand-vocab --distill-text`)."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fairseq.models import FairseqEncoderDecoderModel

from embinit_fairseq.errors import DataError, counted, listed
from embinit_fairseq.io import read_lines
from embinit_fairseq.resize.evaluation import rows_of, whole_sentences
from embinit_fairseq.resize.old_model import OldModel
from embinit_fairseq.vocab.dictionary import SPECIAL_SYMBOLS
from embinit_fairseq.vocab.segmentation import Segmentation
from embinit_fairseq.vocab.subword_styles import Token, detect_style, parse
from embinit_fairseq.vocab.text_checks import check_not_segmented, check_tokens

FLAG = "--distill-text"
_NAMED = 20  #: words in a message


@dataclass(frozen=True)
class Sentence:
    """Hold a sentence, or a pair of sentences, in both segmentations.

    Args:
        old, new: argument of the model -> token ids (or one length).
        last: argument whose dictionary changes -> (T*,) the position in `old` of each token of `new`.
        words: rows of the new words in it.
    """

    old: dict[str, list[int]]
    new: dict[str, list[int]]
    last: dict[str, list[int]]
    words: frozenset[int]

    @property
    def tokens(self) -> int:
        """Return the number of tokens in old subwords."""
        return sum(len(self.old[name]) for name in self.last)


def read_columns(
    texts: Sequence[str],
    old_model: OldModel,
    dictionaries: Sequence[Any],
    subwords: Mapping[int, list[int]],
    segmentation: Segmentation | None,
) -> list[list[np.ndarray]]:
    """Return the ids in old subwords of the sentences of every text; a new word in a text is segmented.

    Args:
        texts: files, the source first.
        old_model: its checkpoint, dictionary and tensors.
        dictionaries: dictionaries of the model with the new words, the source's first.
        subwords: row of a new word -> rows of its subwords.
        segmentation: segments the texts of the sides that change; None: the texts are segmented.

    Raises:
        DataError: a text has no words, has words that are not in the dictionary, or is segmented already.
    """
    columns = []
    for path, dictionary, side in zip(texts, dictionaries, ("encoder", "decoder")):
        segment: Callable[[str], list[str]] = str.split
        if segmentation is not None and side in old_model.sides:
            check_not_segmented(FLAG, path)
            segment = segmentation.segment
        lines = [segment(line) for _, line in read_lines(path, DataError, FLAG)]
        counts = Counter(itertools.chain.from_iterable(lines))
        if not counts:
            raise DataError(f"{FLAG} {path}: no words in it; give a text in which the new words occur")
        check_tokens(f"{FLAG} {path}", counts, {*dictionary.symbols})
        split = subwords if side in old_model.sides else {}
        rows = {symbol: split.get(dictionary.index(symbol), [dictionary.index(symbol)]) for symbol in counts}
        columns.append([np.array([row for symbol in line for row in rows[symbol]], dtype=np.int64) for line in lines])
    return columns


def model_inputs(
    model: Any, columns: list[list[np.ndarray]], dictionaries: Sequence[Any], texts: Sequence[str]
) -> Iterator[dict[str, list[int]]]:
    """Yield the arguments of the model for each sentence; pairs that are too long are left out."""
    if not isinstance(model, FairseqEncoderDecoderModel):
        yield from whole_sentences(model, columns[0], dictionaries[0])
    elif len(columns) == 2:
        yield from (inputs for inputs, _ in rows_of(model, columns, texts, dictionaries, FLAG)[0])
    else:
        for ids in columns[0]:
            if 0 < len(ids) < model.max_positions()[0]:
                yield {"src_tokens": [*ids.tolist(), dictionaries[0].eos()], "src_lengths": [len(ids) + 1]}


def read_sentences(
    inputs: Iterable[dict[str, list[int]]],
    names: Sequence[str],
    subwords: Mapping[int, list[int]],
    symbols: Sequence[str],
    texts: Sequence[str],
    most: int,
) -> list[Sentence]:
    """Return the first sentences with each new word, in both segmentations.

    Args:
        inputs: arguments of the model for each sentence, in old subwords.
        names: the arguments whose dictionary changes.
        subwords: row of a new word -> rows of its subwords.
        symbols: symbols of the new dictionary.
        texts: the files, for messages.
        most: sentences for each word.

    Raises:
        DataError: a new word is in no sentence.
    """
    joiner = Joiner(subwords, symbols)
    sentences, counts = choose((joiner.sentence(row, names) for row in inputs), most)
    missing = [symbols[row] for row in subwords if not counts[row]]
    if missing:
        raise DataError(
            f"{FLAG} {' '.join(texts)}: it lacks {len(missing):,} of {counted(len(subwords), 'new word')} "
            f"({listed(missing, _NAMED)}); give a text that has them, or remove them from --words"
        )
    return sentences


class Joiner:
    """Replace the subwords of new words by the words, from the left, the longest first.

    A new word is not made of the end of a longer word, nor (wordpiece) of its beginning, if the spelling shows that.

    Args:
        subwords: row of a new word -> rows of its subwords.
        symbols: symbols of the new dictionary.
    """

    def __init__(self, subwords: Mapping[int, Sequence[int]], symbols: Sequence[str]) -> None:
        self._row_of = {tuple(rows): row for row, rows in subwords.items()}
        self._words, self._longest = frozenset(subwords), max(map(len, self._row_of))
        style = detect_style(symbols)
        tokens = [Token("", None, None) if symbol in SPECIAL_SYMBOLS else parse(symbol, style) for symbol in symbols]
        self._is_open = [token.final is False for token in tokens]
        self._is_inside = [style == "wordpiece" and token.initial is False for token in tokens]

    def join(self, ids: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return (ids with new words, the position of each in `ids`; a new word has its last subword's position)."""
        joined, last, at = [], [], 0
        while at < len(ids):
            row, end = ids[at], at + 1
            for length in range(min(self._longest, len(ids) - at), 0, -1):
                word = self._row_of.get(tuple(ids[at : at + length]))
                if word is not None and self._is_whole(ids, at, at + length):
                    row, end = word, at + length
                    break
            joined.append(row)
            last.append(end - 1)
            at = end
        return joined, last

    def _is_whole(self, ids: Sequence[int], start: int, end: int) -> bool:
        return not (start and self._is_open[ids[start - 1]]) and not (end < len(ids) and self._is_inside[ids[end]])

    def sentence(self, inputs: dict[str, list[int]], names: Sequence[str]) -> Sentence:
        """Return a sentence in both segmentations. names: arguments whose dictionary changes."""
        joined = {name: self.join(inputs[name]) for name in names}
        new = inputs | {name: ids for name, (ids, _) in joined.items()}
        if "src_lengths" in new:
            new["src_lengths"] = [len(new["src_tokens"])]
        words = self._words.intersection(itertools.chain(*(ids for ids, _ in joined.values())))
        return Sentence(inputs, new, {name: last for name, (_, last) in joined.items()}, words)


def choose(sentences: Iterable[Sentence], most: int) -> tuple[list[Sentence], Counter[int]]:
    """Return the first `most` sentences with each new word, and the number of chosen sentences per word."""
    chosen, counts = [], Counter[int]()
    for sentence in sentences:
        if any(counts[word] < most for word in sentence.words):
            chosen.append(sentence)
            counts.update(sentence.words)
    return chosen, counts
