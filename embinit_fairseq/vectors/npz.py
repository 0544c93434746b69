"""Vectors in NumPy's `.npz`: `words` (V strings) and `matrix` or `vectors` (V, D), never pickles."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from embinit_fairseq.errors import OptionError, VectorFileError, counted
from embinit_fairseq.vectors.compressed import check_exists, open_member, open_zip, readable
from embinit_fairseq.vectors.table import Origin, VectorTable, Wanted
from embinit_fairseq.vectors.text_head import dimension_error

_MATRIX_NAMES = ("matrix", "vectors")
_BLOCK = 1 << 20  # bytes of the matrix read at a time
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@dataclass(frozen=True)
class _Member:
    """One array of the archive, as its header describes it."""

    name: str
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype


class NpzVectors:
    """Reader of an `.npz` archive, compressed or not; rows are read in blocks, so memory grows with the wanted ones.

    dim: the expected D (None: as the file says). strict is accepted for uniformity: such a file has no broken lines.
    """

    format = "npz"

    def __init__(self, path: str, dim: int | None = None, strict: bool = False) -> None:
        self.path = str(path)
        check_exists(self.path)
        with self._archive() as archive:
            self._words, self._matrix = self._inspect(archive)
        self.dim = self._matrix.shape[1]
        if dim is not None and dim != self.dim:
            raise dimension_error(self.path, self.dim, dim)

    @contextlib.contextmanager
    def _archive(self) -> Iterator[zipfile.ZipFile]:
        with readable(self.path), open_zip(self.path) as archive:
            yield archive

    def _refuse(self, reason: str) -> VectorFileError:
        return VectorFileError(
            f"{self.path}: {reason}. Save the file again: numpy.savez(path, words=numpy.array(words, dtype=str), "
            "matrix=float32 array of shape (words, dimensions))."
        )

    def _inspect(self, archive: zipfile.ZipFile) -> tuple[_Member, _Member]:
        names = set(archive.namelist())
        matrix_name = next((name for name in _MATRIX_NAMES if f"{name}.npy" in names), None)
        if "words.npy" not in names or matrix_name is None:
            held = ", ".join(sorted(name.removesuffix(".npy") for name in names)[:10]) or "nothing"
            raise self._refuse(f"no arrays `words` and `matrix`, it holds {held}")
        words, matrix = self._header(archive, "words"), self._header(archive, matrix_name)
        if len(words.shape) != 1 or words.dtype.kind not in "US":
            raise self._refuse(f"`words` is no list of strings (shape {words.shape}, type {words.dtype})")
        if len(matrix.shape) != 2 or matrix.dtype.kind != "f" or matrix.dtype.itemsize > 8:
            raise self._refuse(f"`{matrix_name}` is no matrix of floats (shape {matrix.shape}, type {matrix.dtype})")
        if words.shape[0] != matrix.shape[0]:
            raise self._refuse(
                f"{counted(words.shape[0], 'word')}, but {counted(matrix.shape[0], 'row')} in `{matrix_name}`"
            )
        if 0 in matrix.shape:
            raise self._refuse(f"`{matrix_name}` is empty (shape {matrix.shape})")
        return words, matrix

    def _header(self, archive: zipfile.ZipFile, name: str) -> _Member:
        info = archive.getinfo(f"{name}.npy")
        with self._open(archive, name) as stream:
            member = self._read_header(stream, name)
            expected = stream.tell() + int(np.prod(member.shape, dtype=object)) * member.dtype.itemsize
        if member.dtype.hasobject:
            raise self._refuse(f"`{name}` holds Python objects, which are not loaded because they could run code")
        if info.file_size != expected:
            raise self._refuse(f"`{name}` has {info.file_size} bytes instead of {expected}: damaged or cut short")
        return member

    def _open(self, archive: zipfile.ZipFile, name: str) -> BinaryIO:
        return open_member(self.path, archive, f"{name}.npy")

    def _read_header(self, stream: BinaryIO, name: str) -> _Member:
        try:
            version = np.lib.format.read_magic(stream)
            return _Member(name, *_HEADERS[version](stream))
        except (ValueError, KeyError, TypeError) as error:
            raise self._refuse(f"`{name}` has no readable NumPy header ({error})") from error

    def read(self, wanted: Wanted | None = None) -> VectorTable:
        """Read the wanted rows (None: all). Raises VectorFileError if the file is damaged or a wanted row is not
        finite in float32. A matrix in Fortran order is read whole."""
        words: dict[str, None] = {}
        parts: list[np.ndarray] = []
        duplicates = 0
        with self._archive() as archive:
            for names, block in self._blocks(archive):
                kept = []
                for index, name in enumerate(names):
                    if wanted is None or name in wanted:
                        duplicates += name in words
                        if name not in words:
                            kept.append(index)
                            words[name] = None
                parts.append(self._rows(block, names, kept))
        matrix = np.concatenate(parts)
        origin = Origin(self.path, self.format, self._matrix.shape[0], self.dim, duplicates=duplicates)
        return VectorTable(list(words), matrix, origin)

    def _rows(self, block: np.ndarray, names: list[str], kept: list[int]) -> np.ndarray:
        with np.errstate(over="ignore"):
            rows = np.ascontiguousarray(block[kept], dtype=np.float32)
        broken = np.flatnonzero(~np.isfinite(rows).all(axis=1))
        if len(broken):
            raise VectorFileError(
                f"{self.path}: the vector of {names[kept[broken[0]]]!r} holds NaN, infinity or a number beyond "
                "float32. Repair the row or take another file."
            )
        return rows

    def _blocks(self, archive: zipfile.ZipFile) -> Iterator[tuple[list[str], np.ndarray]]:
        """(words, rows (n, D)) of consecutive parts of the arrays."""
        rows, dim = self._matrix.shape
        step = rows if self._matrix.fortran else max(1, _BLOCK // (dim * self._matrix.dtype.itemsize))
        with self._open(archive, "words") as text, self._open(archive, self._matrix.name) as numbers:
            self._read_header(text, "words")
            self._read_header(numbers, self._matrix.name)
            for start in range(0, rows, step):
                count = min(step, rows - start)
                names = self._take(text, self._words.dtype, count)
                block = self._take(numbers, self._matrix.dtype, count * dim)
                block = block.reshape(dim, rows).T if self._matrix.fortran else block.reshape(count, dim)
                yield self._decode(names), block

    def _take(self, stream: BinaryIO, dtype: np.dtype, count: int) -> np.ndarray:
        data = stream.read(count * dtype.itemsize)
        if len(data) != count * dtype.itemsize:
            raise self._refuse("cut short")
        return np.frombuffer(data, dtype) if dtype.itemsize else np.zeros(count, dtype)

    def _decode(self, names: np.ndarray) -> list[str]:
        try:
            found = names.tolist()
            return [name.decode("utf-8") for name in found] if names.dtype.kind == "S" else found
        except ValueError as error:  # not UTF-8, or code points beyond Unicode
            raise self._refuse(f"`words` is no Unicode text ({error})") from error

    def compose(self, surfaces: Sequence[str]) -> dict[str, np.ndarray]:
        """Raises OptionError: the format has rows for words only."""
        raise OptionError(
            f"{self.path}: an .npz file of vectors has no sub-words, so --embed-init-oov subword cannot work with it. "
            "Choose another --embed-init-oov."
        )
