"""What every reader of pre-trained vectors takes and returns.

Letters: V rows of the source that were read, D columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from embinit_fairseq.vocab.matching import fold
from embinit_fairseq.vocab.tokens import STYLES

#: How a source spells sub-words; see `embinit_fairseq.vocab.tokens` for the meaning of each.
MARKERS = ("auto", *STYLES)

#: Columns that vectors may have; what has or announces more is damaged.
WIDEST = 1 << 16

#: The roles a source's own special rows can have.
ROLES = ("bos", "eos", "unk", "pad", "mask")


@dataclass(frozen=True)
class Wanted:
    """Which rows of a source are worth parsing.

    A row is wanted if its word is in `exact`, or if the key of its word (`vocab.matching.fold`) is in `folded`.
    """

    exact: frozenset[str] = frozenset()
    folded: frozenset[str] = frozenset()

    @classmethod
    def words(cls, words: Iterable[str]) -> Wanted:
        """Want exactly these spellings."""
        return cls(exact=frozenset(words))

    def __contains__(self, word: str) -> bool:
        return word in self.exact or (bool(self.folded) and fold(word) in self.folded)


@dataclass(frozen=True)
class Origin:
    """Where a table came from; goes into reports."""

    path: str
    format: str
    rows: int  # rows in the source, wanted or not
    dim: int
    markers: str = "auto"  # one of MARKERS
    duplicates: int = 0  # later rows of a word that was read before; ignored
    broken_lines: int = 0  # malformed lines in the middle of a public file; ignored unless strict
    side: str = ""  # "encoder" or "decoder", of a model that has an embedding matrix for each


@dataclass
class VectorTable:
    """The wanted rows of a source, in the source's order; the first of duplicate words wins.

    matrix: (V, D) float32, C-contiguous. specials: role (see ROLES) -> (D,) float32, only where the source's
    *format* defines such rows ([CLS], [SEP], ... of BERT; `</s>` of T5); they are not repeated in `words`. added: of
    `words`, what a tokenizer was given after training, and spells without its markers.
    """

    words: list[str]
    matrix: np.ndarray
    origin: Origin
    specials: dict[str, np.ndarray] = field(default_factory=dict)
    added: Collection[str] = ()


class VectorReader(Protocol):
    """One source of vectors; nothing but its head is read before `read` is called."""

    path: str
    format: str
    dim: int

    def read(self, wanted: Wanted | None = None) -> VectorTable:
        """Parse the wanted rows (None: all of them). Memory grows with the result, not with the source."""

    def compose(self, surfaces: Sequence[str]) -> dict[str, np.ndarray]:
        """Sub-word vectors for words the source has no row for: surface -> (D,) float32.

        The mean of the source's sub-word rows (fastText: its n-gram rows; Hugging Face: the pieces of its
        tokenizer, without unknown pieces). Surfaces that cannot be composed are left out. Raises OptionError
        where the source has no sub-words at all.
        """
