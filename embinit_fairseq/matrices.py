"""Give other rows to arrays, tensors and modules of torch, and return them in the same form."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from embinit_fairseq.errors import OptionError, counted
from embinit_fairseq.init.methods import Recipe, new_rows


class Matrices:
    """Hold matrices and biases that have one row per symbol. Tied ones, which share their numbers, are one table.

    Args:
        matrices: an array, a tensor, a module of torch with a `weight` (N, D) and perhaps a `bias` (N,), or a mapping
            of names to them.
        size: number of symbols.

    Raises:
        OptionError: a matrix has another number of rows, or no numbers that can be changed.
    """

    def __init__(self, matrices: Any, size: int) -> None:
        self._is_one = not isinstance(matrices, Mapping)
        self.by_name: Mapping[str, Any] = {"matrix": matrices} if self._is_one else matrices
        self.tables: dict[str, Any] = {}
        #: name -> parameter of a module ("" for an array or tensor) -> table
        self._places: dict[str, dict[str, str]] = {}
        first: dict[Any, str] = {}
        for name, value in self.by_name.items():
            is_module = hasattr(value, "named_parameters")
            self._places[name] = {}
            for part, table in _parameters(name, value) if is_module else [("", value)]:
                full = f"{name}.{part}" if part else name
                check_table(full, table, size)
                key = _memory(table)
                self._places[name][part] = first.setdefault(key, full)
                self.tables.setdefault(first[key], table)
        if not self.tables:
            raise OptionError("matrices: none; give an array, a tensor, an nn.Embedding, an nn.Linear, or a mapping")

    def changed(self, recipe: Recipe) -> Any:
        """Return the matrices with the new rows, in the same form; tied ones stay tied."""
        made = changed_tables(recipe, self.tables)
        parameters: dict[str, Any] = {}
        result = {}
        for name, places in self._places.items():
            is_module = "" not in places
            result[name] = (
                _module(self.by_name[name], places, made, parameters, recipe) if is_module else made[places[""]]
            )
        return result["matrix"] if self._is_one else result


def _parameters(name: str, module: Any) -> list[tuple[str, Any]]:
    """Return the parameters of a module; raise OptionError unless they are a matrix and perhaps a bias."""
    parameters = list(module.named_parameters(recurse=False))
    dimensions = {part: value.ndim for part, value in parameters}
    if dimensions not in ({"weight": 2}, {"weight": 2, "bias": 1}):
        raise OptionError(
            f"matrices: {name} is a {type(module).__name__}, without a `weight` of two dimensions or with more than a "
            "`bias` next to it; give an nn.Embedding, an nn.Linear, or the tensors"
        )
    return parameters


def _memory(table: Any) -> tuple[Any, ...]:
    """Return a key that is equal for arrays or tensors that share their numbers in memory."""
    if isinstance(table, np.ndarray):
        return "array", table.ctypes.data, table.dtype, table.shape, table.strides
    return "tensor", table.data_ptr(), table.dtype, tuple(table.shape), table.stride()


def _module(layer: Any, tables: Mapping[str, str], made: Mapping[str, Any], parameters: dict[str, Any], recipe: Recipe):
    """Return a copy of `layer` with other rows. parameters: table -> new parameter, for tied modules."""
    import torch

    own = dict(layer.named_parameters(recurse=False))
    for name, table in tables.items():
        parameters.setdefault(table, torch.nn.Parameter(made[table], requires_grad=own[name].requires_grad))
    changed = copy.deepcopy(layer, {id(own[name]): parameters[table] for name, table in tables.items()})
    for attribute in ("num_embeddings", "out_features"):
        if hasattr(changed, attribute):
            setattr(changed, attribute, len(recipe.weights.old_row))
    if getattr(changed, "padding_idx", None) is not None:
        rows = np.flatnonzero(recipe.weights.old_row == changed.padding_idx)
        changed.padding_idx = int(rows[0]) if len(rows) else None
    return changed


def check_table(name: str, value: Any, size: int) -> None:
    """Raise OptionError unless a matrix or bias has `size` rows of numbers that can be changed."""
    is_array = isinstance(value, np.ndarray)
    if not is_array and not hasattr(value, "data_ptr"):
        raise OptionError(f"matrices: {name} is a {type(value).__name__}; give an array, a tensor or a module of torch")
    is_floating = np.issubdtype(value.dtype, np.floating) if is_array else value.is_floating_point()
    if not is_floating or (not is_array and (value.is_meta or value.is_sparse)):
        raise OptionError(
            f"matrices: {name} has {value.dtype} on {getattr(value, 'device', 'cpu')}; give it as float32"
        )
    if value.ndim not in (1, 2) or len(value) != size:
        shape = " x ".join(map(str, value.shape))
        remedy = f", or its first rows, [:{size}], if the others have no symbol" if len(value) > size else ""
        raise OptionError(
            f"matrices: {name} is {shape} for {counted(size, 'symbol')}; give one symbol for each row{remedy}"
        )


def changed_tables(recipe: Recipe, tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return name -> the matrix with the new rows, in its own precision and on its own device.

    Raises:
        OptionError: a row has NaN or infinity, or numbers that the precision cannot hold.
    """
    made = new_rows(recipe, {name: [_readable(value)] for name, value in tables.items()})
    return {name: _with_rows(name, value, recipe, made[name][0]) for name, value in tables.items()}


def _readable(value: Any) -> Any:
    """Return a matrix for NumPy, at least float32."""
    if isinstance(value, np.ndarray):
        return value.astype(np.float32) if value.itemsize < 4 else value
    return value.detach().cpu()


def _with_rows(name: str, value: Any, recipe: Recipe, rows: np.ndarray) -> Any:
    old_row, made = recipe.weights.old_row.clip(min=0), recipe.weights.rows
    if isinstance(value, np.ndarray):
        with np.errstate(over="ignore"):
            new: Any = rows.astype(value.dtype)
        is_finite, result = np.isfinite(new).all(), value[old_row]
        result[made] = new
    else:
        import torch

        new = torch.from_numpy(np.ascontiguousarray(rows)).to(value.device, value.dtype)
        is_finite, result = torch.isfinite(new).all(), value.detach()[torch.from_numpy(old_row).to(value.device)]
        result[torch.from_numpy(made).to(value.device)] = new
    if not is_finite:
        raise OptionError(
            f"matrices: new rows of {name} have NaN or infinity; repair its old rows, or give it as float32"
        )
    return result
