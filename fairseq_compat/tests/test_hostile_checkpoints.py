"""A checkpoint from a stranger can do nothing: it is plain data, or it is refused, with what to do about it."""

from __future__ import annotations

import argparse
import collections
import io
import json
import os
import pickle
import re
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
checkpoint_utils = pytest.importorskip("fairseq.checkpoint_utils")
from fairseq.data import Dictionary  # noqa: E402
from fairseq_compat.plain_data import (  # noqa: E402
    STAND_INS,
    NDArray,
    plain,
    refused_in,
    swollen_tensor,
)
from fairseq_compat.runner import load_fix  # noqa: E402
from fairseq_compat.scanned_pickles import Scan  # noqa: E402

ZIPPED = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])


def load(path: Path):
    """As fairseq's own functions load a checkpoint."""
    with path.open("rb") as file:
        return checkpoint_utils.torch.load(file)["value"]


def from_torch(path: Path, value, zipped: bool = True):
    torch.save({"model": {"weight": torch.ones(2)}, "value": value}, path, _use_new_zipfile_serialization=zipped)
    return load(path)


class Calls:
    """Pickled as a call, which a state may follow."""

    def __init__(self, function, arguments=(), state=None) -> None:
        self.call = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self):
        return self.call


RECONSTRUCT, SCALAR = np.zeros(0).__reduce__()[0], np.float64(1).__reduce__()[0]
STATE = (3, "<", None, None, None, -1, -1, 0)


def dtype(state=STATE, code="f8"):
    return Calls(np.dtype, (code, False, True), state)


DTYPE = dtype()


def array(shape=(2,), dtype=None, content=b"A" * 16, made_by=(np.ndarray, (0,), b"b")):
    return Calls(RECONSTRUCT, made_by, (1, shape, dtype or DTYPE, False, content))


def dictionary(**changes):
    """fairseq's Dictionary of two words, changed; None: without it."""
    state = {"symbols": ["a", "b"], "count": [1, 2], "indices": {"a": 0, "b": 1}, "bos_word": "a", "bos_index": 0}
    return Calls(Dictionary, (), {name: value for name, value in {**state, **changes}.items() if value is not None})


HOSTILE = {
    "an array of object pointers": Calls(np.ndarray, ((1,), "O", b"AAAAAAAA")),
    "an array called with a buffer": Calls(np.ndarray, ((2,), "f8", b"A" * 16)),
    "an array of another class": array(made_by=(np.dtype, (0,), b"b")),
    "an array of objects": array(dtype=dtype(code="O")),
    "an array of structures": array(shape=(1,), dtype=dtype(None, "f8,f8")),
    "an array of bytes without a type": array(dtype=dtype(None, "V8")),
    "an array whose dtype is of another version": array(dtype=dtype((4, *STATE[1:]))),
    "an array whose dtype swaps its bytes": array(dtype=dtype((3, "S", *STATE[2:]))),
    "an array whose dtype has flags": array(dtype=dtype((*STATE[:7], 63))),
    "an array whose dtype has fields": array(dtype=dtype((3, "<", None, ("a",), {"a": 1}, 8, 8, 0))),
    "an array whose dtype has a subarray": array(dtype=dtype((3, "<", ("f8", (9,)), *STATE[3:]))),
    "an array whose dtype has a number as subarray": array(dtype=dtype((3, "<", 1, *STATE[3:]))),
    "an array whose dtype has a list as size": array(dtype=dtype((*STATE[:5], [], -1, 0))),
    "an array whose dtype is a text": array(dtype="f8"),
    "an array larger than its bytes": array(shape=(1 << 20,)),
    "an array smaller than its bytes": array(shape=(1,)),
    "an array of more than 32 dimensions": array(shape=(1,) * 33, content=b"A" * 8),
    "an array whose length is no number": array(shape=(2.0,)),
    "an array of negative length": array(shape=(-2, -1)),
    "an array whose size overflows": array(shape=(1 << 31, 1 << 31, 0, 1 << 31), content=b""),
    "an array filled from a list": array(content=[1] * 16),
    "a dtype with a state of a list": dtype(list(STATE)),
    "a scalar of an object": Calls(SCALAR, (dtype(None, "O"), b"A" * 8)),
    "a scalar whose dtype is a text": Calls(SCALAR, ("f8", b"A" * 8)),
    "a scalar of too many bytes": Calls(SCALAR, (dtype(), b"A" * 16)),
    "a scalar of a list": Calls(SCALAR, (dtype(), [1])),
    "a Namespace updated from an array": Calls(argparse.Namespace, (), array()),
    "a Namespace with a number as a name": Calls(argparse.Namespace, (), {1: 2}),
    "a Namespace with a list of pairs": Calls(argparse.Namespace, (), ["ab"]),
    "a Namespace with slots": Calls(argparse.Namespace, (), (None, {"__class__": 1})),
    "bytes of a length that can be changed": Calls(bytearray, (1 << 24,)),
    "memory that nobody has filled": Calls(torch.Tensor, (1 << 20,)),
    "a tensor made by something else": Calls(torch._tensor._rebuild_from_type_v2, (set, torch.Tensor, (1,), {})),
    "a tensor of more numbers than the file": torch.ones(1).expand(1 << 30),
    "a Dictionary without words": dictionary(symbols=None),
    "a Dictionary whose words are a tuple": dictionary(symbols=("a", "b")),
    "a Dictionary with another attribute": dictionary(encode_line=1),
    "a Dictionary of lists": dictionary(symbols=["a", ["b"]]),
    "a Dictionary whose word is a number": dictionary(bos_word=0),
    "a Dictionary whose number is a word": dictionary(bos_index="a"),
    "a Dictionary whose number of specials is a list": dictionary(nspecial=[]),
    "a Dictionary counting in floats": dictionary(count=[1, 2.0]),
    "a Dictionary of fewer counts": dictionary(count=[1]),
    "a Dictionary whose numbers have no word": dictionary(indices={"a": 2}),
    "a Dictionary of negative numbers": dictionary(indices={"a": -1}),
    "a Dictionary whose words have each other's number": dictionary(indices={"a": 1, "b": 0}),
    "a Dictionary whose padding is no word": dictionary(pad_index=2),
    "a Dictionary beside a call": [dictionary(), Calls(os.getcwd)],
}


@ZIPPED
@pytest.mark.parametrize("what", HOSTILE)
def test_a_call_with_anything_but_plain_data_is_refused(tmp_path, what, zipped) -> None:
    """Not left to what numpy or Python makes of it; what is refused, another checkpoint will hold, too."""
    with pytest.raises(pickle.UnpicklingError, match=re.escape(f"checkpoint {tmp_path / 'c.pt'} cannot")) as error:
        from_torch(tmp_path / "c.pt", HOSTILE[what], zipped)
    assert "could execute code" in str(error.value)
    assert "state_dict()" in str(error.value)


@ZIPPED
def test_the_values_of_real_checkpoints(tmp_path, zipped) -> None:
    numbers = [np.dtype(code).type(1) for code in "?bBhHiIlLqQefdg"]
    arrays = [np.arange(6).reshape(2, 3), np.ones((2, 3), order="F"), np.zeros((0, 3)), np.arange(3, dtype=">i4")]
    arrays += [np.array([number] * 2) for number in numbers]
    words, shared = Dictionary(extra_special_symbols=["<mask>"]), (["word"] * 10_000, "a path" * 1000)
    words.add_symbol("wort", n=3)
    value = {
        "numbers": numbers,
        "arrays": arrays,
        "again": [arrays[0], words, *[shared] * 100],
        "namespace": argparse.Namespace(lr=[0.1], inner=argparse.Namespace(array=np.ones(2))),
        "tuple": (np.ones(1), "text"),
        "words": words,
        "tensors": [torch.ones(2, dtype=kind) for kind in (torch.float16, torch.bfloat16, torch.int64, torch.bool)],
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "others": (torch.Size([2]), torch.device("cpu"), torch.float32, {1}, 1j, collections.Counter("aab"), b"bytes"),
    }
    for _ in range(2):  # what was loaded can be saved and loaded again
        loaded = value = from_torch(tmp_path / "c.pt", value, zipped)
    assert [(new.dtype, new) for new in loaded["numbers"]] == [(old.dtype, old) for old in numbers]
    for new, old in zip(loaded["arrays"], arrays):
        assert (type(new), new.shape, new.dtype.kind) == (np.ndarray, old.shape, old.dtype.kind)
        np.testing.assert_array_equal(new, old)
    assert loaded["arrays"][1].flags.f_contiguous
    assert loaded["again"][0] is loaded["arrays"][0]
    assert loaded["again"][1] is loaded["words"]
    assert type(loaded["namespace"].inner.array) is type(loaded["tuple"][0]) is np.ndarray
    assert type(loaded["namespace"]) is type(loaded["namespace"].inner) is argparse.Namespace
    assert (type(loaded["words"]), vars(loaded["words"])) == (Dictionary, vars(words))
    assert [tensor.dtype for tensor in loaded["tensors"]] == [tensor.dtype for tensor in value["tensors"]]
    assert type(loaded["parameter"]) is torch.nn.Parameter
    assert loaded["others"] == value["others"]


def test_a_plugins_copy_of_the_module_loads_options(tmp_path) -> None:
    """It calls torch's function, which knows the options of legacy architectures as soon as fairseq is imported."""
    torch.serialization.clear_safe_globals()
    with load_fix("safe_checkpoints").patching(SimpleNamespace(torch=torch)):
        pass
    torch.save({"args": argparse.Namespace(lr=[0.1]), "model": {"weight": torch.ones(2)}}, tmp_path / "c.pt")
    options = torch.load(tmp_path / "c.pt", weights_only=True)["args"]
    assert (type(options), options.lr) == (argparse.Namespace, [0.1])


@ZIPPED
def test_attributes_do_not_hide_methods(tmp_path, zipped) -> None:
    """A tensor and an OrderedDict take any; what looks at them would call `numel` and `items` of the file's author."""
    tensor, pairs = torch.ones(2), [("a", 1), ("b", np.ones(1))]
    tensor.numel, tensor.note = 0, 1
    ordered = Calls(collections.OrderedDict, (pairs,), {"items": set, "_metadata": {"version": 2}})
    tensor, ordered = from_torch(tmp_path / "c.pt", [tensor, ordered], zipped)
    assert (tensor.numel(), tensor.note) == (2, 1)
    assert [(name, type(part)) for name, part in ordered.items()] == [("a", int), ("b", np.ndarray)]
    assert ordered._metadata == {"version": 2}


def test_all_storages_together_are_in_the_file() -> None:
    """Each of these is small enough to be spread; tensors that share numbers count once."""
    weight = torch.ones(1 << 19)
    assert swollen_tensor([weight] + [weight[:9]] * 3, 1 << 21) is None
    assert swollen_tensor({"a": [torch.ones(1 << 17) for _ in range(3)]}, 100) is not None


def test_the_list_of_the_process(tmp_path) -> None:
    """It has our stand-ins, by the names of both numpys; what others allow does not count, and is as before."""
    names = {f"{thing.__module__}.{thing.__qualname__}" for thing in STAND_INS}
    both = {f"numpy.{core}.multiarray.{name}" for core in ("core", "_core") for name in ("_reconstruct", "scalar")}
    others = {"numpy.ndarray", "numpy.dtype", "argparse.Namespace", "builtins.bytes"}
    assert names == both | others | {"fairseq.data.dictionary.Dictionary"}
    before, reader = torch.serialization.get_safe_globals(), torch._weights_only_unpickler.Unpickler
    try:
        for number in range(20):  # the list is a set: in some of its orders the other one came last
            theirs = [
                (type(f"Other{number}", (), {}), f"other.Other{number}"),
                np.ndarray,
                (np.ndarray, "numpy.ndarray"),
            ]
            torch.serialization.add_safe_globals(theirs)
            with pytest.raises(pickle.UnpicklingError):
                from_torch(tmp_path / "c.pt", HOSTILE["an array called with a buffer"])
            assert set(torch.serialization.get_safe_globals()) >= set(theirs)
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)
    assert torch._weights_only_unpickler.Unpickler is reader
    torch.save([np.arange(3), argparse.Namespace(), bytearray(b"ab")], tmp_path / "c.pt")
    with torch.serialization.safe_globals(STAND_INS):  # others load with it, too, and copy by pickling
        numbers, namespace, content = pickle.loads(pickle.dumps(torch.load(tmp_path / "c.pt", weights_only=True)))
    assert (type(numbers), numbers.tolist()) == (np.ndarray, [0, 1, 2])
    assert (type(namespace), content) == (argparse.Namespace, b"ab")


def test_an_array_is_filled_once() -> None:
    """Else numpy frees the memory that a tensor may have been laid on."""
    filled = np.ndarray.__new__(NDArray, 0, np.uint8)
    filled.__setstate__((1, (2,), STAND_INS[2]("f8"), False, b"A" * 16))
    with pytest.raises(pickle.UnpicklingError):
        filled.__setstate__((1, (1,), STAND_INS[2]("f8"), False, b"B" * 8))


TWICE = {
    "list": lambda part: [part, part],
    "tuple": lambda part: (part, part),
    "Namespace": lambda part: argparse.Namespace(a={"a": part, "b": part}),
    "depth": lambda part: ((((part,),),),),
}


@pytest.mark.parametrize("how", TWICE)
def test_what_is_shared_is_walked_through_once_and_not_without_end(how) -> None:
    """By whatever order a pickle shares and fills: printing it, or making a configuration of it, would never end."""
    shared: object = [np.ndarray.__new__(NDArray, 0, np.uint8)]
    shared.append(shared)
    assert plain(shared) is shared
    assert type(shared[0]) is np.ndarray
    for times in range(20_000 if how == "depth" else 30):
        shared = TWICE[how](shared)
        if times == 10:
            assert plain(shared) is shared
    with pytest.raises(pickle.UnpicklingError) as error:
        plain({"cfg": shared})
    assert refused_in(error.value)


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


NESTED = b")" + b"\x85" * 1000
#: by what torch's own list would let them do; none has more than some kilobytes
STREAMS = {
    "gigabytes of zeros": call("builtins.bytearray", number(1 << 30)),
    "gigabytes of zeros, by the name of Python 2": call("__builtin__.bytearray", number(1 << 30)),
    "a new tensor of its legacy class": call("torch.FloatTensor", number(1 << 30), by=pickle.NEWOBJ),
    "a storage": call("torch.storage.UntypedStorage", number(1 << 30)),
    "a text that doubles": again_and_again(text("A" * 64), call("_codecs.encode", b"LAST", text("hex")), 30),
    "copies of a text": again_and_again(text("A" * 4096), call("_codecs.encode", memo(b"j", 0), text("latin1")), 4096),
    "a key whose hash overflows the stack": b"}" + NESTED + b"Ns",
    "the name of a storage that does": b"(" + text("storage") + NESTED + b"tQ",
    "tuples of the same tuples": again_and_again(b")", b"(" + b"LAST" * 10 + b"t", times=12),
    "lists of the same lists": again_and_again(b"]", b"](" + b"LAST" * 10 + b"e", times=12),
    "copies of a list": b"]" + memo(b"r", 0) + b"(" + b"N" * 4096 + b"e" + call("builtins.set", memo(b"j", 0)) * 4096,
    "a tensor on an array": call("torch._utils._rebuild_device_tensor_from_numpy", b"N"),
    "the name of a method": b"ctorch\nTensor.map_\n",
    "a call of a text": text("builtins.set") + b")R",
    "a call of an object": call("collections.OrderedDict") + b")R",
}


@pytest.mark.parametrize("what", STREAMS)
def test_what_torchs_own_list_leaves_open_is_refused_before_torch_sees_it(what) -> None:
    with pytest.raises(pickle.UnpicklingError) as error:
        Scan(io.BytesIO(b"\x80\x02" + STREAMS[what] + b"."), set()).run()
    assert refused_in(error.value)


def test_streams_that_end_too_early_or_take_what_is_not_there_are_damaged() -> None:
    whole = pickle.dumps({"a": [np.ones(2), (1, 2)]}, protocol=2)
    names = {f"{thing.__module__}.{thing.__qualname__}" for thing in STAND_INS}
    Scan(io.BytesIO(whole), names).run()
    for stream in (*(whole[:end] for end in range(len(whole))), b"R.", b"t.", b"j0000.", b"\xff.", b"(b.", b"NNa."):
        with pytest.raises((EOFError, LookupError, ValueError, pickle.UnpicklingError)):
            Scan(io.BytesIO(stream), names).run()


@pytest.mark.parametrize("kind", ["fairseq.data.dictionary.Dictionary", "argparse.Namespace"])
def test_objects_are_made_without_arguments(tmp_path, kind) -> None:
    torch.save({"model": {}, "value": "HERE"}, tmp_path / "c.pt", _use_new_zipfile_serialization=False)
    content = (tmp_path / "c.pt").read_bytes()
    for by in (pickle.NEWOBJ, pickle.REDUCE):
        (tmp_path / "c.pt").write_bytes(content.replace(text("HERE"), call(kind, text("words"), by=by)))
        with pytest.raises(pickle.UnpicklingError, match=r"c\.pt.*with arguments"):
            load(tmp_path / "c.pt")


@pytest.mark.end_to_end
def test_thousands_of_hostile_streams_end_nothing() -> None:
    """With numpy's own classes on the list this program ends by a segmentation fault within some thousand streams."""
    command = [sys.executable, str(Path(__file__).with_name("checkpoint_fuzzer.py")), "2500", "2"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"exit status {done.returncode} at {done.stderr[-2000:]}"
    result = json.loads(done.stdout)
    outcomes = result["outcomes"]
    assert sum(outcomes.values()) == 2500
    assert min(outcomes["loaded"], outcomes["refused"], outcomes["damaged"]) > 25  # it reaches all three
    assert result["grown"] < 50e6
