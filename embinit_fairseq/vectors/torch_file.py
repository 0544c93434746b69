"""Files written by `torch.save`, read without running anything they carry.

Only tensors and plain data are accepted (`weights_only=True`); torch is imported when a file is opened.
Letters: V rows, D columns.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embinit_fairseq.errors import EmbinitError, VectorFileError
from embinit_fairseq.vectors.compressed import open_zip

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


def load_safely(path: Path, error: type[EmbinitError], what: str, allow: Sequence[type] = ()) -> Any:
    """What `torch.save` wrote to `path`, memory-mapped where the file and torch can; raises `error`.

    Tensors, built-in containers, `Namespace`, numpy's numeric arrays and scalars: whatever else the file names is
    refused, and so is calling these with anything but plain data (`fairseq_compat.plain_data`).

    what: what the file should be, for the message. allow: further classes, which the file may call as it likes.
    """
    import torch

    try:
        from fairseq_compat.plain_data import STAND_INS, plain, swollen_tensor
        from fairseq_compat.scanned_pickles import scanned
    except ImportError as cause:
        raise error(f"{path}: reading it safely needs fairseq_compat; scripts/setup.sh installs it") from cause
    options: dict[str, Any] = {"map_location": "cpu", "weights_only": True}
    start = _start(path, error)
    if start == _ZIP and "mmap" in inspect.signature(torch.load).parameters:  # plain pickles cannot be mapped
        options["mmap"] = True
    if start == _ZIP:
        check_archive(path, error)
    try:
        with _allowed([*STAND_INS, *allow]), scanned():
            loaded = plain(torch.load(str(path), **options))
    except ImportError:
        raise
    except Exception as cause:  # a damaged pickle can raise anything
        raise error(f"{path}: not {what} that can be read safely: {_fault(path, start, cause)}") from cause
    swollen = swollen_tensor(loaded, os.path.getsize(path))
    if swollen:
        name, size = swollen
        raise error(
            f"{path}: {name!r:.80} says that it is a tensor of size {size}, but the file does not hold so many "
            "numbers: it is damaged. Take another file, such as an earlier checkpoint, or copy or download it again"
        )
    return loaded


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
    from fairseq_compat.plain_data import is_whole_zip, refused_in

    another = "give another file, such as an earlier checkpoint of the same folder, or copy or download it again"
    refused = refused_in(cause)
    if refused:
        return (
            f"it holds objects that are not on the allow-list of tensors and plain data (it names {refused}), which "
            "are not executed; save its state dict alone"
        )
    if not start:
        return f"the file is empty; {another}"
    if start == _ZIP and not is_whole_zip(path):
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
def _allowed(types: Sequence[type]):
    """Inside this block torch's safe loader builds these types, and none that others in this process had allowed.

    Without effect on torch < 2.4, which refuses all of them.
    """
    from torch import serialization

    if not hasattr(serialization, "add_safe_globals"):
        yield
        return
    before = serialization.get_safe_globals()
    serialization.clear_safe_globals()
    serialization.add_safe_globals(list(types))
    try:
        yield
    finally:
        serialization.clear_safe_globals()
        serialization.add_safe_globals(before)


#: Bytes of the pickle in an archive: 250 a tensor, 40 a symbol where a dictionary was pickled. torch reads it whole.
LARGEST_PICKLE = 1 << 25


def check_archive(path: Path, error: type[EmbinitError]) -> None:
    """Raise `error` for a zip archive that torch.save did not write, before torch reads it; broken ones are left to it.

    Its tensors are mapped, so that packed bytes would be taken for their numbers, and packed pickles have no bound.
    """
    try:
        with open_zip(str(path)) as archive:
            members = archive.infolist()
    except VectorFileError as cause:
        raise error(str(cause)) from cause
    except (zipfile.BadZipFile, OSError):
        return
    for member in members:
        if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
            raise error(
                f"{path}: {member.filename} in it is compressed ({member.file_size:,} bytes when unpacked), as "
                "torch.save never does it. Take the original file, or load it with torch where you trust it and save "
                "it again."
            )
        if "/data/" not in member.filename and member.file_size > LARGEST_PICKLE:
            raise error(
                f"{path}: {member.filename} in it has {member.file_size:,} bytes, which describe no tensors: the file "
                "is damaged or holds other data. Copy or download it again, or save its state dict alone."
            )
