"""Files and folders are whole or absent, whatever stops the writing; text and JSON come back or are refused."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import resource
from pathlib import Path

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
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def write_folder(path, text, force=False):
    with io.whole_folder(path, force, ("a", "below/*")) as folder:
        (folder / "a").write_text(text)
        (folder / "below").mkdir()
        (folder / "below" / "b").write_text(text)


def fill_and_fail(place, error):
    with place as folder:
        (folder / "half").touch()
        raise error


@pytest.mark.parametrize("write", [io.write_text, io.write_json])
def test_a_file_is_replaced_or_left_as_it_was(tmp_path, write):
    path, link = tmp_path / "a b", tmp_path / "link"
    for before, text in ((None, "first, é\n"), ("first, é\n", "second\n")):
        with pytest.raises(OutputError, match=rf"--o {path}: .*\(File too large\).*free some space"), largest_file(5):
            write(path, "x" * 100_000, "--o")
        assert list(content(tmp_path)) == ([] if before is None else ["a b"])
        write(path, text)
        assert path.read_text() == (text if write is io.write_text else json.dumps(text, ensure_ascii=False) + "\n")
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask
    path.chmod(0o640)
    link.symlink_to(path)
    io.write_json(link, value := {"caf\udce9": [1, 2.5, None, True, "é\u2028", 10**30], "": {}})
    assert json.loads(path.read_text(encoding="utf-8")) == value  # including a file name that is not UTF-8
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    with contextlib.suppress(KeyboardInterrupt), io.whole_file(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert json.loads(path.read_text(encoding="utf-8")) == value
    assert sorted(os.listdir(tmp_path)) == ["a b", "link"]
    assert io.sha256(path) == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_a_file_does_not_replace_something_else(tmp_path, kind):
    (os.mkdir if kind == "folder" else os.mkfifo)(tmp_path / "a")
    with pytest.raises(OutputError, match=r"--o .*a: .*choose another --o"):
        io.write_text(tmp_path / "a", "text", "--o")


def test_a_folder_is_replaced_only_with_force_and_only_if_it_is_ours(tmp_path):
    place = tmp_path / "new" / "out"
    write_folder(place, "old")
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
    assert content(place.parent) == {"out": {"a": "new", "below": {"b": "new"}}}
    for error in (KeyboardInterrupt(), ValueError("of the content")):
        with pytest.raises(type(error)):
            fill_and_fail(io.whole_folder(place, force=True), error)
        assert content(place.parent) == {"out": {"a": "new", "below": {"b": "new"}}}


@pytest.mark.parametrize("force", [False, True])
def test_files_that_appear_while_a_folder_is_written_stay(tmp_path, force):
    def write():
        with io.whole_folder(tmp_path / "out", force, ("a",)):
            (tmp_path / "out").mkdir()
            (tmp_path / "out" / "notes").write_text("precious")

    with pytest.raises(OutputError, match="choose another --output"):
        write()
    assert content(tmp_path) == {"out": {"notes": "precious"}}


def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "in").mkdir()
    for path, inputs, said in (
        (tmp_path / "file", [], "a file of this name"),
        (tmp_path / "file" / "out", [], "cannot be made .*not a folder"),
        (tmp_path / "in" / "out", [tmp_path / "in"], "which is an input"),
        (tmp_path / "in", [tmp_path / "in" / "text"], "the input .*text is in this folder"),
    ):
        with pytest.raises(OutputError, match=rf"--output .*{said}.*choose another --output"):
            io.check_folder(path, inputs=inputs)
    for path, said in ((tmp_path / "no" / "a", "mkdir -p"), (tmp_path / "file", "--force")):
        with pytest.raises(OutputError, match=rf"--output .*{said}"):
            io.check_file(path)
    io.check_file(tmp_path / "file", force=True)
    with pytest.raises(OutputError, match="one of the files that are read"):
        io.check_file(tmp_path / "file", force=True, inputs=[tmp_path / "file"])


def torch_interrupted() -> RuntimeError:
    error = RuntimeError("unexpected pos 64 vs 0")
    error.__context__ = KeyboardInterrupt("Ctrl-C")
    return error


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (FULL, OutputError, r"out: .*\(No space left.*free some space"),
        (OSError(errno.EROFS, os.strerror(errno.EROFS)), OutputError, "change the permissions, or choose another"),
        (RuntimeError("PytorchStreamWriter failed writing file"), OutputError, "free some space"),
        (torch_interrupted(), KeyboardInterrupt, "Ctrl-C"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), RuntimeError, "^DefaultCPUAllocator"),
        (OSError("Can't load the tokenizer"), OSError, "^Can't load"),
        (FileNotFoundError(errno.ENOENT, "No such file", "/another/file"), FileNotFoundError, "another"),
        (ValueError("of a model"), ValueError, "^of a model"),
    ],
)
def test_only_errors_of_writing_are_explained_as_such(tmp_path, error, expected, message):
    with pytest.raises(expected, match=message) as caught:
        fill_and_fail(io.whole_folder(tmp_path / "out"), error)
    assert isinstance(caught.value, OutputError) == (expected is OutputError)
    assert os.listdir(tmp_path) == []


def test_an_input_beside_the_output_is_not_blamed_on_the_output(tmp_path):
    with pytest.raises(FileNotFoundError), io.whole_folder(tmp_path / "out"):
        (tmp_path / "outlook").read_text()


def test_temporary_files_on_a_full_disk_name_tmpdir(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(OutputError, match=rf"temporary files in {tmp_path}: .*No space left.*TMPDIR"):
        with io.whole_folder(tmp_path / "out"):  # which must not be blamed
            fill_and_fail(io.temporary_folder(), FULL)
    assert os.listdir(tmp_path) == []


def test_only_a_line_feed_ends_a_line(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("\ufeffa\r\nb\u2028c\x85\rd\n\n \ufeffe".encode())
    assert list(io.read_lines(path)) == [(1, "a"), (2, "b\u2028c\x85\rd"), (3, ""), (4, " \ufeffe")]
    path.write_bytes(b"a\xff\n")
    assert list(io.read_lines(path, errors="replace")) == [(1, "a\ufffd")]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (None, r"text: no such file \(did you mean texts\?\); check the path"),
        (b"PK\x03\0\x80\n", "text:1: .*binary.*check the path"),
        (b"a\nb\n\xff\xfe\n", "text:3: not UTF-8 .byte 0xff.*iconv -f latin1 -t utf-8"),
    ],
)
def test_text_that_cannot_be_read(tmp_path, raw, message):
    (tmp_path / "texts").touch()
    if raw is not None:
        (tmp_path / "text").write_bytes(raw)
    with pytest.raises(DataError, match=f"--flag {tmp_path}/{message}"):
        list(io.read_lines(tmp_path / "text", DataError, "--flag"))
    with pytest.raises(DataError, match=r"--flag .*Is a directory.*check the path"):
        list(io.read_lines(tmp_path, DataError, "--flag"))


def test_json_comes_back_or_is_refused(tmp_path):
    path = tmp_path / "a.json"
    io.write_json(path, value := {"a": [1, 2.5, None, "é\u2028", 10**4000], "nested": [[[[[]]]]]})
    assert io.read_json(path) == value
    for text in (b"", b"{", b'{"a": 1} b', b"\xff", b"[" * 200_000, b"7" * 4301):
        path.write_bytes(text)
        with pytest.raises(DataError, match=rf"--j {path}: not JSON \(.*; get it again$"):
            io.read_json(path, DataError, "--j", remedy="get it again")
    with pytest.raises(DataError, match=r"--j .*no such file"):
        io.read_json(tmp_path / "b.json", DataError, "--j")


def test_inputs_are_files(tmp_path):
    (tmp_path / "a").touch()
    assert io.check_inputs({"dictionary": str(tmp_path / "a"), "words": None}) == {"dictionary": str(tmp_path / "a")}
    for path, said in (("", "an empty path"), (str(tmp_path), "a folder"), (str(tmp_path / "b"), "no such file")):
        with pytest.raises(DataError, match=f"--dict.*{said}"):
            io.check_inputs({"dictionary": path})


def test_hardware_and_versions(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert {"cpu", "cores", "threads", "gpus"} == set(io.hardware())
    assert io.package_versions(["numpy", "no-such-package"])["no-such-package"] is None
    assert {"python", "torch", "revision"} <= set(io.versions())


def test_what_says_that_memory_ran_out():
    for error, said in (
        (MemoryError("Unable to allocate 4 GiB\nfor an array"), "memory ran out (Unable to allocate 4 GiB)"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "memory ran out (DefaultCPUAllocator"),
        (RecursionError("maximum recursion depth exceeded"), "nested too deeply"),
    ):
        assert said in exhausted(error)
        assert "\n" not in exhausted(error)
    assert exhausted(RuntimeError("shape mismatch")) is None


def test_a_variable_of_the_shell_that_is_not_set_and_the_second_file_of_an_option(tmp_path):
    with pytest.raises(OutputError, match="--output: an empty path; give"):
        io.check_folder("")
    with pytest.raises(DataError, match=f"--keep-text {tmp_path}: a folder; name a file"):
        io.check_inputs({"keep_text 2": str(tmp_path)})
