"""Files and folders are whole or absent, whatever stops the writing; text and JSON come back or are refused."""

import bz2
import contextlib
import errno
import gzip
import hashlib
import json
import lzma
import os
import resource
import sys
from pathlib import Path
from unittest import mock

import pytest

from embinit_fairseq import io, machine
from embinit_fairseq.errors import DataError, OutputError

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


def test_a_file_is_replaced_or_left_as_it_was(tmp_path):
    path, link = tmp_path / "a b", tmp_path / "link"
    for before in ([], ["a b"]):
        with pytest.raises(OutputError, match=rf"--o {path}: .*\(File too large\).*free some space"), largest_file(5):
            io.write_text(path, "x" * 100_000, "--o")
        assert os.listdir(tmp_path) == before
        io.write_text(path, "first, é\n")
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask
    path.chmod(0o640)
    link.symlink_to(path)
    with io.whole_file(link, "w") as file:
        file.write("second, é\n")
    assert (path.read_text(), link.is_symlink(), path.stat().st_mode & 0o777) == ("second, é\n", True, 0o640)
    io.write_json(path, value := {"caf\udce9": [1, 2.5, None, True, "é\u2028", 10**4000], "nested": [[[]]]})
    assert io.read_json(path) == json.loads(path.read_text(encoding="utf-8")) == value  # names that are not UTF-8, too
    assert io.sha256(path) == hashlib.sha256(path.read_bytes()).hexdigest()
    assert sorted(os.listdir(tmp_path)) == ["a b", "link"]


def write_folder(path, text, error=None):
    with io.whole_folder(path, True, ("a", "below/*")) as folder:
        (folder / "a").write_text(text)
        (folder / "below").mkdir()
        (folder / "below" / "b").write_text(text)
        if error is not None:
            raise error


def test_a_folder_is_replaced_when_it_is_complete_and_holds_no_strange_file(tmp_path, monkeypatch):
    place, old = tmp_path / "new" / "out", {"out": {"a": "old", "below": {"b": "old"}}}
    write_folder(place, "first")
    place.chmod(0o750)
    write_folder(place, "old")
    assert place.stat().st_mode & 0o777 == 0o750
    for error in (KeyboardInterrupt(), ValueError("of the content")):
        with pytest.raises(type(error)):
            write_folder(place, "new", error)
        assert content(place.parent) == old
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", mock.Mock(side_effect=KeyboardInterrupt))  # when everything is written
        with pytest.raises(KeyboardInterrupt):
            write_folder(place, "new")
    assert content(place.parent) == old
    for stranger in ("below/deeper/thesis.tex", "thesis/a", "elsewhere"):
        path = place / stranger
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(tmp_path) if stranger == "elsewhere" else path.write_text("years of work")
        with pytest.raises(OutputError, match=rf"--output .*out: --force would delete {stranger}"):
            write_folder(place, "new")
        assert os.path.lexists(path)
        path.unlink()
    with pytest.raises(OutputError, match="--force would delete notes"):  # written meanwhile
        with io.whole_folder(place, True, ("a", "below/*")):
            (place / "notes").write_text("precious")
    assert (place / "notes").read_text() == "precious"
    with io.whole_folder(place, force=True):
        pass
    assert content(place.parent) == {"out": {}}


def test_places_that_cannot_be_written(tmp_path):
    """Of what test_output_folders does not do with every command."""
    with pytest.raises(OutputError, match="--output: an empty path; give"):
        io.check_folder("")
    with pytest.raises(OutputError, match=r"--output .*in/out: .*which is an input; choose another --output"):
        io.check_folder(tmp_path / "in" / "out", inputs=[tmp_path / "in"])
    with pytest.raises(OutputError, match=r"--output .*no/a: .*mkdir -p"):
        io.check_file(tmp_path / "no" / "a")
    with pytest.raises(OutputError, match=rf"--o {tmp_path}: .*choose another --o"):
        io.write_text(tmp_path, "text", "--o")
    assert os.listdir(tmp_path) == []


def torch_failed(context: BaseException) -> RuntimeError:
    error = RuntimeError("unexpected pos 64 vs 0")
    error.__context__ = context
    return error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (FULL, r"out: .*\(No space left.*free some space"),
        (OSError(errno.EROFS, os.strerror(errno.EROFS)), "change the permissions, or choose another"),
        (OSError(errno.EACCES, "", "out/a"), "change the permissions"),
        (OSError(errno.EACCES, "", "."), "change the permissions"),  # a folder above the output
        (RuntimeError("PytorchStreamWriter failed writing file"), "free some space"),
        (torch_failed(FULL), "No space left"),
        (torch_failed(KeyboardInterrupt("Ctrl-C")), None),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), None),
        (OSError("Can't load the tokenizer"), None),
        (FileNotFoundError(2, "No such file", "/other"), None),
        (FileNotFoundError(2, "No such file", "outlook"), None),  # an input next to the output
    ],
)
def test_only_errors_of_writing_are_explained_as_such(tmp_path, monkeypatch, error, message):
    monkeypatch.chdir(tmp_path)
    expected = OutputError if message else getattr(error, "__context__", None) or error
    with pytest.raises(expected if message else type(expected), match=message):
        write_folder("out", "text", error)
    assert os.listdir() == []


def test_a_full_disk_of_temporary_files_is_not_blamed_on_the_output(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(OutputError, match=rf"temporary files in {tmp_path}: .*No space left.*TMPDIR"):
        with io.whole_folder(tmp_path / "out"), io.temporary_folder():
            raise FULL
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (None, r"text: no such file \(did you mean texts\?\); check the path"),
        (b"PK\x03\0\x80\n", "text:1: .*binary.*check the path"),
        ("BPE\n".encode("utf-16"), "text:1: text in UTF-16.*iconv -f utf-16 -t utf-8"),
        (gzip.compress(b"a\n", mtime=0), "text:1: a compressed file, .*: gzip -dk FILE"),
        (bz2.compress(b"a\n"), "text:1: a compressed file, .*: bzip2 -dk FILE"),
        (lzma.compress(b"a\n"), "text:1: a compressed file, .*: xz -dk FILE"),
        (b"a\nb\n\xff\xfe\n", "text:3: not UTF-8 .byte 0xff.*iconv -f cp1252 -t utf-8"),
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


def test_what_a_killed_call_has_left_is_named(tmp_path, caplog):
    left = [tmp_path / ".out.0123abcd.tmp", tmp_path / ".out.pt.0123abcd.tmp"]
    left[0].mkdir()
    left[1].touch()
    with io.whole_folder(tmp_path / "out"):
        assert f"rm -r {left[0]}" in caplog.text
    io.check_file(tmp_path / "out.pt")
    assert [record.args[0] for record in caplog.records] == left


@pytest.mark.parametrize("text", [b"", b'{"a": 1} b', b"\xff", b"[" * 200_000])
def test_what_is_no_json_is_refused_with_the_remedy_of_its_reader(tmp_path, text):
    (tmp_path / "a.json").write_bytes(text)
    with pytest.raises(DataError, match=r"--j .*a\.json: not JSON \(.*; get it again$"):
        io.read_json(tmp_path / "a.json", DataError, "--j", remedy="get it again")


def test_inputs_of_a_command_must_be_files(tmp_path):
    (tmp_path / "a").touch()
    assert io.check_inputs({"dictionary": str(tmp_path / "a"), "words": None}) == {"dictionary": str(tmp_path / "a")}
    for name, file, said in (
        ("dictionary", "", "--dict: an empty path"),
        ("keep_text 2", str(tmp_path), f"--keep-text {tmp_path}: a folder"),
        ("words", str(tmp_path / "b"), "--words .*no such file"),
    ):
        with pytest.raises(DataError, match=said):
            io.check_inputs({name: file})


def test_versions_and_hardware_are_named(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert {"cpu", "cores", "threads", "gpus"} == set(machine.hardware())
    assert machine.package_versions(["numpy", "no-such-package"])["no-such-package"] is None
    assert {"python", "torch", "revision"} <= set(machine.versions())


def test_files_in_linked_folders_are_found_once(tmp_path):
    for name in ("runs/b/1", "elsewhere/deep/2", "runs/c/3"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "runs/a").symlink_to("b")
    (tmp_path / "runs/d").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/up").symlink_to(tmp_path / "runs")
    found = [path.relative_to(tmp_path).as_posix() for path in io.files_below(tmp_path / "runs")]
    assert found == ["runs/b/1", "runs/c/3", "runs/d/deep/2"]
