"""What a checkpoint may hold beside tensors and built-in containers: stand-ins that torch's allow-list calls.

A pickle does not only name what is on the allow-list, it *calls* it, with arguments of its author's choice. numpy's own
classes were not made for that: ``numpy.ndarray((1,), 'O', b'AAAAAAAA')`` is an array of object pointers that somebody
else chose, and a ``dtype`` takes flags from its state. So torch gets classes and functions of ours under numpy's names
(and under ``argparse.Namespace``), which take what a checkpoint really holds and refuse the rest: plain data come out,
and nothing is called but what stands here.

    argparse.Namespace         a dictionary with names as keys
    numpy.dtype                codes of numbers, in either order of bytes; no objects, fields or flags
    numpy.ndarray              only by ``_reconstruct``, then filled with as many bytes as its shape needs
    numpy's scalar             a number's dtype and its bytes
    bytes                      without arguments: none
    fairseq's Dictionary       its words, their counts and numbers, which must agree (speech models keep theirs)

Of torch's own list `scanned_pickles` takes away what makes more than the file holds. What a file puts in front of an
object's methods (`items` of an OrderedDict, `numel` of a tensor) is removed.

``numpy.core.multiarray`` (numpy 1) and ``numpy._core.multiarray`` (numpy 2) are the same here. torch finds what is on
its list by module and name, which these carry; it needs 2.4 for that, and older ones refuse all of them.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pickle import UnpicklingError
from typing import Any

import numpy as np

#: bool, integers and floats from half to long double, with an order of bytes or without
NUMBER = re.compile(r"[<>=|]?(b1|[iu][1248]|f(2|4|8|12|16)|[?bBhHiIlLqQefdg])")


def _named(thing: Any, module: str, name: str) -> Any:
    """The name by which torch's allow-list finds it."""
    thing.__module__, thing.__name__, thing.__qualname__ = module, name, name
    return thing


def refused(what: str) -> UnpicklingError:
    """To be raised; `refused_in` finds `what` in torch's error about it."""
    return UnpicklingError(f"REFUSED {what};")


def is_whole_zip(path: str | os.PathLike[str]) -> bool:
    """Has a file in torch's zip format its directory, at its end and all of it?"""
    try:
        return zipfile.is_zipfile(path)
    except zipfile.BadZipFile:  # raised for a directory that says it is on another disk
        return False


def refused_in(error: BaseException) -> str | None:
    """What made torch refuse a file that is no plain data, by its error; None where the file is damaged.

    torch wraps the stand-ins' errors in advice to load without the allow-list, which is never to be quoted.
    """
    found = re.search(r"GLOBAL ([\w.]+)|REFUSED ([^;]+);", str(error))
    return found and (found[1] or found[2])


class Attributes:
    """An object of nothing but attributes, made without arguments."""

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        if arguments or options:
            raise refused(f"{cls.__qualname__} called with arguments")
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        if type(state) is not dict or not all(type(name) is str for name in state):
            raise refused(f"{type(self).__qualname__} with a state that is no dictionary of names")
        self.__dict__.update(state)


def attributes_only(module: str, name: str) -> type[Attributes]:
    """A class for what pickles call ``module.name``: its attributes are there, its behaviour is not."""
    return _named(type(name, (Attributes,), {}), module, name)


class Namespace(Attributes, argparse.Namespace):
    """Becomes a plain ``argparse.Namespace`` when its state is set."""

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        self.__class__ = argparse.Namespace  # type: ignore[assignment]

    def __reduce__(self) -> tuple:
        """An empty one has no state; it is written as what it stands for."""
        return argparse.Namespace, ()


class Dictionary(Attributes):
    """Becomes a ``fairseq.data.dictionary.Dictionary`` when its state is set: words, and nothing that is called."""

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        symbols, count, indices = (vars(self).get(name) for name in ("symbols", "count", "indices"))
        if type(symbols) is not list or type(count) is not list or type(indices) is not dict:
            raise refused("a Dictionary without its words")
        numbers = [*count, *indices.values(), *(state[name] for name in state if name.endswith(("_index", "nspecial")))]
        words = [*symbols, *indices, *(state[name] for name in state if name.endswith("_word"))]
        others = [name for name in state if not name.endswith(("_index", "_word"))]
        if {*others} - {"symbols", "count", "indices", "nspecial"}:
            raise refused(f"a Dictionary with {others!r:.80}")
        if not all(type(word) is str for word in words) or not all(type(number) is int for number in numbers):
            raise refused("a Dictionary of something other than words and numbers")
        if (
            len(count) != len(symbols)
            or not all(0 <= number < len(symbols) and symbols[number] == word for word, number in indices.items())
            or not all(0 <= state[name] < len(symbols) for name in state if name.endswith("_index"))
        ):
            raise refused("a Dictionary whose words, counts and numbers do not agree")
        from fairseq.data.dictionary import Dictionary as Real

        self.__class__ = Real


class DType:
    """The type of numbers: a code and, as a state, their order of bytes."""

    def __init__(self, code: str, align: bool = False, copy: bool = False) -> None:
        if type(code) is not str or not NUMBER.fullmatch(code):
            raise refused(f"numpy.dtype {code!r:.40}")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        """state: version, order of bytes, then what structures have (nothing here), sizes and flags (none here)."""
        if (
            type(state) is not tuple
            or len(state) != 8
            or not all(type(part) in (int, str, type(None)) for part in state)
        ):
            raise refused("numpy.dtype with such a state")
        version, order, subarray, names, fields, _, _, flags = state
        if (
            version != 3
            or order not in ("<", ">", "=", "|")
            or (subarray, names, fields, flags) != (None, None, None, 0)
        ):
            raise refused("numpy.dtype with fields or flags")
        self.dtype = self.dtype.newbyteorder(order)


class NDArray(np.ndarray):
    """An array as ``_reconstruct`` leaves it, until `plain` makes it a ``numpy.ndarray``."""

    _filled = False

    def __new__(cls, *arguments: Any, **options: Any) -> NDArray:
        raise refused("numpy.ndarray called with arguments")

    def __setstate__(self, state: Any) -> None:
        """state: version, shape, dtype, Fortran order, bytes. A second one would free what a tensor may lie on."""
        if type(state) is not tuple or len(state) != 5 or self._filled:
            raise refused("numpy.ndarray with such a state")
        _, shape, dtype, fortran, content = state
        if type(shape) is not tuple or len(shape) > 32 or type(dtype) is not DType or type(content) is not bytes:
            raise refused("numpy.ndarray with such a state")
        if not all(type(length) is int and 0 <= length < 2**31 for length in shape):
            raise refused(f"numpy.ndarray of shape {shape!r:.40}")
        if math.prod(shape) * dtype.dtype.itemsize != len(content):
            raise refused(f"numpy.ndarray of shape {shape!r:.40} with {len(content)} bytes")
        self._filled = True
        state = (1, shape, dtype.dtype, bool(fortran), content)  # numpy's stubs want a numpy.bool
        super().__setstate__(state)

    def __reduce__(self) -> Any:
        return self.view(np.ndarray).__reduce__()


def _reconstruct(module: str) -> Any:
    def reconstruct(cls: Any, shape: Any, code: Any) -> np.ndarray:
        if cls is not NDArray:
            raise refused(f"an array of class {cls!r:.40}")
        return np.ndarray.__new__(NDArray, 0, np.uint8)  # shape and code are those of an empty array: see __setstate__

    return _named(reconstruct, module, "_reconstruct")


def _scalar(module: str) -> Any:
    def scalar(dtype: Any, content: Any) -> np.generic:
        if type(dtype) is not DType or type(content) is not bytes or len(content) != dtype.dtype.itemsize:
            raise refused("a scalar of numpy with such a type or content")
        return np.frombuffer(content, dtype.dtype)[0]

    return _named(scalar, module, "scalar")


def _no_bytes() -> bytes:
    """How pickles write the content of an empty array."""
    return b""


_named(Namespace, "argparse", "Namespace")
_named(Dictionary, "fairseq.data.dictionary", "Dictionary")
_named(_no_bytes, "builtins", "bytes")
_named(DType, "numpy", "dtype")
_named(NDArray, "numpy", "ndarray")
_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")
#: what `allowed` puts on torch's list
STAND_INS = [Namespace, Dictionary, DType, NDArray, _no_bytes, *map(_reconstruct, _MODULES), *map(_scalar, _MODULES)]


def _name_on_the_list(entry: Any) -> str:
    """By which torch finds an entry of its list: one with a name of its own is a pair."""
    return entry[1] if isinstance(entry, tuple) else f"{entry.__module__}.{entry.__qualname__}"


@contextmanager
def allowed() -> Iterator[None]:
    """Inside, the stand-ins are on torch's list, beside what others put there, but for things under the same names.

    numpy's own ``ndarray``, which many a program allows, would else be called in place of the one here, or not: the
    list is a set. Without effect on torch < 2.4, which has none.
    """
    serialization = sys.modules["torch"].serialization
    if not hasattr(serialization, "add_safe_globals"):
        yield
        return
    before = serialization.get_safe_globals()
    ours = {_name_on_the_list(one) for one in STAND_INS}
    serialization.clear_safe_globals()
    serialization.add_safe_globals([*(one for one in before if _name_on_the_list(one) not in ours), *STAND_INS])
    try:
        yield
    finally:
        serialization.clear_safe_globals()
        serialization.add_safe_globals(before)


def plain(loaded: Any) -> Any:
    """What was loaded, with a plain ``numpy.ndarray`` in place of each array that a stand-in made.

    Dictionaries and tensors have the methods of their classes afterwards, whatever attributes the file gave them.
    """
    try:
        return _Plain().of(loaded)
    except RecursionError:
        raise refused("a container nested a thousand times") from None


def _bare(value: Any) -> None:
    """Remove the attributes that hide what the class has under their names."""
    attributes = getattr(value, "__dict__", {})
    for name in [name for name in attributes if hasattr(type(value), name)]:
        del attributes[name]


#: How many things somebody who does not know that some are the same meets, for each that is there, and in any case.
_SHARED, _FREE = 16, 1 << 20


class _Plain:
    def __init__(self) -> None:
        #: old and new by identity: a pickle can hold a thing twice, or within itself; the old must live for that
        self.seen: dict[int, tuple[Any, Any]] = {}
        torch = sys.modules.get("torch")
        self.with_attributes = (dict, torch.Tensor) if torch else (dict,)
        self.sizes: dict[int, int] = {}  # by identity, of containers: how many things a walk through it meets
        self.there = 0

    def of(self, value: Any) -> Any:
        if isinstance(value, self.with_attributes):
            _bare(value)
        if not isinstance(value, (dict, list, tuple, argparse.Namespace, NDArray)) or id(value) in self.seen:
            return self.seen.get(id(value), (value, value))[1]
        if isinstance(value, NDArray):
            return self._is(value, value.view(np.ndarray))
        if isinstance(value, tuple):
            parts = [self.of(part) for part in value]
            changed = any(new is not old for new, old in zip(parts, value))
            self._measure(value, value)
            return self._is(value, tuple(parts) if changed and type(value) is tuple else value)
        self._is(value, value)
        fields = vars(value) if isinstance(value, argparse.Namespace) else value
        old = list(fields.values()) if isinstance(fields, dict) else list(fields)
        for key, part in zip(list(fields) if isinstance(fields, dict) else range(len(old)), old):
            new = self.of(part)
            if new is not part:
                fields[key] = new
        self._measure(value, old)
        return value

    def _is(self, old: Any, new: Any) -> Any:
        self.seen[id(old)] = old, new
        return new

    def _measure(self, value: Any, parts: Collection[Any]) -> None:
        """Lists of the same lists, ten times ten times ten: whoever prints or copies them never comes back."""
        self.there += 1 + len(parts)
        self.sizes[id(value)] = 1 + sum(self.sizes.get(id(part), 1) for part in parts)
        if self.sizes[id(value)] > _SHARED * self.there + _FREE:
            raise refused("the same things over and over")


#: Bytes of a tensor that may have more numbers than the file holds for it: spreading few over it is usual (`expand`).
_SPREAD = 1 << 20


def swollen_tensor(loaded: Any, file_size: int | None = None) -> tuple[Any, str] | None:
    """(name, size) of a tensor that says it has more numbers than the file: a copy of it would have no bound.

    With file_size, all storages together are no larger than that: one that a file only names a size for would hold what
    stood in that memory before.
    """
    import torch

    seen: set[int] = set()
    storages: set[int] = set()
    room = float("inf") if file_size is None else file_size + _SPREAD
    left: list[tuple[Any, Any]] = [("it", loaded)]
    while left:  # a file may be nested more deeply than functions may be
        name, value = left.pop()
        if isinstance(value, torch.Tensor):
            storage = _storage(value)
            if storage is not None and storage.data_ptr() not in storages:
                storages.add(storage.data_ptr())
                room -= storage.nbytes()
            if room < 0 or not _is_held(value, storage):
                return name, "x".join(map(str, value.shape))
        if isinstance(value, (dict, list, tuple, argparse.Namespace)) and id(value) not in seen:
            seen.add(id(value))
            fields = vars(value) if isinstance(value, argparse.Namespace) else value
            left += fields.items() if isinstance(fields, dict) else enumerate(fields)
    return None


def _is_held(tensor: Any, storage: Any) -> bool:
    if tensor.device.type == "meta":  # a size without numbers
        return False
    return storage is None or tensor.numel() * tensor.element_size() <= max(_SPREAD, storage.nbytes())


def _storage(tensor: Any) -> Any:
    """Where its numbers are; None for sparse ones and for those without any."""
    if str(tensor.layout) != "torch.strided" or tensor.device.type == "meta":
        return None
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
