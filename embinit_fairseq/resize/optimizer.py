"""Give an optimizer's state other rows: moments, Adafactor's factors, one flat vector in half-precision training.

torch's and fairseq's optimizers number parameters by their order, and keep tensors of the shape of each parameter.
fairseq restores the number of updates and the learning-rate schedule only together with this state. A state of unknown
form is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from embinit_fairseq.resize.symbol_tensors import embedding_names, with_rows

_MOST_FROZEN = 4  #: largest number of frozen embedding matrices of a model


class UnknownStateError(Exception):
    """Signal an optimizer's state of unknown form; the message is the reason."""


#: (name, shape) of every parameter in the optimizer's order
Parameters = Sequence[tuple[str, tuple[int, ...]]]


def resize_optimizer(
    state: Mapping[str, Any], model: nn.Module, tables: Collection[str], old_row: np.ndarray
) -> dict[str, Any]:
    """Return fairseq's `last_optimizer_state` for tables with other rows; moments of new rows are zeros.

    New rows of Adafactor's factored second moments are their mean: with zeros, its first steps would be as large as
    1 / sqrt(1 - beta2).

    Args:
        state: the old state.
        model: the old model, whose parameters the optimizer counts.
        tables: names of the parameters with one row per symbol.
        old_row: (new N,) the row map.

    Raises:
        UnknownStateError: the state has an unknown form.
    """
    groups, moments = state.get("param_groups"), state.get("state")
    if not isinstance(groups, list) or not isinstance(moments, dict) or not all(type(key) is int for key in moments):
        raise UnknownStateError("the state of its optimizer is of several or unknown ones")
    parameters = [(name, tuple(value.shape)) for name, value in model.named_parameters()]
    count = sum(len(group["params"]) for group in groups)
    if count == 1 and len(parameters) > 1:
        return {**state, "state": {key: _flat(held, parameters, tables, old_row) for key, held in moments.items()}}
    trained = _trained(parameters, count, moments, tables, embedding_names(model))
    resized = {
        key: _moments(held, trained[key][1], old_row) if key < len(trained) and trained[key][0] in tables else held
        for key, held in moments.items()
    }
    return {**state, "state": resized}


def _trained(
    parameters: Parameters,
    count: int,
    moments: Mapping[int, Mapping[str, Any]],
    tables: Collection[str],
    embeddings: Collection[str],
) -> Parameters:
    """Return the parameters that the optimizer counts: all, or all but frozen tables. A criterion's may follow.

    The choice must agree with the shapes of the moments. If several choices agree, they must have equal table indices.
    """
    freezable = [name for name, _ in parameters if name in tables or name in embeddings]
    fitting: list[Parameters] = []
    for number in range(min(len(freezable), _MOST_FROZEN) + 1):
        for frozen in itertools.combinations(freezable, number):
            trained = [parameter for parameter in parameters if parameter[0] not in frozen]
            if len(trained) <= count and _agree(trained, moments):
                fitting.append(trained)
        if fitting:
            break
    places = [[(key, shape) for key, (name, shape) in enumerate(trained) if name in tables] for trained in fitting]
    if not places or any(place != places[0] for place in places):
        raise UnknownStateError("the state of its optimizer is not that of the model's parameters")
    return fitting[0]


def _agree(parameters: Parameters, moments: Mapping[int, Mapping[str, Any]]) -> bool:
    return all(
        tuple(value.shape) in (parameters[key][1], _factor_shape(name, parameters[key][1]))
        for key, held in moments.items()
        if key < len(parameters)
        for name, value in held.items()
        if _is_moment(value)
    )


def _is_moment(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0


def _factor_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape of a factor of Adafactor's second moments of a matrix: one number per row, or per column."""
    return {"exp_avg_sq_row": shape[:1], "exp_avg_sq_col": shape[1:]}.get(name) if len(shape) == 2 else None


def _moments(held: Mapping[str, Any], shape: tuple[int, ...], old_row: np.ndarray) -> dict[str, Any]:
    """Return the state of one table with other rows."""
    resized = {}
    for name, value in held.items():
        if not _is_moment(value) or (name == "exp_avg_sq_col" and tuple(value.shape) != shape):
            resized[name] = value
        elif name == "exp_avg_sq_row" and tuple(value.shape) != shape:
            resized[name] = with_rows(value, old_row, value.double().mean().item())
        else:
            resized[name] = with_rows(value, old_row)
    return resized


def _flat(
    held: Mapping[str, Any], parameters: Parameters, tables: Collection[str], old_row: np.ndarray
) -> dict[str, Any]:
    """Return the state of one vector of all concatenated parameters; a criterion's parameters may follow."""
    sizes = [int(np.prod(shape)) for _, shape in parameters]
    resized: dict[str, Any] = {}
    for name, value in held.items():
        if not _is_moment(value):
            resized[name] = value
            continue
        if value.dim() != 1 or len(value) < sum(sizes):
            raise UnknownStateError(
                f"its optimizer keeps {name} of {tuple(value.shape)} for {sum(sizes)} numbers of the model; frozen "
                "tables cannot be told apart in it"
            )
        *parts, rest = value.split([*sizes, len(value) - sum(sizes)])
        longer = [
            with_rows(part.view(shape), old_row).reshape(-1) if parameter in tables else part
            for part, (parameter, shape) in zip(parts, parameters)
        ]
        resized[name] = torch.cat([*longer, rest])
    return resized
