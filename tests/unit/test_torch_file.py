"""What `embinit` reads of files of `torch.save` is plain data (the cases: fairseq_compat/tests)."""

from __future__ import annotations

import argparse

import numpy as np
import pytest
import torch

from embinit_fairseq.errors import CheckpointError
from embinit_fairseq.vectors.torch_file import load_safely


class Calls:
    """Pickled as a call, which a state may follow."""

    def __init__(self, *call) -> None:
        self.call = call

    def __reduce__(self):
        return self.call


HOSTILE = {
    "an array called with a buffer": (Calls(np.ndarray, ((2,), "f8", b"A" * 16)), "allow-list"),
    "a Namespace with slots": (Calls(argparse.Namespace, (), (None, {"__class__": 1})), "allow-list"),
    "memory of a length": (bytearray(b"A"), "bytearray"),
}


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_files_are_refused_whatever_others_allow(tmp_path, what, zipped):
    value, message = HOSTILE[what]
    torch.save([value], tmp_path / "c.pt", _use_new_zipfile_serialization=zipped)
    with torch.serialization.safe_globals([np.ndarray]):  # a notebook has not allowed it to the files that we are given
        with pytest.raises(CheckpointError, match=f"c.pt.*{message}"):
            load_safely(tmp_path / "c.pt", CheckpointError, "a checkpoint")
        assert np.ndarray in torch.serialization.get_safe_globals()


def test_plain_data_are_read(tmp_path):
    weight = torch.ones(1 << 19)
    torch.save([weight, *[weight[:9]] * 3, np.arange(3), argparse.Namespace(a=1)], tmp_path / "c.pt")
    *tensors, array, namespace = load_safely(tmp_path / "c.pt", CheckpointError, "a checkpoint")
    assert [len(tensor) for tensor in tensors] == [1 << 19, 9, 9, 9]
    assert (type(array), array.tolist(), vars(namespace)) == (np.ndarray, [0, 1, 2], {"a": 1})
