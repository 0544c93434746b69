"""Read files written by `torch.save` without running anything they carry: tensors and plain data only.

torch is imported when a file is opened. Letters: V rows, D columns.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embinit_fairseq.errors import EmbinitError

if TYPE_CHECKING:
    import torch

#: first bytes of a file that torch.save wrote since 1.6, and before
_ZIP, _PICKLE = b"PK\x03\x04", b"\x80\x02"


@dataclass(frozen=True)
class TorchMatrix:
    """A two-dimensional floating point tensor."""

    tensor: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """(V, D)."""
        return self.tensor.shape[0], self.tensor.shape[1]

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return these rows, in this order: (len(rows), D) float32."""
        import torch

        return np.ascontiguousarray(self.tensor.detach()[torch.from_numpy(rows)].float().numpy())


def matrices(state: Mapping[str, Any]) -> dict[str, TorchMatrix]:
    """Return the two-dimensional floating point tensors of a state dict, by name."""
    import torch

    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    return {
        name: TorchMatrix(tensor)
        for name, tensor in tensors.items()
        if tensor.layout == torch.strided and tensor.dim() == 2 and tensor.is_floating_point()
    }


def load_safely(path: Path, error: type[EmbinitError], what: str) -> Any:
    """Return the content that `torch.save` wrote to `path`, memory-mapped if the file and torch allow it.

    Tensors, built-in containers, NumPy's numeric arrays and scalars, and the objects that fairseq stored (`Namespace`,
    meters, omegaconf's configurations) are accepted as data. Everything else that the file names is refused, and so is
    a call of these with anything but plain data (`fairseq_compat.plain_data`).

    Args:
        path: the file.
        error: class of the error for a file that is refused, damaged or missing.
        what: what the file should be, for the message.
    """
    import torch

    try:
        from fairseq_compat.plain_data import TAKE_OUT, allowed, plain, refused_in
    except ImportError as cause:
        raise error(f"{path}: reading it safely needs fairseq_compat; scripts/setup.sh installs it") from cause
    try:
        with open(path, "rb") as stream:
            start = stream.read(len(_ZIP))
    except OSError as cause:
        raise error(f"{path}: cannot be read ({cause.strerror}); check the path and its permissions") from cause
    options: dict[str, Any] = {"map_location": "cpu", "weights_only": True}
    if start == _ZIP and "mmap" in inspect.signature(torch.load).parameters:
        options["mmap"] = True
    try:
        with allowed():
            loaded = plain(torch.load(str(path), **options))
    except ImportError:
        raise
    except Exception as cause:  # a damaged pickle can raise anything
        # torch's own text is not quoted: it recommends the unsafe way to load, which would execute code in the file
        fault = (
            "it is empty, cut short or damaged; give another file, such as an earlier checkpoint of the same folder, "
            "or copy or download it again"
        )
        if refused := refused_in(cause):
            fault = (
                f"it holds objects that are not on the allow-list of tensors and plain data (it names {refused}), "
                f"which are not executed; {TAKE_OUT}"
            )
        elif start and start != _ZIP and not start.startswith(_PICKLE):
            fault = "this is another kind of file, which torch.save did not write; check the path"
        raise error(f"{path}: not {what} that can be read safely: {fault}") from cause
    return loaded
