"""Vectors in NumPy's `.npz`: `words` (V strings) and `matrix` or `vectors` (V, D), never pickles."""

from __future__ import annotations

import contextlib
import io
import math
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from embinit_fairseq.errors import OptionError, VectorFileError, counted
from embinit_fairseq.vectors.compressed import check_exists, open_member, open_zip, readable
from embinit_fairseq.vectors.table import WIDEST, Origin, VectorTable, Wanted
from embinit_fairseq.vectors.text_lines import dimension_error

_MATRIX_NAMES = ("matrix", "vectors")
_BLOCK = 1 << 20  # bytes of an array read at a time
_LONGEST_HEADER = 1 << 16  # bytes; NumPy itself refuses more than 10,000, but reads them first
_LONGEST_WORD = 1 << 16  # bytes, as it is stored
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@dataclass(frozen=True)
class _Member:
    """One array of the archive, as its header describes it."""

    name: str
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype
    start: int  # bytes of the header


class NpzVectors:
    """Reader of an `.npz` archive, compressed or not; read in blocks, so that memory grows with the wanted rows.

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
            arrays = ", ".join(sorted(name.removesuffix(".npy") for name in names)[:10]) or "nothing"
            raise self._refuse(f"no arrays `words` and `matrix`, it holds {arrays}")
        words, matrix = self._header(archive, "words"), self._header(archive, matrix_name)
        if len(words.shape) != 1 or words.dtype.kind not in "US":
            raise self._refuse(f"`words` is no list of strings (shape {words.shape}, type {words.dtype})")
        if len(matrix.shape) != 2 or matrix.dtype.kind != "f" or matrix.dtype.itemsize > 8:
            raise self._refuse(f"`{matrix_name}` is no matrix of floats (shape {matrix.shape}, type {matrix.dtype})")
        if words.shape[0] != matrix.shape[0]:
            raise self._refuse(
                f"{counted(words.shape[0], 'word')}, but {counted(matrix.shape[0], 'row')} in `{matrix_name}`"
            )
        if not 0 < words.dtype.itemsize <= _LONGEST_WORD:
            raise self._refuse(f"`words` holds strings of {words.dtype.itemsize:,} bytes")
        if 0 in matrix.shape:
            raise self._refuse(f"`{matrix_name}` is empty (shape {matrix.shape})")
        if matrix.shape[1] > WIDEST:
            raise self._refuse(f"`{matrix_name}` has {matrix.shape[1]:,} columns, more than vectors have")
        return words, matrix

    def _header(self, archive: zipfile.ZipFile, name: str) -> _Member:
        info = archive.getinfo(f"{name}.npy")
        with self._open(archive, name) as stream:
            member = self._read_header(stream, name)
        expected = member.start + math.prod(member.shape) * member.dtype.itemsize
        if member.dtype.hasobject:
            raise self._refuse(f"`{name}` holds Python objects, which are not loaded because they could run code")
        if info.file_size != expected:
            raise self._refuse(f"`{name}` has {info.file_size} bytes instead of {expected}: damaged or cut short")
        return member

    def _open(self, archive: zipfile.ZipFile, name: str) -> IO[bytes]:
        return open_member(self.path, archive, f"{name}.npy")

    def _read_header(self, stream: IO[bytes], name: str) -> _Member:
        head = io.BytesIO(stream.read(_LONGEST_HEADER))
        try:
            version = np.lib.format.read_magic(head)
            return _Member(name, *_HEADERS[version](head), head.tell())
        except Exception as error:  # it is Python's literals that are parsed: whatever can be wrong with those
            reason = (str(error).splitlines() or [type(error).__name__])[0][:200]  # may quote the header in full
            raise self._refuse(f"`{name}` has no readable NumPy header ({reason})") from error

    def read(self, wanted: Wanted | None = None) -> VectorTable:
        """Read the wanted rows (None: all). Raises VectorFileError if the file is damaged or a wanted row is not
        finite in float32."""
        words: dict[str, None] = {}
        kept: list[int] = []  # rows of the file, ascending
        duplicates = 0
        with self._archive() as archive:
            for start, block in self._blocks(archive, self._words, 1):
                for row, name in enumerate(self._decode(block[:, 0]), start):
                    if wanted is None or name in wanted:
                        if name in words:
                            duplicates += 1
                        else:
                            words[name] = None
                            kept.append(row)
            matrix = self._take(archive, np.array(kept, dtype=np.int64))
        self._check_finite(list(words), matrix)
        origin = Origin(self.path, self.format, self._matrix.shape[0], self.dim, duplicates=duplicates)
        return VectorTable(list(words), matrix, origin)

    def _take(self, archive: zipfile.ZipFile, rows: np.ndarray) -> np.ndarray:
        """The rows (n,), which ascend, of the matrix: (n, D) float32. All of the file is read: it has a check sum."""
        matrix = np.empty((len(rows), self.dim), np.float32)
        # in Fortran order the file has one column after the other
        columns: list[Any] = list(range(self.dim)) if self._matrix.fortran else [slice(None)]
        with np.errstate(over="ignore"):
            for start, block in self._blocks(archive, self._matrix, 1 if self._matrix.fortran else self.dim):
                column, first = divmod(start, self._matrix.shape[0])
                begin, end = np.searchsorted(rows, (first, first + len(block)))
                picked = block[rows[begin:end] - first]
                matrix[begin:end, columns[column]] = picked[:, 0] if self._matrix.fortran else picked
        return matrix

    def _check_finite(self, words: list[str], matrix: np.ndarray) -> None:
        step = max(1, _BLOCK // self.dim)
        for begin in range(0, len(matrix), step):
            broken = np.flatnonzero(~np.isfinite(matrix[begin : begin + step]).all(axis=1))
            if len(broken):
                raise VectorFileError(
                    f"{self.path}: the vector of {words[begin + broken[0]][:60]!r} holds NaN, infinity or a number "
                    "beyond float32. Repair the row or take another file."
                )

    def _blocks(self, archive: zipfile.ZipFile, member: _Member, width: int) -> Iterator[tuple[int, np.ndarray]]:
        """(number of the first row, rows (n, width)) of consecutive parts of an array; of one in Fortran order, whose
        columns have width 1 here, no part goes from one column to the next."""
        rows, size = member.shape[0], member.dtype.itemsize * width
        step = max(1, _BLOCK // size)
        with self._open(archive, member.name) as stream:
            stream.read(member.start)
            for column in range(math.prod(member.shape) // (rows * width)):
                for start in range(0, rows, step):
                    count = min(step, rows - start)
                    data = stream.read(count * size)
                    if len(data) != count * size:
                        raise self._refuse("cut short")
                    yield column * rows + start, np.frombuffer(data, member.dtype).reshape(count, width)

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
