"""Writing vectors as text or `.npz`: complete under the final name, or not at all; read back bit for bit."""

from __future__ import annotations

import contextlib
import gzip
import os
from collections.abc import Sequence
from typing import IO

import numpy as np

from embinit_fairseq.errors import VectorFileError, counted
from embinit_fairseq.files import whole_file

_BLANKS = " \t\r\n"
_ROWS = 4096  # rows formatted at a time


def _checked(words: Sequence[str], matrix: np.ndarray) -> np.ndarray:
    matrix = np.asarray(matrix)
    if matrix.ndim != 2 or len(words) != len(matrix) or not matrix.size:
        raise VectorFileError(
            f"{counted(len(words), 'word')} and a matrix of shape {matrix.shape} are no vectors: nothing written."
        )
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(matrix, dtype=np.float32)
    broken = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(broken):
        raise VectorFileError(f"the vector of {words[broken[0]]!r} holds NaN or infinity: nothing written.")
    return rows


def _writable(word: str) -> bytes:
    """The word in UTF-8. Raises VectorFileError for what would not come back from a line of text."""
    try:
        if word and word == word.strip(_BLANKS) and "\n" not in word and not word.startswith("\ufeff"):
            return word.encode("utf-8")
    except UnicodeEncodeError:
        pass
    raise VectorFileError(f"the word {word!r} cannot stand in a text file of vectors. Write an .npz file instead.")


def write_text(
    path: str | os.PathLike[str], words: Sequence[str], matrix: np.ndarray, header: bool = False, option: str = ""
) -> None:
    """Write word2vec text (header) or GloVe text (no header), through gzip if the name ends in `.gz`.

    words: V. matrix: (V, D), rounded to float32; each number in its shortest spelling that reads back the same.
    option: the flag that named the path, for messages.
    Raises VectorFileError if a word or number cannot be written, OutputError if the place cannot.
    """
    rows = _checked(words, matrix)
    names = [_writable(word) for word in words]
    with whole_file(path, option=option) as file, contextlib.ExitStack() as stack:
        out: IO[bytes] | gzip.GzipFile = file
        if os.fspath(path).endswith(".gz"):
            out = stack.enter_context(gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0))
        if header:
            out.write(b"%d %d\n" % rows.shape)
        for start in range(0, len(names), _ROWS):
            part = zip(names[start : start + _ROWS], rows[start : start + _ROWS])
            out.write(b"".join(name + b" " + " ".join(map(str, row)).encode() + b"\n" for name, row in part))


def write_npz(path: str | os.PathLike[str], words: Sequence[str], matrix: np.ndarray, option: str = "") -> None:
    """Write `words` (V strings) and `matrix` (V, D) float32 as an `.npz` archive without pickles."""
    rows = _checked(words, matrix)
    bad = next((word for word in words if word.endswith("\0")), None)
    if bad is not None:
        raise VectorFileError(f"the word {bad!r} ends with a null character, which NumPy's strings drop.")
    with whole_file(path, option=option) as file:
        np.savez(file, words=np.array(words, dtype=str), matrix=rows)
