"""Lines, text and JSON of any file: what is within the limits comes back, what is beyond is one error in little memory.

The limits are made small, so that the files are, too.
"""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from unittest.mock import Mock

import pytest
from source_files import refused, sparse, write

from embinit_fairseq import bounded
from embinit_fairseq.bounded import LineGuard, LongLine
from embinit_fairseq.errors import DataError, exhausted

LONGEST = 1 << 15


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
    path = write(tmp_path / "text", "bar\r" * (LONGEST // 2))
    assert lines_of(path, newline=None) == ["bar"] * (LONGEST // 2)  # of progress bars


def test_the_guard_counts_from_the_last_line_break_of_what_was_read(monkeypatch):
    monkeypatch.setattr(bounded, "LONGEST_LINE", 64)
    assert io.BufferedReader(LineGuard(io.BytesIO(b"a\n" + b"x" * 78)), 16).readlines() == [b"a\n", b"x" * 78]
    with pytest.raises(LongLine) as caught:
        io.BufferedReader(LineGuard(io.BytesIO(b"a\n" + b"x" * 79)), 16).readlines()
    assert caught.value.offset == 81
    slow = Mock(readinto=lambda buffer: io.BytesIO(b"x" * 20).readinto(buffer))
    guard, buffer = LineGuard(slow), bytearray(b"\n" * 50)  # line breaks of an earlier read behind it
    assert [guard.readinto(buffer) for _ in range(3)] == [20] * 3
    with pytest.raises(LongLine, match="64"):
        guard.readinto(buffer)
    monkeypatch.setattr(bounded, "CHUNK", 16)
    text = b"a\nbc\n\n" * 6
    for offset in (*range(40), 1000):
        assert bounded.line_number(io.BytesIO(text), offset) == text[:offset].count(b"\n") + 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, ": no such file; check the path"),
        (b"PK\x03\0\x80\n", ":1: .*binary file.*check the path"),
        (b"a\nb\n\xff\xfe\n", ":3: not UTF-8 text .byte 0xff.*Latin-1.*iconv -f latin1 -t utf-8"),
        (b"good\n" * 9 + b"x" * 2 * LONGEST, r":10: .*32,768 bytes"),
        (b"bar\r" * (LONGEST // 2), ":1: longer than.*break the line"),
        *(("a\n" * 6 + line * 100, r":13: 7 of the lines .* blank: .*remove them") for line in ("\n", "\t\r\n")),
    ],
    ids=range(7),
)
def test_text_that_is_none(tmp_path, content, message):
    if content is not None:
        write(tmp_path / "text", content)
    with pytest.raises(DataError, match=f"--text {tmp_path}/text{message}"):
        lines_of(tmp_path / "text")
    for line in ("\n", "\t\r\n"):
        assert len(lines_of(write(tmp_path / "few", line * 5))) == 5
        assert len(lines_of(write(tmp_path / "half", "a\n" * 6 + line * 6))) == 12


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=rf"--text {tmp_path}: cannot be read.*check the path"):
        lines_of(tmp_path)
    with pytest.raises(DataError, match=r"none: .*No such file.*check the path"):
        bounded.read_bytes(tmp_path / "none", DataError, 100)
    reading, writing = os.pipe()  # what has no size
    os.write(writing, b"x" * 101)
    os.close(writing)
    large = sparse(tmp_path / "large", b"good\n", 1 << 32)
    for path in (large, f"/dev/fd/{reading}"):
        said = refused(lambda path=path: bounded.read_bytes(path, DataError, 100, "repair it", "--it"), path, 1 << 20)
        assert said.startswith(f"--it {path}: longer than 100 bytes")
    os.close(reading)
    assert bounded.read_bytes(write(tmp_path / "a", "x" * 100), DataError, 100) == b"x" * 100
    refused(lambda: lines_of(large), f"--text {large}:2: longer than", 1 << 20)
    monkeypatch.setattr(LineGuard, "readinto", Mock(side_effect=OSError(5, "Input/output error")))
    with pytest.raises(DataError, match=r"text: .*Input/output error.*check the disk"):
        lines_of(write(tmp_path / "text", "a\n"))


def test_json_comes_back(tmp_path):
    value = {"a": [1, 2.5, None, "é\u2028", 10**4000], "nested": [[[[[]]]]]}
    path = write(tmp_path / "a.json", json.dumps(value))
    assert bounded.read_json(path, DataError, largest=5000) == value
    for text, reason in (
        *((text, r"not JSON \(") for text in ("", "{", '{"a": 1} b', "\ufeff1", b"\xff")),
        ('"' + "x" * 1000 + '"', "longer than 1,000 bytes"),
    ):
        with pytest.raises(DataError, match=rf"{path}: {reason}.*; mend it$"):
            bounded.read_json(write(tmp_path / "a.json", text), DataError, remedy="mend it")
    for text, reason in (
        *((shape.format(4301 * "7"), "thousands of digits") for shape in ("{}", '{{"a": {}}}', "[1, {}]", "-{}")),
        *((text, "nested too deeply") for text in ("[" * 200_000, b'{"a":' * 200_000)),
    ):
        with pytest.raises(DataError, match=f"here: .*{reason}.*; mend it"):
            bounded.parse_json(text, "here", DataError, remedy="mend it")


def test_what_says_that_memory_ran_out():
    for error, said in (
        (MemoryError("Unable to allocate 4 GiB\nfor an array"), "memory ran out (Unable to allocate 4 GiB)"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "memory ran out (DefaultCPUAllocator"),
        (RuntimeError("CUDA out of memory. Tried"), "memory ran out (CUDA out of memory"),
        (RecursionError("maximum recursion depth exceeded"), "nested too deeply"),
    ):
        assert said in exhausted(error)
        assert "\n" not in exhausted(error)
    assert exhausted(RuntimeError("shape mismatch")) is exhausted(ValueError("of anything")) is None
