"""Lines, text and JSON of any file: what is within the limits comes back, what is beyond is one error in little memory.

The limits are made small, so that the files are, too.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import tracemalloc
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from source_files import sparse, write

from embinit_fairseq import bounded
from embinit_fairseq.bounded import LineGuard, LongLine
from embinit_fairseq.errors import DataError, exhausted

LONGEST = 1 << 15
STEP = 1 << 13  # bytes that Python reads at a time for a text


@pytest.fixture(autouse=True)
def small_limits(monkeypatch):
    for name, value in {"LONGEST_LINE": LONGEST, "MOST_BLANK_LINES": 5, "LARGEST_JSON": 1000}.items():
        monkeypatch.setattr(bounded, name, value)


def lines_of(path: str | Path, **options) -> list[str]:
    """With numbers from 1."""
    numbered = list(bounded.read_lines(path, DataError, "--text", **options))
    assert [number for number, _ in numbered] == list(range(1, len(numbered) + 1))
    return [line for _, line in numbered]


def test_lines_as_python_reads_them(tmp_path):
    for content in ("", "a", "a\n", "a\n\nb", "a\r\nb\u2028c\x85\rd\n", " \n", "\ufeffa\n", "é" * 20 + "\n" + "ß\n"):
        path = write(tmp_path / "text", content)
        assert lines_of(path) == content.removesuffix("\n").split("\n") if content else lines_of(path) == []
        with open(path, encoding="utf-8") as file:
            assert lines_of(path, newline=None) == [line.removesuffix("\n") for line in file]
    assert lines_of(write(tmp_path / "text", "\ufeffa\n"), encoding="utf-8-sig") == ["a"]
    assert lines_of(write(tmp_path / "text", b"a\xff\n"), errors="replace") == ["a\ufffd"]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, LONGEST + 4 * STEP), min_size=1, max_size=4), st.sampled_from([None, "\n"]))
def test_long_lines_are_refused_within_a_step_or_two(tmp_path_factory, lengths, newline):
    path = write(tmp_path_factory.getbasetemp() / "lengths", "\n".join("x" * length for length in lengths))
    try:
        assert list(map(len, lines_of(path, newline=newline))) == lengths
        assert max(lengths) <= LONGEST + 2 * STEP
    except DataError as error:
        line = int(str(error).removeprefix(f"--text {path}:").split(":")[0])
        # what had been read ahead does not come any more
        assert max(lengths[line - 1 :]) > LONGEST
        assert max(lengths[: line - 1], default=0) <= LONGEST + 2 * STEP


def test_the_guard_counts_from_the_last_line_break_of_what_was_read(monkeypatch):
    monkeypatch.setattr(bounded, "LONGEST_LINE", 64)
    assert io.BufferedReader(LineGuard(io.BytesIO(b"a\n" + b"x" * 78)), 16).readlines() == [b"a\n", b"x" * 78]
    with pytest.raises(LongLine) as caught:
        io.BufferedReader(LineGuard(io.BytesIO(b"a\n" + b"x" * 79)), 16).readlines()
    assert caught.value.offset == 81

    class Slow(io.BytesIO):
        def readinto(self, buffer):
            return super().readinto(memoryview(buffer)[:20])

    guard, buffer = LineGuard(Slow(b"x" * 1000)), bytearray(b"\n" * 50)  # line breaks of an earlier read behind it
    assert [guard.readinto(buffer) for _ in range(3)] == [20] * 3
    with pytest.raises(LongLine, match="64"):
        guard.readinto(buffer)


def test_the_line_of_a_byte(monkeypatch):
    monkeypatch.setattr(bounded, "CHUNK", 16)
    text = b"a\nbc\n\n" * 6
    for offset in (*range(40), 1000):
        assert bounded.line_number(io.BytesIO(text), offset) == text[:offset].count(b"\n") + 1


@pytest.mark.parametrize("line", ["\n", " \n", "\t\r\n"])
def test_more_blank_lines_than_others(tmp_path, line):
    assert len(lines_of(write(tmp_path / "few", line * 5))) == 5
    assert len(lines_of(write(tmp_path / "half", "a\n" * 6 + line * 6))) == 12
    path = write(tmp_path / "many", "a\n" * 6 + line * 100)
    with pytest.raises(DataError, match=rf"--text {path}:13: 7 of the lines .* blank: .*remove them"):
        lines_of(path)


LONG = b"good\n" * 9 + b"x" * (LONGEST + 3 * STEP)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\nb\n\xff\xfe\n", r"text:3: not UTF-8.*iconv"),
        *((LONG + end, r"text:10: .*32,768 bytes") for end in (b"", b"\n", b"\na")),
        (b"bar\r" * (LONGEST // 2), r"text:1: longer than.*break the line"),
    ],
)
def test_text_that_is_none(tmp_path, content, message):
    path = write(tmp_path / "text", content)
    with pytest.raises(DataError, match=f"--text {tmp_path}/{message}"):
        lines_of(path)
    if content.startswith(b"bar"):  # progress bars are lines where a carriage return ends them
        assert lines_of(path, newline=None) == ["bar"] * (LONGEST // 2)


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=rf"--text {tmp_path}/none: no such file; check the path"):
        lines_of(tmp_path / "none")
    with pytest.raises(DataError, match=rf"--text {tmp_path}: cannot be read.*check the path"):
        lines_of(tmp_path)
    with pytest.raises(DataError, match=r"none: .*No such file.*check the path"):
        bounded.read_bytes(tmp_path / "none", DataError, 100)
    monkeypatch.setattr(LineGuard, "readinto", Mock(side_effect=OSError(5, "Input/output error")))
    with pytest.raises(DataError, match=r"text: .*Input/output error.*check the disk"):
        lines_of(write(tmp_path / "text", "a\n"))


def test_gigabytes_of_nothing_take_no_memory(tmp_path):
    """As 4 GB without a line break, which a small archive can hold."""
    path = sparse(tmp_path / "text", b"good\n", 1 << 32)
    tracemalloc.start()
    with pytest.raises(DataError, match="text:2: longer than"):
        lines_of(path)
    with pytest.raises(DataError, match=rf"--it {path}: longer than 100 bytes.*; mend it$"):
        bounded.read_bytes(path, DataError, 100, "mend it", "--it")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_json_comes_back(tmp_path):
    value = {"a": [1, 2.5, None, "é\u2028", 10**4000], "nested": [[[[[]]]]]}
    path = write(tmp_path / "a.json", json.dumps(value))
    assert bounded.read_json(path, DataError, largest=5000) == value
    for text, reason in (
        *((text, r"not JSON \(") for text in ("", "{", '{"a": 1} b', "\ufeff1", "\0" * 30, b"\xff")),
        ('"' + "x" * 1000 + '"', "longer than 1,000 bytes"),
    ):
        with pytest.raises(DataError, match=rf"{path}: {reason}.*; mend it$"):
            bounded.read_json(write(tmp_path / "a.json", text), DataError, remedy="mend it")


SHAPES = "{}", '{{"a": {}}}', "[1, {}]", "-{}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *((shape.format(4301 * "7"), "thousands of digits") for shape in SHAPES),
        ("7" * 1_000_000, "thousands of digits"),
        *((text, "nested too deeply") for text in ("[" * 200_000, '{"a":' * 200_000, "[" * 200_000 + "]" * 200_000)),
    ],
    ids=range(8),
)
def test_endless_numbers_and_nesting(text, reason):
    for content in (text, text.encode()):
        with pytest.raises(DataError, match=rf"here: .*{reason}.*; mend it"):
            bounded.parse_json(content, "here", DataError, remedy="mend it")


@pytest.mark.parametrize("size", [100, 101])
def test_bytes_within_their_limit(tmp_path, size):
    reading, writing = os.pipe()  # what has no size
    os.write(writing, b"x" * size)
    os.close(writing)
    for path in (write(tmp_path / "a", "x" * size), f"/dev/fd/{reading}"):
        with contextlib.nullcontext() if size == 100 else pytest.raises(DataError, match="longer than 100 bytes"):
            assert bounded.read_bytes(path, DataError, 100) == b"x" * 100
    os.close(reading)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "memory ran out (MemoryError)"),
        (MemoryError("Unable to allocate 4 GiB\nfor an array"), "memory ran out (Unable to allocate 4 GiB)"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "memory ran out (DefaultCPUAllocator"),
        (RuntimeError("CUDA out of memory. Tried"), "memory ran out (CUDA out of memory"),
        (RecursionError("maximum recursion depth exceeded"), "nested too deeply"),
    ],
)
def test_what_says_that_memory_ran_out(error, said):
    message = exhausted(error)
    assert said in message
    assert "\n" not in message
    assert "smaller files" in message or "again" in message
    assert exhausted(RuntimeError("shape mismatch")) is exhausted(ValueError("of anything")) is None
