"""Checks that the readers of binary formats share.

Letters: V rows, D columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from embinit_fairseq.errors import VectorFileError
from embinit_fairseq.vectors.compressed import check_exists, readable
from embinit_fairseq.vectors.text_head import dimension_error


def existing_file(path: str) -> Path:
    """The path of a file that exists, can be read and is not empty; VectorFileError otherwise."""
    check_exists(path)
    file = Path(path)
    if file.is_dir():
        raise VectorFileError(f"{path}: a directory, but this format is one file. Name the file itself.")
    with readable(path), open(file, "rb") as stream:
        if not stream.read(1):
            raise VectorFileError(f"{path}: the file is empty. Download or export it again.")
    return file


def check_dimension(path: str, found: int, dim: int | None) -> None:
    """Raise DimensionError unless the source's width is the one that was asked for (None: any)."""
    if dim is not None and found != dim:
        raise dimension_error(path, found, dim)


def check_finite(path: str, names: Sequence[str], matrix: np.ndarray) -> None:
    """Raise VectorFileError if a row of `matrix` (V, D), called by its name, holds NaN or infinity."""
    # The sum of a row is not finite if an element is not; where only the sum overflows, look at the elements.
    with np.errstate(over="ignore", invalid="ignore"):
        suspects = np.flatnonzero(~np.isfinite(matrix.sum(axis=1)))
    broken = [row for row in suspects if not np.isfinite(matrix[row]).all()]
    if broken:
        raise VectorFileError(
            f"{path}: the vector of {names[broken[0]]!r} (one of {len(broken)}) holds NaN or infinity. "
            "Export the vectors again or take another file."
        )
