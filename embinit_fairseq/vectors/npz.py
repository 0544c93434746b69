"""Read vectors in NumPy's `.npz`: `words` (V strings) and `matrix` or `vectors` (V, D), never pickles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embinit_fairseq.errors import VectorFileError
from embinit_fairseq.vectors.other_tools import arrays_of_other_tool, pickled_arrays
from embinit_fairseq.vectors.table import (
    FIRST_ROWS,
    Origin,
    VectorReader,
    VectorTable,
    Wanted,
    check_dimension,
    check_finite,
)


class NpzVectors(VectorReader):
    """An `.npz` archive, which is read as a whole when it is opened.

    Args:
        path: the archive.
        dim: the expected D (None: any).
        strict: has no effect; such a file has no broken lines.
    """

    format = "npz"

    def __init__(self, path: str, dim: int | None = None, strict: bool = False) -> None:
        self.path = path
        names: Sequence[str] = ()
        try:
            with np.load(path, allow_pickle=False) as archive:
                ours = {"words", "matrix", "vectors"} & {*archive.files}
                names = sorted(ours) if len(ours) > 1 else archive.files
                arrays = {name: archive[name] for name in names}
        except Exception as error:  # a damaged archive or array can raise anything
            if names and "allow_pickle" in str(error):
                raise VectorFileError(f"{path}: {pickled_arrays(path, names)}") from error
            raise self._unusable(f"not an .npz file that can be read ({str(error)[:200]})") from error
        name = "matrix" if "matrix" in arrays else "vectors"
        if not {"words", name} <= arrays.keys():
            raise VectorFileError(f"{path}: {arrays_of_other_tool(path, arrays)}")
        words, self._matrix = arrays["words"], arrays[name]
        fits = (
            words.ndim == 1 and words.dtype.kind in "US" and self._matrix.ndim == 2 and self._matrix.dtype.kind == "f"
        )
        if not fits or len(words) != len(self._matrix) or not self._matrix.size:
            raise self._unusable(
                f"`words` has shape {words.shape} and type {words.dtype}, `{name}` shape {self._matrix.shape} and type "
                f"{self._matrix.dtype}"
            )
        try:
            self._words: list[str] = (np.char.decode(words, "utf-8") if words.dtype.kind == "S" else words).tolist()
        except ValueError as error:  # not UTF-8, or code points beyond Unicode
            raise self._unusable(f"`words` is not Unicode text ({error})") from error
        self.dim = self._matrix.shape[1]
        check_dimension(path, self.dim, dim)

    def first_words(self) -> list[str]:
        """Return the words of the first rows."""
        return self._words[:FIRST_ROWS]

    def _unusable(self, reason: str) -> VectorFileError:
        return VectorFileError(
            f"{self.path}: {reason}; save the file again: numpy.savez(path, words=numpy.array(words, dtype=str), "
            "matrix=float32 array of shape (words, dimensions))"
        )

    def read(self, wanted: Wanted | None = None) -> VectorTable:
        """Return the wanted rows (None: all); raise VectorFileError if one of them is not finite in float32."""
        rows: dict[str, int] = {}
        duplicates = 0
        for row, word in enumerate(self._words):
            if wanted is None or word in wanted:
                duplicates += word in rows
                rows.setdefault(word, row)
        with np.errstate(over="ignore"):
            matrix = np.ascontiguousarray(self._matrix[list(rows.values())], dtype=np.float32)
        check_finite(self.path, list(rows), matrix)
        origin = Origin(self.path, self.format, len(self._words), self.dim, duplicates=duplicates)
        return VectorTable(list(rows), matrix, origin)
