"""Hugging Face model directories as a source of vectors.

Letters: V rows that were read, D columns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from embinit_fairseq.errors import VectorFileError
from embinit_fairseq.vectors.binary import check_dimension, check_finite
from embinit_fairseq.vectors.hf_vocab import Vocabulary, check_is_the_librarys, read_optional_json, read_vocabulary
from embinit_fairseq.vectors.hf_weights import find_embedding
from embinit_fairseq.vectors.table import Origin, VectorTable, Wanted

_PART = re.compile("[\ud800-\udfff]")  # of a character: no text, but a dictionary may have the same part


class HuggingFaceDirectory:
    """The input embedding of a model saved by `save_pretrained`, with its tokenizer's vocabulary.

    path: the directory. dim: the dimension that is needed (None: any). strict: without effect, since nothing in
    such a directory may be broken. side: "encoder" (also the default) or "decoder", for a model that has an embedding
    matrix for each. Raises VectorFileError for anything else, DimensionError for another dimension.
    """

    format = "huggingface"

    def __init__(self, path: str, dim: int | None = None, strict: bool = False, side: str | None = None) -> None:
        self.path = str(path)
        directory = Path(path)
        if not directory.is_dir():
            state = "a file" if directory.exists() else "no such directory"
            raise VectorFileError(f"{path}: {state}; name the directory that save_pretrained() wrote")
        # sentence-transformers keeps its first module in a folder such as 0_StaticEmbedding
        module = next(iter(sorted(directory.glob("0_*/tokenizer.json"))), None)
        self._directory = directory if module is None else module.parent
        config = read_optional_json(self._directory / "config.json")
        if config.get("vocabulary_quantization"):
            raise VectorFileError(
                f"{path}: a Model2Vec model whose tokens share rows (vocabulary_quantization), which is not read; "
                "distill it without, or write words and matrix to an .npz file"
            )
        side = "decoder" if side and side.startswith("decoder") else "encoder"  # decoder_p: Duo's second matrix
        self.file, self.tensor, self._matrix, self._side = find_embedding(self._directory, config, side)
        self.rows, self.dim = self._matrix.shape
        check_dimension(f"{self.file} ({self.tensor})", self.dim, dim)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Rows and tokens; read when first needed. VectorFileError if they do not fit the matrix."""
        return read_vocabulary(self._directory, self.rows, self._side)

    def read(self, wanted: Wanted | None = None) -> VectorTable:
        """The wanted tokens' rows (None: all), ordered by row; special rows by role."""
        vocabulary = self.vocabulary
        rows: dict[str, int] = {}
        for row, word in vocabulary.words():
            if word in wanted if wanted is not None else not _PART.search(word):
                rows.setdefault(word, row)
        matrix = self._matrix.take(np.array(list(rows.values()), dtype=np.int64))
        words = list(rows)
        check_finite(str(self.file), words, matrix)
        origin = Origin(self.path, self.format, self.rows, self.dim, vocabulary.markers, side=self._side)
        return VectorTable(words, matrix, origin, self._specials(), vocabulary.added & rows.keys())

    def _specials(self) -> dict[str, np.ndarray]:
        roles = list(self.vocabulary.specials)
        matrix = self._matrix.take(np.array([self.vocabulary.specials[role] for role in roles], dtype=np.int64))
        check_finite(str(self.file), roles, matrix)
        return {role: row.copy() for role, row in zip(roles, matrix)}

    def compose(self, surfaces: Sequence[str]) -> dict[str, np.ndarray]:
        """Average the rows of the tokens into which the directory's tokenizer segments each word: word -> (D,) float32.

        A surface is taken as a whole word that follows a space. Unknown tokens are ignored; words with no known token
        are left out.
        """
        composed: dict[str, np.ndarray] = {}
        for surface in surfaces:
            try:
                rows = self.vocabulary.pieces(surface)
            except VectorFileError:
                raise
            except BaseException as error:
                check_is_the_librarys(error)
                raise VectorFileError(
                    f"{self.path}: its tokenizer cannot segment {surface!r} ({error}); save the tokenizer again"
                ) from error
            if rows:
                matrix = self._matrix.take(np.array(rows, dtype=np.int64))
                composed[surface] = matrix.mean(axis=0, dtype=np.float64).astype(np.float32)
        if composed:
            check_finite(str(self.file), list(composed), np.stack(list(composed.values())))
        return composed
