"""Files and folders that are whole or not there: whatever stops the writing, and whenever."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import os
import resource
from pathlib import Path
from unittest.mock import Mock

import pytest

from embinit_fairseq import files
from embinit_fairseq.errors import OutputError

ANOTHER_MACHINE = "another-machine"
#: no process can have these numbers: Linux gives them up to 2^22
ENDED, ENDED_TOO = (1 << 22) + 1, (1 << 22) + 2
FULL = OSError(errno.ENOSPC, "No space left on device")


def content(path: Path):
    """What is there under every name, hidden ones included."""
    if path.is_dir():
        return {each.name: content(each) for each in sorted(path.iterdir())}
    return path.read_text()


def interrupted() -> RuntimeError:
    """What torch's writer makes of Ctrl-C."""
    error = RuntimeError("unexpected pos 64 vs 0")
    error.__context__ = KeyboardInterrupt("Ctrl-C")
    return error


class Killed(BaseException):
    """As `kill -9`: nothing of ours runs afterwards (stop_at)."""


@contextlib.contextmanager
def largest_file(size: int):
    """What a full disk does to every write: files of this process cannot become larger than `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def stop_at(monkeypatch, number, after, error, write):
    """Call `write` and stop it by `error` before or after its `number`-th rename; returns whether it had so many."""
    calls = itertools.count(1)

    def stopping(rename):
        def call(*arguments):
            mine = next(calls) == number
            if mine and not after:
                raise error
            done = rename(*arguments)
            if mine and after:
                raise error
            return done

        return call

    with monkeypatch.context() as patch:
        for name in ("rename", "replace"):
            patch.setattr(os, name, stopping(getattr(os, name)))
        if files._exchange.__name__ == "_exchange":
            patch.setattr(files, "_exchange", stopping(files._exchange))
        if error is Killed:
            patch.setattr(files, "_clean_up", lambda _: None)
        with contextlib.suppress(error):
            write()
        return next(calls) > number


# --- files


@pytest.mark.parametrize("name", ["text", "json"])
def test_a_file_is_written_replaced_or_left_as_it_was(tmp_path, monkeypatch, name):
    """Also where it is stopped at its rename, and on a full disk; through a link, which stays one."""

    def written(text):
        return json.dumps(text, ensure_ascii=False) + "\n" if name == "json" else text

    path, link, write = tmp_path / "a b", tmp_path / "link", files.write_json if name == "json" else files.write_text
    for text in ("first, é\n", "old\n"):
        with pytest.raises(OutputError, match=rf"{path}: .*\(File too large\).*free some space"), largest_file(5):
            write(path, "x" * 100_000)
        assert content(tmp_path) == ({} if text != "old\n" else {"a b": written("first, é\n")})
        write(path, text)
        assert content(tmp_path) == {"a b": written(text)}
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask
    for error, after in itertools.product((KeyboardInterrupt, Killed), (False, True)):
        write(path, "old")
        stop_at(monkeypatch, 1, after, error, lambda: write(path, "new"))
        now = content(tmp_path)
        assert now["a b"] == written("new" if after else "old")
        assert list(now) == ["a b"] or error is Killed
        write(path, "next")
        assert content(tmp_path) == {"a b": written("next")}
    link.symlink_to(path)
    files.write_json(link, value := {"caf\udce9": [1, 2.5, None, True, "é\u2028", 10**30], "": {}})
    assert json.loads(path.read_text(encoding="utf-8")) == value  # also names of files that are no UTF-8
    assert link.is_symlink()
    path.write_bytes(bytes(range(256)) * 9000)  # more than is read at a time
    assert files.sha256(path) == hashlib.sha256(path.read_bytes()).hexdigest()


# --- folders


def write_folder(path, text, force=False):
    with files.whole_folder(path, force, ("a", "below/*")) as folder:
        (folder / "a").write_text(text)
        (folder / "below").mkdir()
        (folder / "below" / "b").write_text(text)


def folder_of(text):
    return {"a": text, "below": {"b": text}}


@pytest.fixture(params=["in one step", "in two steps"])
def exchange(request, tmp_path, monkeypatch):
    """As Linux exchanges two names, and as it is done where that does not work."""
    if request.param == "in two steps":
        monkeypatch.setattr(files, "_exchange", lambda *_: False)
        return False
    names = [tmp_path / name for name in ("one", "other")]
    for step in (Path.mkdir, Path.rmdir):
        if step is Path.rmdir and not files._exchange(*names):
            pytest.skip("this file system cannot exchange two names")
        for each in names:
            step(each)
    return True


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, Killed])
def test_a_folder_that_is_stopped_at_any_rename(tmp_path, monkeypatch, exchange, error, number, after):
    """One of the two is always whole; `kill -9` may leave more, which the next run puts right."""
    write_folder(tmp_path / "out", "old")
    stopped = stop_at(monkeypatch, number, after, error, lambda: write_folder(tmp_path / "out", "new", force=True))
    assert stopped == (number <= (1 if exchange else 3))
    whole = [folder_of("old"), folder_of("new")]
    if error is not Killed:
        assert content(tmp_path) in [{"out": each} for each in whole]
    elif exchange:
        assert content(tmp_path)["out"] in whole
    with pytest.raises(OutputError, match="--force"):  # the next run, which does not replace
        write_folder(tmp_path / "out", "next")
    assert content(tmp_path) in [{"out": each} for each in whole]
    write_folder(tmp_path / "out", "next", force=True)
    assert content(tmp_path) == {"out": folder_of("next")}
    place = tmp_path / "new" / "out"  # one that is new
    assert stop_at(monkeypatch, 1, after, error, lambda: write_folder(place, "new"))
    assert place.exists() == after
    assert error is Killed or after or not place.parent.exists()
    write_folder(place, "next", force=True)
    assert content(place.parent) == {"out": folder_of("next")}


@pytest.mark.parametrize("name", ["out", "[ab]*"])
def test_what_a_killed_run_left(tmp_path, monkeypatch, name):
    """Of this machine it is removed when its process has ended; of another nobody knows whether it has."""
    host, running = files._HOST, os.getppid()
    owners = (f".{name}.{host}.{running}", f".{name}.{ANOTHER_MACHINE}.{ENDED}")
    stays = [f"{owner}.{kind}" for owner in owners for kind in ("tmp", "old")] + [f".{name}.{host}.{ENDED}.tmp.gz"]
    stays += [f"{other}.{host}.{ENDED}.tmp" for other in (f".{name}.x", f".{name}2", name, ".a")]
    numbers = (ENDED, os.getpid(), 10**30)  # the last is none that a process can have
    goes = [f".{name}.{host}.{number}.{kind}" for number in numbers for kind in ("tmp", "old")]
    for each in (f"{name}/b", "precious", *stays, *goes):
        (tmp_path / each).mkdir(parents=True)
        (tmp_path / each / "a").touch()
    (tmp_path / f".{name}.{host}.{ENDED}1.tmp").symlink_to(tmp_path / "precious")  # it is removed, not followed
    with monkeypatch.context() as patch:  # processes of somebody else
        patch.setattr(os, "kill", Mock(side_effect=PermissionError))
        files.put_right(tmp_path / name)
        assert goes[0] in os.listdir(tmp_path)
    files.put_right(tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == sorted([*stays, name, "precious"])
    assert content(tmp_path / "precious") == {"a": ""}


@pytest.mark.parametrize("host", [files._HOST, ANOTHER_MACHINE])
def test_the_old_folder_comes_back(tmp_path, host):
    """Also what another machine has left: there is nothing in its place. Of two the later one."""
    # what runs here under the number of a process of another machine is another process
    processes = (ENDED, ENDED_TOO) if host == files._HOST else (os.getpid(), os.getppid())
    for number, text in enumerate(("older", "old")):
        place = tmp_path / f".out.{host}.{processes[number]}.old"
        place.mkdir()
        (place / "a").write_text(text)
        os.utime(place, ns=(5 - number, 5 - number))
        os.rename(place, tmp_path / "moved")  # what counts is when it got its name
        os.rename(tmp_path / "moved", place)
    files.put_right(tmp_path / "out")
    assert content(tmp_path / "out") == {"a": "old"}
    assert len(os.listdir(tmp_path)) == (1 if host == files._HOST else 2)


def fill_and_fail(place, error, *names):
    """In a folder of files.whole_folder or another of its kind."""
    with place as folder:
        for name in names:
            (folder / name).touch()
        raise error


def test_an_output_lies_in_no_input(tmp_path):
    with pytest.raises(OutputError, match=r"--output .*lies in the folder .*choose another --output"):
        files.check_folder(tmp_path / "out", inputs=[tmp_path])


def test_force_replaces_nothing_that_is_not_ours(tmp_path):
    write_folder(tmp_path / "out", "old")
    for stranger in ("below/deeper/thesis.tex", "thesis/a", "elsewhere"):
        path = tmp_path / "out" / stranger
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(tmp_path) if stranger == "elsewhere" else path.write_text("years of work")
        with pytest.raises(OutputError, match=rf"--output .*out: --force would delete {stranger}"):
            write_folder(tmp_path / "out", "new", force=True)
        assert os.path.lexists(path)
        assert (tmp_path / "out" / "a").read_text() == "old"
        path.unlink()
    with files.whole_folder(tmp_path / "out", force=True) as folder:  # of anything
        (folder / "a").write_text("new")
    assert content(tmp_path) == {"out": {"a": "new"}}


@pytest.mark.parametrize("kind", ["file", "link", "empty", "ours", "strange"])
@pytest.mark.parametrize("force", [False, True])
def test_what_appears_meanwhile_is_not_removed(tmp_path, exchange, kind, force):
    place, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    name = "notes" if kind == "strange" else "a"
    elsewhere.mkdir()
    (elsewhere / "a").write_text("precious")
    refused = not (kind == "empty" or (kind == "ours" and force))
    said = pytest.raises(OutputError, match=r"--output .*out: something else .*choose another --output")
    with said if refused else contextlib.nullcontext(), files.whole_folder(place, force, ("a",)) as folder:
        (folder / "a").write_text("new")
        if kind == "file":
            place.write_text("precious")
        elif kind == "link":
            place.symlink_to(elsewhere)
        else:
            place.mkdir()
            if kind != "empty":
                (place / name).write_text("precious")
    assert content(place) == ("precious" if kind == "file" else {name: "precious" if refused else "new"})
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "out"]


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (FULL, OutputError, r"out: .*\(No space left.*free some space"),
        (OSError(errno.EROFS, os.strerror(errno.EROFS)), OutputError, "change the permissions, or choose another"),
        (RuntimeError("PytorchStreamWriter failed writing file"), OutputError, "free some space"),
        (RuntimeError("unexpected pos 64 vs 0"), OutputError, "cannot be written"),
        (interrupted(), KeyboardInterrupt, "Ctrl-C"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), RuntimeError, "^DefaultCPUAllocator"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), OSError, "Cannot allocate"),
        (OSError("Can't load the tokenizer"), OSError, "^Can't load"),
        (FileNotFoundError(errno.ENOENT, "No such file", "/another/file"), FileNotFoundError, "another"),
        (ValueError("of a model"), ValueError, "^of a model"),
    ],
)
def test_a_block_that_fails(tmp_path, error, expected, message):
    """What is about the disk is said so; what a model or another file says is not taken for it."""
    with pytest.raises(expected, match=message) as caught:
        fill_and_fail(files.whole_folder(tmp_path / "new" / "out"), error, "half")
    assert isinstance(caught.value, OutputError) == (expected is OutputError)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("names", "left"), [((), {}), (("a",), {"b": {"c": {"a": ""}}})])
def test_folders_that_were_made_are_gone_again(tmp_path, names, left):
    with pytest.raises(ValueError, match="of the content"):
        fill_and_fail(files.made_folder(tmp_path / "b" / "c"), ValueError("of the content"), *names)
    assert content(tmp_path) == left


def test_temporary_files_on_a_full_disk_name_tmpdir(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(OutputError, match=rf"temporary files in {tmp_path}: .*No space left.*TMPDIR"):
        with files.whole_folder(tmp_path / "out"):  # which must not be blamed
            fill_and_fail(files.temporary_folder(), FULL, "half")
    with pytest.raises(ValueError, match="else"):
        fill_and_fail(files.temporary_folder(), ValueError("else"), "half")
    assert os.listdir(tmp_path) == []
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(OutputError, match="TMPDIR"):
        fill_and_fail(files.temporary_folder(), ValueError("never"))
    said = "SafetensorError: I/O error: No space left on device (os error 28)"  # what other programs say
    assert files.says_full(said) == "No space left on device"
    assert files.says_full("ImportError: no module") is None
