"""Hugging Face model directories as a source of vectors.

Letters: V rows that were read, D columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from embinit_fairseq.errors import OptionError, VectorFileError
from embinit_fairseq.vectors.binary_checks import check_dimension, check_finite
from embinit_fairseq.vectors.hf_files import read_optional_json
from embinit_fairseq.vectors.hf_segment import Segmenter, segmenter
from embinit_fairseq.vectors.hf_vocab import Vocabulary, read_vocabulary
from embinit_fairseq.vectors.hf_weights import find_embedding
from embinit_fairseq.vectors.table import Origin, VectorTable, Wanted


class HuggingFaceDirectory:
    """The input embedding of a model saved by `save_pretrained`, with its tokenizer's vocabulary.

    path: the directory. dim: the width that is needed (None: any). strict: without effect, since nothing in
    such a directory may be broken. Raises VectorFileError for anything else, DimensionError for another width.
    """

    format = "huggingface"

    def __init__(self, path: str, dim: int | None = None, strict: bool = False) -> None:
        self.path = str(path)
        self._directory = Path(path)
        if not self._directory.is_dir():
            state = "a file" if self._directory.exists() else "no such directory"
            raise VectorFileError(f"{path}: {state}; name the directory that save_pretrained() wrote")
        self.file, self.tensor, self._matrix = find_embedding(self._directory)
        self.rows, self.dim = self._matrix.shape
        check_dimension(f"{self.file} ({self.tensor})", self.dim, dim)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Rows and tokens; read when first needed. VectorFileError if they do not fit the matrix."""
        config = read_optional_json(self._directory / "config.json")
        vocabulary = read_vocabulary(self._directory, str(config.get("model_type", "")))
        last = max(vocabulary.rows.values())
        if last >= self.rows:  # a larger matrix is usual: T5 and others pad it to round numbers
            raise VectorFileError(
                f"{vocabulary.file}: the vocabulary needs {last + 1} rows, but {self.tensor} in {self.file.name} has "
                f"{self.rows}; weights and tokenizer belong to different models: save both with save_pretrained()"
            )
        return vocabulary

    def read(self, wanted: Wanted | None = None) -> VectorTable:
        """The wanted tokens' rows (None: all), ordered by row; special rows by role."""
        vocabulary = self.vocabulary
        pairs: list[tuple[int, str]] = []
        seen: set[str] = set()
        duplicates = vocabulary.duplicates
        for row, word in vocabulary.words():
            if wanted is None or word in wanted:
                duplicates += word in seen
                if word not in seen:
                    pairs.append((row, word))
                    seen.add(word)
        matrix = self._matrix.take(np.array([row for row, _ in pairs], dtype=np.int64))
        words = [word for _, word in pairs]
        check_finite(str(self.file), words, matrix)
        origin = Origin(self.path, self.format, self.rows, self.dim, vocabulary.markers, duplicates=duplicates)
        return VectorTable(words, matrix, origin, self._specials())

    def _specials(self) -> dict[str, np.ndarray]:
        roles = list(self.vocabulary.specials)
        matrix = self._matrix.take(np.array([self.vocabulary.specials[role] for role in roles], dtype=np.int64))
        check_finite(str(self.file), roles, matrix)
        return {role: row.copy() for role, row in zip(roles, matrix)}

    @cached_property
    def _segmenter(self) -> Segmenter:
        return segmenter(self._directory, self.vocabulary)

    def compose(self, surfaces: Sequence[str]) -> dict[str, np.ndarray]:
        """Mean of the rows of the pieces into which the directory's tokenizer cuts each word: word -> (D,) float32.

        A surface is taken as a whole word that follows a blank. Unknown pieces are ignored; words with no known piece
        are left out. Raises OptionError where the directory holds pieces but no tokenizer.
        """
        pieces: dict[str, list[int]] = {}
        for surface in surfaces:
            rows = self._segmenter(surface)
            if rows:
                pieces[surface] = rows
        needed = np.unique(np.array([row for rows in pieces.values() for row in rows], dtype=np.int64))
        if len(needed) and needed[-1] >= self.rows:
            raise OptionError(f"{self.path}: its tokenizer yields row {needed[-1]}, the matrix has {self.rows} rows")
        matrix = self._matrix.take(needed)
        composed = {
            surface: matrix[np.searchsorted(needed, rows)].mean(axis=0, dtype=np.float64).astype(np.float32)
            for surface, rows in pieces.items()
        }
        if composed:
            check_finite(str(self.file), list(composed), np.stack(list(composed.values())))
        return composed
