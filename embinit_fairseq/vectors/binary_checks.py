"""Checks that the readers of binary formats share.

Letters: V rows, D columns.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from embinit_fairseq.errors import DimensionError, VectorFileError


def existing_file(path: str) -> Path:
    """The path of a file that exists and is not empty; VectorFileError otherwise."""
    file = Path(path)
    if not file.exists():
        raise VectorFileError(f"{path}: no such file; check the path given to --embed-init-path")
    if file.is_dir():
        raise VectorFileError(f"{path}: a directory, but this format is one file; name the file itself")
    try:
        with open(file, "rb") as stream:
            empty = not stream.read(1)
    except OSError as error:
        raise VectorFileError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error
    if empty:
        raise VectorFileError(f"{path}: the file is empty; download or export it again")
    return file


def check_dimension(path: str, found: int, dim: int | None) -> None:
    """Raise DimensionError unless the source's width is the one that was asked for (None: any)."""
    if dim is not None and found != dim:
        raise DimensionError(
            f"{path}: the vectors have {found} dimensions, the model's table has {dim}; set --encoder-embed-dim "
            f"(or --decoder-embed-dim) to {found}, or choose vectors with {dim} dimensions"
        )


def keep_finite(path: str, words: list[str], matrix: np.ndarray, strict: bool) -> tuple[list[str], np.ndarray, int]:
    """Drop the rows that hold NaN or infinity: (words, matrix (V, D), number dropped).

    With `strict`, or when no finite row is left, such a row is a VectorFileError.
    """
    # The sum of a row is NaN or infinite if an element is; overflow of finite values is looked at again.
    with np.errstate(over="ignore", invalid="ignore"):
        suspect = np.flatnonzero(~np.isfinite(matrix.sum(axis=1)))
    broken = [int(row) for row in suspect if not np.isfinite(matrix[row]).all()]
    if not broken:
        return words, matrix, 0
    if strict or len(broken) == len(words):
        raise VectorFileError(
            f"{path}: the vector of {words[broken[0]]!r} holds NaN or infinity ({len(broken)} of {len(words)} rows "
            f"do); export the vectors again{', or leave out --embed-init-strict' if strict else ''}"
        )
    dropped = set(broken)
    kept = [row for row in range(len(words)) if row not in dropped]
    return [words[row] for row in kept], np.ascontiguousarray(matrix[kept]), len(broken)
