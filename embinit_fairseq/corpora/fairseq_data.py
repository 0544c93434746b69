"""Make dictionaries and binarise prepared text by fairseq's own code, as fairseq-preprocess does; count the result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from embinit_fairseq.errors import DataError
from embinit_fairseq.io import PathLike

#: bytes of an index before the number of sentences: magic, version, code of the number's type
_HEADER = 18
#: code in an index -> type of the numbers
_TYPES = {4: np.int32, 5: np.int64, 8: np.uint16, 9: np.uint32}
#: row of <unk> in every dictionary
_UNKNOWN = 3


class Counted(NamedTuple):
    """Hold numbers of binarised text; tokens without ends of sentences, longest in tokens, empty sentences."""

    sentences: int
    tokens: int
    unknown: int
    longest: int
    empty: int

    @property
    def share(self) -> float:
        """Return the share of <unk>."""
        return self.unknown / max(self.tokens, 1)


def count(prefix: PathLike, unknown: int = _UNKNOWN) -> Counted:
    """Count sentences and tokens of PREFIX.bin as training will read them, after rare symbols became <unk>.

    Args:
        prefix: path without ending; each sentence ends in `</s>`.
        unknown: number of `<unk>`.
    """
    index = Path(f"{prefix}.idx").read_bytes()
    kind = _TYPES.get(index[_HEADER - 1])
    if kind is None:
        raise DataError(f"{prefix}.idx: not an index of fairseq-preprocess; binarise the text again")
    sentences = int(np.frombuffer(index, "<u8", 1, _HEADER)[0])
    lengths = np.frombuffer(index, "<i4", sentences, _HEADER + 8)
    tokens = int(lengths.sum())
    numbers = np.memmap(f"{prefix}.bin", kind, "r") if tokens else np.empty(0, kind)
    missing = sum(int((numbers[at : at + (1 << 24)] == unknown).sum()) for at in range(0, len(numbers), 1 << 24))
    return Counted(sentences, tokens - sentences, missing, int(lengths.max(initial=1)) - 1, int((lengths == 1).sum()))


def make_dictionary(counts: Mapping[str, int], min_count: int) -> Any:
    """Return fairseq's Dictionary of the symbols that occur at least `min_count` times, padded to a multiple of 8."""
    from fairseq.data import Dictionary

    dictionary = Dictionary()
    for symbol, number in sorted(counts.items()):
        dictionary.add_symbol(symbol, number)
    dictionary.finalize(threshold=min_count)
    return dictionary


def label_dictionary(classes: Iterable[str]) -> Any:
    """Return the dictionary of classes, in this order and without fillers."""
    from fairseq.data import Dictionary

    dictionary = Dictionary()
    for label in classes:
        dictionary.add_symbol(label)
    return dictionary


def load_dictionary(path: str) -> Any:
    """Return the Dictionary in a file."""
    from fairseq.data import Dictionary

    return Dictionary.load(path)


def binarise(text: Path, dictionary: Any, prefix: Path, jobs: int) -> Counted:
    """Write PREFIX.bin and PREFIX.idx and count them; the bytes do not depend on the number of processes."""
    from fairseq.binarizer import FileBinarizer, VocabularyDatasetBinarizer

    binariser = VocabularyDatasetBinarizer(dictionary, append_eos=True)
    jobs = jobs if text.stat().st_size > 1 << 24 else 1
    FileBinarizer.multiprocess_dataset(str(text), "mmap", binariser, str(prefix), len(dictionary), jobs)
    return count(prefix, dictionary.unk())
