"""Find the tensors of a model with one row per symbol: embedding matrices, output layers, output biases.

Names and numbers of rows prove nothing (a dimension may equal the number of symbols). So the model is built again with
one symbol more, and the tensors that became longer belong to the dictionary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from fairseq.models import FairseqEncoderDecoderModel, FairseqLanguageModel
from torch import Tensor, nn

from embinit_fairseq.errors import CheckpointError

_NORMED = (".weight_g", ".weight_v", ".original0", ".original1")  #: torch's weight norm, old and new


@dataclass(frozen=True)
class SymbolTensor:
    """Hold the names of a tensor with one row per symbol.

    Args:
        names: names in the model; several if the tensor is tied.
        keys: keys in the checkpoint.
        is_output: True if it is not (only) an embedding matrix.
    """

    names: tuple[str, ...]
    keys: tuple[str, ...]
    is_output: bool

    @property
    def name(self) -> str:
        """Return the first name in the model."""
        return self.names[0]

    def keys_in(self, weights: Mapping[str, Any]) -> list[str]:
        """Return the table's keys in a state dict; an average may have names that the checkpoint lacks."""
        return [key for key in dict.fromkeys((*self.keys, *self.names)) if key in weights]


def find_symbol_tensors(
    path: str, model: Any, longer_model: nn.Module, weights: Mapping[str, Tensor], size: int
) -> list[SymbolTensor]:
    """Return the tensors with one row per symbol.

    Args:
        path: the checkpoint, for messages.
        model: the model of the checkpoint.
        longer_model: the model with one symbol more.
        weights: the checkpoint's state dict.
        size: number of symbols.

    Raises:
        CheckpointError: there are none, or a tensor grows with the dictionary in another way.
    """
    longer = longer_model.state_dict()
    tied: dict[int, list[str]] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        shape = tuple(value.shape)
        if shape == longer[name].shape:
            continue
        if name.endswith(_NORMED) or shape[0] != size or longer[name].shape != (size + 1, *shape[1:]) or len(shape) > 2:
            raise CheckpointError(
                f"{path}: {name} does not have one row per symbol: it has the shape {shape} for {size} symbols and "
                f"{tuple(longer[name].shape)} for one more; the vocabulary of a model with --adaptive-softmax-cutoff, "
                "--adaptive-input or weight normalisation (fconv) cannot be changed"
            )
        tied.setdefault(id(value), []).append(name)
    if not tied:
        raise CheckpointError(f"{path}: no tensor of this model has a row for every symbol; there is nothing to change")
    keys = _keys_by_name(model, weights)
    embeddings = embedding_names(model)
    tables = []
    for names in tied.values():
        held = tuple(dict.fromkeys(key for name in names for key in keys.get(name, ())))
        tables.append(SymbolTensor(tuple(names), held, is_output=not embeddings.issuperset(names)))
    return tables


def _keys_by_name(model: Any, weights: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """Return name in the model -> keys in the checkpoint; fairseq renames parameters of older versions."""
    upgraded = dict(weights)
    model.upgrade_state_dict(upgraded)
    by_tensor: dict[int, list[str]] = {}
    for key, value in weights.items():
        by_tensor.setdefault(id(value), []).append(key)
    return {name: by_tensor.get(id(value), []) for name, value in upgraded.items()}


def embedding_names(model: nn.Module) -> set[str]:
    """Return the names of all embedding matrices, of a dictionary or not."""
    return {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Embedding)}


def output_names(model: nn.Module, tables: Sequence[SymbolTensor]) -> set[str]:
    """Return the names of the tables on which logits depend.

    These are the tables that are not only embedding matrices. If none of them is a matrix, they are all tables: the
    model then computes its logits by its embedding matrices.
    """
    shapes = {name: value.dim() for name, value in model.state_dict().items()}
    outputs = {table.name for table in tables if table.is_output}
    return outputs if any(shapes[name] == 2 for name in outputs) else {table.name for table in tables}


def check_tied_copies(
    path: str, tables: Sequence[SymbolTensor], state_dicts: Mapping[str, Mapping[str, Tensor]]
) -> None:
    """Raise CheckpointError unless the copies of each tensor are equal and finite.

    Args:
        path: the checkpoint, for messages.
        tables: the tensors.
        state_dicts: name of an average, "" for the model -> its state dict.
    """
    for average, weights in state_dicts.items():
        of = f"{path}: {average} " if average else f"{path}: "
        for keys in (table.keys_in(weights) for table in tables):
            for key in keys:
                # in parts, since the result takes as much memory as the tensor; <pad>, too, is averaged and read
                if not all(torch.isfinite(part).all() for part in weights[key].split(4096)):
                    raise CheckpointError(
                        f"{of}{key} holds NaN or infinity; name an earlier checkpoint of the training"
                    )
                if not torch.equal(weights[key], weights[keys[0]]):
                    said = f"{keys[0]} and {key} are one tensor in the model, but differ in the file"
                    raise CheckpointError(f"{of}{said}; it is damaged")


def has_softmax(model: nn.Module, tables: Sequence[SymbolTensor], sides: Sequence[str]) -> bool:
    """Return True if the symbols of the dictionary are outputs; some models use their embedding matrix for logits."""
    if len(getattr(model, "classification_heads", ())):  # fine-tuned; the old head is still there, but not in use
        return False
    if isinstance(model, FairseqEncoderDecoderModel):
        return "decoder" in sides
    return isinstance(model, FairseqLanguageModel) or any(table.is_output for table in tables)


def with_rows(old: Tensor, old_row: np.ndarray, new: np.ndarray | float = 0.0) -> Tensor:
    """Return a tensor (new N, ...) with the rows of `old` (old N, ...) that `old_row` names.

    Args:
        old: the old tensor.
        old_row: (new N,) the old row of every row, -1 for a new row.
        new: (k, ...) the new rows, or one number for all of them.
    """
    result = old[torch.from_numpy(old_row).clamp(min=0)]
    made = np.flatnonzero(old_row < 0)
    if len(made):
        values = torch.as_tensor(np.ascontiguousarray(new)).to(old.dtype)
        result[torch.from_numpy(made)] = values
    return result
