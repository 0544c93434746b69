"""A checkpoint from a stranger can do nothing: it is plain data, or it is refused (fairseq_compat.plain_data)."""

from __future__ import annotations

import argparse
import collections
import io
import json
import pickle
import struct
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq_compat.plain_data import STAND_INS, NDArray, attributes_only, plain, refused_in
from fairseq_compat.scanned_pickles import DEEPEST, Scan, scanned

from embinit_fairseq.errors import CheckpointError
from embinit_fairseq.vectors.torch_file import load_safely

DTYPE = (np.dtype, ("f8", False, True))
DTYPE_STATE = (3, "<", None, None, None, -1, -1, 0)


class Calls:
    """Pickled as a call, which a state may follow."""

    def __init__(self, function, arguments, state=None) -> None:
        self.call = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self):
        return self.call


class Empty(argparse.Namespace):
    """Pickled as a Namespace with a state of the test's choice."""

    def __init__(self, state) -> None:
        self.state = state

    def __reduce__(self):
        return argparse.Namespace, (), self.state


def from_torch(path: Path, value, zipped: bool = True):
    torch.save({"model": {"weight": torch.ones(2)}, "value": value}, path, _use_new_zipfile_serialization=zipped)
    return load_safely(path, CheckpointError, "a checkpoint")["value"]


def reconstruct():
    return np.zeros(0).__reduce__()[0]


def array_state(shape=(2,), dtype=None, content=b"A" * 16, fortran=False):
    return (1, shape, dtype or Calls(*DTYPE, DTYPE_STATE), fortran, content)


def array(*arguments, **state):
    return Calls(reconstruct(), arguments or (np.ndarray, (0,), b"b"), array_state(**state))


HOSTILE = {
    "an array of object pointers": Calls(np.ndarray, ((1,), "O", b"AAAAAAAA")),
    "an array called with a buffer": Calls(np.ndarray, ((2,), "f8", b"A" * 16)),
    "an array of another class": array(np.dtype, (0,), b"b"),
    "an array of objects": array(dtype=Calls(np.dtype, ("O", False, True), DTYPE_STATE)),
    "an array of structures": array(dtype=Calls(np.dtype, ("i4,O", False, True))),
    "an array of structures of numbers": array(shape=(1,), dtype=Calls(np.dtype, ("f8,f8", False, True))),
    "an array of bytes without a type": array(dtype=Calls(np.dtype, ("V8", False, True))),
    "an array whose dtype is of another version": array(dtype=Calls(*DTYPE, (4, *DTYPE_STATE[1:]))),
    "an array whose dtype swaps its bytes": array(dtype=Calls(*DTYPE, (3, "S", *DTYPE_STATE[2:]))),
    "an array whose dtype has flags": array(dtype=Calls(*DTYPE, (3, "<", None, None, None, -1, -1, 63))),
    "an array whose dtype has fields": array(dtype=Calls(*DTYPE, (3, "<", None, ("a",), {"a": 1}, 8, 8, 0))),
    "an array whose dtype has a subarray": array(dtype=Calls(*DTYPE, (3, "<", ("f8", (9,)), None, None, 8, 8, 0))),
    "an array whose dtype is a text": array(dtype="f8"),
    "an array larger than its bytes": array(shape=(1 << 20,)),
    "an array smaller than its bytes": array(shape=(1,)),
    "an array of more than 32 dimensions": array(shape=(1,) * 33, content=b"A" * 8),
    "an array whose length is no number": array(shape=(2.0,)),
    "an array whose dtype has a number as subarray": array(dtype=Calls(*DTYPE, (3, "<", 1, None, None, -1, -1, 0))),
    "an array whose dtype has a list as size": array(dtype=Calls(*DTYPE, (3, "<", None, None, None, [], -1, 0))),
    "an array of negative length": array(shape=(-2, -1)),
    "an array whose size overflows": array(shape=(1 << 31, 1 << 31, 0, 1 << 31), content=b""),
    "an array filled from a list": array(content=[1] * 16),
    "a dtype with a state of a list": Calls(*DTYPE, list(DTYPE_STATE)),
    "a scalar of an object": Calls(np.float64(1).__reduce__()[0], (Calls(np.dtype, ("O", False, True)), b"A" * 8)),
    "a scalar whose dtype is a text": Calls(np.float64(1).__reduce__()[0], ("f8", b"A" * 8)),
    "a scalar of too many bytes": Calls(np.float64(1).__reduce__()[0], (Calls(*DTYPE), b"A" * 16)),
    "a scalar of too few bytes": Calls(np.float64(1).__reduce__()[0], (Calls(*DTYPE), b"A" * 4)),
    "a scalar of a list": Calls(np.float64(1).__reduce__()[0], (Calls(*DTYPE), [1])),
    "a Namespace updated from an array": Empty(array()),
    "a Namespace with a number as a name": Empty({1: 2}),
    "a Namespace with a list of pairs": Empty(["ab"]),
    "a Namespace with slots": Empty((None, {"__class__": 1})),
    "a Namespace called with arguments": Calls(argparse.Namespace, (1,)),
    "bytes of a length": Calls(bytes, (1 << 40,)),
    "bytes of a length that can be changed": Calls(bytearray, (1 << 24,)),
    "memory that nobody has filled": Calls(torch.Tensor, (1 << 20,)),
}
#: by Python, and behind the loading
REFUSED_BY_OTHERS = ("a Namespace called with arguments", "bytes of a length")


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("what", HOSTILE)
def test_a_call_with_anything_but_plain_data_is_refused(tmp_path, what, zipped):
    with pytest.raises(CheckpointError) as error:
        from_torch(tmp_path / "c.pt", HOSTILE[what], zipped)
    assert str(tmp_path / "c.pt") in str(error.value)
    assert ("allow-list" in str(error.value)) == (what not in REFUSED_BY_OTHERS)  # not left to what numpy makes of it


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_the_values_of_real_checkpoints(tmp_path, zipped):
    numbers = [np.dtype(code).type(1) for code in "?bBhHiIlLqQefdg"]
    arrays = [np.arange(6).reshape(2, 3), np.ones((2, 3), order="F"), np.zeros((0, 3)), np.arange(3, dtype=">i4")]
    value = {
        "numbers": numbers,
        "arrays": arrays + [np.array([number] * 2) for number in numbers],
        "namespace": argparse.Namespace(
            lr=[0.1], inner=argparse.Namespace(array=np.ones(2)), empty=argparse.Namespace()
        ),
        "tuple": (np.ones(1), "text"),
    }
    value["again"] = value["arrays"][0]
    for _ in range(2):  # what was loaded can be saved and loaded again
        loaded = value = from_torch(tmp_path / "c.pt", value, zipped)
    assert [(new.dtype, new) for new in loaded["numbers"]] == [(old.dtype, old) for old in numbers]
    for new, old in zip(loaded["arrays"], arrays):
        assert type(new) is np.ndarray
        assert (new.shape, new.dtype.kind) == (old.shape, old.dtype.kind)
        np.testing.assert_array_equal(new, old)
    assert loaded["arrays"][1].flags.f_contiguous
    assert loaded["again"] is loaded["arrays"][0]
    assert type(loaded["namespace"].inner.array) is np.ndarray
    assert type(loaded["namespace"]) is type(loaded["namespace"].inner) is argparse.Namespace
    assert type(loaded["tuple"][0]) is np.ndarray


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_attributes_do_not_hide_methods(tmp_path, zipped):
    """A tensor and an OrderedDict take any; what looks at them would call `numel` and `items` of the file's author."""
    tensor, pairs = torch.ones(2), [("a", 1), ("b", np.ones(1))]
    tensor.numel, tensor.note = 0, 1
    ordered = Calls(OrderedDict, (pairs,), {"items": set, "_metadata": {"version": 2}})
    loaded = from_torch(tmp_path / "c.pt", {"tensor": tensor, "ordered": ordered}, zipped)
    assert loaded["tensor"].numel() == 2
    assert loaded["tensor"].note == 1
    assert [name for name, _ in loaded["ordered"].items()] == ["a", "b"]
    assert type(loaded["ordered"]["b"]) is np.ndarray
    assert loaded["ordered"]._metadata == {"version": 2}


def test_all_storages_together_are_in_the_file(tmp_path):
    """Each of these is small enough to be spread; tensors that share numbers count once."""
    weight = torch.ones(1 << 19)
    assert len(from_torch(tmp_path / "c.pt", [weight] + [weight[:9]] * 3)) == 4
    with pytest.raises(CheckpointError):
        from_torch(tmp_path / "c.pt", [Calls(torch.Tensor, (1 << 17,)) for _ in range(3)])


def test_torchs_own_list_is_as_before(tmp_path):
    from_torch(tmp_path / "c.pt", 1)
    torch.save(bytearray(b"ab"), tmp_path / "b.pt")
    assert torch.load(tmp_path / "b.pt", weights_only=True) == b"ab"


def test_the_names_of_both_numpys_are_one():
    names = {f"{thing.__module__}.{thing.__qualname__}" for thing in STAND_INS}
    both = {f"numpy.{core}.multiarray.{name}" for core in ("core", "_core") for name in ("_reconstruct", "scalar")}
    assert names == both | {"numpy.ndarray", "numpy.dtype", "argparse.Namespace", "builtins.bytes"}
    assert not {np.ndarray, np.dtype, argparse.Namespace, bytes} & set(STAND_INS)


def test_what_a_plain_torch_load_made_is_pickled_as_what_it_stands_for(tmp_path):
    """Others in the process load with our list, too, and copy by pickling."""
    torch.save([np.arange(3), argparse.Namespace()], tmp_path / "c.pt")
    with torch.serialization.safe_globals(STAND_INS):
        loaded = torch.load(tmp_path / "c.pt", weights_only=True)
    array, namespace = pickle.loads(pickle.dumps(loaded))
    assert (type(array), array.tolist(), type(namespace)) == (np.ndarray, [0, 1, 2], argparse.Namespace)


def test_what_others_in_the_process_allow_does_not_count(tmp_path):
    """A notebook that allowed numpy's own array has not allowed it to the files that we are given."""
    before = torch.serialization.get_safe_globals()
    torch.serialization.add_safe_globals([np.ndarray])
    try:
        with pytest.raises(CheckpointError):
            from_torch(tmp_path / "c.pt", HOSTILE["an array called with a buffer"])
        assert np.ndarray in torch.serialization.get_safe_globals()
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


def test_arrays_within_themselves_and_in_endless_tuples():
    loop: list = [STAND_INS[3]]
    loop.append(loop)
    assert plain(loop) is loop
    deep: tuple = ()
    for _ in range(100_000):
        deep = (deep,)
    with pytest.raises(pickle.UnpicklingError) as error:
        plain(deep)
    assert "nested" in refused_in(error.value)


def test_objects_with_nothing_but_attributes():
    meter = attributes_only("fairseq.meters", "AverageMeter")()
    meter.__setstate__({"sum": 3})
    assert meter.sum == 3
    for state in ([("sum", 1)], (None, {"__class__": dict}), {1: 2}):
        with pytest.raises(pickle.UnpicklingError):
            meter.__setstate__(state)
    with pytest.raises(TypeError):
        attributes_only("fairseq.meters", "AverageMeter")(1)


def number(value: int) -> bytes:
    return pickle.BININT + struct.pack("<i", value)


def text(value: str) -> bytes:
    return pickle.BINUNICODE + struct.pack("<I", len(value)) + value.encode()


def memo(opcode: bytes, place: int) -> bytes:
    return opcode + struct.pack("<I", place)


def call(name: str, *arguments: bytes, by: bytes = pickle.REDUCE) -> bytes:
    return b"c%b\n%b\n(" % tuple(part.encode() for part in name.rsplit(".", 1)) + b"".join(arguments) + b"t" + by


def again_and_again(start: bytes, step: bytes, times: int) -> bytes:
    """Each step is told to take what the one before has left."""
    return start + b"".join(memo(b"r", place) + step.replace(b"LAST", memo(b"j", place)) for place in range(times))


NESTED = b")" + b"\x85" * (DEEPEST + 1)
#: by what torch's own list would let them do; none has more than some kilobytes
STREAMS = {
    "gigabytes of zeros": call("builtins.bytearray", number(1 << 30)),
    "gigabytes of zeros, by the name of Python 2": call("__builtin__.bytearray", number(1 << 30)),
    "a tensor of its legacy class": call("torch.FloatTensor", number(1 << 30)),
    "a new tensor of its legacy class": call("torch.FloatTensor", number(1 << 30), by=pickle.NEWOBJ),
    "a storage": call("torch.storage.UntypedStorage", number(1 << 30)),
    "a text that doubles each time": again_and_again(
        text("A" * 64), call("_codecs.encode", b"LAST", text("hex")), times=30
    ),
    "copies of a text": again_and_again(text("A" * 4096), call("_codecs.encode", memo(b"j", 0), text("latin1")), 4096),
    "a key whose hash overflows the stack": b"}" + NESTED + b"Ns",
    "a set that does": call("builtins.set", b"](" + NESTED + b"e"),
    "the name of a storage that does": b"(" + text("storage") + NESTED + b"tQ",
    "tuples of the same tuples": again_and_again(b")", b"(" + b"LAST" * 10 + b"t", times=12),
    "lists of the same lists": again_and_again(b"]", b"](" + b"LAST" * 10 + b"e", times=12),
    "copies of a list": b"]" + memo(b"r", 0) + b"(" + b"N" * 4096 + b"e" + call("builtins.set", memo(b"j", 0)) * 4096,
    "a tensor on an array": call("torch._utils._rebuild_device_tensor_from_numpy", b"N"),
    "a call of a text": text("builtins.set") + b")R",
    "a call of an object": call("collections.OrderedDict") + b")R",
}


@pytest.mark.parametrize("what", STREAMS)
def test_what_torchs_own_list_leaves_open_is_refused_before_torch_sees_it(what):
    with pytest.raises(pickle.UnpicklingError) as error:
        Scan(io.BytesIO(b"\x80\x02" + STREAMS[what] + b"."), set()).run()
    assert refused_in(error.value)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_both_formats_are_looked_through(tmp_path, zipped):
    with pytest.raises(CheckpointError) as error:
        from_torch(tmp_path / "c.pt", bytearray(b"A"), zipped)
    assert "bytearray" in str(error.value)


def test_streams_that_end_too_early_or_take_what_is_not_there_are_damaged():
    whole = pickle.dumps({"a": [np.ones(2), (1, 2)]}, protocol=2)
    names = {f"{thing.__module__}.{thing.__qualname__}" for thing in STAND_INS}
    Scan(io.BytesIO(whole), names).run()
    for stream in (*(whole[:end] for end in range(len(whole))), b"R.", b"t.", b"j0000.", b"\xff.", b"(b.", b"NNa."):
        with pytest.raises((EOFError, LookupError, ValueError, pickle.UnpicklingError)):
            Scan(io.BytesIO(stream), names).run()


def test_what_tensors_and_containers_are_made_of_is_read(tmp_path):
    shared = ["word"] * 10_000, "a path" * 1000
    value = {
        "tensors": [torch.ones(2, dtype=dtype) for dtype in (torch.float16, torch.bfloat16, torch.int64, torch.bool)],
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "others": (torch.Size([2]), torch.device("cpu"), torch.float32, {1}, 1j, collections.Counter("aab"), b"bytes"),
        "again": [shared] * 100,
    }
    loaded = from_torch(tmp_path / "c.pt", value)
    assert [tensor.dtype for tensor in loaded["tensors"]] == [tensor.dtype for tensor in value["tensors"]]
    assert type(loaded["parameter"]) is torch.nn.Parameter
    assert (loaded["others"], loaded["again"]) == (value["others"], value["again"])


def test_torchs_own_reader_is_back_afterwards():
    reader = torch._weights_only_unpickler.Unpickler
    with scanned():
        assert torch._weights_only_unpickler.Unpickler is not reader
    with pytest.raises(ZeroDivisionError), scanned():
        raise ZeroDivisionError
    assert torch._weights_only_unpickler.Unpickler is reader


def test_an_array_is_filled_once():
    """Else numpy frees the memory that a tensor may have been laid on."""
    filled = np.ndarray.__new__(NDArray, 0, np.uint8)
    dtype = STAND_INS[1]("f8")
    filled.__setstate__((1, (2,), dtype, False, b"A" * 16))
    with pytest.raises(pickle.UnpicklingError):
        filled.__setstate__((1, (1,), dtype, False, b"B" * 8))


def test_what_is_shared_is_walked_through_once():
    shared: tuple = (np.ndarray.__new__(NDArray, 0, np.uint8),)
    for _ in range(15):
        shared = (shared, shared)
    found = plain([shared])[0]
    for _ in range(15):
        assert found[0] is found[1]
        found = found[0]
    assert type(found[0]) is np.ndarray


@pytest.mark.parametrize(
    "twice",
    [lambda part: [part, part], lambda part: (part, part), lambda part: argparse.Namespace(a={"a": part, "b": part})],
    ids=["list", "tuple", "Namespace"],
)
def test_what_is_shared_without_end_is_refused(twice):
    """By whatever order a pickle shares and fills: printing it, or making a configuration of it, would never end."""
    shared: object = []
    for _ in range(30):
        shared = twice(shared)
    with pytest.raises(pickle.UnpicklingError) as error:
        plain({"cfg": shared})
    assert refused_in(error.value)


@pytest.mark.end_to_end
def test_thousands_of_hostile_streams_end_nothing():
    """With numpy's own classes on the list this program ends by a segmentation fault within some thousand streams."""
    command = [sys.executable, str(Path(__file__).with_name("checkpoint_fuzzer.py")), "2500", "2"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"exit status {done.returncode} at {done.stderr[-2000:]}"
    result = json.loads(done.stdout)
    outcomes = result["outcomes"]
    assert sum(outcomes.values()) == 2500
    assert min(outcomes["loaded"], outcomes["refused"], outcomes["damaged"]) > 25  # it reaches all three
    assert result["grown"] < 50e6


@pytest.mark.parametrize("made_by", [torch.FloatTensor, OrderedDict, torch._tensor._rebuild_from_type_v2])
def test_a_tensor_with_attributes_is_made_by_no_other_function(tmp_path, made_by):
    hostile = Calls(torch._tensor._rebuild_from_type_v2, (made_by, torch.Tensor, (1 << 30,), {}))
    with pytest.raises(CheckpointError, match="allow-list"):
        from_torch(tmp_path / "c.pt", hostile, True)


def test_fairseq_refuses_a_tensor_of_more_numbers_than_the_file(tmp_path):
    """The states of optimizers are copied whole."""
    torch.save({"model": {}, "last_optimizer_state": [torch.ones(1).expand(1 << 30)]}, tmp_path / "c.pt")
    with pytest.raises(pickle.UnpicklingError, match=r"c\.pt.*1073741824"):
        checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "c.pt"))
