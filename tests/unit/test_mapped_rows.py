"""Rows of a file through a memory map, against slicing its bytes."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embinit_fairseq.vectors import binary as module
from embinit_fairseq.vectors.binary import mapped_rows


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    offset=st.integers(0, 9),
    width=st.integers(1, 9),
    rows=st.lists(st.integers(0, 6), max_size=12),
    held=st.sampled_from([0, 1 << 18]),
)
def test_rows_equal_slices(tmp_path, monkeypatch, offset, width, rows, held):
    monkeypatch.setattr(module, "_HELD", held)  # one or several rows at a time
    content = np.random.default_rng(width).integers(0, 256, offset + 7 * width + 3, dtype=np.uint8).tobytes()
    file = tmp_path / "matrix"
    file.write_bytes(content)
    found = mapped_rows(file, offset, width, np.array(rows, dtype=np.int64))
    assert found.shape == (len(rows), width)
    assert [row.tobytes() for row in found] == [content[offset + row * width :][:width] for row in rows]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory of the process from /proc")
def test_memory_does_not_grow_with_the_file(tmp_path, monkeypatch):
    """A sparse file of 512 MiB: rows all over it must not leave their neighbourhoods mapped."""
    file = tmp_path / "large"
    with open(file, "wb") as stream:
        stream.truncate(1 << 29)
    before, peaks = _resident(), []

    class Watched(mmap.mmap):
        def madvise(self, option):
            peaks.append(_resident() - before)
            super().madvise(option)

    monkeypatch.setattr(module.mmap, "mmap", Watched)
    found = mapped_rows(file, 0, 1024, np.arange(0, 1 << 19, 16))
    assert len(peaks) > 5
    assert max(peaks) < found.nbytes + 2 * module._HELD


def _resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
