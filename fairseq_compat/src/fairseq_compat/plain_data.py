"""Load checkpoints that hold tensors, built-in containers and plain data, and nothing else.

A pickle does not only name the entries of torch's allow-list, it *calls* them, with arguments of its author's choice.
numpy's own classes were not made for that: ``numpy.ndarray((1,), 'O', b'AAAAAAAA')`` is an array of object pointers
that somebody else chose. So torch calls stand-ins under the names of numpy's, Python's, fairseq's and omegaconf's
classes (`fairseq_compat.stand_ins`). They accept the data of real checkpoints and refuse other data:

    numpy.dtype                codes of numbers, in either order of bytes; no objects, fields or flags
    numpy.ndarray              only by ``_reconstruct``, then with a shape, a dtype and bytes
    numpy's scalar             a number's dtype and its bytes
    bytes                      without arguments: none

Of torch's own list `TORCH_NAMES` remain. Entries such as ``_rebuild_device_tensor_from_numpy``, which makes a tensor on
memory that the next opcode frees, are taken away.

``numpy.core.multiarray`` (numpy 1) and ``numpy._core.multiarray`` (numpy 2) are the same here. torch finds the entries
of its list by module and name, which the stand-ins have. This needs torch 2.4; older ones refuse all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from fairseq_compat.stand_ins import Attributes, Choice, Mention, Node, named, refused, stand_in
from fairseq_compat.stand_ins import refused_in as refused_in

#: the remedy for a file with other objects
TAKE_OUT = "README.md of fairseq_compat has the lines that take them out of a file that you trust"
#: bool, integers and floats from half to long double, with an order of bytes or without
NUMBER = re.compile(r"[<>=|]?(b1|[iu][1248]|f(2|4|8|12|16)|[?bBhHiIlLqQefdg])")
#: entries of torch's allow-list that dense tensors, parameters and containers are made of
TORCH_NAMES = re.compile(
    r"torch\._utils\._rebuild_(tensor(_v2|_v3)?|parameter(_with_state)?)|torch\._tensor\._rebuild_from_type_v2"
    r"|torch\.nn\.parameter\.Parameter|torch\.(Size|device|Tensor|(storage\.)?\w+Storage|[a-z]+\d*|float\d\w+)"
    r"|collections\.(OrderedDict|Counter)|builtins\.(set|complex)|_codecs\.encode"
)


class DType:
    """Replace a ``numpy.dtype``: a code of numbers and, as a state, their order of bytes."""

    def __init__(self, code: Any, align: bool = False, copy: bool = False) -> None:
        if type(code) is not str or not NUMBER.fullmatch(code):
            raise refused(f"numpy.dtype {code!r:.40}")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        """Set the order of bytes; the rest of numpy's state (fields, sizes, flags) is ignored, as numbers have none."""
        self.dtype = self.dtype.newbyteorder(state[1])


class Array:
    """Replace a ``numpy.ndarray`` until `plain` puts `array` in its place."""

    array: np.ndarray

    def __new__(cls, *arguments: Any) -> Array:
        raise refused("numpy.ndarray called with arguments")

    def __setstate__(self, state: Any) -> None:
        """Copy the numbers; state: version, shape, dtype, Fortran order, bytes."""
        _, shape, dtype, fortran, content = state
        if type(dtype) is not DType or type(content) is not bytes:
            raise refused("numpy.ndarray with such a state")
        self.array = np.ndarray(shape, dtype.dtype, content, order="F" if fortran else "C").copy("K")


def _reconstruct(module: str) -> Any:
    def reconstruct(cls: Any, shape: Any, code: Any) -> Array:
        if cls is not Array:
            raise refused(f"an array of class {cls!r:.40}")
        return object.__new__(Array)  # shape and code belong to an empty array: see __setstate__

    return named(reconstruct, module, "_reconstruct")


def _scalar(module: str) -> Any:
    def scalar(dtype: Any, content: Any) -> np.generic:
        if type(dtype) is not DType or type(content) is not bytes:
            raise refused("a scalar of numpy with such a type or content")
        return np.frombuffer(content, dtype.dtype, count=1)[0]

    return named(scalar, module, "scalar")


def _no_bytes() -> bytes:
    """Return the content of an empty array, which pickles write as a call."""
    return b""


named(_no_bytes, "builtins", "bytes")
named(DType, "numpy", "dtype")
named(Array, "numpy", "ndarray")
_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")
#: additions to torch's allow-list
STAND_INS = [DType, Array, _no_bytes, *map(_reconstruct, _MODULES), *map(_scalar, _MODULES)]


def _name(entry: Any) -> str:
    """Return the name by which torch finds an entry of its list; an entry with another name is a pair."""
    return entry[1] if isinstance(entry, tuple) else f"{entry.__module__}.{entry.__qualname__}"


class _Allowed(dict):
    """Hold the entries of an allow-list by name; a stand-in joins them when a pickle names the class."""

    def __contains__(self, name: Any) -> bool:
        if not super().__contains__(name) and (made := stand_in(name)):
            self[name] = made
        return super().__contains__(name)


@contextmanager
def allowed(others: Iterable[Any] = ()) -> Iterator[None]:
    """Let ``torch.load`` with ``weights_only=True`` build plain data, and nothing else, inside this block.

    Pass the result to `plain`. There is no effect on torch < 2.4, which refuses more.

    Args:
        others: classes, or pairs of a class and its name, that a pickle may call as well. A stand-in comes before an
            entry of the same name: many programs allow numpy's own ``ndarray``.
    """
    import torch
    from torch import serialization

    if not hasattr(serialization, "add_safe_globals"):
        yield
        return
    unpickler: Any = torch._weights_only_unpickler
    list_of_torch, before = unpickler._get_allowed_globals, serialization.get_safe_globals()
    remaining = {name: entry for name, entry in list_of_torch().items() if TORCH_NAMES.fullmatch(name)}
    entries = _Allowed({**remaining, **{_name(entry): entry for entry in STAND_INS}})
    unpickler._get_allowed_globals = lambda: entries
    serialization.clear_safe_globals()
    serialization.add_safe_globals([entry for entry in others if _name(entry) not in entries])
    try:
        yield
    finally:
        unpickler._get_allowed_globals = list_of_torch
        serialization.clear_safe_globals()
        serialization.add_safe_globals(before)


def plain(loaded: Any) -> Any:
    """Return the loaded data without its stand-ins; containers keep their identity.

    Stand-ins of ``numpy.ndarray`` become arrays, stand-ins of omegaconf become dictionaries, lists or values.

    Raises:
        UnpicklingError: a type of a configuration is in another place; `refused_in` returns its name.
    """
    converted: dict[int, tuple[Any, Any]] = {}  # by identity: old and new; the old must live for that

    def fill(fields: Any) -> None:
        for key, part in list(fields.items() if isinstance(fields, dict) else enumerate(fields)):
            if isinstance(fields, dict):
                convert(key)
            new = convert(part)
            if new is not part:
                fields[key] = new

    def convert(value: Any) -> Any:
        if isinstance(value, (str, bytes, int, float, type(None))):
            return value
        if isinstance(value, Array):
            return value.array
        if isinstance(value, Node):
            return convert(value.content)
        if isinstance(value, type) and issubclass(value, (Mention, Choice, Attributes)):
            raise refused(_name(value))
        if id(value) in converted:
            return converted[id(value)][1]
        converted[id(value)] = value, value
        if isinstance(value, (tuple, set, frozenset)):
            parts = tuple(map(convert, value))
            if type(value) is tuple and any(new is not old for new, old in zip(parts, value)):
                converted[id(value)] = value, parts
        elif isinstance(value, (dict, list)):
            fill(value)
        if isinstance(attributes := getattr(value, "__dict__", None), dict):
            fill(attributes)
        return converted[id(value)][1]

    return convert(loaded)
