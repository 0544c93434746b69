"""Define the interface of all readers of vectors, and the checks that they share.

To add a format: a subclass of `VectorReader`, and a line in `open.FORMATS`.
Letters: V rows of a file that were read, D columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from embinit_fairseq.errors import DimensionError, OptionError, VectorFileError, counted
from embinit_fairseq.vocab.matching import PLAIN, Spelling, find_label, fold
from embinit_fairseq.vocab.subword_styles import STYLES

#: rows that show how a file spells words
FIRST_ROWS = 32
#: how words are split into subwords and marked; see `embinit_fairseq.vocab.subword_styles`
MARKERS = ("auto", *STYLES)


@dataclass(frozen=True)
class Wanted:
    """The words whose rows are read: these spellings, or all words whose `key` is in `folded`.

    spelling: how the file spells words, for `folded`.
    """

    exact: frozenset[str] = frozenset()
    folded: frozenset[str] = frozenset()
    spelling: Spelling = PLAIN

    @classmethod
    def words(cls, words: Iterable[str]) -> Wanted:
        """Want exactly these spellings."""
        return cls(frozenset(words))

    def key(self, word: str) -> str:
        """Return the key of a word of the file: `vocab.matching.fold`, without the word's label."""
        return fold(self.spelling.bare(word) if self.spelling.label else word)

    def __contains__(self, word: str) -> bool:
        return self.key(word) in self.folded if self.folded else word in self.exact


@dataclass(frozen=True)
class Origin:
    """Describe the file of a table, for reports.

    rows: number of rows in the file. markers: one of MARKERS. duplicates: later rows of a word, which are ignored.
    broken_lines: ignored unless strict. side: "encoder" or "decoder" if the model has an embedding matrix for each.
    language: label of the words that are used, if the file has words of several languages (`/c/de/`).
    """

    path: str
    format: str
    rows: int
    dim: int
    markers: str = "auto"
    duplicates: int = 0
    broken_lines: int = 0
    side: str = ""
    language: str = ""


@dataclass
class VectorTable:
    """Hold the wanted rows of a file, in its order; of repeated words the first row.

    matrix: (V, D) float32, C-contiguous. specials: role (bos, eos, unk, pad, mask) -> (D,) float32, for formats that
    define special rows (`[CLS]` of BERT, `</s>` of T5); they are not in `words`. added: words that were added to a
    tokenizer after training and are spelled without its markers. spelling: the reader's (`alignment.read_table`).
    """

    words: list[str]
    matrix: np.ndarray
    origin: Origin
    specials: dict[str, np.ndarray] = field(default_factory=dict)
    added: Collection[str] = ()
    spelling: Spelling = PLAIN


class VectorReader:
    """One file or folder of vectors; `read` reads its rows."""

    path: str
    format: str
    dim: int

    def first_words(self) -> list[str]:
        """Return the words of the first rows: they show what kind of words all are."""
        return []

    @property
    def has_ids(self) -> bool:
        """Return True if all words are known to be ids of subwords."""
        return False

    @property
    def spelling(self) -> Spelling:
        """Return how the file spells words, as far as it is known before the rows are read."""
        return Spelling(label=find_label(self.first_words()))

    def read(self, wanted: Wanted | None = None) -> VectorTable:
        """Return the wanted rows (None: all).

        Raises:
            VectorFileError, CheckpointError: if the file is damaged, or a wanted row has NaN or infinity.
        """
        raise NotImplementedError

    def compose(self, surfaces: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the vectors of words without a row, composed from subwords: word -> (D,) float32.

        A vector is the mean of the rows of the word's subwords, without unknown ones (fastText: of its n-grams). Words
        that cannot be composed are left out.

        Raises:
            OptionError: if the format has no subwords.
        """
        raise OptionError(
            f"{self.path}: no subwords are known of this {self.format} file, so oov `subword` cannot compose words; "
            "choose another oov (xavier, mean, gaussian, zeros), a fastText .bin or a Hugging Face directory; of "
            "subwords such as BPEmb's give the text, which embinit save-vectors writes"
        )


def check_dimension(where: str, dim: int, expected: int | None) -> None:
    """Raise DimensionError if vectors have another dimension than expected (None: any). where: the file."""
    if expected not in (None, dim):
        raise DimensionError(f"{where}: the vectors have {counted(dim, 'dimension')}, expected {expected}", dim)


def check_finite(path: str, names: Sequence[str], matrix: np.ndarray) -> None:
    """Raise VectorFileError if a row of `matrix` (V, D), called by its name, holds NaN or infinity."""
    # The sum of a row is not finite if an element is not; where only the sum overflows, look at the elements.
    with np.errstate(over="ignore", invalid="ignore"):
        suspects = np.flatnonzero(~np.isfinite(matrix.sum(axis=1)))
    broken = [row for row in suspects if not np.isfinite(matrix[row]).all()]
    if broken:
        raise VectorFileError(
            f"{path}: the vector of {names[int(broken[0])][:60]!r} (one of {len(broken)}) holds NaN or infinity; "
            "export the vectors again or take another file"
        )
