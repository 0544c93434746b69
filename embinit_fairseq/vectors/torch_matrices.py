"""Read matrices in the state dicts of torch. Letters: V rows, D columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch


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
