"""Files and folders are whole or absent, whatever stops the writing; text and JSON come back or are refused."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import resource
import sys
from pathlib import Path
from unittest import mock

import pytest

from embinit_fairseq import io
from embinit_fairseq.errors import DataError, OutputError, exhausted

FULL = OSError(errno.ENOSPC, "No space left on device")


def content(path: Path):
    """Return everything under a path, hidden files included."""
    return {file.name: content(file) for file in sorted(path.iterdir())} if path.is_dir() else path.read_text()


@contextlib.contextmanager
def largest_file(size: int):
    """Fail every write beyond `size` bytes, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        with mock.patch.object(sys, "dont_write_bytecode", True):  # Python would keep half of a module
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def write_folder(path, text, force=False):
    with io.whole_folder(path, force, ("a", "below/*")) as folder:
        (folder / "a").write_text(text)
        (folder / "below").mkdir()
        (folder / "below" / "b").write_text(text)


def fail(*_):
    raise KeyboardInterrupt


def fill_and_fail(place, error):
    with place as folder:
        (folder / "half").touch()
        raise error


def test_a_file_is_replaced_or_left_as_it_was(tmp_path):
    path, link = tmp_path / "a b", tmp_path / "link"
    for before, text in (([], "first, é\n"), (["a b"], "second\n")):
        with pytest.raises(OutputError, match=rf"--o {path}: .*\(File too large\).*free some space"), largest_file(5):
            io.write_text(path, "x" * 100_000, "--o")
        assert os.listdir(tmp_path) == before
        io.write_text(path, text)
        assert path.read_text() == text
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask
    path.chmod(0o640)
    link.symlink_to(path)
    io.write_json(link, value := {"caf\udce9": [1, 2.5, None, True, "é\u2028", 10**4000], "": {}, "nested": [[[]]]})
    assert io.read_json(path) == json.loads(path.read_text(encoding="utf-8")) == value  # names that are not UTF-8, too
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    with contextlib.suppress(KeyboardInterrupt), io.whole_file(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert io.read_json(path) == value
    with io.whole_file(tmp_path / "text", "w") as file:
        file.write("é\n")
    assert (tmp_path / "text").read_bytes() == "é\n".encode()
    assert sorted(os.listdir(tmp_path)) == ["a b", "link", "text"]
    assert io.sha256(path) == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_folder_is_replaced_only_with_force_and_only_if_it_is_ours(tmp_path, monkeypatch):
    place = tmp_path / "new" / "out"
    write_folder(place, "old")
    place.chmod(0o750)
    with pytest.raises(OutputError, match=r"--output .*--force"):
        write_folder(place, "new")
    for stranger in ("below/deeper/thesis.tex", "thesis/a", "elsewhere"):
        path = place / stranger
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(tmp_path) if stranger == "elsewhere" else path.write_text("years of work")
        with pytest.raises(OutputError, match=rf"--output .*out: --force would delete {stranger}"):
            write_folder(place, "new", force=True)
        assert os.path.lexists(path)
        assert (place / "a").read_text() == "old"
        path.unlink()
    write_folder(place, "new", force=True)
    assert place.stat().st_mode & 0o777 == 0o750
    for error in (None, KeyboardInterrupt(), ValueError("of the content")):
        if error is not None:
            with pytest.raises(type(error)):
                fill_and_fail(io.whole_folder(place, force=True), error)
        assert content(place.parent) == {"out": {"a": "new", "below": {"b": "new"}}}
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)  # when everything is written
        with pytest.raises(KeyboardInterrupt):
            write_folder(place, "other", force=True)
    assert content(place.parent) == {"out": {"a": "new", "below": {"b": "new"}}}
    with pytest.raises(OutputError, match="--force would delete notes"):  # written meanwhile
        with io.whole_folder(place, True, ("a", "below/*")):
            (place / "notes").write_text("precious")
    assert (place / "notes").read_text() == "precious"


def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "in").mkdir()
    for path, inputs, said in (
        ("", [], "an empty path; give"),
        (tmp_path / "file", [], "a file of this name.*choose another --output"),
        (tmp_path / "file" / "out", [], "cannot be made .*not a folder.*choose another --output"),
        (tmp_path / "in" / "out", [tmp_path / "in"], "which is an input; choose another --output"),
        (tmp_path / "in", [tmp_path / "in" / "text"], "the input .*text is in this folder"),
        (tmp_path / "in", [tmp_path / "in"], "the input .*in is in this folder"),
    ):
        with pytest.raises(OutputError, match=rf"--output.*{said}"):
            io.check_folder(path, inputs=inputs)
    for path, said in ((tmp_path / "no" / "a", "mkdir -p"), (tmp_path / "file", "--force")):
        with pytest.raises(OutputError, match=rf"--output .*{said}"):
            io.check_file(path)
    io.check_file(tmp_path / "file", force=True)
    with pytest.raises(OutputError, match="one of the files that are read"):
        io.check_file(tmp_path / "file", force=True, inputs=[tmp_path / "file"])
    with pytest.raises(OutputError, match=r"--o .*in: .*choose another --o"):
        io.write_text(tmp_path / "in", "text", "--o")
    assert content(tmp_path) == {"file": "", "in": {}}


def torch_failed(context: BaseException) -> RuntimeError:
    error = RuntimeError("unexpected pos 64 vs 0")
    error.__context__ = context
    return error


def test_only_errors_of_writing_are_explained_as_such(tmp_path, monkeypatch):
    for error, expected, message in (
        (FULL, OutputError, r"out: .*\(No space left.*free some space"),
        (OSError(errno.EROFS, os.strerror(errno.EROFS)), OutputError, "change the permissions, or choose another"),
        # in the output, or in a folder above it
        *((OSError(errno.EACCES, "", str(p)), OutputError, "change the perm") for p in (tmp_path / "out/a", tmp_path)),
        (RuntimeError("PytorchStreamWriter failed writing file"), OutputError, "free some space"),
        (torch_failed(FULL), OutputError, "No space left"),
        (torch_failed(KeyboardInterrupt("Ctrl-C")), KeyboardInterrupt, "Ctrl-C"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), RuntimeError, "^DefaultCPUAllocator"),
        (OSError("Can't load the tokenizer"), OSError, "^Can't load"),
        # an input, in another folder or next to the output
        *((FileNotFoundError(2, "No such file", f), FileNotFoundError, f) for f in ("/other", f"{tmp_path}/outlook")),
    ):
        with pytest.raises(expected, match=message) as caught:
            fill_and_fail(io.whole_folder(tmp_path / "out"), error)
        assert isinstance(caught.value, OutputError) == (expected is OutputError)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(OutputError, match=rf"temporary files in {tmp_path}: .*No space left.*TMPDIR"):
        with io.whole_folder(tmp_path / "out"):  # which must not be blamed
            fill_and_fail(io.temporary_folder(), FULL)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (None, r"text: no such file \(did you mean texts\?\); check the path"),
        (b"PK\x03\0\x80\n", "text:1: .*binary.*check the path"),
        (b"a\nb\n\xff\xfe\n", "text:3: not UTF-8 .byte 0xff.*iconv -f latin1 -t utf-8"),
    ],
)
def test_lines_of_a_text_and_what_cannot_be_read(tmp_path, raw, message):
    (tmp_path / "texts").write_bytes("\ufeffa\r\nb\u2028c\x85\rd\n\n \ufeffe".encode())
    assert list(io.read_lines(tmp_path / "texts")) == [(1, "a"), (2, "b\u2028c\x85\rd"), (3, ""), (4, " \ufeffe")]
    if raw is not None:
        (tmp_path / "text").write_bytes(raw)
        assert list(io.read_lines(tmp_path / "text", errors="replace"))
    with pytest.raises(DataError, match=f"--flag {tmp_path}/{message}"):
        list(io.read_lines(tmp_path / "text", DataError, "--flag"))
    with pytest.raises(DataError, match=r"--flag .*Is a directory.*check the path"):
        list(io.read_lines(tmp_path, DataError, "--flag"))


def test_inputs_that_are_no_json_or_no_files(tmp_path):
    path = tmp_path / "a.json"
    for text in (b"", b"{", b'{"a": 1} b', b"\xff", b"[" * 200_000):
        path.write_bytes(text)
        with pytest.raises(DataError, match=rf"--j {path}: not JSON \(.*; get it again$"):
            io.read_json(path, DataError, "--j", remedy="get it again")
    with pytest.raises(DataError, match=r"--j .*no such file"):
        io.read_json(tmp_path / "b.json", DataError, "--j")
    assert io.check_inputs({"dictionary": str(path), "words": None}) == {"dictionary": str(path)}
    for name, file, said in (
        ("dictionary", "", "--dict: an empty path"),
        ("keep_text 2", str(tmp_path), f"--keep-text {tmp_path}: a folder"),
        ("words", str(tmp_path / "b"), "--words .*no such file"),
    ):
        with pytest.raises(DataError, match=said):
            io.check_inputs({name: file})


def test_versions_hardware_and_exhausted_memory(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert {"cpu", "cores", "threads", "gpus"} == set(io.hardware())
    assert io.package_versions(["numpy", "no-such-package"])["no-such-package"] is None
    assert {"python", "torch", "revision"} <= set(io.versions())
    for error, said in (
        (MemoryError("Unable to allocate 4 GiB\nfor an array"), "memory ran out (Unable to allocate 4 GiB)"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "memory ran out (DefaultCPUAllocator"),
        (RecursionError("maximum recursion depth exceeded"), "nested too deeply"),
    ):
        assert said in exhausted(error)
    assert exhausted(RuntimeError("shape mismatch")) is None
