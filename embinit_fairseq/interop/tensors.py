"""Tensors of a model under other names, checked, counted and made ready for a safetensors file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from embinit_fairseq.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

#: ordered pairs of (pattern of the beginning of a parameter's name, its replacement, as for `re.sub`)
Names = Sequence[tuple[str, str]]


def rename(tensors: Mapping[str, Tensor], names: Names) -> dict[str, Tensor]:
    """Rename each tensor by the first pattern that fits; tensors that no pattern fits are left out."""
    renamed = {}
    for name, tensor in tensors.items():
        fitting = next((pair for pair in names if re.match(pair[0], name)), None)
        if fitting is not None:
            renamed[re.sub(f"^{fitting[0]}", fitting[1], name)] = tensor
    return renamed


def check_finite(path: str, weights: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError if a parameter holds NaN or infinity."""
    import torch

    for name, value in weights.items():
        if not torch.isfinite(value).all():
            raise CheckpointError(f"{path}: {name} holds NaN or infinity; take an earlier checkpoint of the training")


def parameters_in(tensors: Mapping[str, Tensor], model: Any) -> int:
    """Return the number of the model's parameters that are among the tensors, as fairseq counts them."""
    exported = {value.data_ptr() for value in tensors.values()}
    return sum(value.numel() for value in model.parameters() if value.data_ptr() in exported)


def as_stored(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors as safetensors takes them: contiguous, no two in the same memory."""
    seen: set[int] = set()
    apart = {}
    for name, value in tensors.items():
        whole = value.detach().contiguous()
        apart[name] = whole.clone() if whole.data_ptr() in seen else whole
        seen.add(whole.data_ptr())
    return apart
