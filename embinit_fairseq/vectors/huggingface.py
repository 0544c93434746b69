"""Read Hugging Face model directories as vectors: the input embedding, with the vocabulary of its tokenizer.

Letters: V rows that were read, D columns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from embinit_fairseq.errors import VectorFileError
from embinit_fairseq.vectors.hf_vocab import Vocabulary, read_optional_json, read_vocabulary
from embinit_fairseq.vectors.hf_weights import find_embedding, has_weights
from embinit_fairseq.vectors.other_tools import folder_of_other_tool
from embinit_fairseq.vectors.table import (
    FIRST_ROWS,
    Origin,
    VectorReader,
    VectorTable,
    Wanted,
    check_dimension,
    check_finite,
)
from embinit_fairseq.vocab.matching import Spelling

#: part of a character: not text, but a dictionary may have the same part
_PART = re.compile("[\ud800-\udfff]")


class HuggingFaceDirectory(VectorReader):
    """The input embedding of a model that `save_pretrained` wrote.

    Args:
        path: the directory.
        dim: the expected D (None: any).
        strict: has no effect; nothing in such a directory may be broken.
        side: "encoder" (the default) or "decoder", for a model that has an embedding matrix for each.
    """

    format = "huggingface"

    def __init__(self, path: str, dim: int | None = None, strict: bool = False, side: str | None = None) -> None:
        self.path = path
        directory = Path(path)
        if not directory.is_dir():
            raise VectorFileError(f"{path}: not a directory; name the directory that save_pretrained() wrote")
        # sentence-transformers keeps its first module in a folder such as 0_StaticEmbedding
        modules = [folder for folder in sorted(directory.glob("0_*")) if has_weights(folder)]
        self._directory = modules[0] if modules else directory
        has_tokens = has_weights(self._directory) and not (self._directory / "wordembedding_config.json").is_file()
        if not has_tokens and (mistake := folder_of_other_tool(str(self._directory))):
            raise VectorFileError(f"{path}: {mistake}")
        config = read_optional_json(self._directory / "config.json")
        if config.get("vocabulary_quantization"):
            raise VectorFileError(
                f"{path}: a Model2Vec model whose tokens share rows (vocabulary_quantization), which is not read; "
                "distill it without, or write words and matrix to an .npz file"
            )
        side = "decoder" if side and side.startswith("decoder") else "encoder"  # decoder_p: Duo's second matrix
        self.embedding = find_embedding(self._directory, config, side)
        self.rows, self.dim = self.embedding.matrix.shape
        check_dimension(f"{self.embedding.file} ({self.embedding.tensor})", self.dim, dim)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The tokens and their rows, read when they are first needed."""
        return read_vocabulary(self._directory, self.rows, self.embedding.side)

    def first_words(self) -> list[str]:
        """Return the words of the first rows."""
        return [word for _, word in self.vocabulary.words()[:FIRST_ROWS]]

    @property
    def spelling(self) -> Spelling:
        """Return how the tokenizer changes text before it looks for tokens."""
        return Spelling(self.vocabulary.normalise)

    def read(self, wanted: Wanted | None = None) -> VectorTable:
        """Return the wanted tokens' rows (None: all), ordered by row; special rows by role."""
        vocabulary = self.vocabulary
        rows: dict[str, int] = {}
        for row, word in vocabulary.words():
            if word in wanted if wanted is not None else not _PART.search(word):
                rows.setdefault(word, row)
        specials = vocabulary.specials
        matrix = self._rows([*rows, *specials], [*rows.values(), *specials.values()])
        origin = Origin(self.path, self.format, self.rows, self.dim, vocabulary.markers, side=self.embedding.side)
        by_role = {role: row.copy() for role, row in zip(specials, matrix[len(rows) :])}
        return VectorTable(list(rows), matrix[: len(rows)], origin, by_role, vocabulary.added & rows.keys())

    def _rows(self, names: list[str], rows: list[int]) -> np.ndarray:
        matrix = self.embedding.matrix.take(np.array(rows, dtype=np.int64))
        check_finite(str(self.embedding.file), names, matrix)
        return matrix

    def compose(self, surfaces: Sequence[str]) -> dict[str, np.ndarray]:
        """Average the rows of the tokens into which the directory's tokenizer segments each word: word -> (D,) float32.

        A word is segmented as after a space, or inside of text in scripts without spaces. Unknown tokens are ignored;
        words without a known token are left out.
        """
        vocabulary = self.vocabulary
        composed: dict[str, np.ndarray] = {}
        for surface in surfaces:
            try:
                rows = vocabulary.subword_rows(surface)
            except Exception as error:  # of the library
                raise VectorFileError(
                    f"{self.path}: its tokenizer cannot segment {surface!r} ({error}); save the tokenizer again"
                ) from error
            if rows:
                matrix = self._rows([surface] * len(rows), rows)
                composed[surface] = matrix.mean(axis=0, dtype=np.float64).astype(np.float32)
        return composed
