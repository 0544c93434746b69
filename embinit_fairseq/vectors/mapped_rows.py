"""Rows of a matrix that lies in a file, without reading the rest of it and without keeping it in memory."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

_HELD = 32 << 20  # bytes of the file that may be mapped at a time
_NEIGHBOURHOOD = 1 << 16  # bytes that the kernel maps around each page that is touched


def mapped_rows(file: str | Path, offset: int, width: int, rows: np.ndarray) -> np.ndarray:
    """(len(rows), width) uint8: the rows of `width` bytes that begin at byte `offset`; best in ascending order.

    The caller has checked that the rows lie inside the file. (Reading each row by itself costs three times as much.)
    """
    found = np.empty((len(rows), width), dtype=np.uint8)
    if not len(rows):
        return found
    with open(file, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        count = (len(mapped) - offset) // width
        # As bytes: NumPy copies a whole array first if its numbers do not begin at a multiple of their size.
        matrix = np.frombuffer(mapped, dtype=np.uint8, count=count * width, offset=offset).reshape(count, width)
        step = max(1, _HELD // (width + _NEIGHBOURHOOD))
        for begin in range(0, len(rows), step):
            part = slice(begin, begin + step)
            np.take(matrix, rows[part], axis=0, out=found[part], mode="clip")
            if hasattr(mmap, "MADV_DONTNEED"):
                mapped.madvise(mmap.MADV_DONTNEED)
        del matrix  # the map can be closed only when nothing refers to it
    return found
