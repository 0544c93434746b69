"""Words of a text to sub-words: BPE as subword-nmt learned it, except for words that are symbols of their own."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

CONTINUES = "@@"  # subword-nmt: behind a piece that does not end its word
UNKNOWN = "<unk>"  # fairseq's symbol, which WikiText has in place of rare words


class Cutter:
    """word -> its pieces, remembered: a text has far fewer types than running words."""

    def __init__(self, codes: Path, whole: Collection[str] = ()):
        """codes: file of `subword-nmt learn-bpe`. whole: words that are not cut."""
        from subword_nmt.apply_bpe import BPE

        with open(codes, encoding="utf-8") as file:
            self._bpe = BPE(file)
        self._known = {word: [word] for word in (UNKNOWN, *whole)}

    def __call__(self, word: str) -> list[str]:
        pieces = self._known.get(word)
        if pieces is None:
            pieces = self._known[word] = self._bpe.segment_tokens([word])
        return pieces


def read_words(path: Path) -> list[str]:
    """The first column of a list of new words, as `embinit expand-vocab --words` takes it."""
    with open(path, encoding="utf-8") as lines:
        return [line.split("\t")[0].strip() for line in lines if line.strip()]
