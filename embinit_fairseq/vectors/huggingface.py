"""Hugging Face model directories as a source of vectors.

Letters: V rows that were read, D columns.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from embinit_fairseq.bounded import read_bytes
from embinit_fairseq.errors import OptionError, VectorFileError
from embinit_fairseq.vectors.binary import check_dimension, check_finite
from embinit_fairseq.vectors.hf_vocab import (
    SENTENCEPIECE_FILES,
    Vocabulary,
    check_is_the_librarys,
    largest_tokenizer,
    load_sentencepiece,
    read_optional_json,
    read_vocabulary,
    reading_tokenizer,
)
from embinit_fairseq.vectors.hf_weights import find_embedding
from embinit_fairseq.vectors.table import Origin, VectorTable, Wanted

# ---- Segmenting words by a Hugging Face directory's own tokenizer, for words without a row of their own -------------

#: A word -> the rows of its pieces, unknown pieces left out.
Segmenter = Callable[[str], "list[int]"]


def segmenter(directory: Path, vocabulary: Vocabulary, matrix_rows: int) -> Segmenter:
    """The tokenizer that belongs to `vocabulary`; OptionError if the directory does not hold one."""
    unknown = vocabulary.specials.get("unk")
    if vocabulary.file.name == "tokenizer.json":
        return _fast(vocabulary.file, _load_tokenizer(vocabulary.file), vocabulary.markers, unknown)
    if vocabulary.file.name == "vocab.txt":
        return _wordpiece(directory, vocabulary.rows, unknown)
    if vocabulary.file.name in SENTENCEPIECE_FILES:
        processor = load_sentencepiece(vocabulary.file, largest=largest_tokenizer(matrix_rows))
        rows = vocabulary.rows
        return lambda word: [
            rows[piece] for piece in processor.encode(_text(word), out_type=str) if rows.get(piece, unknown) != unknown
        ]
    if vocabulary.markers == "bytelevel":
        return _fast(vocabulary.file, _bytelevel_tokenizer(directory, matrix_rows), vocabulary.markers, unknown)
    raise OptionError(
        f"{directory}: words cannot be composed (--embed-init-oov subword): {vocabulary.file.name} lists pieces but "
        "not how to cut words; save tokenizer.json beside it, or choose another --embed-init-oov"
    )


def _text(word: str) -> str:
    """The word without lone surrogates, which are no text."""
    return word.encode("utf-8", "ignore").decode("utf-8")


def _load_tokenizer(file: Path) -> Any:
    with reading_tokenizer(file) as tokenizers:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    tokenizer.no_padding()  # both may be stored in the file
    tokenizer.no_truncation()
    return tokenizer


def _bytelevel_tokenizer(directory: Path, matrix_rows: int) -> Any:
    """GPT-2's tokenizer from vocab.json and merges.txt."""
    merges = directory / "merges.txt"
    read_bytes(merges, VectorFileError, largest_tokenizer(matrix_rows), "download it again")  # else it is read whole
    with reading_tokenizer(merges, remedy="it must fit vocab.json; download both again") as tokenizers:
        model = tokenizers.models.BPE.from_file(str(directory / "vocab.json"), str(merges))
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def _fast(file: Path, tokenizer: Any, markers: str, unknown: int | None) -> Segmenter:
    # A word inside a text follows a blank, and byte-level tokenizers give that blank to the word.
    prefix = " " if markers == "bytelevel" else ""

    def pieces(word: str) -> list[int]:
        try:  # one at a time: encode_batch starts threads, which forked data loaders do not survive
            rows = tokenizer.encode(prefix + word, add_special_tokens=False).ids
        except (TypeError, UnicodeError):  # lone surrogates are no text
            return []
        except BaseException as error:
            check_is_the_librarys(error)
            raise VectorFileError(f"{file}: it cannot cut {word!r} ({error}); save the tokenizer again") from error
        return [row for row in rows if row != unknown]

    return pieces


def _wordpiece(directory: Path, rows: dict[str, int], unknown: int | None) -> Segmenter:
    """BERT's rule: punctuation stands alone, then the longest piece first; a rest without piece spoils its word."""
    lower = _lower_cased(directory, rows)

    def pieces(word: str) -> list[int]:
        if lower:
            word = "".join(c for c in unicodedata.normalize("NFD", word.lower()) if unicodedata.category(c) != "Mn")
        return [row for part in _split(word) for row in _longest_first(part, rows) if row != unknown]

    return pieces


def _lower_cased(directory: Path, rows: dict[str, int]) -> bool:
    """Whether the tokenizer lower-cases: as declared, else judged by the vocabulary."""
    declared = read_optional_json(directory / "tokenizer_config.json").get("do_lower_case")
    if isinstance(declared, bool):
        return declared
    return not any(token[:1].isupper() and token.isalpha() for token in rows)


def _split(word: str) -> list[str]:
    """Words and single punctuation marks."""
    parts: list[str] = [""]
    for character in word:
        if character.isspace():
            parts.append("")
        elif _is_punctuation(character):
            parts += [character, ""]
        else:
            parts[-1] += character
    return [part for part in parts if part]


def _is_punctuation(character: str) -> bool:
    """BERT counts all ASCII signs, `$` and `^` too."""
    return unicodedata.category(character).startswith("P") or (character.isascii() and not character.isalnum())


def _longest_first(part: str, rows: dict[str, int]) -> list[int]:
    chosen: list[int] = []
    begin = 0
    while begin < len(part):
        prefix = "##" if begin else ""
        ends = range(len(part), begin, -1)
        end = next((end for end in ends if prefix + part[begin:end] in rows), None)
        if end is None:
            return []
        chosen.append(rows[prefix + part[begin:end]])
        begin = end
    return chosen


# ----------------------------------------------------------------------------------------------------------------------


class HuggingFaceDirectory:
    """The input embedding of a model saved by `save_pretrained`, with its tokenizer's vocabulary.

    path: the directory. dim: the dimension that is needed (None: any). strict: without effect, since nothing in
    such a directory may be broken. Raises VectorFileError for anything else, DimensionError for another dimension.
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
        model_type = config.get("model_type")
        vocabulary = read_vocabulary(self._directory, self.rows, model_type if isinstance(model_type, str) else "")
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
        return segmenter(self._directory, self.vocabulary, self.rows)

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
