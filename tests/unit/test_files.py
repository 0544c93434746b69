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
from hypothesis import example, given, settings
from hypothesis import strategies as st

from embinit_fairseq import files
from embinit_fairseq.checkpoints.reading import load_checkpoint
from embinit_fairseq.errors import CheckpointError, DataError, OutputError

ANOTHER_MACHINE = "another-machine"


def content(path: Path):
    """What is there under every name, hidden ones included."""
    if path.is_dir():
        return {each.name: content(each) for each in sorted(path.iterdir())}
    return path.read_text()


#: no process can have these numbers: Linux gives them up to 2^22
ENDED, ENDED_TOO = (1 << 22) + 1, (1 << 22) + 2


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


# --- files


def in_binary(path, text):
    with files.whole_file(path) as file:
        file.write(text.encode())


WRITERS = {"write_text": files.write_text, "write_json": files.write_json, "binary": in_binary}
each_writer = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)


def written(write, text):
    return json.dumps(text, ensure_ascii=False) + "\n" if write is files.write_json else text


@each_writer
def test_a_file_is_written_and_replaced(tmp_path, write):
    for text in ("first, é\n", "second\n"):
        write(tmp_path / "a b", text)
        assert content(tmp_path) == {"a b": written(write, text)}
    assert (tmp_path / "a b").stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, Killed])
@each_writer
def test_a_file_that_is_stopped_at_its_rename(tmp_path, monkeypatch, write, error, after):
    write(tmp_path / "file", "old")
    stop_at(monkeypatch, 1, after, error, lambda: write(tmp_path / "file", "new"))
    now = content(tmp_path)
    assert now["file"] == written(write, "new" if after else "old")
    assert list(now) == ["file"] or error is Killed
    write(tmp_path / "file", "next")
    assert content(tmp_path) == {"file": written(write, "next")}


@pytest.mark.parametrize("there", [False, True])
@each_writer
def test_a_file_on_a_full_disk(tmp_path, write, there):
    if there:
        write(tmp_path / "file", "old")
    before = content(tmp_path)
    with pytest.raises(OutputError, match=rf"{tmp_path}/file: .*\(File too large\).*free some space"), largest_file(10):
        write(tmp_path / "file", "x" * 100_000)
    assert content(tmp_path) == before


@pytest.mark.parametrize("there", [False, True])
def test_a_file_whose_block_fails(tmp_path, there):
    if there:
        (tmp_path / "file").write_text("old")
    before = content(tmp_path)

    def fail(error):
        with files.whole_file(tmp_path / "file") as file:
            file.write(b"half")
            raise error

    for error in (ValueError("of the content"), KeyboardInterrupt(), FileNotFoundError(2, "No such file", "/other")):
        with pytest.raises(type(error)) as caught:
            fail(error)
        assert caught.value is error
        assert content(tmp_path) == before


def test_places_that_take_no_file(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("old")
    for name, why in (
        ("folder", "a folder"),
        ("pipe", "a device or pipe"),
        ("no/a", "No such file"),
        ("file/a", "Not a"),
    ):
        with pytest.raises(OutputError, match=rf"--output {tmp_path}/{name}: .*{why}.*choose another --output"):
            files.write_text(tmp_path / name, "text", "--output")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder", "pipe"]
    assert (tmp_path / "file").read_text() == "old"


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    for name in ("file", "folder"):
        os.symlink(tmp_path / "real" / name, tmp_path / name)
    files.write_text(tmp_path / "file", "text")
    with files.whole_folder(tmp_path / "folder") as folder:
        (folder / "a").write_text("text")
    assert content(tmp_path / "real") == {"file": "text", "folder": {"a": "text"}}
    assert (tmp_path / "file").is_symlink()
    assert (tmp_path / "folder").is_symlink()


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec=None)), inner),
    max_leaves=9,
)


@settings(max_examples=40, deadline=None)
@given(values)
@example("caf\udce9")
def test_json_comes_back(tmp_path_factory, value):
    """Also names of files that are no UTF-8, which Python holds as half characters; the file is UTF-8 all the same."""
    path = tmp_path_factory.mktemp("json") / "a.json"
    files.write_json(path, value)
    assert json.loads(path.read_text(encoding="utf-8")) == value


def test_sha256(tmp_path):
    data = bytes(number % 251 for number in range((2 << 20) + 7))
    for size in (0, (1 << 20) - 1, 1 << 20, len(data)):
        (tmp_path / "file").write_bytes(data[:size])
        assert files.sha256(tmp_path / "file") == hashlib.sha256(data[:size]).hexdigest()


# --- folders


def write_folder(path, text, force=False):
    with files.whole_folder(path, force, ("a", "below/*")) as folder:
        (folder / "a").write_text(text)
        (folder / "below").mkdir()
        (folder / "below" / "b").write_text(text)


def folder_of(text):
    return {"a": text, "below": {"b": text}}


def can_exchange(folder: Path) -> bool:
    """Whether this system can, here; else there are no tests of it."""
    names = [folder / name for name in ("one", "other")]
    for each in names:
        each.mkdir()
    able = files._exchange(*names)
    for each in names:
        each.rmdir()
    return able


@pytest.fixture(params=["in one step", "in two steps"])
def exchange(request, tmp_path, monkeypatch):
    """As Linux exchanges two names, and as it is done where that does not work."""
    if request.param == "in two steps":
        monkeypatch.setattr(files, "_exchange", lambda *_: False)
    elif not can_exchange(tmp_path):
        pytest.skip("this file system cannot exchange two names")
    return request.param == "in one step"


def stop_at(monkeypatch, number, after, error, write):
    """Call `write` and stop it before or after its `number`-th rename; returns whether it had so many.

    error: raised there; after Killed nothing cleans up.
    """
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
        for place, name in ((os, "rename"), (os, "replace"), (files, "_exchange")):
            if place is os or getattr(files, name).__name__ == name:
                patch.setattr(place, name, stopping(getattr(place, name)))
        if error is Killed:
            patch.setattr(files, "_clean_up", lambda _: None)
        with contextlib.suppress(error):
            write()
        return next(calls) > number


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", [1, 2, 3])
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


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, Killed])
def test_a_new_folder_that_is_stopped(tmp_path, monkeypatch, error, after):
    place = tmp_path / "new" / "out"
    assert stop_at(monkeypatch, 1, after, error, lambda: write_folder(place, "new"))
    assert place.exists() == after
    if error is not Killed:
        assert content(tmp_path) == ({"new": {"out": folder_of("new")}} if after else {})
    write_folder(place, "next", force=True)
    assert content(tmp_path) == {"new": {"out": folder_of("next")}}


def test_cleaning_up_that_is_interrupted(tmp_path, monkeypatch):
    """The old folder may be large: then there is time for Ctrl-C while it is removed."""
    write_folder(tmp_path / "out", "old")
    remove, calls = files._remove, itertools.count()

    def interrupted(path):
        if next(calls) == 0:
            raise KeyboardInterrupt
        remove(path)

    monkeypatch.setattr(files, "_remove", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_folder(tmp_path / "out", "new", force=True)
    assert content(tmp_path) == {"out": folder_of("new")}


def test_what_a_killed_run_left(tmp_path, monkeypatch):
    """Of this machine it is removed when its process has ended; of another nobody knows whether it has.

    A link is removed, not followed.
    """
    place, ended, host, child = tmp_path / "out", ENDED, files._HOST, os.getppid()
    stays = [
        f".out.{host}.{child}.tmp",
        f".out.{host}.{child}.old",
        f".out.{ANOTHER_MACHINE}.{ended}.tmp",
        f".out.{ANOTHER_MACHINE}.{ended}.old",
        f".out.x.{host}.{ended}.tmp",
        f".out2.{host}.{ended}.tmp",
        f"out.{host}.{ended}.tmp",
        f".out.{host}.{ended}.tmp.gz",
    ]
    numbers = (ended, os.getpid(), 10**30)  # the last is none that a process can have
    goes = [f".out.{host}.{number}.{kind}" for number in numbers for kind in ("tmp", "old")]
    place.mkdir()
    for name in (*stays, *goes):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").touch()
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "a").touch()
    (tmp_path / f".out.{files._HOST}.{ended}1.tmp").symlink_to(tmp_path / "precious")
    with monkeypatch.context() as patch:  # processes of somebody else
        patch.setattr(os, "kill", Mock(side_effect=PermissionError))
        files.put_right(place)
        assert f".out.{host}.{ended}.tmp" in os.listdir(tmp_path)
    files.put_right(place)
    assert sorted(os.listdir(tmp_path)) == sorted([*stays, "out", "precious"])
    assert content(tmp_path / "precious") == {"a": ""}


@pytest.mark.parametrize("host", [files._HOST, ANOTHER_MACHINE])
def test_the_old_folder_comes_back(tmp_path, host):
    """Also what another machine has left: there is nothing in its place. Of two the later one."""
    for number, text in enumerate(("older", "old")):
        # what runs here under the number of a process of another machine is another process
        process = (ENDED, ENDED_TOO)[number] if host == files._HOST else (os.getpid(), os.getppid())[number]
        place = tmp_path / f".out.{host}.{process}.old"
        place.mkdir()
        (place / "a").write_text(text)
        os.utime(place, ns=(5 - number, 5 - number))
        os.rename(place, tmp_path / "moved")  # what counts is when it got its name
        os.rename(tmp_path / "moved", place)
    files.put_right(tmp_path / "out")
    assert content(tmp_path / "out") == {"a": "old"}
    assert len(os.listdir(tmp_path)) == (1 if host == files._HOST else 2)


names = st.lists(st.sampled_from(["a", "b.1", "[ab]*", files._HOST]), min_size=1, max_size=3).map(".".join)


@settings(max_examples=30, deadline=None)
@given(names, names, st.sampled_from(["tmp", "old"]))
def test_temporary_names_belong_to_one_place(tmp_path_factory, name, other, kind):
    folder = tmp_path_factory.mktemp("names")
    left = files._temporary(folder / name).with_suffix(f".{kind}")
    left.touch()
    assert [path for path, *_ in files._leftovers(folder / name)] == [left]
    assert [path for path, *_ in files._leftovers(folder / other)] == ([left] if name == other else [])


def test_force_replaces_nothing_that_is_not_ours(tmp_path):
    write_folder(tmp_path / "out", "old")
    for stranger in ("below/deeper/thesis.tex", "thesis/a", "thesis/below/b"):
        path = tmp_path / "out" / stranger
        path.parent.mkdir(parents=True)
        path.write_text("years of work")
        before = content(tmp_path)
        with pytest.raises(OutputError, match=rf"--output .*out: --force would delete {stranger}"):
            write_folder(tmp_path / "out", "new", force=True)
        assert content(tmp_path) == before
        path.unlink()
    link = tmp_path / "out" / "elsewhere"
    link.symlink_to(tmp_path)
    with pytest.raises(OutputError, match="--force would delete elsewhere"):
        write_folder(tmp_path / "out", "new", force=True)
    link.unlink()
    with files.whole_folder(tmp_path / "out", force=True) as folder:  # of anything
        (folder / "a").write_text("new")
    assert content(tmp_path) == {"out": {"a": "new"}}


@pytest.mark.parametrize("kind", ["file", "link", "empty", "ours", "strange"])
@pytest.mark.parametrize("force", [False, True])
def test_what_appears_meanwhile_is_not_removed(tmp_path, exchange, kind, force):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a").write_text("precious")

    def appear(place):
        if kind == "file":
            place.write_text("precious")
        elif kind == "link":
            place.symlink_to(tmp_path / "elsewhere")
        else:
            place.mkdir()
        if kind in ("ours", "strange"):
            (place / {"ours": "a", "strange": "notes"}[kind]).write_text("precious")

    def write():
        with files.whole_folder(tmp_path / "out", force, ("a",)) as folder:
            (folder / "a").write_text("new")
            appear(tmp_path / "out")

    if kind == "empty" or (kind == "ours" and force):
        write()
        assert content(tmp_path / "out") == {"a": "new"}
    else:
        with pytest.raises(OutputError, match=r"--output .*out: something else .*choose another --output"):
            write()
        kept = {
            "file": "precious",
            "link": {"a": "precious"},
            "ours": {"a": "precious"},
            "strange": {"notes": "precious"},
        }
        assert content(tmp_path / "out") == kept[kind]
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "out"]


def test_inputs_and_outputs_do_not_mix(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "c.pt").touch()
    for inputs, output in (
        ([tmp_path / "in" / "c.pt"], tmp_path / "in"),
        ([tmp_path / "in" / "c.pt"], tmp_path),
        ([tmp_path / "in"], tmp_path / "in"),
        ([tmp_path / "in"], tmp_path / "in" / "out" / "below"),
    ):
        with pytest.raises(OutputError, match=rf"--output {output}: .*input.*choose another --output"):
            files.check_folder(output, force=True, inputs=inputs)
    os.symlink(tmp_path / "in", tmp_path / "link")
    with pytest.raises(OutputError, match="input"):
        files.check_folder(tmp_path / "link", force=True, inputs=[tmp_path / "in" / "c.pt"])
    assert files.check_folder(tmp_path / "in" / "out", inputs=[tmp_path / "in" / "c.pt"]) == tmp_path / "in" / "out"


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), OutputError, r"out: .*\(No space left.*free some space"),
        (OSError(errno.EROFS, os.strerror(errno.EROFS)), OutputError, "change the permissions, or choose another"),
        (RuntimeError("PytorchStreamWriter failed writing file"), OutputError, "free some space"),
        (RuntimeError("unexpected pos 64 vs 0"), OutputError, "cannot be written"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), RuntimeError, "^DefaultCPUAllocator"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), OSError, "Cannot allocate"),
        (OSError("Can't load the tokenizer"), OSError, "^Can't load"),
        (FileNotFoundError(errno.ENOENT, "No such file", "/another/file"), FileNotFoundError, "another"),
        (ValueError("of a model"), ValueError, "^of a model"),
    ],
)
def test_a_block_that_fails(tmp_path, error, expected, message):
    """What is about the disk is said so; what a model or another file says is not taken for it."""

    def write():
        with files.whole_folder(tmp_path / "new" / "out") as folder:
            (folder / "half").touch()
            raise error

    with pytest.raises(expected, match=message) as caught:
        write()
    assert isinstance(caught.value, OutputError) == (expected is OutputError)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("cause", "expected"), [(KeyboardInterrupt(), KeyboardInterrupt), (OSError(28, "No space left"), OutputError)]
)
def test_what_torchs_writer_hides(tmp_path, cause, expected):
    """It makes "unexpected pos" of whatever its file raises."""
    import torch

    class Failing:
        writes = 0

        def write(self, data):
            self.writes += 1
            if self.writes == 5:  # in the middle: at the beginning it lets through what was raised
                raise cause
            return len(data)

        def flush(self):
            pass

    with pytest.raises(expected, match="No space left" if expected is OutputError else "^$"):
        with files.whole_folder(tmp_path / "out"):
            torch.save({"a": torch.zeros(30_000)}, Failing())
    assert os.listdir(tmp_path) == []


def test_folders_that_were_made_are_gone_again(tmp_path):
    (tmp_path / "there").mkdir()

    def make(folder, *names):
        with files.made_folder(folder) as made:
            for name in names:
                (made / name).touch()
            raise ValueError("of the content")

    for names, left in (((), {"there": {}}), (("a",), {"there": {"b": {"c": {"a": ""}}}})):
        with pytest.raises(ValueError, match="of the content"):
            make(tmp_path / "there" / "b" / "c", *names)
        assert content(tmp_path) == left


def test_temporary_files_on_a_full_disk_name_tmpdir(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def write(error):
        with files.temporary_folder() as folder:
            assert folder.parent == tmp_path
            (folder / "a").write_text("half")
            raise error

    def whole(error):  # which must not be blamed
        with files.whole_folder(tmp_path / "out"):
            write(error)

    for each in (write, whole):
        with pytest.raises(OutputError, match=rf"temporary files in {tmp_path}: .*No space left.*TMPDIR"):
            each(OSError(errno.ENOSPC, "No space left on device"))
        with pytest.raises(ValueError, match="else"):
            each(ValueError("else"))
        assert os.listdir(tmp_path) == []
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(OutputError, match="TMPDIR"):
        write(ValueError("never"))
    said = "SafetensorError: I/O error: No space left on device (os error 28)"  # what other programs say
    assert files.says_full(said) == "No space left on device"
    assert files.says_full("OSError: [Errno 122] Disk quota exceeded") == "Disk quota exceeded"
    assert files.says_full("ImportError: no module") is None


# --- reading


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, expected in (("pipe", "a pipe or device, not a file; save what comes"), ("", "a folder; name a file")):
        path = str(tmp_path / name)
        with pytest.raises(DataError, match=rf"--dict {path}: {expected}"):
            files.check_inputs({"dictionary": path})
        with pytest.raises(CheckpointError, match=f"--checkpoint {path}: {expected}"):
            files.check_inputs({"checkpoint": path})
        with pytest.raises(CheckpointError, match=f"{path}: {expected}"):
            load_checkpoint(path)
    given = {"bpe_codes": str(tmp_path / "missing"), "words": None}
    assert files.check_inputs(given) == {"bpe_codes": str(tmp_path / "missing")}
