"""Files written by `torch.save`, read without running anything they carry.

Only tensors and plain data are accepted (`weights_only=True`); torch is imported when a file is opened.
Letters: V rows, D columns.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embinit_fairseq.errors import EmbinitError

if TYPE_CHECKING:
    import torch

_ZIP = b"PK\x03\x04"  # how a file begins that torch.save wrote since 1.6
_PICKLE = b"\x80\x02"  # how one begins that it wrote before


@dataclass(frozen=True)
class TorchMatrix:
    """A two-dimensional floating point tensor of such a file."""

    tensor: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """(V, D)."""
        return self.tensor.shape[0], self.tensor.shape[1]

    def take(self, rows: np.ndarray) -> np.ndarray:
        """The named rows, in the order named: (len(rows), D) float32."""
        import torch

        picked = self.tensor.detach().index_select(0, torch.from_numpy(np.asarray(rows, dtype=np.int64)))
        return np.ascontiguousarray(picked.float().numpy())


def matrices(state: dict[str, Any]) -> dict[str, TorchMatrix]:
    """The two-dimensional floating point tensors of a state dict, by name."""
    import torch

    return {
        name: TorchMatrix(value)
        for name, value in state.items()
        if isinstance(name, str)
        and isinstance(value, torch.Tensor)
        and value.layout == torch.strided
        and value.dim() == 2
        and value.is_floating_point()
    }


def load_safely(path: Path, error: type[EmbinitError], what: str, allow: tuple = ()) -> Any:
    """What `torch.save` wrote to `path`, memory-mapped where the file and torch can; raises `error`.

    what: what the file should be, for the message. allow: further plain-data types (see `plain_types`).
    """
    import torch

    options: dict[str, Any] = {"map_location": "cpu", "weights_only": True}
    start = _start(path, error)
    if start == _ZIP and "mmap" in inspect.signature(torch.load).parameters:  # plain pickles cannot be mapped
        options["mmap"] = True
    try:
        with _allowed(allow):
            return torch.load(str(path), **options)
    except ImportError:
        raise
    except Exception as cause:  # a damaged pickle can raise anything
        raise error(f"{path}: not {what} that can be read safely: {_fault(path, start, cause)}") from cause


def _start(path: Path, error: type[EmbinitError]) -> bytes:
    """The first bytes of the file."""
    try:
        with open(path, "rb") as stream:
            return stream.read(len(_ZIP))
    except OSError as cause:
        raise error(f"{path}: cannot be read ({cause.strerror}); check the path and its permissions") from cause


def _fault(path: Path, start: bytes, cause: Exception) -> str:
    """What is wrong with a file that torch refused, and what to do. torch's own text is not quoted: it recommends the
    unsafe way to load, which would execute what the file says."""
    another = "give another file, such as an earlier checkpoint of the same folder, or copy or download it again"
    named = re.search(r"GLOBAL ([\w.]+)", str(cause))
    if named:
        return (
            f"it holds objects that are not on the allow-list of tensors and plain data (it names {named[1]}), which "
            "are not executed; save its state dict alone"
        )
    if not start:
        return f"the file is empty; {another}"
    if start == _ZIP and not zipfile.is_zipfile(path):
        return f"it was cut short or damaged (not a complete zip archive); {another}"
    if start == _ZIP:
        return (
            f"it is damaged, or it holds objects other than tensors and plain data, which are not executed "
            f"({type(cause).__name__}); {another}, or save its state dict alone"
        )
    if start.startswith(_PICKLE):
        return f"it was cut short or damaged ({type(cause).__name__}); {another}"
    return "this is another kind of file, which torch.save did not write; check the path"


@contextlib.contextmanager
def _allowed(types: tuple):
    """Let torch's safe loader build these types too, inside this block only; without effect on torch < 2.4.

    Not torch's own `safe_globals`: leaving it forgets types that somebody (fairseq_compat) had allowed before.
    """
    from torch import serialization

    if not types or not hasattr(serialization, "add_safe_globals"):
        yield
        return
    before = serialization.get_safe_globals()
    serialization.add_safe_globals(list(types))
    try:
        yield
    finally:
        serialization.clear_safe_globals()
        serialization.add_safe_globals(before)


def plain_types() -> tuple:
    """The plain-data types that fairseq's own checkpoints hold: Namespace, numpy arrays and scalars.

    Checkpoints name numpy's functions by the place they had when they were written (numpy 1 or numpy 2).
    """
    try:
        from numpy._core import multiarray
    except ImportError:  # numpy 1
        from numpy.core import multiarray  # type: ignore[no-redef]
    types: list = [argparse.Namespace, np.ndarray, np.dtype]
    types += {type(np.dtype(code)) for code in "?bBhHiIlLqQefd"}
    for name in ("_reconstruct", "scalar"):
        function = getattr(multiarray, name)
        types.append(function)
        if _takes_names():
            types += [(function, f"{package}.multiarray.{name}") for package in ("numpy.core", "numpy._core")]
    return tuple(types)


def _takes_names() -> bool:
    """Whether torch's allow-list knows (object, name) pairs: since 2.5."""
    from torch import serialization

    return hasattr(serialization, "safe_globals")
