"""A checkpoint from a stranger executes nothing: it is plain data, or it is refused, with the remedy."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import enum
import os
import pathlib
import pickle
import re
import sys
import typing
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
checkpoint_utils = pytest.importorskip("fairseq.checkpoint_utils")
import omegaconf  # noqa: E402
from fairseq.data import Dictionary  # noqa: E402
from fairseq.dataclass.configs import FairseqConfig  # noqa: E402
from fairseq_compat.plain_data import plain  # noqa: E402
from fairseq_compat.runner import load_fix  # noqa: E402

#: modules with the classes that an earlier fairseq or a plugin stored
EARLIER: dict[str, ModuleType] = {}


def install(kind: type, module: str) -> type:
    """Return a class that `from_torch` saves as one of a module."""
    kind.__module__, kind.__qualname__ = module, kind.__name__
    setattr(EARLIER.setdefault(module, ModuleType(module)), kind.__name__, kind)
    return kind


Meter = install(type("AverageMeter", (), {}), "fairseq.meters")
Choices = install(type("Choices", (), {}), "fairseq.dataclass.constants")
Kind = install(enum.Enum("Kind", {"first": "first"}), "fairseq.dataclass.constants")
ZIPPED = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])


def from_torch(path: Path, value, zipped: bool = True):
    """Save a value as torch does, and load it as fairseq's own functions load a checkpoint."""
    content = {"model": {"weight": torch.ones(2)}, "value": value}
    with mock.patch.dict(sys.modules, EARLIER):
        torch.save(content, path, _use_new_zipfile_serialization=zipped)
    with path.open("rb") as file:
        return checkpoint_utils.torch.load(file)["value"]


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


def array(shape=(2,), dtype_of=None, content=b"A" * 16, made_by=(np.ndarray, (0,), b"b")):
    return Calls(RECONSTRUCT, made_by, (1, shape, dtype_of or dtype(), False, content))


REFUSED = {
    "code": Calls(os.system, ("touch executed",)),
    "code in a Dictionary": Calls(Dictionary, (), {"symbols": Calls(os.getcwd)}),
    "an array of object pointers": Calls(np.ndarray, ((1,), "O", b"AAAAAAAA")),
    "an array called with a buffer": Calls(np.ndarray, ((2,), "f8", b"A" * 16)),
    "an array of another class": array(made_by=(np.dtype, (0,), b"b")),
    "an array of objects": array(dtype_of=dtype(code="O")),
    "an array of structures": array(shape=(1,), dtype_of=dtype(None, "f8,f8")),
    "an array of bytes without a type": array(dtype_of=dtype(None, "V8")),
    "an array whose dtype is a text": array(dtype_of="f8"),
    "an array filled from a list": array(content=[1] * 16),
    "a scalar of an object": Calls(SCALAR, (dtype(None, "O"), b"A" * 8)),
    "a scalar whose dtype is a text": Calls(SCALAR, ("f8", b"A" * 8)),
    "a scalar of a list": Calls(SCALAR, (dtype(), [1])),
    "a Namespace with arguments": Calls(argparse.Namespace, ("words",)),
    "a Namespace updated from an array": Calls(argparse.Namespace, (), array()),
    "a Namespace with a number as a name": Calls(argparse.Namespace, (), {1: 2}),
    "a Namespace with slots": Calls(argparse.Namespace, (), (None, {"__class__": 1})),
    "bytes of a length that can be changed": bytearray(b"A"),
    "a tensor on the memory of an array": torch._utils._rebuild_device_tensor_from_numpy,
    "a new tensor of its legacy class": Calls(torch.FloatTensor, (1 << 20,)),
    "a sparse tensor": torch.eye(2).to_sparse(),
    "the name of a function": torch.load,
    "a meter called with an argument": Calls(Meter, (1,)),
    "a configuration called with its content": Calls(omegaconf.DictConfig, ({"a": 1},)),
    "code in a configuration": Calls(
        omegaconf.DictConfig, (), {"_metadata": None, "_content": {"a": Calls(os.getcwd)}}
    ),
    "a configuration's type alone": {"extra_state": [typing.Any]},
    "a configuration's type as an attribute": argparse.Namespace(kind=FairseqConfig),
    "a configuration's type that is called": Calls(FairseqConfig),
    "a part of a configuration": Calls(omegaconf.base.Metadata, (), {"ref_type": None}),
    "a choice of a number": Calls(Choices, (1,)),
    "a choice alone": Choices,
    "a path of numbers": Calls(pathlib.PosixPath, (1,)),
}


@ZIPPED
@pytest.mark.parametrize("what", REFUSED)
def test_everything_but_plain_data_is_refused(tmp_path, monkeypatch, what, zipped) -> None:
    """The same object will be in other checkpoints of the training: the remedy is not another file."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pickle.UnpicklingError, match=re.escape(f"checkpoint {tmp_path / 'c.pt'} cannot")) as error:
        from_torch(tmp_path / "c.pt", REFUSED[what], zipped)
    assert "could execute code" in str(error.value)
    assert "state_dict()" in str(error.value)
    assert [file.name for file in tmp_path.iterdir()] == ["c.pt"]


@pytest.mark.parametrize("shape", [(1 << 20,), (-2, -1), (2.0,), (1,) * 65])
def test_an_array_has_the_bytes_of_its_shape(tmp_path, shape) -> None:
    with pytest.raises(pickle.UnpicklingError, match=r"c\.pt cannot be loaded: .*damaged"):
        from_torch(tmp_path / "c.pt", array(shape))


@pytest.mark.parametrize(
    "state", [(*STATE[:7], 63), (3, "<", ("f8", (9,)), *STATE[3:]), (3, "<", None, ("a",), {"a": 1}, 8, 8, 0)]
)
def test_flags_and_fields_of_a_dtype_have_no_effect(tmp_path, state) -> None:
    loaded = from_torch(tmp_path / "c.pt", array(dtype_of=dtype(state)))
    assert (type(loaded), loaded.dtype, loaded.tobytes()) == (np.ndarray, np.dtype("f8"), b"A" * 16)


@ZIPPED
def test_the_values_of_real_checkpoints(tmp_path, zipped) -> None:
    numbers = [np.dtype(code).type(1) for code in "?bBhHiIlLqQefdg"]
    arrays = [
        np.arange(6).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.zeros((0, 3)),
        np.arange(3, dtype=">i4"),
    ]
    arrays += [np.array([number] * 2) for number in numbers]
    words, tensor = Dictionary(extra_special_symbols=["<mask>"]), torch.ones(2)
    words.add_symbol("wort", n=3)
    tensor.note = 1
    value = {
        "numbers": numbers,
        "arrays": arrays,
        "again": [arrays[0], words],
        "namespace": argparse.Namespace(lr=[0.1], inner=argparse.Namespace(array=np.ones(2))),
        "tuple": (np.ones(1), "text"),
        "words": words,
        "tensors": [torch.ones(2, dtype=kind) for kind in (torch.float16, torch.bfloat16, torch.int64, torch.bool)],
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "note": tensor,
        "ordered": collections.OrderedDict(a=np.ones(1)),
        "others": (torch.Size([2]), torch.device("cpu"), torch.float32, {1}, 1j, collections.Counter("aab"), b"bytes"),
    }
    for _ in range(2):  # loaded data can be saved and loaded again
        loaded = value = from_torch(tmp_path / "c.pt", value, zipped)
        for new, old in zip(loaded["arrays"], arrays):
            assert (type(new), new.shape, new.dtype.kind) == (np.ndarray, old.shape, old.dtype.kind)
            np.testing.assert_array_equal(new, old)
            assert new.flags.writeable
        assert loaded["arrays"][1].flags.f_contiguous
    assert [(new.dtype, new) for new in loaded["numbers"]] == [(old.dtype, old) for old in numbers]
    assert loaded["again"][0] is loaded["arrays"][0]
    assert loaded["again"][1] is loaded["words"]
    assert (
        type(loaded["namespace"].inner.array) is type(loaded["tuple"][0]) is type(loaded["ordered"]["a"]) is np.ndarray
    )
    assert type(loaded["namespace"]) is type(loaded["namespace"].inner) is argparse.Namespace
    assert (type(loaded["words"]), vars(loaded["words"])) == (Dictionary, vars(words))
    assert [part.dtype for part in loaded["tensors"]] == [part.dtype for part in value["tensors"]]
    assert type(loaded["parameter"]) is torch.nn.Parameter
    assert loaded["note"].note == 1
    assert loaded["others"] == value["others"]


def stored(kind: type, **attributes):
    """Return an object of an earlier class, with attributes."""
    thing = kind()
    vars(thing).update(attributes)
    return thing


@ZIPPED
def test_the_objects_of_earlier_releases_are_plain_data(tmp_path, zipped) -> None:
    """Meters (up to 0.9), a DictConfig (2020), one of dataclasses with an enum, choices (2021), paths."""
    content = {"model": argparse.Namespace(lr=[0.1]), "task": {"seed": 1, "files": [None, {"a": "b"}]}, "none": None}
    config = omegaconf.OmegaConf.create(content, flags={"allow_objects": True})

    fields = [("layers", typing.List[int], dataclasses.field(default_factory=lambda: [1, 2]))]  # noqa: UP006
    part = dataclasses.make_dataclass("PartConfig", [*fields, ("rate", float, 0.5), ("kind", Kind, Kind.first)])
    install(part, "a_plugin")
    meter = stored(Meter, val=2.5, sum=np.float64(5), count=2)
    value = {
        "meters": collections.OrderedDict(loss=meter, again=meter, empty=Meter()),
        "config": config,
        "part": omegaconf.OmegaConf.structured(part),
        "inner": argparse.Namespace(w2v_args=config),
        "backend": Calls(Choices, ("c10d",)),
        "path": pathlib.PosixPath("/data/bin"),
        "counts": collections.defaultdict(list, a=[1]),
    }
    for _ in range(2):  # loaded data can be saved and loaded again
        loaded = value = from_torch(tmp_path / "c.pt", value, zipped)
        loss = loaded["meters"]["loss"]
        assert loss is loaded["meters"]["again"]
        assert (type(loss), loss.val, loss.sum, loss.count) == (argparse.Namespace, 2.5, 5, 2)
        assert isinstance(loaded["meters"]["empty"], argparse.Namespace)
        assert loaded["config"] == content
        assert type(loaded["config"]) is type(loaded["config"]["task"]) is dict
        assert loaded["inner"].w2v_args == content
        assert loaded["part"] == {"layers": [1, 2], "rate": 0.5, "kind": "first"}
        assert (loaded["backend"], loaded["path"], loaded["counts"]) == ("c10d", Path("/data/bin"), {"a": [1]})


def test_a_container_within_itself_stays_so() -> None:
    shared: list = [1]
    shared.append((shared, {"a": shared}))
    assert plain(shared) is shared
    assert shared[1][0] is shared[1][1]["a"] is shared


def test_the_list_of_the_process_is_as_before_and_others_on_it_count(tmp_path) -> None:
    """But numpy's own ndarray, which many programs allow, is not called."""
    before, of_torch = torch.serialization.get_safe_globals(), torch._weights_only_unpickler._get_allowed_globals
    theirs = [collections.deque, np.ndarray, (np.ndarray, "numpy.ndarray")]
    torch.serialization.add_safe_globals(theirs)
    try:
        with pytest.raises(pickle.UnpicklingError):
            from_torch(tmp_path / "c.pt", REFUSED["an array called with a buffer"])
        assert from_torch(tmp_path / "c.pt", Calls(collections.deque, ([1],))) == collections.deque([1])
        assert set(torch.serialization.get_safe_globals()) >= {*theirs, *before}
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)
    assert torch._weights_only_unpickler._get_allowed_globals is of_torch


def test_a_plugins_copy_of_the_module_loads_options(tmp_path) -> None:
    """It calls torch's function, which knows the options of legacy architectures as soon as fairseq is imported."""
    torch.serialization.clear_safe_globals()
    load_fix("safe_checkpoints").patch(SimpleNamespace(torch=torch))
    torch.save([argparse.Namespace(lr=[0.1]), argparse.Namespace()], tmp_path / "c.pt")
    options, empty = pickle.loads(pickle.dumps(torch.load(tmp_path / "c.pt", weights_only=True)))
    assert (type(options), options.lr, type(empty)) == (argparse.Namespace, [0.1], argparse.Namespace)
