"""What is said of a file that torch's safe loader refuses: cut short, something else, or with objects in it."""

from __future__ import annotations

import argparse
import collections
import functools
import struct
import zipfile
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from embinit_fairseq.checkpoints.reading import load_checkpoint
from embinit_fairseq.errors import CheckpointError
from embinit_fairseq.vectors import torch_file

ANOTHER = "give another file, such as an earlier checkpoint of the same folder, or copy or download it again"


def saved(path: Path, zipped: bool = True, **more) -> Path:
    torch.save({"model": {"w": torch.arange(400.0)}, **more}, path, _use_new_zipfile_serialization=zipped)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(path)
    message = str(error.value)
    assert message.startswith(f"{path}: not a fairseq checkpoint that can be read safely: ")
    return message.split("safely: ")[1]


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
def test_a_file_that_was_cut_short(tmp_path, zipped, share):
    """Its own user's remedy is an earlier checkpoint: there is no state dict to be saved alone."""
    path = saved(tmp_path / "c.pt", zipped)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    message = refusal(path)
    assert message.startswith("it was cut short or damaged (")
    assert message.endswith(ANOTHER)
    assert "not a complete zip archive" in message or not zipped


@pytest.mark.parametrize("zipped", [True, False])
def test_objects_that_are_not_on_the_list(tmp_path, zipped):
    """A whole file: another copy of it would not help."""
    message = refusal(saved(tmp_path / "c.pt", zipped, extra_state=collections.ChainMap()))
    assert message == (
        "it holds objects that are not on the allow-list of tensors and plain data (it names collections.ChainMap), "
        "which are not executed; save its state dict alone"
    )


def test_an_archive_that_is_whole_but_damaged(tmp_path):
    path = saved(tmp_path / "c.pt")
    content = path.read_bytes()
    path.write_bytes(content.replace(b"\x80\x02}", b"\x80\x02\xff", 1))
    message = refusal(path)
    assert message.startswith("it is damaged, or it holds objects other than tensors")
    assert message.endswith("again, or save its state dict alone")


def test_an_archive_on_several_disks(tmp_path):
    """zipfile raises where it says no to others."""
    path = saved(tmp_path / "c.pt")
    content = path.read_bytes().replace(b"\x80\x02}", b"\x80\x02\xff", 1)
    end = content.rindex(b"PK\x05\x06")
    locator = b"PK\x06\x07" + struct.pack("<LQL", 0, 0, 2)
    path.write_bytes(content[: end - len(locator)] + locator + content[end:])
    assert refusal(path).endswith(ANOTHER)


def test_an_archive_that_lies_about_its_sizes(tmp_path):
    path = tmp_path / "c.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}.")
    content = bytearray(path.read_bytes())
    at = content.rindex(b"PK\x01\x02") + 24  # the unpacked size, in the table of contents
    content[at : at + 4] = struct.pack("<L", 1000)
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"data\.pkl .*1,000 bytes when unpacked"):
        load_checkpoint(path)


def test_zip_archives_that_python_cannot_open(tmp_path, monkeypatch):
    path = saved(tmp_path / "c.pt")
    for error in (struct.error("unpack"), ValueError("negative seek"), RuntimeError("unknown")):
        monkeypatch.setattr(zipfile, "ZipFile", Mock(side_effect=error))
        with pytest.raises(CheckpointError, match=r"c\.pt: the zip archive is damaged"):
            load_checkpoint(path)


def test_tensors_may_be_larger_than_any_pickle(tmp_path, monkeypatch):
    monkeypatch.setattr(torch_file, "LARGEST_PICKLE", 1000)
    assert load_checkpoint(saved(tmp_path / "c.pt"))["model"]["w"].numel() == 400


@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_stay_on_disk_where_they_can(tmp_path, monkeypatch, zipped):
    path, given = saved(tmp_path / "c.pt", zipped), []

    @functools.wraps(torch.load)
    def load(*args, original=torch.load, **options):
        given.append(options.get("mmap", False))
        return original(*args, **options)

    monkeypatch.setattr(torch, "load", load)
    load_checkpoint(path)
    assert given == [zipped]


def test_a_tensor_without_its_numbers_is_found_anywhere(tmp_path):
    spread = torch.ones(1).expand(1 << 20)
    loop: list = [torch.ones(1)]
    loop.append(loop)
    load_checkpoint(saved(tmp_path / "c.pt", loop=loop))
    for place in (argparse.Namespace(here=spread), [spread], (1, [spread]), {"here": spread}):
        with pytest.raises(CheckpointError, match="does not hold so many numbers"):
            load_checkpoint(saved(tmp_path / "c.pt", loop=loop, place=place))


def test_other_files(tmp_path):
    path = tmp_path / "c.pt"
    path.write_bytes(b"")
    assert refusal(path) == f"the file is empty; {ANOTHER}"
    path.write_text("house 0.1 0.2\n")
    assert refusal(path) == "this is another kind of file, which torch.save did not write; check the path"


def test_a_file_that_may_not_be_opened(tmp_path, monkeypatch):
    path = saved(tmp_path / "c.pt")

    def refuse(file, *_):
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(CheckpointError, match=r"c\.pt: cannot be read \(Permission denied\); check the path and its"):
        load_checkpoint(path)
