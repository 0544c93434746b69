"""Write vectors as text or `.npz`, complete under the final name or not at all; they read back bit for bit."""

from __future__ import annotations

import contextlib
import gzip
import os
from collections.abc import Sequence
from typing import IO

import numpy as np

from embinit_fairseq.errors import OutputError, VectorFileError, counted
from embinit_fairseq.io import PathLike, whole_file

_BLANKS = " \t\r\n"
#: rows formatted at a time
_ROWS = 4096
#: endings of binary, compressed and other files, in which programs do not expect text
_OTHER_ENDINGS = frozenset(
    ".bin .npy .pt .pth .pkl .pickle .kv .model .safetensors .parquet .h5 .hdf5 .ftz .json .zip .bz2 .xz .zst".split()
)


def check_ending(path: PathLike, option: str = "") -> None:
    """Raise OutputError if a file that would be text has the name of another format."""
    ending = os.path.splitext(os.fspath(path).removesuffix(".gz"))[1]
    if ending in _OTHER_ENDINGS or os.fspath(path).endswith(".npz.gz"):
        raise OutputError(
            f"{option} {path}".lstrip()
            + f": {ending} names a format that is not written; end the name in .npz, .vec (word2vec's "
            "text) or .txt, the last two also with .gz"
        )


def write_text(
    path: PathLike, words: Sequence[str], matrix: np.ndarray, header: bool = False, option: str = ""
) -> None:
    """Write word2vec text (header) or GloVe text (no header), through gzip if the name ends in `.gz`.

    Args:
        path: the file.
        words: V words.
        matrix: (V, D), rounded to float32; each number in its shortest spelling that reads back the same.
        header: begin with a line `V D`.
        option: flag that names the path, for messages.

    Raises:
        VectorFileError: if a word or number cannot be written.
        OutputError: if the place cannot be written to.
    """
    rows = _checked(words, matrix)
    names = [_encoded(word) for word in words]
    with whole_file(path, option=option) as file, contextlib.ExitStack() as stack:
        out: IO[bytes] | gzip.GzipFile = file
        if os.fspath(path).endswith(".gz"):
            out = stack.enter_context(gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0))
        if header:
            out.write(b"%d %d\n" % rows.shape)
        for start in range(0, len(names), _ROWS):
            part = zip(names[start : start + _ROWS], rows[start : start + _ROWS])
            out.write(b"".join(name + b" " + " ".join(map(str, row)).encode() + b"\n" for name, row in part))


def write_npz(path: PathLike, words: Sequence[str], matrix: np.ndarray, option: str = "") -> None:
    """Write `words` (V strings) and `matrix` (V, D) float32 as an `.npz` archive; arguments as for `write_text`."""
    rows = _checked(words, matrix)
    with whole_file(path, option=option) as file:
        np.savez(file, words=np.array(words, dtype=str), matrix=rows)


def _checked(words: Sequence[str], matrix: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(matrix, dtype=np.float32)
    if rows.ndim != 2 or len(words) != len(rows) or not rows.size:
        raise VectorFileError(
            f"{counted(len(words), 'word')} and a matrix of shape {rows.shape} do not fit: nothing was written"
        )
    broken = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(broken):
        raise VectorFileError(f"the vector of {words[broken[0]]!r} holds NaN or infinity: nothing was written")
    return rows


def _encoded(word: str) -> bytes:
    """Return the word in UTF-8; raise VectorFileError if it could not be read back from a line of text."""
    with contextlib.suppress(UnicodeEncodeError):
        if word and word == word.strip(_BLANKS) and "\n" not in word and not word.startswith("\ufeff"):
            return word.encode("utf-8")
    raise VectorFileError(f"the word {word!r} cannot be in a text file of vectors; write an .npz file instead")
