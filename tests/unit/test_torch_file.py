"""What is said of a file that torch's safe loader refuses: cut short, something else, or with objects in it."""

from __future__ import annotations

import collections
from pathlib import Path

import pytest
import torch

from embinit_fairseq.checkpoints.reading import load_checkpoint
from embinit_fairseq.errors import CheckpointError

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
