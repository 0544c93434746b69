"""A checkpoint's pickle is looked through before torch acts on it: what torch's own allow-list leaves open.

That list was made against foreign code, not against what its own entries do with arguments of a stranger's choice:

    ``bytearray(2**40)``, ``torch.FloatTensor(2**33)``, ``_codecs.encode(x, 'hex')`` again and again: all memory, from a
        hundred bytes
    a tuple of tuples 200,000 deep as a key: hash() has no end to its recursion: a segmentation fault
    ten times the same tuple, ten times that, ...: whoever walks through it never comes back
    ``_rebuild_device_tensor_from_numpy``: a tensor on memory that the next opcode frees

So the opcodes are followed here without doing anything: what would lie on the stack is only measured. A stream may name
what checkpoints are made of, and call what CALLED names; tuples nest a hundred times at most; and all that is handed to
calls together is no more than a multiple of what the stream has. torch then reads it as ever, with its own checks.
"""

from __future__ import annotations

import re
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Iterator
from contextlib import contextmanager
from pickle import UnpicklingError
from typing import Any, BinaryIO

from fairseq_compat.plain_data import refused

#: of torch's list: what dense tensors, parameters and containers are made with
CALLED = {
    *(f"torch._utils._rebuild_{what}" for what in ("tensor", "tensor_v2", "tensor_v3")),
    *(f"torch._utils._rebuild_{what}" for what in ("parameter", "parameter_with_state")),
    *("torch._tensor._rebuild_from_type_v2", "torch.nn.parameter.Parameter", "torch.Size", "torch.device"),
    *("collections.OrderedDict", "collections.Counter", "builtins.set", "builtins.complex", "_codecs.encode"),
}
#: what may be named, but not called: kinds of storages and of numbers, the class of tensors with attributes
NAMED = re.compile(r"torch\.(Tensor|(storage\.)?(\w+Storage|[a-z]+\d*|float\d\w+))")
#: the one encoding by which pickles hold bytes; others multiply them
LATIN = (b"latin1", b"latin-1", b"bytes")
DEEPEST = 100
#: how much of what a stream holds may be handed to calls: a factor (things shared by several), and bytes
SHARED, FREE = 16, 1 << 20

#: opcodes without effect on the stack, and those that push something of the given bytes
PUSHED = {b"N": 0, b"\x89": 0, b"\x88": 0, b"]": 0, b"}": 0, b"\x8f": 0, b")": 0}
PUSHED |= {b"J": 4, b"K": 1, b"M": 2, b"G": 8}
TEXTS = {b"X": 4, b"U": 1, b"\x8a": 1}  # by the bytes of their length
TUPLES = {b"\x85": 1, b"\x86": 2, b"\x87": 3}
MEMO = {b"q": 1, b"r": 4, b"h": 1, b"j": 4}


class Value:
    """What is known of something on the stack; the memo holds the same, so that a list there grows with it.

    size: how many things a walk through it meets. length: bytes of a text, or of those of a tuple. depth: of tuples.
    what: a global's name, a short text, or those of a short tuple.
    """

    __slots__ = ("depth", "length", "size", "what")

    def __init__(self, size: int = 1, length: int = 0, depth: int = 0, what: Any = None) -> None:
        self.size, self.length, self.depth, self.what = size, length, depth, what


ATOM = Value()


class Scan:
    """One pickle, from where the stream stands. callable_too: names beside CALLED."""

    def __init__(self, stream: BinaryIO, callable_too: set[str]) -> None:
        self.stream = stream
        self.called = CALLED | callable_too
        self.stack: list[Value] = []
        self.marks: list[list[Value]] = []
        self.memo: dict[int, Value] = {}
        self.bytes = self.handed = 0

    def read(self, count: int) -> bytes:
        content = self.stream.read(count)
        if len(content) != count:
            raise EOFError("the pickle ends too early")
        self.bytes += count
        return content

    def number(self, count: int) -> int:
        return int.from_bytes(self.read(count), "little")

    def run(self) -> None:
        """Raises UnpicklingError for what is refused; IndexError, KeyError and EOFError for what is damaged."""
        while (code := self.read(1)) != b".":
            if code in PUSHED:
                self.read(PUSHED[code])
                self.stack.append(Value() if code in b"]}\x8f" else ATOM)
            elif code in TEXTS:
                text = self.read(self.number(TEXTS[code]))
                self.stack.append(Value(1, len(text), 0, text if len(text) < 32 else None))
            elif code in MEMO:
                self.remember(code, self.number(MEMO[code]))
            elif code in TUPLES:
                self.tuple([self.stack.pop() for _ in range(TUPLES[code])][::-1])
            elif code == b"t":
                self.tuple(self.since_mark())
            elif code == b"(":
                self.marks.append(self.stack)
                self.stack = []
            elif code == b"c":
                self.name()
            elif code in b"R\x81b":
                self.call(code)
            elif code in b"asue":
                parts = self.since_mark() if code in b"ue" else [self.stack.pop() for _ in range(1 + (code == b"s"))]
                self.add(parts)
            elif code == b"Q":
                self.stack[-1] = ATOM
            elif code == b"\x80":
                self.read(1)
            else:
                raise ValueError(f"opcode {code!r}, which torch does not know either")

    def since_mark(self) -> list[Value]:
        parts, self.stack = self.stack, self.marks.pop()
        return parts

    def remember(self, code: bytes, place: int) -> None:
        if code in b"qr":
            self.memo[place] = self.stack[-1]
        else:
            self.stack.append(self.memo[place])

    def tuple(self, parts: list[Value]) -> None:
        depth = 1 + max((part.depth for part in parts), default=0)
        if depth > DEEPEST:
            raise refused("tuples nested a hundred times")
        what = tuple(part.what for part in parts) if len(parts) < 5 else None
        size = self.fits(1 + sum(part.size for part in parts))
        self.stack.append(Value(size, sum(part.length for part in parts), depth, what))

    def add(self, parts: list[Value]) -> None:
        """To a list or dictionary."""
        into = self.stack[-1]
        if into is ATOM:
            raise ValueError("something is added to what is no container")
        into.size = self.fits(into.size + sum(part.size for part in parts))

    def fits(self, size: int) -> int:
        if size > SHARED * self.bytes + FREE:
            raise refused("the same things over and over")
        return size

    def name(self) -> None:
        lines = [self.stream.readline() for _ in range(2)]
        self.bytes += sum(map(len, lines))
        module, name = (line[:-1].decode("utf-8") for line in lines)
        module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
        full = f"{module}.{name}"
        if full not in self.called and not NAMED.fullmatch(full):
            raise refused(full)
        self.stack.append(Value(what=full))

    def call(self, code: bytes) -> None:
        """A function or class called with a tuple, or a state given to what is left on the stack."""
        given = self.stack.pop()
        self.handed = self.fits(self.handed + given.size + given.length)
        if code == b"b":
            return
        function = self.stack.pop().what
        if not isinstance(function, str) or function not in self.called:
            raise refused(f"a call of {function!r:.80}")
        if function == "torch._tensor._rebuild_from_type_v2":  # a tensor with attributes: by the function that it names
            inner = given.what[0] if isinstance(given.what, tuple) and given.what else None
            if inner not in self.called or not str(inner).startswith("torch._utils._rebuild_"):
                raise refused(f"a tensor made by {inner!r:.80}")
        if function == "_codecs.encode" and (not isinstance(given.what, tuple) or given.what[1] not in LATIN):
            raise refused("_codecs.encode into something other than bytes")
        self.stack.append(Value(length=given.length if function == "_codecs.encode" else 0))


def _user_allowed() -> set[str]:
    """The names of what this process allows beside torch's own list."""
    from torch.serialization import get_safe_globals

    pairs = (thing if isinstance(thing, tuple) else (thing, None) for thing in get_safe_globals())
    return {name or f"{thing.__module__}.{thing.__qualname__}" for thing, name in pairs}


@contextmanager
def scanned() -> Iterator[None]:
    """Inside this block `torch.load` with `weights_only=True` looks through each pickle before it acts on it.

    Without effect on torch < 2.4, which has no allow-list of users and refuses more.
    """
    import torch

    unpicklers = getattr(torch, "_weights_only_unpickler", None)
    if unpicklers is None or not hasattr(torch.serialization, "get_safe_globals"):
        yield
        return
    original: Any = unpicklers.Unpickler

    class Unpickler(original):
        def __init__(self, file: BinaryIO, **options: Any) -> None:
            begins = file.tell()
            try:
                Scan(file, _user_allowed()).run()
            except (IndexError, KeyError, ValueError) as error:
                raise UnpicklingError("the pickle is damaged") from error
            file.seek(begins)
            super().__init__(file, **options)

    unpicklers.Unpickler = Unpickler
    try:
        yield
    finally:
        unpicklers.Unpickler = original
