"""Loads some thousand hostile pickles through torch's allow-list with our stand-ins; run as a program, in a process of
its own: `checkpoint_fuzzer.py COUNT SEED`. What goes wrong here ends the process by a signal, or fills its memory.

Half of the streams are mutations of what fairseq's checkpoints hold, half are programs that call and fill what the
allow-list names with arguments of any kind. Each is an archive as torch.save writes it. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import io
import json
import pickle
import pickletools
import random
import resource
import struct
import sys
import warnings
import zipfile
from collections import Counter, OrderedDict

import numpy as np
import torch
from fairseq_compat.plain_data import STAND_INS, plain, refused_in
from fairseq_compat.scanned_pickles import scanned

#: by which names a stream may call something: all of ours, and those of torch's own list
NAMES = sorted(f"{thing.__module__}\n{thing.__qualname__}\n" for thing in STAND_INS)
OFTEN = ("torch._utils._rebuild_tensor_v2", "collections.OrderedDict", "_codecs.encode", "torch.FloatStorage")
TORCH_NAMES = [
    "{}\n{}\n".format(*name.rsplit(".", 1))
    for name in (*OFTEN * 20, *sorted(torch._weights_only_unpickler._get_allowed_globals()))
]
CALLS = (pickle.REDUCE, pickle.NEWOBJ, pickle.BUILD)


def examples() -> list[bytes]:
    """The pickles of values that checkpoints hold, in the protocol of torch.save."""
    values = [
        {"counts": np.arange(6).reshape(2, 3), "none": np.zeros((0, 2)), "same": [np.ones(2)] * 2},
        {"loss": np.float64(1.5), "half": np.float16(2), "flag": np.bool_(True), "swapped": np.arange(3, dtype=">i4")},
        argparse.Namespace(arch="transformer", lr=[0.1], inner=argparse.Namespace(), array=np.ones(2, order="F")),
        OrderedDict(a=1, b=(np.int32(3), "text", None, b"bytes")),
    ]
    numpy_2 = [pickle.dumps(value, protocol=2) for value in values]
    return numpy_2 + [content.replace(b"numpy._core", b"numpy.core") for content in numpy_2]


class Fuzzer:
    """Streams of one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.examples = [list(self.split(content)) for content in examples()]

    @staticmethod
    def split(content: bytes) -> list[bytes]:
        """A pickle's opcodes with their arguments, without those that begin and end it."""
        starts = [at for _, _, at in pickletools.genops(content)] + [len(content)]
        return [content[at:end] for at, end in zip(starts, starts[1:])][1:-1]

    def stream(self) -> bytes:
        body = self.mutated() if self.random.random() < 0.5 else self.program()
        return pickle.PROTO + b"\x02" + b"".join(body) + pickle.STOP

    def mutated(self) -> list[bytes]:
        parts = list(self.random.choice(self.examples))
        for _ in range(self.random.randint(1, 6)):
            at, other = self.random.randrange(len(parts)), self.random.randrange(len(parts))
            kind = self.random.randrange(6)
            if kind == 0:
                del parts[at]
            elif kind == 1:
                parts.insert(at, parts[other])
            elif kind == 2:
                parts[at], parts[other] = parts[other], parts[at]
            elif kind == 3:
                parts[at : at + 1] = [self.value()]
            elif kind == 4:
                parts[at : at + 1] = [self.name()]
            else:
                parts.insert(at, self.random.choice(CALLS))
            parts = parts or [pickle.NONE]
        return parts

    def program(self) -> list[bytes]:
        """Something is called with a tuple, then given states."""
        call = self.random.choice((pickle.REDUCE, pickle.REDUCE, pickle.NEWOBJ))
        parts = [self.name(), self.tuple(), call]
        for _ in range(self.random.randint(0, 3)):
            parts += [self.state(), pickle.BUILD]
        return parts

    def name(self) -> bytes:
        names = NAMES if self.random.random() < 0.8 else TORCH_NAMES
        return pickle.GLOBAL + self.random.choice(names).encode()

    def state(self) -> bytes:
        kind = self.random.randrange(4)
        if kind == 0:  # as an array's
            shape = self.tuple_of([self.number() for _ in range(self.random.randint(0, 3))])
            return self.tuple_of([self.number(), shape, self.dtype(), pickle.NEWFALSE, self.bytes()])
        if kind == 1:  # as a dtype's
            order = self.text(self.random.choice("<>=|OV"))
            return self.tuple_of([self.number(), order, *(self.value() for _ in range(3)), *[self.number()] * 3])
        if kind == 2:
            return b"}(" + self.value() + self.value() + b"u"
        return self.value()

    def value(self, depth: int = 0) -> bytes:
        makers = [self.number, self.bytes, self.name, self.dtype, lambda: pickle.NONE, lambda: pickle.NEWTRUE]
        makers += [
            lambda: self.text(self.random.choice(["O", "f8", "V8", "O4", "i4,O", "__class__", "x", "M8[s]", "U9", "f"]))
        ]
        if depth < 3:
            makers += [lambda: self.tuple(depth + 1), lambda: b"](" + self.value(depth + 1) + b"e"]
            makers += [lambda: self.name() + self.tuple(depth + 1) + pickle.REDUCE]
        return self.random.choice(makers)()

    def tuple(self, depth: int = 0) -> bytes:
        return self.tuple_of([self.value(depth) for _ in range(self.random.randint(0, 5))])

    @staticmethod
    def tuple_of(parts: list[bytes]) -> bytes:
        return pickle.MARK + b"".join(parts) + pickle.TUPLE

    def dtype(self) -> bytes:
        code = self.random.choice(["f8", "i4", "b1", "O", "O8", "V16", "U4", "S1", "f4,O", "M8[ns]", "f16", "i1"])
        return (
            pickle.GLOBAL + b"numpy\ndtype\n" + self.tuple_of([self.text(code), pickle.NEWFALSE, pickle.NEWTRUE]) + b"R"
        )

    @staticmethod
    def text(text: str) -> bytes:
        return pickle.BINUNICODE + struct.pack("<I", len(text)) + text.encode()

    def bytes(self) -> bytes:
        content = self.random.choice(["", "A" * 8, "A" * 64, "\x00" * 16, "\xff" * 4])
        encode = pickle.GLOBAL + b"_codecs\nencode\n"
        return encode + self.tuple_of([self.text(content), self.text("latin1")]) + pickle.REDUCE

    def number(self) -> bytes:
        number = self.random.choice([0, 1, 1, 3, 8, -1, 63, 2**31 - 1, 2**31, 2**62, 2**63, -(2**63), 10**30])
        return pickle.dumps(number, protocol=2)[2:-1]


def archive(stream: bytes) -> io.BytesIO:
    """As torch.save writes it; the prefix of the names is the one that torch expects."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as target:
        target.writestr("archive/data.pkl", stream)
        target.writestr("archive/data/0", bytes(16))
        target.writestr("archive/byteorder", "little")
        target.writestr("archive/version", "3\n")
    file.seek(0)
    return file


def touch(value, seen: set[int]) -> None:
    """Look at everything that came out, as whoever prints, copies or computes with it would."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, np.ndarray):
        assert (type(value), value.dtype.kind in "biuf") == (np.ndarray, True)
        value.copy().sum()
    elif isinstance(value, argparse.Namespace):
        touch(vars(value), seen)
    elif isinstance(value, dict):
        for key, part in value.items():
            touch(key, seen)
            touch(part, seen)
    elif isinstance(value, (list, tuple)):
        for part in value:
            touch(part, seen)


def peak() -> int:
    """Bytes of memory that this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(count: int, seed: int) -> None:
    warnings.simplefilter("ignore")
    torch.serialization.add_safe_globals(STAND_INS)
    fuzzer, outcomes, first = Fuzzer(seed), Counter(), peak()
    for number in range(count):
        stream = fuzzer.stream()
        print(number, stream.hex(), file=sys.stderr, flush=True)  # the last line is what ended the process
        try:
            with scanned():
                loaded = torch.load(archive(stream), weights_only=True)
            touch(plain(loaded), set())
            outcomes["loaded"] += 1
        except AssertionError:
            raise
        except Exception as error:
            outcomes["refused" if refused_in(error) else "damaged"] += 1
    print(json.dumps({"count": count, "outcomes": outcomes, "grown": peak() - first}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
